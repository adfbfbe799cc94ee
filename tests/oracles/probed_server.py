"""A server for the probe: a model that is a table, each field one way to be wrong or slow; and a probe of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from wordlist import able

from hybrid.cloud.bounds import QuestionDeadlines, Timeouts
from hybrid.cloud.dialects.dialect import DialectConfig, tells_rows
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.port import Chunk, Scores, max_usage
from hybrid.cloud.probe import Probe
from hybrid.engine import num_shared
from hybrid.errors import MissingCapability, Unreachable
from hybrid.prob import Dense, TopK
from hybrid.types import CloudUsage

V = 40
PREFIX = (3, 1, 4)


def dense(prefix):
    return Dense.from_logits(np.random.default_rng([len(prefix), *prefix]).normal(scale=3, size=V))


@dataclass
class Server:
    """A model that is a table, behind an endpoint; each field is one way to be wrong, or to be less than best."""

    dialect: Vllm = field(default_factory=lambda: able(Vllm(DialectConfig()), candidates=True))
    most: int = 100  # log-probabilities it gives; more is cut short
    refuses_more: bool | str = False  # or refused; "500": in a way that says nothing of why
    bare_streams: bool = False  # its streams have no rows
    shift: int = 0  # its scores are those of so many positions before
    cut: int | None = None  # rows that a score gives
    drift: float = 0.0  # its scores are so far from what it writes by
    decimals: int | None = None
    sampled_rows: bool = False  # rows after the temperature
    cached: bool = True  # says what was cached
    block: int = 1  # tokens of a block: whole ones are cached
    scores_cold: bool = True  # a check reads no cache
    usage_in_chunks: bool = False
    forgets: bool = False  # starts anew instead of going on
    drops_candidates: bool = False
    fault: object = None  # what scoring raises
    knocking: object = None  # what the token-in route's refusal of an empty question raises
    knocked: list = field(default_factory=list)
    now: float = 0.0  # its clock: a written token takes 10 ms, a scored one 2, one before it 1, a check 30 more
    questions: list = field(default_factory=list)
    held: list = field(default_factory=list)  # the texts in its cache
    chats: dict = field(default_factory=dict)  # what its template writes, by the last turn; else it cannot be asked

    @property
    def knowledge(self):
        return self

    wire = knowledge

    def question_deadlines(self):
        return QuestionDeadlines(Timeouts(), "http://there")

    async def get(self, path):
        pass

    async def post(self, path, body, most):
        if "messages" in body:
            ids = self.chats.get(body["messages"][-1]["content"])
            return None if ids is None else {"tokens": [*ids]}
        self.knocked.append(path)
        if self.knocking:
            raise self.knocking
        return {}

    def max_usage(self, question):
        return max_usage(question)

    def row(self, prefix, question, actual=None, heat=1.0, more=(), drift=0.0):
        if self.refuses_more and question.top_k > self.most:
            raise Unreachable("500", trouble="busy") if self.refuses_more == "500" else MissingCapability("logprobs")
        full = dense(prefix)
        if heat != 1.0 and self.sampled_rows:
            full = Dense.from_logits(full.logprobs / heat)
        values = full.logprobs - drift
        if self.decimals is not None:
            values = np.floor(values * 10.0**self.decimals) / 10.0**self.decimals  # down: the sum stays below one
        top = {i: float(values[i]) for i, _ in full.top(min(question.top_k, self.most))}
        named = {i: float(values[i]) for i in more}
        return TopK.from_lists(top, None if actual is None else (actual, float(values[actual])), named)

    def read(self, text, least=0):
        """Read a text, and tell how much of it, ``least`` tokens before its end, was in whole blocks of the cache."""
        shared = max((num_shared(text, held) for held in self.held), default=0)
        self.held.append(text)
        return min(shared, len(text) - 1 - least) // self.block * self.block if self.cached else 0

    async def score(self, question, request_id):
        self.questions.append(question)
        if self.fault:
            raise self.fault
        self.now += 0.030 + 0.002 * len(question.span) + 0.001 * len(question.prefix)
        text = question.prefix + question.span
        rows = []
        for i in range(question.num_rows):
            at = len(question.prefix) + i
            actual = text[at] if at < len(text) else None
            named = question.candidates[i] if i < len(question.candidates) and not self.drops_candidates else ()
            rows.append(self.row(text[: at - self.shift], question, actual, more=named, drift=self.drift))
        cached = self.read(text, len(question.span))
        return Scores(tuple(rows[: self.cut]), CloudUsage(len(text), 1, 0 if self.scores_cold else cached))

    async def write(self, question, request_id):
        self.questions.append(question)
        if self.bare_streams and self.dialect.can.streams:
            self.dialect = able(self.dialect, streams=False)
            raise Unreachable("no rows in a stream", trouble="learned")
        text = question.prefix if not (self.forgets and question.begun) else question.prefix[: -question.begun]
        cached = self.read(question.prefix)
        for n in range(question.limit):
            self.now += 0.010
            token = dense(text).best
            heat = question.sampling.temperature or 1.0
            told = question.top_k and tells_rows(self.dialect.can, question)
            row = self.row(text, question, token, heat) if told else None
            text = (*text, token)
            usage = CloudUsage(len(question.prefix), n + 1, cached)
            last = n + 1 == question.limit
            tell = usage if last or self.usage_in_chunks else None
            yield Chunk((token,), (row,), finish="length" if last else None, usage=tell)


def probed(server, *, leave=None, said=None, **more):
    heard, reserved, settled = [], [], []

    @asynccontextmanager
    async def granted(most):
        reserved.append(most)
        yield settled.append

    probe = Probe(server, PREFIX, (), leave or granted, heard.append, clock=lambda: server.now, **more)
    can = said or replace(server.dialect.can, model="m", max_context=1000, same_words=True)
    found = asyncio.run(probe.run(can, "http://there"))
    assert len(settled) <= len(reserved)
    return found, heard, settled
