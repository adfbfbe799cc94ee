"""A world in which every rule can be tried for little: both models in this process, every row kept by its prefix.

Theory of operation. A question is answered by the product itself (``run.client``: the loop, the drafter, the driver,
the verifier, the ledger), over two ports that stand for models: the local engine and the cloud, both over a
``MemoEngine``. So a rule costs only the rows that no rule before it has read. Each request is recorded with the tokens
that were sent and written: what it would have cost is worked out afterwards, under any tariff (``frame.py``).

The law (``tests/bench/test_world.py``): the texts, the requests and the bills are those of the client over the bundled
server, up to near ties (one prefix decoded in two ways).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from hybrid.cloud import (
    BeforeSend,
    Capabilities,
    Chunk,
    ModelQuestion,
    ScoreQuestion,
    Scores,
    WriteQuestion,
    max_usage,
    unrecorded,
)
from hybrid.cloud.dialects.dialect import BAN
from hybrid.defer import CriticNumbers
from hybrid.engine import Cursor, Engine, Worker
from hybrid.engine.llama import Weights
from hybrid.lab.arms import PRICE, Arm
from hybrid.lab.experiments.memo import MemoEngine
from hybrid.partitions.partition_file import load_partition
from hybrid.policy.planning import Planner
from hybrid.prob import UNMEASURED, Dense, Floats, Partition, TopK, warp
from hybrid.record.answer import Answer
from hybrid.record.events import RequestKind, Started
from hybrid.run import AsyncClient, BranchDrawn, Finished, FurtherModel, LocalModel, RequestSettled
from hybrid.run.deferral import BoundPlanner, PlanningContext
from hybrid.run.drafting import CursorCritic
from hybrid.run.text_rows import TextRows, Writer
from hybrid.settings.config import NO_LEDGER, AnswerChoices, Settings
from hybrid.spend import Account, MemoryLedger, Price
from hybrid.types import CloudUsage, Ids, Message, Sampling

# Enough for the longest prompt and answer of the questions; a longer cache only takes memory.
NUM_CONTEXT = 1024
CRITIC = "critic"


@dataclass(frozen=True)
class RecordedRequest:
    """One request: the tokens that were sent, the last ``num_scored`` of them to be scored, and those that came back.

    ``usage`` is what it was charged where nothing is told of a cache.
    """

    kind: RequestKind
    sent: Ids
    num_scored: int
    written: Ids
    usage: CloudUsage


@dataclass(frozen=True)
class WorldAnswer:
    """An answer with its prompt's tokens and every request that was sent for it."""

    prompt: Ids
    answer: Answer
    requests: tuple[RecordedRequest, ...]
    branches: tuple[BranchDrawn, ...] = ()

    @property
    def ids(self) -> Ids:
        """The shown tokens."""
        return tuple(token.id for token in self.answer.tokens)

    @property
    def ended(self) -> bool:
        """Whether the text ended by itself, with a token that is not shown."""
        return self.answer.finish_reason == "stop"


@dataclass(frozen=True)
class TextLoss:
    """What a text loses under the reference at its own prefixes, in nats: one number a token, shape (T,).

    The token that ended the text is the last of them, if the text ended by itself. ``excess``: log P(best) - log
    P(token); ``nll``: -log P(token).
    """

    excess: Floats
    nll: Floats


