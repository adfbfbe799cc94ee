"""What an answer shows of an endpoint holds from then on, and the question is asked again in the way that is known.

A refusal is free, so what it teaches is used within the question; where something was charged, the question fails as
one that may be asked again, with a reservation of its own.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import Pieces
from wordlist import able

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.deadlines import Deadlines, Waits
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.dialect import LENGTHS, Asked, Setup
from hybrid.cloud.dialects.reading import broke_off
from hybrid.cloud.dialects.text_tokens import Spelling
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.dialects.vllm_tokens import CANDIDATES, VllmTokens
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.findings import Findings, Notebook, measured
from hybrid.cloud.metering import REFUSED, lost
from hybrid.cloud.port import Scores
from hybrid.cloud.statuses import meant
from hybrid.cloud.wire import Wire
from hybrid.errors import BadReply, CloudError, MissingCapability, Unreachable
from hybrid.run.retry import Patience
from hybrid.types import NO_USAGE, CloudUsage, Message, Sampling

WORDS = Pieces([*"abcd", "<end>", *(f"<{i}>" for i in range(60))], ends=frozenset({4}))  # more than any list here
SETUP = Setup("m", Spelling(WORDS))
SCORE = ScoreQuestion((0, 1), (2, 3), False, 20, "r", ((2, 4), (3, 5)))
CHECK = replace(SCORE, candidates=())
WRITE = WriteQuestion((0, 1), 4, 20, Sampling(), "r", turns=(Message("user", "cab"),))
# What vLLM 0.32's two model runners answer, word for word.
V1 = f"{CANDIDATES} requires the V2 model runner (VLLM_USE_V2_MODEL_RUNNER=1). (parameter={CANDIDATES})"
TOO_MANY = "Requested {what} logprobs of {k}, which is greater than max allowed: {most} (parameter={field}, value={k})"
DIALECTS = [Vllm(SETUP), VllmTokens(SETUP), able(Completions(SETUP), most_k=None), able(Chat(SETUP), most_k=None)]


def logprobs_of(body):
    """How many log-probabilities a body asks for, in any of these dialects' words; and in which field."""
    drawn = body.get("sampling_params", body)
    fields = ("prompt_logprobs", "top_logprobs", "logprobs")
    return next(((name, drawn[name]) for name in fields if isinstance(drawn.get(name), int)), ("logprobs", 0))


@dataclass
class Server:
    """A wire to a server that is one of these in what it gives; ``bodies`` are what it was asked, in order.

    ``lacks``: what streams do not have, or whole answers: "streams", "everything".
    """

    most: int = 1000
    names_it: bool = True
    v1: bool = False
    lacks: str = ""
    bodies: list = field(default_factory=list)
    url: str = "http://there"

    @contextmanager
    def discreet(self):
        yield

    def waits(self, asked_at=None, leaving=None):
        return Waits(Deadlines(), self.url, asked_at)

    def refusal(self, body):
        name, k = logprobs_of(body)
        if self.v1 and CANDIDATES in body.get("sampling_params", {}):
            return V1
        if k > self.most:
            what = "prompt" if name == "prompt_logprobs" else "sample"
            said = TOO_MANY.format(what=what, k=k, most=self.most, field=name)
            return said if self.names_it else "too many logprobs"
        return None

    async def post(self, path, body, *_, **__):
        self.bodies.append(body)
        if said := self.refusal(body):
            raise meant(400, f"{self.url} answered 400: {said}", said)
        return answer(path, body, bare=self.lacks == "everything")

    async def stream(self, path, body, *_, **__):
        self.bodies.append(body)
        if said := self.refusal(body):
            yield {"error": {"message": said, "type": "BadRequestError", "code": 400}}
            return
        yield answer(path, body, bare=bool(self.lacks))


