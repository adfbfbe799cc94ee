"""llama-server's dialect: golden bodies, replies recorded from xllamacpp 2026.10.11549, and every trap of its own.

The bodies follow ``tools/server/README.md``; the files in ``recorded`` name the server and hold its replies, without
the fields that nobody reads.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from cases import each
from wordlist import WordList, able, drive, opened, recorded

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.bounds import parse
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.llama_server import LlamaServer
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import CloudUsage, Sampling

END, OTHER_END, FIRST_HALF, SECOND_HALF, ZERO, BOTH = 2, 0, 10, 11, 12, 13
PIECES = {
    OTHER_END: b"<|endoftext|>",
    END: b"<|im_end|>",
    FIRST_HALF: b"\xc3",
    SECOND_HALF: b"\xa9",
    ZERO: b"\0",
    BOTH: b"\xc3\xa9",
}
WORDS = WordList([PIECES.get(i, f"w{i} ".encode()) for i in range(400)], (END, OTHER_END))
DIALECT = LlamaServer(DialectConfig("m", TextVocabulary(WORDS)))
PLAIN = {
    "model": "m",
    "return_tokens": True,
    "cache_prompt": True,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
}
SAMPLERS = ["temperature", "min_p", "top_k", "top_p"]


def question_of(name, **changes):
    said, replies = recorded(name)
    said["prefix"], kind = tuple(said["prefix"]), WriteQuestion if "limit" in said else ScoreQuestion
    if kind is WriteQuestion:
        return kind(**said | changes, sampling=Sampling()), replies
    return kind(**said | {"span": tuple(said["span"])} | changes), replies


REPLAY, REPLAYED = question_of("llama_server_replay")
PREFIXES, (LISTED,) = question_of("llama_server_prefixes")
WRITE, EVENTS = question_of("llama_server_write")


def ids_of(rows):
    return [row.ids.tolist() for row in rows]


# ---- what is asked -------------------------------------------------------------------------------------------------


def test_a_draft_is_forced_by_a_grammar_that_names_its_tokens():
    (asked,), _ = drive(DIALECT.score(REPLAY))
    assert asked.path == "/completion"
    assert asked.body == PLAIN | {
        "prompt": [5, 6, 7, 8],
        "n_predict": 3,
        "n_probs": 3,
        "grammar": "root ::= <[27]> <[28]>",
        "samplers": [],
    }


@each(
    ("span", "forced"),
    [
        ((27, END), "<[27]>"),
        ((27, END, 28), "<[27]>"),
        ((27, OTHER_END), "<[27]>"),
        ((27, FIRST_HALF, SECOND_HALF, 28), "<[27]>"),
        ((27, 28, SECOND_HALF), "<[27]> <[28]>"),
        ((27, ZERO, 28), "<[27]>"),
        ((BOTH, 27), f"<[{BOTH}]> <[27]>"),
        ((END,), None),
        ((FIRST_HALF, SECOND_HALF), None),
        ((), None),
    ],
)
def test_what_no_grammar_can_name_is_never_sent_in_one(span, forced):
    """The server ends such a request with "Unexpected empty grammar stack": nothing is left that it could write."""
    (asked,), _ = drive(DIALECT.score(replace(REPLAY, span=span)))
    assert asked.body.get("grammar") == (forced and f"root ::= {forced}")
    num_forced = len(forced.split()) if forced else 0
    assert asked.body["n_predict"] == min(len(span) + 1, num_forced + 1)


def test_without_the_row_after_it_nothing_is_written_after_a_draft():
    (asked,), _ = drive(DIALECT.score(replace(REPLAY, after=False)))
    assert asked.body["n_predict"] == 2


def test_prefixes_are_asked_in_one_request_and_one_alone_is_no_list():
    dialect = able(DIALECT, scoring_method="prefixes")
    (asked,), _ = drive(dialect.score(PREFIXES))
    assert asked.body == PLAIN | {
        "prompt": [[5, 6, 7, 8], [5, 6, 7, 8, 27], [5, 6, 7, 8, 27, 28]],
        "n_predict": 1,
        "n_probs": 3,
        "samplers": SAMPLERS,
    }
    (asked,), _ = drive(dialect.score(replace(PREFIXES, span=())))
    assert asked.body["prompt"] == [5, 6, 7, 8]


def test_a_comparison_lets_the_model_write_as_many_tokens_as_rows_are_due():
    (asked,), _ = drive(able(DIALECT, scoring_method="generate").score(PREFIXES))
    assert asked.body == PLAIN | {"prompt": [5, 6, 7, 8], "n_predict": 3, "n_probs": 3, "samplers": SAMPLERS}


def test_a_write_sends_every_parameter_and_every_sampler_in_vllms_order():
    """By itself the server keeps 40 tokens, a nucleus of 0.95 and min-p 0.05, and penalises if it is told to."""
    sampling = Sampling(temperature=0.7, top_k=9, top_p=0.9, seed=11, min_p=0.02)
    asked, _ = opened(DIALECT.write(WriteQuestion((5, 6), 4, 2, sampling, frozenset({9, 3}))))
    assert asked.stream == "to finish"
    assert asked.body == {
        "model": "m",
        "prompt": [5, 6],
        "n_predict": 4,
        "n_probs": 2,
        "return_tokens": True,
        "cache_prompt": True,
        "samplers": SAMPLERS,
        "temperature": 0.7,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.02,
        "seed": 11,
        "logit_bias": [[3, False], [9, False]],
        "stream": True,
    }


# ---- what is read --------------------------------------------------------------------------------------------------


def replayed(change=lambda _: None, question=REPLAY):
    reply = copy.deepcopy(REPLAYED[0])
    change(reply)
    return drive(DIALECT.score(question), reply)[1]


def test_a_replay_gives_the_unmodified_row_of_every_forced_token_and_the_one_after():
    scores = replayed()
    assert ids_of(scores.rows) == [[347, 295, 87, 27], [15, 28, 347], [347, 223, 272, 0]]
    assert scores.rows[0].num_listed == 3, "the forced token stands beside the list"
    assert scores.rows[0].tail_max == pytest.approx(0.03025, abs=1e-4), "and does not lower the cap"
    assert scores.usage == CloudUsage(4, 3, 0)


def test_what_the_server_had_cached_is_charged_as_cached():
    assert replayed(lambda reply: reply["timings"].update(cache_n=3)).usage == CloudUsage(4, 3, 3)
    assert replayed(lambda reply: reply.pop("timings")).usage == CloudUsage(4, 3, 0), "not told: nothing was"


def entry(reply, i=1):
    return reply["completion_probabilities"][i]


def test_a_probability_of_one_without_a_list_is_missing_and_not_certain():
    """What a server with a draft model of its own says of tokens it took over: the large model's row was dropped."""
    with pytest.raises(BadReply, match="missing, not certain"):
        replayed(lambda reply: entry(reply).update(logprob=0.0, top_logprobs=[]))


