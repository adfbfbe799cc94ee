"""What an endpoint says that an answer was charged: with every dialect's shape behind it, and whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from cases import each, each_of
from vocabularies import END, WORDS
from wordlist import able

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.bounds import QuestionDeadlines, Timeouts, parse
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.completions import Completions, Together
from hybrid.cloud.dialects.dialect import DialectConfig, Post
from hybrid.cloud.dialects.fireworks import Fireworks
from hybrid.cloud.dialects.llama_cpp_python import LlamaCppPython
from hybrid.cloud.dialects.llama_server import LlamaServer
from hybrid.cloud.dialects.ollama import Ollama
from hybrid.cloud.dialects.sglang import Sglang
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.dialects.vllm import CompletionsScoreReply, Vllm
from hybrid.cloud.dialects.vllm_tokens import GenerateScoreReply, VllmTokens
from hybrid.cloud.discover import DIALECTS as FAMILY_NAMES
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.port import Scores, usage_after_failure
from hybrid.errors import BadReply, CloudError, MissingCapability, Unreachable
from hybrid.types import NO_USAGE, CloudUsage, Message, Sampling

SETUP = DialectConfig("m", TextVocabulary(WORDS))
ROWLESS = able(Vllm(SETUP), rows=False)
SCORE = ScoreQuestion((0, 1), (2,), False, 3)
TURNS = (Message("user", "cab"),)
WRITE = WriteQuestion((0, 1), 4, 1, Sampling(), turns=TURNS)


class Replies:
    """A wire that answers from a list; an exception in it is raised."""

    url = "http://scripted"

    def __init__(self, *replies):
        self.left = list(replies)

    def hide_key(self, error):
        pass

    def question_deadlines(self, asked_at=None, before_send=None):
        return QuestionDeadlines(Timeouts(), "http://there", asked_at)

    async def post(self, *_, **__):
        return self._next()

    async def stream(self, *_, **__):
        while self.left:
            yield self._next()

    def _next(self):
        reply = self.left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def endpoint(dialect, *replies):
    found = Endpoint(Replies(*replies), words=WORDS)
    found.knowledge.dialect = dialect
    return found


def score(dialect, *replies, question=SCORE):
    return asyncio.run(endpoint(dialect, *replies).score(question, "r"))


def write(dialect, *replies, question=WRITE):
    async def read():
        chunks = []
        try:
            async for chunk in endpoint(dialect, *replies).write(question, "r"):
                chunks.append(chunk)  # noqa: PERF401  (what came before an error counts)
        except CloudError as error:
            return chunks, error
        return chunks, None

    return asyncio.run(read())


def last_usage(chunks):
    return [chunk.usage for chunk in chunks if chunk.usage][-1]


# ---- every family's words for a usage ------------------------------------------------------------------------------


def openai(ids, usage, finish="length", **choice):
    told = {"choices": [{"token_ids": ids, "text": "", "finish_reason": finish} | choice]}
    return told | ({} if usage is None else {"usage": usage})


def vllm(prompt, completion):
    return ROWLESS, [openai([2, 3], {"prompt_tokens": prompt, "completion_tokens": completion})]


def llama_server(prompt, completion):
    told = {"tokens": [2, 3], "content": "cd", "stop": True, "stop_type": "limit"}
    row = [{"id": i, "logprob": -0.1, "top_logprobs": [{"id": i, "logprob": -0.1}]} for i in (2, 3)]
    counts = {"tokens_evaluated": prompt, "tokens_predicted": completion}
    return LlamaServer(SETUP), [told | counts | {"completion_probabilities": row}]


def ollama(prompt, completion):
    told = {"response": "cd", "done": True, "done_reason": "length"}
    return able(Ollama(SETUP), rows=False), [told | {"prompt_eval_count": prompt, "eval_count": completion}]


def text(prompt, completion):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    told = {"choices": [{"text": "cd", "finish_reason": "length"}], "usage": usage}
    return able(Completions(SETUP), rows=False), [told]


def chat(prompt, completion):
    told = {"choices": [{"delta": {"content": "cd"}, "finish_reason": "length"}]}
    usage = {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    return able(Chat(SETUP), rows=False), [told, {"choices": []} | usage]


DIALECTS = [vllm, llama_server, ollama, text, chat]


@each("family", DIALECTS, ids=lambda family: family.__name__)
@each("told", [None, 0, -2, 1.5, "2", True, 10**30], ids=repr)
def test_a_usage_that_says_nothing_is_what_is_known(family, told):
    """By its bytes where only a text was sent, and what a chat service wrote by its limit: its tokens are not ours."""
    dialect, replies = family(told, told)
    chunks, error = write(dialect, *replies)
    assert error is None
    written = WRITE.limit if family is chat else 2
    assert last_usage(chunks) == CloudUsage(dialect.max_usage(WRITE).prompt_tokens, written)


@each("family", DIALECTS, ids=lambda family: family.__name__)
def test_a_usage_that_says_too_little_is_raised_to_what_is_known(family):
    """Of a chat service nothing is known but what it tells: a coarser vocabulary has fewer tokens."""
    dialect, replies = family(1, 1)
    assert last_usage(write(dialect, *replies)[0]) == (CloudUsage(1, 1) if family is chat else CloudUsage(2, 2))


@each("family", DIALECTS, ids=lambda family: family.__name__)
def test_a_usage_that_says_more_than_can_be_is_told_as_it_is(family):
    dialect, replies = family(50, 10**9)
    assert last_usage(write(dialect, *replies)[0]) == CloudUsage(50, 10**9)


def test_the_end_that_is_not_shown_was_written():
    hidden = write(ROWLESS, openai([2, 3], {"prompt_tokens": 2, "completion_tokens": 2}, "stop"))[0]
    shown = write(ROWLESS, openai([2, END], {"prompt_tokens": 2, "completion_tokens": 2}, "stop"))[0]
    assert (last_usage(hidden), last_usage(shown)) == (CloudUsage(2, 3), CloudUsage(2, 2))


def test_tokens_beyond_the_limit_were_written():
    chunks, _ = write(ROWLESS, openai([2], None, None), openai([2] * 7, None, None), openai([], None))
    assert last_usage(chunks) == CloudUsage(2, 8)


def row(token):
    return {str(token): {"rank": 1, "logprob": -0.1, "decoded_token": "c"}}


@each("usage", [None, {"prompt_tokens": 0}, {"prompt_tokens": 1, "completion_tokens": None}])
def test_a_check_that_tells_nothing_costs_the_ids_and_the_token_it_wrote(usage):
    """It was a reply that cannot be believed; its rows can."""
    reply = {"choices": [{"prompt_logprobs": [None, row(1), row(2)]}], "usage": usage}
    scores = score(Vllm(SETUP), reply)
    assert (len(scores.rows), scores.usage) == (1, CloudUsage(3, 1))


@each(
    ("choice", "usage"),
    [
        ({"token_ids": [3] * 7}, {"prompt_tokens": 3, "completion_tokens": 7}),
        ({"token_ids": [3] * 7}, None),
        ({"prompt_logprobs": "none"}, {"prompt_tokens": 3, "completion_tokens": 7}),
    ],
)
def test_what_a_reply_shows_and_tells_is_charged_though_its_rows_cannot_be_believed(choice, usage):
    """It wrote more than the one token it was asked for: beyond the reservation, which alone would hide that."""
    asking = ScoreQuestion((0, 1), (2,), True, 3)
    reply = {"choices": [{"prompt_logprobs": [None, row(1), row(2)]} | choice], "usage": usage}
    with pytest.raises(BadReply) as error:
        score(Vllm(SETUP), reply, question=asking)
    assert (error.value.sent, error.value.charged.completion_tokens) == (True, 7)
    assert usage_after_failure(error.value, CloudUsage(3, 1)) == CloudUsage(3, 7)


def written(num):
    return [[-0.1, 2, None]] * num


OVERSHOT = {
    "vllm": (Vllm(SETUP), {"choices": [{"prompt_logprobs": [None, row(1), row(2)], "token_ids": [2] * 6}]}),
    "vllm-tokens": (
        VllmTokens(SETUP),
        {"choices": [{"token_ids": [2] * 6}], "prompt_logprobs": [None, row(1), row(2)]},
    ),
    "sglang": (
        Sglang(SETUP),
        {
            "meta_info": {
                "input_token_logprobs": written(1),
                "input_top_logprobs": [written(1)],
                "output_token_logprobs": written(6),
            }
        },
    ),
    "fireworks": (Fireworks(SETUP), {"choices": [{"logprobs": {"content": [{"token_id": 2}] * 7}}]}),
    "openai-completions": (
        Completions(SETUP),
        {
            "choices": [
                {
                    "text": "abc" + "d" * 6,
                    "logprobs": {
                        "tokens": [*"abcdddddd"],
                        "top_logprobs": [None, *[{each: -0.1} for each in "bcdddddd"]],
                        "text_offset": list(range(9)),
                    },
                }
            ]
        },
    ),
    "llama-server": (
        LlamaServer(SETUP),
        {"tokens": [2] * 6, "content": "", "stop": True, "stop_type": "limit", "completion_probabilities": []},
    ),
}


@each("family", OVERSHOT)
def test_tokens_of_a_check_beyond_those_asked_for_are_charged_whether_it_is_believed_or_not(family):
    dialect, reply = OVERSHOT[family]
    try:
        charged = score(dialect, reply).usage
    except CloudError as error:
        charged = error.charged
    assert charged.completion_tokens == 6


@each("reply", [None, 7, "text", [], [7], {}, {"choices": 7}, {"choices": [7]}], ids=repr)
def test_reading_what_a_reply_charged_trips_over_nothing(reply):
    for name, family in each_of(FAMILY_NAMES.items()):
        dialect = family.build(SETUP)
        assert dialect.check_usage(SCORE, reply) in (NO_USAGE, CloudUsage(0, 0)), name


# ---- what is free --------------------------------------------------------------------------------------------------

NO = {"error": {"message": "no", "type": "BadRequestError", "code": 400}}


@each(
    ("said", "free"),
    [
        (NO, True),
        ({"error": {"message": "no", "code": "422"}}, True),
        ({"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}, True),
        ({"error": {"message": "no", "code": 500, "type": "invalid_request_error"}}, False),
        ({"error": {"message": "no", "code": 408}}, False),
        ({"error": {"message": "no", "code": None, "type": "server_error"}}, False),
        ({"error": "no"}, False),
    ],
    ids=str,
)
def test_a_refusal_as_the_first_event_of_a_stream_is_free(said, free):
    chunks, error = write(ROWLESS, said)
    assert (chunks, error.sent) == ([], not free)


def test_a_refusal_after_an_event_is_none():
    """Even one without a token: the prompt had been read by then."""
    _, error = write(ROWLESS, openai([], None, None), NO)
    assert (error.sent, error.charged) == (True, CloudUsage(2, 0))


def test_what_was_told_before_a_stream_broke_is_known():
    usage = {"prompt_tokens": 90, "completion_tokens": 1}
    _, error = write(ROWLESS, openai([2], usage, None), Unreachable("cut"))
    assert error.charged == CloudUsage(90, 1)


def test_what_is_refused_before_it_is_asked_is_free():
    with pytest.raises(MissingCapability) as refused:
        score(Chat(SETUP))
    assert not refused.value.sent
    for dialect in (Completions(SETUP), Chat(SETUP)):
        _, error = write(dialect, question=replace(WRITE, sampling=Sampling(top_k=5)))
        assert isinstance(error, MissingCapability), dialect
        assert error.charged == NO_USAGE, dialect


class AsksTwice(Vllm):
    """A dialect that asks again what the first reply hides."""

    def min_usage(self, _):
        return CloudUsage(1, 1)

    def max_usage(self, _):
        return CloudUsage(20, 2)

    def charged(self, _, reply):
        return reply

    def _score(self, _):
        usage = yield Post("/", {})
        usage += yield Post("/", {}, before=usage)
        return Scores((), usage)


def test_a_check_is_charged_for_as_many_requests_as_were_answered():
    """Each may have a price of its own."""
    asked = score(AsksTwice(SETUP), CloudUsage(9, 1), CloudUsage(7, 1))
    assert asked.usage == CloudUsage(16, 2, requests=2)


def test_prompts_that_leave_in_one_request_are_charged_for_one():
    prompt = {"tokens": [1], "content": "a", "stop": True, "stop_type": "limit", "tokens_evaluated": 2}
    listed = {"id": 1, "logprob": -0.1, "top_logprobs": [{"id": 1, "logprob": -0.1}]}
    replies = [prompt | {"index": i, "completion_probabilities": [listed]} for i in range(2)]
    asked = score(able(LlamaServer(SETUP), scoring_method="prefixes"), replies, question=replace(SCORE, after=True))
    assert asked.usage == CloudUsage(5, 2, requests=1)


@each("sent", [False, True])
def test_a_refusal_of_a_later_request_leaves_those_before_it_charged(sent):
    """The first was answered; of the second nothing is owed where it was turned away."""
    with pytest.raises(Unreachable) as refused:
        score(AsksTwice(SETUP), CloudUsage(9, 1), Unreachable("no", sent=sent))
    assert (refused.value.sent, refused.value.charged) == (sent, CloudUsage(9, 1))
    with pytest.raises(Unreachable) as first:
        score(AsksTwice(SETUP), Unreachable("no", sent=sent))
    assert (first.value.sent, first.value.charged) == (sent, NO_USAGE)


def test_a_question_that_needs_no_request_costs_nothing():
    """A text that ends inside a character cannot be asked about; no floor makes that cost something."""
    inside = ScoreQuestion((0, 8), (2,), False, 3)
    assert score(Completions(SETUP), question=inside).usage == NO_USAGE
    chunks, _ = write(Completions(SETUP), question=WriteQuestion((0, 8), 4, 3, Sampling()))
    assert [chunk.usage for chunk in chunks] == [NO_USAGE]


@each(("usage", "charged", "reserved"), [
    *[({"prompt_tokens": told, "completion_tokens": 1}, told, told + 16) for told in (12, 2000)],
    *[({"prompt_tokens": told, "completion_tokens": 1}, None, None) for told in (0, "12", float("nan"), 10**400)],
    *[({"total_tokens": total}, charged, None) for total, charged in ((73, 73), (10**6, None))],
    ({"total_tokens": 73, "prompt_tokens": 0, "completion_tokens": 1}, 72, None),
])  # fmt: skip
def test_a_usage_of_a_chat_service_teaches_how_many_tokens_a_conversation_has(usage, charged, reserved):
    """Once, and only what it told: what was booked for want of a count, up to a told total, is no count."""
    ended = {"choices": [{"delta": {"content": "c"}, "finish_reason": "length"}], "usage": usage}
    found = endpoint(able(Chat(SETUP), rows=False))
    before = found.max_usage(WRITE).prompt_tokens

    async def ask():
        found.wire.left = [ended]
        return last_usage([chunk async for chunk in found.write(WRITE, "r")])

    booked = [asyncio.run(ask()) for _ in range(3)]
    assert booked == [CloudUsage(charged or before, usage.get("completion_tokens", WRITE.limit))] * 3
    assert found.max_usage(WRITE).prompt_tokens == (reserved or before)


def test_a_reply_that_cannot_be_believed_keeps_its_reservation():
    with pytest.raises(BadReply) as error:
        score(Vllm(SETUP), {"choices": [{"prompt_logprobs": [None, row(1)]}]})
    assert error.value.sent


REFUSAL = {"error": {"message": "the context is too long", "type": "invalid_request_error", "code": 400}}


@each(
    "dialect",
    [Vllm(SETUP), VllmTokens(SETUP), Completions(SETUP), Fireworks(SETUP), Together(SETUP), LlamaCppPython(SETUP)],
    ids=lambda dialect: dialect.name,
)
def test_a_check_that_is_refused_inside_a_success_is_free_and_says_why(dialect):
    with pytest.raises(BadReply, match="broke off: the context is too long") as error:
        score(dialect, REFUSAL)
    assert usage_after_failure(error.value, dialect.max_usage(SCORE)) == CloudUsage(0, 0)


@each("shape", [CompletionsScoreReply, GenerateScoreReply])
def test_an_error_in_the_place_of_rows_is_read(shape):
    """What a shape does not name is left unread."""
    assert parse(json.dumps(REFUSAL).encode(), "http://there", shape) == REFUSAL
