"""The local model for several questions at once: prompts are read in order, and each answer borrows a context.

Laws (``tests/run/test_contexts.py``): texts, requests, bills and traces of a question do not depend on what runs beside
it, apart from times, identifiers and ``Queued``; those who wait are served in the order in which they asked; a context
comes back whoever leaves, and how. Which context is lent is decided in ``hybrid.engine.pool``. Knows no cloud and no
money.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import lru_cache

from hybrid.defer import CriticNumbers, NoveltyScore
from hybrid.engine import MEND_CONTEXT, ContextPool, Cursor, CursorContext, Engine, Interrupted, IsCancelled, Worker
from hybrid.errors import ContextOverflow, UsageError
from hybrid.pairs.store import SHIPPED
from hybrid.partitions.partition_file import no_partition
from hybrid.policy import Policy
from hybrid.policy.concepts import Concepts
from hybrid.policy.planning import Planner
from hybrid.prob import Partition
from hybrid.record.conversation import TextOrTurns, last_question, turns_of, words_of
from hybrid.record.events import Publish, Queued
from hybrid.run.drafting import CursorCritic
from hybrid.run.experts import ExpertCursor, ExpertRecord
from hybrid.run.verifier import RenderedPrompt
from hybrid.settings.config import Settings
from hybrid.tasks import FAMILIES, wordings
from hybrid.types import Ids, Message

# What the bundled models are for: questions of the families on which they were trained, and no others.
#
# The law (``tests/run/test_known_families.py``): of the families' own problems fewer than 1 % are taken for others, and
# of everyday questions more than 95 % are. It is decided by the question alone, never by what was asked before.

# The novelty (``NoveltyScore.novelty``) from which a question is of none of the families: chosen on 4,200 problems of
# the calibration split and 34 everyday questions, of which 0.4 % and all lie beyond; NOTES.md has the test split's.
STRANGE_NOVELTY = 0.5


@dataclass(frozen=True, eq=False)
class DomainCheck:
    """How new the words of a question are, from 0 to 1, and the families' names."""

    novelty: Callable[[TextOrTurns], float]
    names: tuple[str, ...]

    @classmethod
    def of_pair(cls, local: str | None) -> DomainCheck | None:
        """Return those of the bundled pair that a local model belongs to; None where they are not known."""
        return cls.of_wordings() if local in wordings.TASTES else cls.of_bundled()

    @classmethod
    def of_wordings(cls) -> DomainCheck:
        """Return those of the wordings pair, which reads no word that is not of its world."""
        names = tuple(family.name for family in wordings.FAMILIES)
        return cls(lambda question: float(not wordings.is_told(last_question(question))), names)

    @classmethod
    @lru_cache(maxsize=1)
    def of_bundled(cls) -> DomainCheck | None:
        """Return those of the bundled pair, by the questions of its shipped calibration; None where there is none."""
        try:
            shipped = json.loads((SHIPPED / "bundled.json").read_text(encoding="utf-8"))
            familiarity = NoveltyScore.from_json(shipped["score"]["familiarity"])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return None
        names = tuple(family.name.replace("_", " ") for family in FAMILIES)
        return cls(lambda question: familiarity.novelty(words_of(question)), names)

    def told(self, question: TextOrTurns) -> str:
        """Say what the models are for, where a question is of none of the families; empty otherwise."""
        if self.novelty(question) <= STRANGE_NOVELTY:
            return ""
        known = ", ".join(self.names)
        return (
            f"the bundled models answer generated problems of {len(self.names)} families ({known}; hybrid tasks list), "
            "and this question is of none: name models of your own with --local and --cloud"
        )


def no_files() -> None:
    """There are no files that could change."""


@dataclass(frozen=True)
class FurtherModel:
    """A model beside the first, with an engine in each of its contexts; the numbers are as ``LocalModel`` has them."""

    engines: Sequence[Engine]
    noise: float = 0.0
    shift: float | None = None
    ms_per_token: float | None = None