class World:
    """Both models, and a client over them. Made by ``open_world``; answers one question at a time."""

    has_rows = True
    """Whether both models' rows can be read. Of an endpoint they cannot."""

    def __init__(self, local: MemoEngine, cloud: MemoEngine, worker: Worker, critic: MemoEngine | None = None) -> None:
        """Take the two engines, the thread of the local one, and the engine of a critic, where there is one."""
        self.local, self.cloud, self.critic = local, cloud, critic
        self._reference = Cursor(cloud)
        self._remote = MemoCloud(cloud)
        account = Account(Price.parse(PRICE), MemoryLedger())
        self._planners = ArmPlanners()
        self._client = AsyncClient(
            with_critic([(local, worker)], critic), self._connect, account, world_settings(), planners=self._planners
        )

    async def answer(self, question: str, arm: Arm, sampling: Sampling, max_tokens: int) -> WorldAnswer:
        """Answer a question as an arm does. Raises UsageError for an arm that cannot be."""
        self._remote.sent.clear()
        self._planners.planner = arm.planner
        # As the client does: the prompt at once, the draft token by token. A model of few bits reads them differently.
        self.local.together = len(self.local.render((Message("user", question),)))
        settled: dict[str, RequestSettled] = {}
        prompt: Ids = ()
        branches: list[BranchDrawn] = []
        async for event in self._client.stream(question, **answer_choices(arm, sampling, max_tokens)):
            match event:
                case Started():
                    prompt = event.prompt
                case RequestSettled():
                    settled[event.request_id] = event
                case BranchDrawn():
                    branches.append(event)
                case Finished():
                    return WorldAnswer(prompt, event.answer, self._recorded(settled), tuple(branches))
        msg = "an answer ended without being finished"
        raise RuntimeError(msg)

    async def text_rows(self, question: str, writer: Writer, max_tokens: int) -> TextRows:
        """Return one model's answer with both models' rows along it, as a label is bought."""
        self.local.together = len(self.local.render((Message("user", question),)))
        return await self._client.text_rows(question, writer, max_tokens=max_tokens)

    def loss(self, answered: WorldAnswer) -> TextLoss:
        """Return what an answer's text loses under the reference."""
        return text_loss(self._reference, self.cloud.end_ids, answered.prompt, answered.ids, ended=answered.ended)

    def rows(self, prompt: Ids, text: Ids) -> tuple[list[Dense], list[Dense]]:
        """Return both models' rows before each token of a text: the local model's, the reference's."""
        at = prompt + text[:-1]
        return Cursor(self.local, UNMEASURED).rows(at, len(text)), Cursor(self.cloud).rows(at, len(text))

    def critic_numbers(self, prompt: Ids, text: Ids, local: Sequence[Dense]) -> CriticNumbers | None:
        """Return what the critic says of each token of a text, given the local model's rows; None: there is none."""
        return None if self.critic is None else CursorCritic(Cursor(self.critic), prompt).numbers((), text, local)

    def local_row(self, at: Ids) -> Dense:
        """Return the local model's row after some tokens, the prompt's among them."""
        return Cursor(self.local, UNMEASURED).row(at)

    def cloud_row(self, at: Ids) -> Dense:
        """Return the reference's row after some tokens, the prompt's among them."""
        return Cursor(self.cloud).row(at)

    def forget(self) -> None:
        """Forget a question's rows."""
        for engine in (self.local, self.cloud, self.critic):
            if engine is not None:
                engine.forget()

    async def aclose(self) -> None:
        """Stop answering."""
        await self._client.aclose()

    async def _connect(self, asked_at: float) -> tuple[MemoCloud, Capabilities]:  # noqa: ARG002  (the port's shape)
        return self._remote, await self._remote.connect("", ())

    def _recorded(self, settled: dict[str, RequestSettled]) -> tuple[RecordedRequest, ...]:
        """Return the requests in the order in which they were sent; what was settled tells what each was charged."""
        known = ((settled[name], sent) for name, sent in self._remote.sent.items())
        return tuple(
            RecordedRequest(event.kind, sent.text, sent.num_scored, tuple(sent.written), event.usage)
            for event, sent in known
            if event.usage is not None
        )


def with_critic(contexts: Sequence[tuple[Engine, Worker]], critic: Engine | None) -> LocalModel:
    """Return a local model of one context, with a critic beside it, where there is one."""
    others = {} if critic is None else {CRITIC: FurtherModel([critic], UNMEASURED)}
    partition = partial(_kept_partition, contexts[0][0])
    return LocalModel(
        contexts, UNMEASURED, others=others, critic=None if critic is None else CRITIC, partition=partition
    )


def _kept_partition(engine: Engine) -> Partition:
    """Read which tokens say the same, as it is kept for a context's vocabulary. Raises UsageError where nothing is."""
    weights: Weights = engine.weights  # type: ignore[attr-defined]  # a context of llama.cpp, or a memo over one
    return load_partition(None, weights.vocabulary_digest, weights.num_tokens)


class ArmPlanners:
    """Where a world's planners come from: the arm that answers. Nothing is learned, and nothing read from a disk."""

    def __init__(self) -> None:
        """Begin without a planner."""
        self.planner: Planner | None = None

    @property
    def drifts(self) -> bool | None:
        """Nobody watches."""
        return None

    def sent(self, prompt: Ids) -> None:
        """Hear nothing."""

    async def times(self, can: Capabilities) -> None:
        """No probe has measured a world."""

    async def bind(self, asked: PlanningContext) -> BoundPlanner:  # noqa: ARG002  (the port's shape)
        """Return the arm's planner. Raises ValueError where it has none."""
        if self.planner is None:
            msg = "an arm of a world decides by its own planner, or by none"
            raise ValueError(msg)
        return BoundPlanner(self.planner)

    def learn(self, bound: BoundPlanner) -> None:
        """Learn nothing."""

    async def aclose(self) -> None:
        """Nothing is kept."""


def text_loss(reference: Cursor, end_ids: frozenset[int], prompt: Ids, text: Ids, *, ended: bool) -> TextLoss:
    """Return what a text loses under the reference. The token that ends a text is the likeliest such."""
    num = len(text) + ended
    if not num:
        return TextLoss(np.zeros(0), np.zeros(0))
    rows = reference.rows(prompt + text[: num - 1], num)
    ends = np.array(sorted(end_ids), dtype=np.int64)
    pairs = zip(rows, text + (-1,) * ended, strict=True)
    scores = np.array([row.logits[ends].max() if token < 0 else row.logits[token] for row, token in pairs])
    best, totals = np.array([row.logits.max() for row in rows]), np.array([row.log_total for row in rows])
    return TextLoss((best - scores).astype(np.float64), totals - scores)