def test_probabilities_after_sampling_are_refused():
    said, (reply,) = recorded("llama_server_post_sampling")
    assert reply["completion_probabilities"][0]["prob"] == 1.0, "of a token that the model gives 0.91"
    with pytest.raises(MissingCapability, match="after sampling"):
        drive(DIALECT.score(ScoreQuestion(tuple(said["prefix"]), (), True, 2)), reply)


@each("told", [None, "absent"])
def test_no_rows_at_all_are_a_missing_capability(told):
    def forget(reply):
        reply["completion_probabilities"] = None
        if told:
            del reply["completion_probabilities"]

    with pytest.raises(MissingCapability, match="without log-probabilities"):
        replayed(forget)


@each("written", [[28, 27, 0], [27, 29, 0], [27]])
def test_a_server_that_does_not_write_the_draft_it_is_held_to_cannot_be_asked_so(written):
    """One that knows no grammar writes what it likes: its rows would be those of another text."""

    def rewrite(reply):
        reply["tokens"] = written
        likely = {"logprob": -4.0, "top_logprobs": [{"id": 40, "logprob": -0.1}]}
        reply["completion_probabilities"] = [likely | {"id": i} for i in written]

    with pytest.raises(MissingCapability, match="held to"):
        replayed(rewrite)


def set_entry(**values):
    return lambda reply: entry(reply).update(values)


@each(
    "change",
    [
        set_entry(id=29),
        set_entry(top_logprobs=[{"id": 15, "logprob": float("nan")}]),
        set_entry(logprob=None),
        set_entry(top_logprobs=[{"id": 15, "logprob": 0.5}]),
        set_entry(top_logprobs=[{"id": -1, "logprob": -0.5}]),
        set_entry(top_logprobs=[{"logprob": -0.5}]),
        set_entry(top_logprobs=None),
        lambda reply: reply["completion_probabilities"].pop(),
        lambda reply: reply.update(tokens=["27", "28", "0"]),
        lambda reply: reply.pop("stop"),
        lambda reply: reply.update(stop_type="none"),
        lambda reply: reply.update(error={"code": 500, "message": "slot died", "type": "server_error"}),
    ],
)
def test_a_reply_that_cannot_be_believed_is_refused(change):
    with pytest.raises(BadReply):
        replayed(change)


def test_a_probability_of_zero_is_not_listed():
    """llama.cpp writes it as the least float there is."""
    scores = replayed(lambda reply: entry(reply)["top_logprobs"][2].update(logprob=-3.4028234663852886e38))
    assert scores.rows[1].ids.tolist() == [15, 28]


def over_the_wire(replies):
    return parse(json.dumps(replies).encode(), "http://here")


