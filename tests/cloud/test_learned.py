"""What an answer shows of an endpoint holds from then on, and the question is asked again in the way that is known.

A refusal is free, so what it teaches is used within the question; where something was charged, the question fails as
one that may be asked again, with a reservation of its own.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from strict_server import (
    CHECK,
    DIALECTS,
    SCORE,
    SETUP,
    WRITE,
    Server,
    asked,
    endpoint,
    logprobs_of,
)

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.dialect import LENGTHS, Post
from hybrid.cloud.dialects.reading import raise_error_in
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.dialects.vllm_tokens import CANDIDATES, VllmTokens
from hybrid.cloud.port import REFUSED, Scores, usage_after_failure
from hybrid.cloud.probe_result import ProbeCache, ProbeResult, apply_result
from hybrid.cloud.wire import Wire
from hybrid.errors import BadReply, CloudError, MissingCapability, Unreachable
from hybrid.run.retrying import RetryPolicy
from hybrid.types import NO_USAGE, CloudUsage

# ---- how many log-probabilities ------------------------------------------------------------------------------------


@each(
    ("dialect", "question"),
    [(dialect, WRITE) for dialect in DIALECTS] + [(dialect, CHECK) for dialect in DIALECTS[:2]],
    ids=[f"{dialect.name} writes" for dialect in DIALECTS] + ["vllm scores", "vllm-tokens scores"],
)
@given(most=st.integers(1, 40), k=st.integers(1, 40), names_it=st.booleans())
def test_a_list_that_is_refused_is_asked_for_again_as_long_as_it_may_be(dialect, question, most, k, names_it):
    """Before a reply or inside one; at no charge, and never more often than there are lengths to try."""
    server = Server(most=most, names_it=names_it)
    made = endpoint(server, dialect)
    question = replace(question, top_k=k)
    lengths = (k, *(length for length in LENGTHS if length < k))
    expected = min(k, most) if names_it else next(length for length in lengths if length <= most)
    for told in each_of(asked(made, question, question)):
        usage = told.usage if isinstance(told, Scores) else [chunk.usage for chunk in told if chunk.usage][-1]
        assert (usage.completion_tokens, usage.requests) == (1, 1), "what was refused is not charged"
    refused = [logprobs_of(body)[1] for body in server.bodies[:-2]]
    assert all(length > most for length in refused)
    assert len(refused) <= (1 if names_it else len(LENGTHS))
    assert [logprobs_of(body)[1] for body in server.bodies[-2:]] == [expected, expected]
    assert made.knowledge.dialect.can.most_k == (None if expected == k else expected)


@each("question", [SCORE, WRITE], ids=["check", "stream"])
def test_a_server_that_gives_no_list_at_all_is_refused_at_no_charge(question):
    server = Server(most=0, names_it=False)
    [refused] = asked(endpoint(server, Vllm(SETUP)), question)
    assert isinstance(refused, MissingCapability)
    assert usage_after_failure(refused, CloudUsage(9, 9)) == NO_USAGE
    assert [logprobs_of(body)[1] for body in server.bodies] == [20, 5, 1]


def test_what_a_refusal_names_is_not_believed_where_it_is_no_shorter_list():
    for most in (0, 20, 10**30):
        refused = MissingCapability(f"logprobs: max allowed: {most}", sent=False)
        assert Vllm(SETUP).learn_from_error(SCORE, refused).can == Vllm.can


def test_what_was_refused_after_something_was_charged_is_asked_anew_with_a_reservation_of_its_own():
    class AsksTwice(Vllm):
        def _score(self, question):
            yield Post("/", {})
            yield Post("/", {}, before=CloudUsage(9, 1))

        def check_usage(self, question, reply):
            return CloudUsage(9, 1)

    class Second(Server):
        async def post(self, *_, **__):
            self.bodies.append({})
            if len(self.bodies) == 2:
                raise MissingCapability("logprobs: max allowed: 5", sent=False)
            return {}

    made = endpoint(Second(), AsksTwice(SETUP))
    [again] = asked(made, SCORE)
    assert isinstance(again, Unreachable)
    assert (again.trouble, again.sent, again.charged) == ("learned", False, CloudUsage(9, 1))
    assert RetryPolicy().allows(again, 1)
    assert made.knowledge.dialect.can.most_k == 5


# ---- candidates ----------------------------------------------------------------------------------------------------


def test_candidates_that_the_model_runner_cannot_score_are_asked_about_once():
    server = Server(v1=True)
    made = endpoint(server, VllmTokens(SETUP))
    told = asked(made, SCORE, SCORE)
    assert [(len(scores.rows), scores.usage.requests) for scores in told] == [(2, 1)] * 2
    assert [CANDIDATES in body["sampling_params"] for body in server.bodies] == [True, False, False]
    assert not made.knowledge.dialect.can.candidates
    assert made.knowledge.dialect.can.most_k is None


def test_candidates_are_asked_about_where_a_server_does_not_refuse_them():
    server = Server()
    [told] = asked(endpoint(server, VllmTokens(SETUP)), SCORE)
    assert isinstance(told, MissingCapability), "it dropped them in silence"
    assert CANDIDATES in server.bodies[0]["sampling_params"]


# ---- streams -------------------------------------------------------------------------------------------------------


@each("dialect", [Vllm(SETUP), VllmTokens(SETUP), Completions(SETUP), Chat(SETUP)], ids=lambda d: d.name)
def test_where_a_stream_lacks_what_a_whole_answer_has_whole_answers_are_asked_for(dialect):
    """LiteLLM passes token ids and log-probabilities on with whole answers alone."""
    server = Server(lacks="streams")
    made = endpoint(server, dialect)
    first, second = asked(made, WRITE, WRITE)
    assert isinstance(first, Unreachable)
    assert (first.trouble, first.sent) == ("learned", True), "what the stream cost is not known"
    [chunk] = [chunk for chunk in second if chunk.ids]
    assert (chunk.ids, chunk.rows[0].best) == ((2,), 2)
    assert chunk.rows[0].logprobs[0] == pytest.approx(-0.1)
    streamed, whole = server.bodies
    assert whole == {name: value for name, value in streamed.items() if name not in {"stream", "stream_options"}}
    assert streamed["stream"] is True


def test_where_whole_answers_lack_it_too_that_is_refused_as_ever():
    first, second = asked(endpoint(Server(lacks="everything"), Vllm(SETUP)), WRITE, WRITE)
    assert first.trouble == "learned"
    assert isinstance(second, MissingCapability)


def test_a_stream_that_has_told_rows_and_then_none_says_nothing_of_streams():
    made = endpoint(Server(), Vllm(SETUP))
    late = MissingCapability("no rows", charged=CloudUsage(2, 1))
    assert made.knowledge.dialect.learn_from_error(WRITE, late) is made.knowledge.dialect
    assert made.knowledge.dialect.learn_from_error(SCORE, MissingCapability("no rows")) is made.knowledge.dialect, (
        "a check is no stream"
    )


# ---- what is kept, and what is not ---------------------------------------------------------------------------------


@each(("server", "dialect"), [(Server(most=5), Vllm(SETUP)), (Server(v1=True), VllmTokens(SETUP))], ids=["k", "V1"])
def test_findings_that_a_refusal_contradicts_are_forgotten(tmp_path, server, dialect):
    probe_cache = ProbeCache(tmp_path / "cache.json", "words")
    probe_cache.write(ProbeResult(server.url, "m", dialect.name, rows=True, most_k=20, scoring_method="one request"))
    [told] = asked(endpoint(server, dialect, probe_cache), SCORE if server.v1 else CHECK)
    assert isinstance(told, Scores)
    assert probe_cache.read(server.url, "m", dialect.name) is None


def test_what_was_paid_for_to_be_learned_is_kept_for_the_next_command(tmp_path):
    """A stream that was given up counts at its worst: once for an endpoint, not once for a process."""
    probe_cache = ProbeCache(tmp_path / "cache.json", "words")
    server = Server(lacks="streams")
    first, _ = asked(endpoint(server, Vllm(SETUP), probe_cache), WRITE, WRITE)
    assert first.trouble == "learned"
    known = probe_cache.read(server.url, "m", "vllm")
    assert apply_result(Vllm.can, known) == replace(Vllm.can, streams=False)
    after = endpoint(server, Vllm(SETUP), probe_cache)
    after.knowledge.apply(known)
    [told] = asked(after, WRITE)
    assert told[0].ids == (2,)


@each("error", [BadReply("400: prompt too long", sent=False), Unreachable("500", trouble="busy")])
def test_any_other_failure_teaches_nothing_and_is_raised(error):
    class Failing(Server):
        async def post(self, *_, **__):
            self.bodies.append({})
            raise error

    server = Failing()
    made = endpoint(server, VllmTokens(SETUP))
    assert asked(made, SCORE) == [error]
    assert (len(server.bodies), made.knowledge.dialect.can) == (1, VllmTokens.can)


# ---- what a status means -------------------------------------------------------------------------------------------

WORDS_OF_REFUSALS = ["logprobs: too many", "the context is too long", "Not Found", ""]


@each("said", WORDS_OF_REFUSALS)
@each("status", sorted(code for code in REFUSED if code >= 400))
def test_a_refusal_inside_a_reply_is_what_it_is_outside(status, said):
    async def body():
        yield json.dumps({"error": {"message": said}}).encode()

    async def outside():
        wire = Wire("http://there", None, Timeouts())
        transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body()))
        await wire._client.aclose()
        wire._client = httpx.AsyncClient(base_url="http://there", transport=transport)
        try:
            await wire.get("/")
        except CloudError as error:
            return error

    expected = asyncio.run(outside())
    with pytest.raises(CloudError) as inside:
        raise_error_in({"error": {"message": said, "code": status}})
    assert type(inside.value) is type(expected)
    assert (inside.value.sent, expected.sent, inside.value.trouble) == (False, False, expected.trouble)