@dataclass
class SentRequest:
    """What came in with a request, and what has been written for it so far."""

    text: Ids
    num_scored: int
    written: list[int]


class MemoCloud:
    """A cloud that reads its rows from a ``MemoEngine``. It draws as the bundled server does, and tells no cache."""

    def __init__(self, engine: MemoEngine) -> None:
        """Take the reference."""
        self._engine = engine
        self._cursor = Cursor(engine)
        self.sent: dict[str, SentRequest] = {}
        """Every request since this was last emptied, by its id."""

    async def connect(  # the port's shape
        self,
        probe: str,  # noqa: ARG002
        probe_ids: Ids,  # noqa: ARG002
        asked_at: float | None = None,  # noqa: ARG002
    ) -> Capabilities:
        """Say that it can do what the bundled server can."""
        return Capabilities("reference", "vllm", self._engine.num_context, same_words=True, keeps_cache=False)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """One request by ids."""
        return max_usage(question)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score a draft."""
        await before_send()
        text = question.prefix + question.span
        self.sent[request_id] = SentRequest(text, len(question.span), [])
        read = text if question.after else text[:-1]
        dense = self._cursor.rows(read, question.num_rows) if question.num_rows else []
        actual = (*question.span, *[None] * question.after)
        rows = tuple(shown_row(row, question.top_k, token) for row, token in zip(dense, actual, strict=True))
        return Scores(rows, CloudUsage(len(text), 1))

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Write until an end token or the limit."""
        await before_send()
        sent = self.sent[request_id] = SentRequest(question.prefix, 0, [])
        rng = default_rng(question.sampling.seed)
        text, end_ids = question.prefix, self._engine.end_ids
        limit = min(question.limit, self._engine.num_context - len(text))
        for number in range(1, limit + 1):
            row = self._cursor.row(text)
            token = _draw(row, question, rng)
            sent.written.append(token)
            text = (*text, token)
            shown = shown_row(row, question.top_k, token) if question.top_k else None
            if token in end_ids or number == limit:
                finish: Any = "stop" if token in end_ids else "length"
                yield Chunk((token,), (shown,), finish=finish)
                yield Chunk(usage=CloudUsage(len(question.prefix), number))
                return
            yield Chunk((token,), (shown,))

    async def aclose(self) -> None:
        """Nothing to close."""


def shown_row(row: Dense, top_k: int, actual: int | None) -> TopK:
    """Return what an endpoint shows of a row. Nobody has measured its noise."""
    return TopK.from_dense(Dense(row.logits, row.log_total, UNMEASURED), top_k, actual)


def _draw(row: Dense, question: WriteQuestion, rng: Generator) -> int:
    """Draw a token as the bundled server does, with its random numbers."""
    if question.ban:
        scores: NDArray[np.float64] = row.logits.astype(np.float64)
        scores[sorted(question.ban)] += BAN
        row = Dense.from_logits(scores)
    if question.sampling.greedy:
        return row.best
    return int(rng.choice(row.num_tokens, p=warp(row, question.sampling).probs))


def answer_choices(arm: Arm, sampling: Sampling, max_tokens: int) -> AnswerChoices:
    """Return what an arm chooses for one answer."""
    drawn = AnswerChoices(temperature=sampling.temperature, top_k=sampling.top_k, seed=sampling.seed)
    policy = AnswerChoices() if "branches" in arm.choices else AnswerChoices(policy=arm.policy)
    return {**arm.choices, **drawn, **policy, "max_tokens": max_tokens}


def world_settings() -> Settings:
    """Return the settings of a world's client. They are constructed, not loaded: the user's own do not count."""
    own: dict[str, Any] = {
        "policy": "cloud",
        "price": PRICE,
        "ledger": Path(NO_LEDGER),
        "seed": 0,
        "learn": False,  # an answer does not hang on those before it
        "overlap": False,  # nothing is waited for
    }
    return Settings.model_construct(**own)


@asynccontextmanager
async def open_world(
    local: Path, cloud: Path, num_context: int = NUM_CONTEXT, critic: Path | None = None
) -> AsyncIterator[World]:
    """Load the models, a context each. Raises EngineError."""
    with ExitStack() as stack:
        worker = Worker("hybrid-world")
        stack.callback(worker.close)
        engines: list[MemoEngine] = []
        for path in (local, cloud, *([] if critic is None else [critic])):
            weights = Weights(path)
            stack.callback(weights.close)
            longest = weights.longest_context or num_context
            engine = weights.context(min(num_context, longest), threads=1)
            stack.callback(engine.close)
            engines.append(MemoEngine(engine))
        world = World(engines[0], engines[1], worker, *engines[2:])
        try:
            yield world
        finally:
            await world.aclose()
