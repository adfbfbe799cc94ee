"""What real servers said (``recorded/servers``), read by the client's own wire and dialects: it is what the model says.

vLLM with both of its model runners, SGLang, and LiteLLM before vLLM, all over the bundled large model, which llama.cpp
evaluates here. ``tests/end_to_end/record_servers.py`` records them again.
"""

from __future__ import annotations

import pytest
from alike import assert_shown
from cases import each, each_of
from exchanges import Exchanges, replaying
from scenes import SCENES, play

from hybrid.cloud import ScoreQuestion
from hybrid.cloud.port import Scores
from hybrid.errors import BadReply, CloudError, ModelNotFound, NotAnApi
from hybrid.types import NO_USAGE

EVERY = [(server, title) for server, scenes in SCENES.items() for title in scenes]
ASKED = [(server, title) for server, title in EVERY if SCENES[server][title].asks]
TOO_LONG = r"maximum context length|longer than the maximum model length|longer than the model's context length"
# What is refused, with which error and in which words; nothing was computed for any of these.
REFUSED = {
    "too long, whole": (BadReply, TOO_LONG),
    "too long, streamed": (BadReply, TOO_LONG),
    "limit beyond the context": (BadReply, "maximum context length of 1024 tokens"),
    "score": (NotAnApi, "--enable-scale-out"),
}


@pytest.fixture(scope="module")
def said_again(large):
    """Play a scene against its recording: what came of it, and what was asked in which order."""
    played = {}

    def of(server, title):
        if (server, title) not in played:
            exchanges = Exchanges.load(server)
            with replaying(exchanges) as url:
                came = play(SCENES[server][title], url, large.engine)
            assert not exchanges.unknown, (
                "asked in another way than recorded: python tests/end_to_end/record_servers.py"
            )
            played[server, title] = came, exchanges.asked
        return played[server, title]

    return of


