"""A wire to a server that gives less than was asked for, and says so as vLLM does or not at all; and asking it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from vocabularies import Pieces
from wordlist import able

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.bounds import QuestionDeadlines, Timeouts
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.dialects.vllm_tokens import CANDIDATES, VllmTokens
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.statuses import status_error
from hybrid.errors import CloudError
from hybrid.types import Message, Sampling

WORDS = Pieces([*"abcd", "<end>", *(f"<{i}>" for i in range(60))], ends=frozenset({4}))  # more than any list here
SETUP = DialectConfig("m", TextVocabulary(WORDS))
SCORE = ScoreQuestion((0, 1), (2, 3), False, 20, ((2, 4), (3, 5)))
CHECK = replace(SCORE, candidates=())
WRITE = WriteQuestion((0, 1), 4, 20, Sampling(), turns=(Message("user", "cab"),))
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

    def hide_key(self, error):
        pass

    def question_deadlines(self, asked_at=None, before_send=None):
        return QuestionDeadlines(Timeouts(), self.url, asked_at)

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
            raise status_error(400, f"{self.url} answered 400: {said}", said)
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


def endpoint(server, dialect, probe_cache=None):
    made = Endpoint(server, words=WORDS, probe_cache=probe_cache)
    made.knowledge.dialect = dialect
    return made


def asked(made, *questions):
    """Ask one after the other; return what came of each: scores, chunks or an error."""

    async def run():
        found = []
        for question in questions:
            try:
                if isinstance(question, ScoreQuestion):
                    found.append(await made.score(question, "r"))
                else:
                    found.append([chunk async for chunk in made.write(question, "r")])
            except CloudError as error:
                found.append(error)
        return found

    return asyncio.run(run())