@dataclass(frozen=True)
class LocalModel:
    """The local model: a context or more over the same weights, each with the one thread that may touch it.

    ``noise`` and ``shift``: what its rows may be off by, as ``prob.Dense`` has it. ``ms_per_token``: what was measured
    of its speed. ``notes``: what a user should know of how it was opened, a sentence each.
    ``families``: the questions that it can answer at all, None: any. ``others``: the models beside it, by name; they
    have its vocabulary and its length of context. ``critic``: which of them reads drafts before ``auto`` decides; None:
    none does. ``experts``: the models that write as one, in the order in which they were named; the first is this one.
    ``nearest``: which of them was the nearest to the cloud, by the words of questions. ``drafters``: those that may
    draft for this one, the smallest first. ``partition`` reads which tokens say the same; it raises UsageError where
    nobody knows. ``check_files`` raises EngineError where a file of the models was changed since it was loaded.
    """

    contexts: Sequence[tuple[Engine, Worker]]
    noise: float = 0.0
    shift: float | None = None
    ms_per_token: float | None = None
    notes: tuple[str, ...] = ()
    families: DomainCheck | None = None
    name: str = "local"
    others: Mapping[str, FurtherModel] = field(default_factory=dict)
    critic: str | None = None
    experts: tuple[str, ...] = ()
    nearest: ExpertRecord | None = None
    drafters: tuple[str, ...] = ()
    partition: Callable[[], Partition] = no_partition
    check_files: Callable[[], None] = no_files