def answer(path, body, *, bare):
    """One token "c", and the rows of a draft "cd" where they are asked for."""
    k = logprobs_of(body)[1]
    drawn = body.get("sampling_params", body)
    row = {"2": {"logprob": -0.1, "rank": 1}, "3": {"logprob": -4.0, "rank": 2}}
    listed = [{"token_id": 2, "logprob": -0.1, "rank": 1}, {"token_id": 3, "logprob": -4.0, "rank": 2}][:k]
    texts = [{"token": "c", "bytes": [99], "logprob": -0.1}, {"token": "d", "bytes": [100], "logprob": -4.0}][:k]
    choice = {"text": "c", "finish_reason": "length"}
    if "chat" in path:
        choice["delta"] = {"content": "c"}
        choice["logprobs"] = {"content": [texts[0] | {"top_logprobs": texts}]} if texts else None
    elif "generate" in path:
        choice |= {
            "token_ids": [2],
            "logprobs": {"content": [listed[0] | {"top_logprobs": listed}]} if listed else None,
        }
    elif isinstance(body["prompt"], str):
        choice["logprobs"] = {"tokens": ["c"], "token_logprobs": [-0.1], "top_logprobs": [{"c": -0.1}]} if k else None
    else:
        tops = {"tokens": ["c"], "token_logprobs": [-0.1], "top_logprobs": [{"token_id:2": -0.1}]}
        choice |= {"token_ids": [2], "logprobs": tops if k else None}
    rows = {"prompt_logprobs": [None, row, row, row] if "prompt_logprobs" in drawn else None}
    if bare:
        choice |= {"logprobs": None} | ({} if "generate" in path else {"token_ids": None})
    told = {"choices": [choice | rows], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
    return told | rows


def endpoint(server, dialect, notebook=None):
    made = Endpoint(server, words=WORDS, notebook=notebook)
    made.dialect, made._model = dialect, "m"
    return made


def asked(made, *questions):
    """Ask one after the other; return what came of each: scores, chunks or an error."""

    async def run():
        found = []
        for question in questions:
            try:
                if isinstance(question, ScoreQuestion):
                    found.append(await made.score(question))
                else:
                    found.append([chunk async for chunk in made.write(question)])
            except CloudError as error:
                found.append(error)
        return found

    return asyncio.run(run())


# ---- how many log-probabilities ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
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
    for told in asked(made, question, question):
        usage = told.usage if isinstance(told, Scores) else [chunk.usage for chunk in told if chunk.usage][-1]
        assert (usage.completion_tokens, usage.requests) == (1, 1), "what was refused is not charged"
    refused = [logprobs_of(body)[1] for body in server.bodies[:-2]]
    assert all(length > most for length in refused)
    assert len(refused) <= (1 if names_it else len(LENGTHS))
    assert [logprobs_of(body)[1] for body in server.bodies[-2:]] == [expected, expected]
    assert made.can.most_k == (None if expected == k else expected)


@pytest.mark.parametrize("question", [SCORE, WRITE], ids=["check", "stream"])
def test_a_server_that_gives_no_list_at_all_is_refused_at_no_charge(question):
    server = Server(most=0, names_it=False)
    [refused] = asked(endpoint(server, Vllm(SETUP)), question)
    assert isinstance(refused, MissingCapability)
    assert lost(refused, CloudUsage(9, 9)) == NO_USAGE
    assert [logprobs_of(body)[1] for body in server.bodies] == [20, 5, 1]


def test_what_a_refusal_names_is_not_believed_where_it_is_no_shorter_list():
    for most in (0, 20, 10**30):
        refused = MissingCapability(f"logprobs: max allowed: {most}", sent=False)
        assert Vllm(SETUP).learned(SCORE, refused).can == Vllm.can


def test_what_was_refused_after_something_was_charged_is_asked_anew_with_a_reservation_of_its_own():
    class AsksTwice(Vllm):
        def _score(self, question):
            yield Asked("/", {})
            yield Asked("/", {}, before=CloudUsage(9, 1))

        def charged(self, question, reply):
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
    assert Patience().allows(again, 1)
    assert made.can.most_k == 5


# ---- candidates ----------------------------------------------------------------------------------------------------


def test_candidates_that_the_model_runner_cannot_score_are_asked_about_once():
    server = Server(v1=True)
    made = endpoint(server, VllmTokens(SETUP))
    told = asked(made, SCORE, SCORE)
    assert [(len(scores.rows), scores.usage.requests) for scores in told] == [(2, 1)] * 2
    assert [CANDIDATES in body["sampling_params"] for body in server.bodies] == [True, False, False]
    assert not made.can.candidates
    assert made.can.most_k is None


def test_candidates_are_asked_about_where_a_server_does_not_refuse_them():
    server = Server()
    [told] = asked(endpoint(server, VllmTokens(SETUP)), SCORE)
    assert isinstance(told, MissingCapability), "it dropped them in silence"
    assert CANDIDATES in server.bodies[0]["sampling_params"]


# ---- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dialect", [Vllm(SETUP), VllmTokens(SETUP), Completions(SETUP), Chat(SETUP)], ids=lambda d: d.name
)
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
    assert made.dialect.learned(WRITE, late) is made.dialect
    assert made.dialect.learned(SCORE, MissingCapability("no rows")) is made.dialect, "a check is no stream"


# ---- several questions at once -------------------------------------------------------------------------------------


class Together(Server):
    """Answers no question before so many have come."""

    def __init__(self, num=2, **gives):
        super().__init__(**gives)
        self._all = asyncio.Barrier(num)
        self._left = num

    async def _met(self):
        if self._left:
            self._left -= 1
            await self._all.wait()

    async def post(self, *put, **more):
        await self._met()
        return await super().post(*put, **more)

    async def stream(self, *put, **more):
        await self._met()
        async for event in super().stream(*put, **more):
            yield event