def test_the_rows_of_several_prompts_are_those_of_their_index_in_whatever_order_they_come():
    """Prompts land in different slots, and the first to be done need not be the first that was asked."""
    expected = [[347, 295, 87], [15, 28, 347], [347, 223, 272]]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        reply = over_the_wire([LISTED[i] for i in order])
        _, scores = drive(able(DIALECT, scoring_method="prefixes").score(PREFIXES), reply)
        assert ids_of(scores.rows) == expected
        assert scores.usage == CloudUsage(15, 3, 12)


@each("reply", [LISTED[:2], [*LISTED, LISTED[0]], [*LISTED[:2], {}], [*LISTED[:2], 5], LISTED[0], {}, [None] * 3])
def test_continuations_that_are_not_those_of_the_prompts_are_refused(reply):
    with pytest.raises(BadReply):
        drive(able(DIALECT, scoring_method="prefixes").score(PREFIXES), reply)


def test_two_continuations_of_one_prompt_are_refused():
    twice = [LISTED[0], LISTED[1], LISTED[1]]
    with pytest.raises(BadReply):
        drive(able(DIALECT, scoring_method="prefixes").score(PREFIXES), twice)


# ---- what is written -----------------------------------------------------------------------------------------------


def read(events, question=WRITE):
    _, reading = opened(DIALECT.write(question))
    return [reading(event) for event in events]


def test_the_end_of_a_text_comes_with_what_it_cost():
    """The end token has an event of its own, and whoever reads it reads no further: its usage would never be seen."""
    first, second, last = read(EVENTS)
    assert (first.ids, first.text, first.finish) == ((16,), ".", None)
    assert (second.ids, second.finish) == ((), None)
    assert (last.ids, last.finish, last.usage) == ((END,), "stop", CloudUsage(34, 2, 0))
    assert ids_of(last.rows) == [[END, 87]]


def test_a_text_that_goes_on_after_what_ends_it_here_loses_nothing():
    chunks = read([EVENTS[1], EVENTS[0], EVENTS[2]])
    assert [token for chunk in chunks for token in chunk.ids] == [END, 16]
    assert [len(chunk.rows) for chunk in chunks] == [0, 2, 0]
    assert chunks[2].usage is not None


def test_an_error_inside_a_stream_is_one():
    with pytest.raises(BadReply, match="slot died"):
        read([EVENTS[0], {"error": {"code": 500, "message": "slot died", "type": "server_error"}}])


# ---- characters of several tokens ------------------------------------------------------------------------------------

# What xllamacpp 2026.10.11549 writes where a grammar asks for "x\u4e2d\u4e2d": the model's tokens are the bytes.
BYTES = {90: b"x", 163: b"\xe4", 119: b"\xb8", 258: b"\xad"}
SPELT = TextVocabulary(WordList([BYTES.get(i, f"w{i} ".encode()) for i in range(400)], (END,)))
CHARACTERS = LlamaServer(DialectConfig("m", SPELT))
WHOLE, STREAMED = recorded("llama_server_characters")[1]


def test_a_stream_names_the_last_token_of_a_character_and_the_others_are_known_by_what_they_spell():
    """They were left out, and what was shown was no character."""
    reading = opened(CHARACTERS.write(WriteQuestion((5,), 6, 2, Sampling())))[1]
    chunks = [reading(event) for event in STREAMED]
    assert [chunk.ids for chunk in chunks] == [(90,), (163, 119, 258), ()]
    assert SPELT.text_of(token for chunk in chunks for token in chunk.ids) == "".join(chunk.text for chunk in chunks)
    first, character, last = (chunk.rows for chunk in chunks)
    assert (ids_of(first), ids_of(character[2:])) == ([[19, 18, 90]], [[28, 2, 258]])
    assert character[:2] == (None, None), "the row is of the last token alone"
    assert (last, chunks[2].usage.completion_tokens) == ((), 6)


def test_a_whole_reply_has_the_row_of_a_character_at_its_last_token():
    question = WriteQuestion((5,), 6, 2, Sampling())
    [chunk] = CHARACTERS.read_completions([question], WHOLE)
    assert chunk.ids == (90, 163, 119, 258, 163, 119)
    assert [row is not None for row in chunk.rows] == [True, False, False, True, False, False]
    scores = CHARACTERS_WRITTEN.score(ScoreQuestion((5,), (90, 163, 119), True, 2))
    next(scores)
    with pytest.raises(StopIteration) as done:
        scores.send(WHOLE)
    assert ids_of(done.value.value.rows) == [[19, 18, 90]], "no row is taken for that of another place"


CHARACTERS_WRITTEN = replace(CHARACTERS, can=replace(CHARACTERS.can, scoring_method="generate"))


@each("tokens", [[90, 163, 258], [258], [90, 163, 119, 258, 90]])
def test_entries_that_fit_no_tokens_are_refused(tokens):
    with pytest.raises(BadReply, match="rows"):
        CHARACTERS.read_completions([WriteQuestion((5,), 6, 2, Sampling())], WHOLE | {"tokens": tokens})