class LocalContexts:
    """Reads prompts and lends contexts. One for a client."""

    def __init__(self, local: LocalModel, settings: Settings) -> None:
        """Take the model, and from the settings how many may wait for a context, and how long."""
        contexts = [
            CursorContext(
                engine,
                worker,
                Cursor(engine, local.noise, local.shift),
                {name: Cursor(other.engines[i], other.noise, other.shift) for name, other in local.others.items()},
            )
            for i, (engine, worker) in enumerate(local.contexts)
        ]
        self._critic, self._experts, self._nearest = local.critic, local.experts, local.nearest
        self.name = local.name
        """The model's, by which a chain knows it."""
        self.words = contexts[0].engine
        """The model's vocabulary, and how long a text may be: the same in every context."""
        self.parallel = len(contexts)
        """How many questions are answered at once."""
        bound, deadline = settings.max_queued, settings.queue_timeout_s
        self.pool = ContextPool(contexts, max_queued=bound, timeout_s=deadline)
        self._reader = Worker("hybrid-prompts")
        self._pieces: tuple[bytes, ...] | None = None
        self._load_partition = local.partition
        self._check_files = local.check_files
        self._partition: Partition | None = None

    async def pieces(self) -> tuple[bytes, ...]:
        """Return the bytes of every token, by its id: read once, since 150,000 of them take a fifth of a second."""
        if self._pieces is None:
            words = self.words
            self._pieces = await self._reader.do(lambda _: tuple(map(words.piece, range(words.num_tokens))))
        return self._pieces

    async def concepts(self, policy: Policy, prompt: Ids, settings: Settings) -> Concepts | None:
        """Return which tokens say the same, where the policy asks or every row is told: a trace is replayed by them.

        Raises UsageError where the policy asks and nobody knows.
        """
        if not policy.wants_concepts and not settings.trace_rows:
            return None
        partition = await (self._read_partition() if policy.wants_concepts else self.known_partition())
        return None if partition is None else Concepts(partition, self.words.piece, prompt)

    async def known_partition(self) -> Partition | None:
        """Return which tokens say the same; None where nobody knows."""
        with contextlib.suppress(UsageError):
            return await self._read_partition()
        return None

    async def _read_partition(self) -> Partition:
        if self._partition is None:
            self._partition = await self._reader.do(lambda _: self._load_partition())
        return self._partition

    async def read(self, prompt: TextOrTurns, settings: Settings) -> RenderedPrompt:
        """Return a prompt as the model reads it. Raises UsageError, ContextOverflow and EngineError.

        What cannot fit never reaches the one thread in which prompts are read: others wait there.
        """
        await self._check_room(turns_of(prompt, settings.system))
        return await self._reader.do(lambda cancelled: self._rendered(prompt, settings, cancelled))

    def borrow(self, ids: Ids, settings: Settings, publish: Publish) -> AbstractAsyncContextManager[CursorContext]:
        """Lend a context for a prompt, its conversation's own where one holds it; ``Queued`` is told while it waits.

        Raises QueueFull and QueueTimeout.
        """
        return self.pool.borrow(ids, conversation=settings.conversation, told=lambda ahead: publish(Queued(ahead)))

    def critic(self, context: CursorContext, ids: Ids, planner: Planner | None) -> CursorCritic | None:
        """Return who reads the drafts of a prompt: a critic, where there is one and the score reads its numbers."""
        if self._critic is None or planner is None or planner.score.critic is None:
            return None
        return CursorCritic(context.others[self._critic], ids)

    async def experts(
        self, context: CursorContext, settings: Settings, words: Sequence[int] = ()
    ) -> ExpertCursor | None:
        """Return the models that write as one in a context; None where one writes alone.

        ``words``: of the question, by which their first weights are what was seen of such questions, unless ``learn``
        is off.
        """
        if not self._experts:
            return None
        cursors = {name: context.others.get(name, context.cursor) for name in self._experts}
        start = await self._nearest.weights(words) if self._nearest and words and settings.learn else None
        return ExpertCursor(cursors, settings.mix, start)

    def learn(self, experts: ExpertCursor | None, words: Sequence[int]) -> None:
        """Count which of several models was the nearest to the cloud in an answer, where one clearly was."""
        if self._nearest is not None and experts is not None and experts.nearest is not None:
            self._nearest.add(words, experts.nearest)

    async def critic_numbers(
        self, prompt: TextOrTurns, text: Ids, settings: Settings, publish: Publish
    ) -> CriticNumbers:
        """Return what the critic says of each token of a text that answers a prompt.

        Raises UsageError where there is no critic.
        """
        if self._critic is None:
            raise UsageError("no critic reads along: name one with --critic")
        name, asked = self._critic, (await self.read(prompt, settings)).ids

        def numbers(cancelled: IsCancelled) -> CriticNumbers:
            critic = CursorCritic(context.others[name], asked)
            context.cursor.begin(asked, cancelled)
            rows = context.cursor.rows(asked + text[:-1], len(text), cancelled) if text else []
            try:
                return critic.numbers((), text, rows, cancelled)
            finally:
                critic.rewind_to(())
                context.cursor.rewind(len(asked))

        async with self.borrow(asked, settings, publish) as context:
            return await context.worker.do(numbers)

    async def aclose(self) -> None:
        """End the reader's thread, and wait until what was learned is kept; the contexts are their owner's to close."""
        self._reader.close()
        if self._nearest is not None:
            await self._nearest.aclose()

    async def _check_room(self, turns: Sequence[Message]) -> None:
        """Raise ContextOverflow for more turns than tokens, or more bytes than so many of the longest tokens hold."""
        room = self.words.num_context
        if len(turns) > room:
            raise _overflow(len(turns), "turns", room)
        num_bytes = sum(len(turn.content.encode("utf-8", "replace")) for turn in turns)
        if num_bytes > room and num_bytes > room * (longest := max(map(len, await self.pieces()))):
            raise _overflow(-(-num_bytes // longest), "tokens at least", room)

    def _rendered(self, prompt: TextOrTurns, settings: Settings, cancelled: IsCancelled) -> RenderedPrompt:
        if cancelled():  # its caller left while it stood in line
            raise Interrupted
        self._check_files()
        if not (prompt.strip() if isinstance(prompt, str) else prompt):
            msg = "the prompt is empty"
            raise UsageError(msg)
        turns, args = turns_of(prompt, settings.system), settings.template_args
        if isinstance(prompt, str) and settings.raw:
            if args:
                raise UsageError("template_args change nothing with raw: no chat template is used")
            rendered = RenderedPrompt(self.words.tokenize(prompt, special=True), turns)
        else:
            ids = self.words.render(turns, args, cancelled)
            rendered = RenderedPrompt(ids, turns, args, self.words.thoughts(turns, args))
        if not rendered.ids:
            msg = "the prompt is empty"
            raise UsageError(msg)
        if len(rendered.ids) >= (room := self.words.num_context):
            raise _overflow(len(rendered.ids), "tokens", room)
        return rendered


def _overflow(num: int, what: str, room: int) -> ContextOverflow:
    return ContextOverflow(f"the prompt has {num} {what} and the local context holds {room}: {MEND_CONTEXT}")