def told(exchanges):
    """The prompt, cached and completion tokens that answers say they were charged, read by another hand."""
    sums = [0, 0, 0]
    for exchange in exchanges:
        last = exchange["reply"] if "reply" in exchange else _last(exchange["events"])
        if exchange["status"] != 200 or not isinstance(last, dict):
            continue
        if info := last.get("meta_info"):
            counts = [info[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
        elif usage := last.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            counts = [usage["prompt_tokens"], details.get("cached_tokens") or 0, usage["completion_tokens"]]
        else:
            continue
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
    return tuple(sums)


def _last(events):
    return next((e for e in reversed(events) if e != "[DONE]" and (e.get("usage") or "meta_info" in e)), None)


def answers(server, title, came):
    """Each question with its name and its answer."""
    return list(zip(SCENES[server][title].asks, came.questions, came.answers, strict=True))


@pytest.mark.slow
@each(("server", "title"), ASKED)
def test_every_row_is_the_models_own(said_again, large, server, title):
    """Of drafts and of what is written, candidates by id included; the same rows as llama.cpp's."""
    came, _ = said_again(server, title)
    shown = 0
    for name, question, answer in each_of(answers(server, title, came)):
        if isinstance(answer, CloudError):
            continue
        if isinstance(question, ScoreQuestion):
            rows, ids, start = answer.rows, question.span, question.prefix
            assert len(rows) == question.num_rows, name
        else:
            rows, ids = ([x for chunk in answer for x in getattr(chunk, part)] for part in ("rows", "ids"))
            start = question.prefix
            assert len(ids) == len(rows)
        for i, row in each_of(enumerate(rows), least=0):
            if row is None:
                # After a temperature or a ban SGLang's rows are not the model's; without k nothing was asked for.
                assert question.top_k == 0 or (server == "sglang" and name in {"drawn", "banned"}), name
                continue
            assert_shown(row, large.row((*start, *ids[:i])))
            if name == "candidates" and came.learned.candidates and i < len(ids):
                assert set(question.candidates[i]) <= set(row.ids.tolist())
            shown += 1
    assert shown or all(isinstance(answer, CloudError) for answer in came.answers)


@each(("server", "title"), ASKED)
def test_what_is_written_is_what_the_model_writes(said_again, large, server, title):
    came, _ = said_again(server, title)
    for name, question, answer in each_of(answers(server, title, came)):
        if isinstance(question, ScoreQuestion) or isinstance(answer, CloudError):
            continue
        ids = tuple(token for chunk in answer for token in chunk.ids)
        assert ids
        assert len(ids) <= question.limit
        text = "".join(chunk.text for chunk in answer)
        assert text in {"", b"".join(map(large.engine.piece, ids)).decode()}, "vllm-tokens sends none"
        assert not question.ban & set(ids)
        if name in {"write", "open"}:
            for i, token in each_of(enumerate(ids)):
                assert token == large.row((*question.prefix, *ids[:i])).best, i


@each(("server", "title"), EVERY)
def test_what_is_charged_is_what_the_replies_say(said_again, server, title):
    """The sum over a scene; of a stream that lacked its rows and was left nothing is told."""
    came, exchanges = said_again(server, title)
    usages = []
    for _, _, answer in answers(server, title, came):
        if isinstance(answer, Scores):
            usages.append(answer.usage)
        elif not isinstance(answer, CloudError):
            usages.append(next(chunk.usage for chunk in reversed(answer) if chunk.usage is not None))
    charged = sum(usages, NO_USAGE)
    left = [one for one in exchanges if server == "litellm" and "events" in one]
    expected = told(one for one in exchanges if one not in left)
    assert (charged.prompt_tokens, charged.cached_tokens, charged.completion_tokens) == expected


@each(("server", "title"), ASKED)
def test_what_is_refused_is_refused_in_the_servers_words_and_costs_nothing(said_again, server, title):
    came, _ = said_again(server, title)
    for name, _, answer in each_of(answers(server, title, came)):
        if isinstance(answer, CloudError):
            error, words = REFUSED[name]
            with pytest.raises(error, match=words):
                raise answer
            assert not answer.sent
            assert answer.charged == NO_USAGE


# ---- what is found out, and what answers teach ----------------------------------------------------------------------


@each(
    ("server", "title", "dialect", "same_words"),
    [
        ("vllm_v1", "vllm", "vllm", True),
        ("vllm_v1", "openai-completions", "openai-completions", None),
        ("vllm_v1_plain", "vllm", "vllm", True),
        ("vllm_v2", "vllm-tokens", "vllm-tokens", True),
        ("sglang", "sglang", "sglang", True),
        ("litellm", "hosted_vllm", "openai-completions", None),
    ],
)
def test_each_is_known_for_what_it_is(said_again, server, title, dialect, same_words):
    """By routes of its own, and by its tokenizer; a gateway has neither."""
    can = said_again(server, title)[0].can
    assert (can.dialect, can.model, can.same_words) == (dialect, "large", same_words)
    assert can.max_context == (None if server == "litellm" else 1024)


def test_a_model_that_is_not_served_is_refused_by_name(said_again):
    came, _ = said_again("vllm_v1", "another model")
    with pytest.raises(ModelNotFound, match="does not serve 'other'; it serves large"):
        raise came.refused


def test_a_first_model_runner_is_asked_for_candidates_once(said_again):
    came, asked = said_again("vllm_v1", "vllm-tokens")
    wanting = [one["status"] for one in asked if "prompt_logprob_token_ids" in str(one["body"])]
    assert (came.can.candidates, came.learned.candidates, wanting) == (True, False, [400])


def test_a_second_model_runner_reads_its_cache_for_checks_once_it_has_shown_itself(said_again):
    """Two tokens with a candidate first; where first rows are missing, the check without the cache follows."""
    came, asked = said_again("vllm_v2", "cached checks")
    bodies = [one["body"] for one in asked if one["path"] == "/inference/v1/generate"]
    reads = [body["sampling_params"].get("skip_reading_prefix_cache") is False for body in bodies]
    assert reads == [False, False, True, True, False, True, False]
    assert len(bodies[1]["token_ids"]) == 2
    assert [answer.usage.requests for answer in came.answers] == [1, 2, 2, 2]
    assert all(
        "prompt_logprob_token_ids" in body["sampling_params"] for body, read in zip(bodies, reads, strict=True) if read
    )
    assert came.learned.keeps_cache


@each(
    ("server", "title", "refused"),
    [("vllm_v1", "vllm, refusals", 400), ("vllm_v1", "vllm-tokens, refusals", 400)],
)
def test_a_list_that_is_too_long_is_asked_for_once(said_again, server, title, refused):
    """The refusal names the longest, whole or as the first event of a stream; what comes then has that length."""
    came, asked = said_again(server, title)
    assert came.learned.most_k == 50
    assert sum("greater than max allowed" in str(one.get("reply", one.get("events"))) for one in asked) == 1
    assert [one["status"] for one in asked if "greater than max" in str(one.get("reply"))] == [refused]
    assert all(row.num_listed in {50, 51} for row in came.answers[0].rows)


@each("title", ["hosted_vllm", "text-completion-openai"])
def test_a_gateway_whose_streams_lack_rows_is_asked_for_whole_answers(said_again, title):
    came, asked = said_again("litellm", title)
    assert (came.can.streams, came.learned.streams) == (True, False)
    assert sum("events" in one for one in asked) == 1
    writes = [answer for answer in came.answers if isinstance(answer, list)]
    assert all(row is not None for chunks in writes for chunk in chunks for row in chunk.rows)


def test_cached_tokens_are_told_where_a_flag_says_so(said_again):
    told_of = {}
    for server in ("vllm_v1", "vllm_v1_plain"):
        usages = [one["reply"]["usage"] for one in said_again(server, "vllm")[1] if "usage" in one.get("reply", {})]
        told_of[server] = {usage["prompt_tokens_details"] is None for usage in usages}
    assert told_of == {"vllm_v1": {False}, "vllm_v1_plain": {True}}
