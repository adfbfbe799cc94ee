"""A trace with its rows in the place of the models: the ports of the local model and of the cloud, over a file.

The law (``tests/run/test_replay_trace.py``). Under the recorded policy and settings, a replay is the recorded answer,
token for token, with its requests. Under another policy it is the text of that policy, as long as the file holds every
row that it asks for. A sampled draw of the cloud is repeated only at its position, under the same sampling and the same
ban. Nothing is guessed: ``MissingRow`` says which row is missing, and where.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

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
from hybrid.defer import CriticNumbers
from hybrid.engine import IsCancelled, ThoughtMarks
from hybrid.errors import HybridError, UsageError
from hybrid.policy.planning import Planner
from hybrid.policy.requests import Span, ids
from hybrid.prob import Dense, Partition, TokenBytes, TopK
from hybrid.record.answer import Mixing, RecordedExpert
from hybrid.record.events import RecordingStarted, SpanCritiqued, key_of, unpacked
from hybrid.record.recorded_events import read_lines, read_recording
from hybrid.record.rows import row_from_json
from hybrid.types import CloudUsage, Ids, Sampling

# What a trace tells, as it is, of how rows were read and drawn from; the rest is read in a way of its own.
_TOLD = [name for name in RecordingStarted.__struct_fields__ if name not in {"end_ids", "planner", "concepts"}]


class MissingRow(HybridError):
    """A policy asked for what was not recorded."""

    def __init__(self, what: str, at: Ids) -> None:
        """Say what is missing after which tokens of the answer."""
        super().__init__(f"the trace does not hold {what} at position {len(at)} of this text")
        self.what = what
        self.at = at


@dataclass
class ReplayTrace:
    """What one answer's trace holds. Rows are named by the tokens before them."""

    prompt: Ids = ()
    policy: str = ""
    pieces: tuple[bytes, ...] = ()
    end_ids: frozenset[int] = frozenset()
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 0
    choices: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    shift: float | None = None
    planner: Planner | None = None
    thoughts: ThoughtMarks | None = None
    experts: tuple[RecordedExpert, ...] = ()
    mix: Mixing | None = None
    chain: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    cloud_model: str | None = None
    concepts: Partition | None = None
    local: dict[tuple[str, int], Dense] = field(default_factory=dict)
    """By place, and by the number of the expert whose row it is, or of levels below the model whose draft it was."""
    cloud: dict[str, TopK] = field(default_factory=dict)
    written: dict[tuple[str, frozenset[int]], int] = field(default_factory=dict)
    """What the cloud wrote, by its place and what it must not write there."""
    rowless: set[tuple[str, frozenset[int]]] = field(default_factory=set)
    """Where it did so without a row."""
    cut: set[tuple[str, frozenset[int]]] = field(default_factory=set)
    """Where its text ended for want of room."""
    _words: TokenBytes | None = None
    critic: dict[Ids, SpanCritiqued] = field(default_factory=dict)
    """What a critic said, by the answer's place and the tokens that it read: the place as a number, then they."""

    @classmethod
    def read(cls, path: Path) -> ReplayTrace:
        """Read a trace file. Raises UsageError with one sentence for anything but a whole one with rows."""
        trace = cls()
        for _ in read_lines(path, trace._add, whole=True):
            pass
        if not trace.pieces:
            msg = f"{path} holds no rows: record it with --trace-rows"
            raise UsageError(msg)
        return trace

    def _add(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case "started":
                self.prompt, self.policy = tuple(line["prompt"]), line["policy"]
            case "recording_started":
                told = read_recording(line)
                for name in _TOLD:
                    setattr(self, name, getattr(told, name))
                self.end_ids = frozenset(told.end_ids)
                self.planner = None if told.planner is None else Planner.from_json(json.loads(told.planner))
                if told.concepts is not None:
                    self.concepts = Partition.of_groups(len(self.pieces), told.concepts)
            case "span_critiqued":
                said = msgspec.convert(line, SpanCritiqued)
                self.critic[(said.position, *said.ids)] = said
            case "rows":
                self._add_rows(line)
            case "token_emitted" if line["token"]["source"] == "cloud":
                self.cloud_model = line["token"].get("model")

    @property
    def words(self) -> TokenBytes:
        """The local vocabulary's tokens by their bytes."""
        if self._words is None or self._words.pieces is not self.pieces:
            self._words = TokenBytes(self.pieces, self.end_ids)
        return self._words

    def _add_rows(self, line: dict[str, Any]) -> None:
        key = line["key"]
        for number, (expert, part) in enumerate(zip(self.experts, line.get("parts", ()), strict=False)):
            if part is not None:
                self.local[key, number] = unpacked(part, expert.noise, expert.shift)
        if line["local"] is not None and not self.experts:
            self.local[key, line.get("below", 0)] = unpacked(line["local"], self.noise, self.shift)
        if line["cloud"] is not None:
            self.cloud[key] = row_from_json(line["cloud"], self.words)
        if line["written"] is not None:
            drawn = key, frozenset(line["banned"])
            self.written[drawn] = line["written"]
            if line["cloud"] is None:
                self.rowless.add(drawn)
            if line.get("cut"):
                self.cut.add(drawn)


class ReplayCursor:
    """A cursor whose rows come from the trace; there is no cache to keep."""

    has_exact_rewind = False
    waited_s = 0.0

    def __init__(self, trace: ReplayTrace, number: int = 0) -> None:
        """Take the trace, and which expert's rows these are, as ``ReplayTrace.local`` has it."""
        self.engine = ReplayVocabulary(trace)
        of = trace.experts[number] if trace.experts else trace
        self.noise, self.shift = of.noise, of.shift
        self._trace, self._number = trace, number
        self._at: Ids = ()

    def begin(self, prompt: Ids, cancelled: IsCancelled | None = None) -> None:
        """Do nothing: there is no prompt to read."""

    def row(self, at: Ids, cancelled: IsCancelled | None = None) -> Dense:  # noqa: ARG002  (the port's shape)
        """Look a row up. Raises MissingRow."""
        self._at = at
        answer = at[len(self._trace.prompt) :]
        found = self._trace.local.get((key_of(answer), self._number))
        if found is None:
            what = "the local model's row"
            raise MissingRow(what, answer)
        return found

    def follow(self, token: int, cancelled: IsCancelled | None = None) -> Dense:
        """Look up the row one token on. Raises MissingRow."""
        return self.row((*self._at, token), cancelled)

    def known_row(self, prefix: Ids) -> Dense | None:  # noqa: ARG002  (the port's shape)
        """Know nothing: a row is looked up."""
        return None

    def rows(
        self,
        at: Ids,
        num_rows: int,
        cancelled: IsCancelled | None = None,
        *,
        keep: bool = False,  # noqa: ARG002  (the port's shape)
    ) -> list[Dense]:
        """Look several rows up. Raises MissingRow."""
        return [self.row(at[:end], cancelled) for end in range(len(at) - num_rows + 1, len(at) + 1)]

    def rewind(self, length: int) -> None:
        """Do nothing: there is no cache."""

    def rewind_to(self, text: Ids) -> None:
        """Do nothing: there is no cache."""

    def forget_rows(self, before: int) -> None:
        """Do nothing: there is no cache."""


class ReplayCritic:
    """A critic that says what it said."""

    waited_s = 0.0

    def __init__(self, trace: ReplayTrace) -> None:
        """Take the trace."""
        self._trace = trace

    def read(self, at: Ids, span: Span, cancelled: IsCancelled) -> CriticNumbers:  # noqa: ARG002  (the port's shape)
        """Look its numbers up. Raises MissingRow."""
        said = self._trace.critic.get((len(at), *ids(span)))
        if said is None:
            what = "what a critic said"
            raise MissingRow(what, at)
        return said.numbers

    def rewind_to(self, shown: Ids) -> None:
        """Do nothing: there is no cache."""


class ReplayVocabulary:
    """What a driver asks of an engine beside rows."""

    ids: Ids = ()
    has_exact_rewind = False
    waited_s = 0.0

    def __init__(self, trace: ReplayTrace) -> None:
        """Take the trace."""
        self.end_ids = trace.end_ids
        # Where nobody chose a limit, the context was it: no row was read after its last token.
        fills_context = trace.choices.get("max_tokens") == "0"
        self.num_context = len(trace.prompt) + trace.max_tokens if fills_context else 2**31
        self.num_tokens = len(trace.pieces)
        self._pieces = trace.pieces

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""
        return self._pieces[token]


class ReplayCloud:
    """A cloud that scores and writes what it did; greedily it can also write where it only scored."""

    def __init__(self, trace: ReplayTrace) -> None:
        """Take the trace."""
        self._trace = trace

    async def connect(  # the port's shape
        self,
        probe: str,  # noqa: ARG002
        probe_ids: Ids,  # noqa: ARG002
        asked_at: float | None = None,  # noqa: ARG002
    ) -> Capabilities:
        """Say that it can do everything: what it cannot is missing."""
        return Capabilities("trace")

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """One request by ids."""
        return max_usage(question)

    async def score(  # the port's shape
        self,
        question: ScoreQuestion,
        request_id: str,  # noqa: ARG002
        before_send: BeforeSend = unrecorded,  # noqa: ARG002
    ) -> Scores:
        """Look the rows up, as many as there are. Raises MissingRow where there is none."""
        text = question.prefix + question.span
        rows: list[TopK] = []
        try:
            rows.extend(self._at(text[: len(question.prefix) + number]) for number in range(question.num_rows))
        except MissingRow:  # fewer than were due are an answer: the cloud may have given no more
            if not rows:
                raise
        return Scores(tuple(rows), CloudUsage(len(text), 1))

    async def write(  # the port's shape
        self,
        question: WriteQuestion,
        request_id: str,  # noqa: ARG002
        before_send: BeforeSend = unrecorded,  # noqa: ARG002
    ) -> AsyncGenerator[Chunk, None]:
        """Write on, a token at a time. Raises MissingRow."""
        text = question.prefix
        for number in range(1, question.limit + 1):
            answer = text[len(self._trace.prompt) :]
            row = None if (key_of(answer), question.ban) in self._trace.rowless else self._at(text)
            token = self._token(answer, row, question)
            text = (*text, token)
            by_itself = token in self._trace.end_ids and (key_of(answer), question.ban) not in self._trace.cut
            over = token in self._trace.end_ids or number == question.limit
            finish = "stop" if by_itself else "length" if over else None
            yield Chunk((token,), (row,), finish=finish)  # type: ignore[arg-type]  # a literal, chosen
            if finish is not None:
                yield Chunk(usage=CloudUsage(len(question.prefix), number))
                return

    async def aclose(self) -> None:
        """Nothing to close."""

    def _at(self, text: Ids) -> TopK:
        answer = text[len(self._trace.prompt) :]
        found = self._trace.cloud.get(key_of(answer))
        if found is None:
            what = "the cloud model's row"
            raise MissingRow(what, answer)
        return found

    def _token(self, answer: Ids, row: TopK | None, question: WriteQuestion) -> int:
        if row is not None and question.sampling.greedy and row.best not in question.ban:
            return row.best
        written = self._trace.written.get((key_of(answer), question.ban))
        if written is None or replace(question.sampling, seed=self._trace.sampling.seed) != self._trace.sampling:
            what = "what the cloud draws"
            raise MissingRow(what, answer)
        return written