def asked_together(made, *questions):
    """Ask all at once; return what came of each."""

    async def one(question):
        if isinstance(question, ScoreQuestion):
            return await made.score(question)
        return [chunk async for chunk in made.write(question)]

    async def run():
        return await asyncio.gather(*map(one, questions), return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("gives", "dialect", "question"),
    [
        ({"most": 5}, Vllm(SETUP), CHECK),
        ({"most": 5}, Vllm(SETUP), WRITE),
        ({"most": 20, "names_it": False}, Vllm(SETUP), replace(CHECK, top_k=40)),
        ({"v1": True}, VllmTokens(SETUP), SCORE),
    ],
    ids=["check", "stream", "unnamed", "V1"],
)
def test_questions_that_are_refused_together_are_all_asked_again_in_the_way_that_the_first_has_shown(
    gives, dialect, question
):
    made = endpoint(Together(**gives), dialect)
    told = asked_together(made, question, question)
    assert not [each for each in told if isinstance(each, Exception)]
    assert made.can.most_k == gives.get("most"), "nothing shorter than what is given was settled on"


def test_streams_that_lack_rows_together_all_fail_as_ones_that_may_be_asked_again():
    told = asked_together(endpoint(Together(lacks="streams"), Vllm(SETUP)), WRITE, WRITE)
    assert [each.trouble for each in told] == ["learned", "learned"]


def test_an_answer_does_not_undo_what_another_question_was_shown_meanwhile():
    made = endpoint(Together(v1=True), VllmTokens(SETUP))
    told = asked_together(made, CHECK, SCORE)
    assert [len(scores.rows) for scores in told] == [2, 2]
    assert not made.can.candidates


# ---- what is kept, and what is not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "dialect"), [(Server(most=5), Vllm(SETUP)), (Server(v1=True), VllmTokens(SETUP))], ids=["k", "V1"]
)
def test_findings_that_a_refusal_contradicts_are_forgotten(tmp_path, server, dialect):
    notebook = Notebook(tmp_path / "endpoints.json", "words")
    notebook.write(Findings(server.url, "m", dialect.name, rows=True, most_k=20, way="one request"))
    [told] = asked(endpoint(server, dialect, notebook), SCORE if server.v1 else CHECK)
    assert isinstance(told, Scores)
    assert notebook.read(server.url, "m", dialect.name) is None


def test_what_was_paid_for_to_be_learned_is_kept_for_the_next_command(tmp_path):
    """A stream that was given up counts at its worst: once for an endpoint, not once for a process."""
    notebook = Notebook(tmp_path / "endpoints.json", "words")
    server = Server(lacks="streams")
    first, _ = asked(endpoint(server, Vllm(SETUP), notebook), WRITE, WRITE)
    assert first.trouble == "learned"
    known = notebook.read(server.url, "m", "vllm")
    assert measured(Vllm.can, known) == replace(Vllm.can, streams=False)
    after = endpoint(server, Vllm(SETUP), notebook)
    after.believe(known)
    [told] = asked(after, WRITE)
    assert told[0].ids == (2,)


@pytest.mark.parametrize("error", [BadReply("400: prompt too long", sent=False), Unreachable("500", trouble="busy")])
def test_any_other_failure_teaches_nothing_and_is_raised(error):
    class Failing(Server):
        async def post(self, *_, **__):
            self.bodies.append({})
            raise error

    server = Failing()
    made = endpoint(server, VllmTokens(SETUP))
    assert asked(made, SCORE) == [error]
    assert (len(server.bodies), made.can) == (1, VllmTokens.can)


# ---- what a status means -------------------------------------------------------------------------------------------

WORDS_OF_REFUSALS = ["logprobs: too many", "the context is too long", "Not Found", ""]


@pytest.mark.parametrize("said", WORDS_OF_REFUSALS)
@pytest.mark.parametrize("status", sorted(code for code in REFUSED if code >= 400))
def test_a_refusal_inside_a_reply_is_what_it_is_outside(status, said):
    async def body():
        yield json.dumps({"error": {"message": said}}).encode()

    async def outside():
        wire = Wire("http://there", None, Deadlines())
        transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body()))
        await wire._client.aclose()
        wire._client = httpx.AsyncClient(base_url="http://there", transport=transport)
        try:
            await wire.get("/")
        except CloudError as error:
            return error

    expected = asyncio.run(outside())
    with pytest.raises(CloudError) as inside:
        broke_off({"error": {"message": said, "code": status}})
    assert type(inside.value) is type(expected)
    assert (inside.value.sent, expected.sent, inside.value.trouble) == (False, False, expected.trouble)
