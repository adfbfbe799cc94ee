"""What a dialect is: pure functions from a question to requests, and from their replies to an answer.

A dialect opens no connection: it yields what is to be asked and is sent the replies (``Asking``), so that a golden body
and a recorded reply test it whole. Nor does it guess: what a server of its family may or may not do is found out
by ``cloud.find`` and ``cloud.probe`` and given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from hybrid.cloud.dialects.reading import shown
from hybrid.cloud.dialects.spelling import Spelling
from hybrid.cloud.port import Ability, Chunk, Question, ScoreQuestion, Scores, WriteQuestion, least, worst
from hybrid.types import NO_USAGE, CloudUsage

T = TypeVar("T")
Json: TypeAlias = Mapping[str, Any]
# How a draft is scored: in one request; by prefixes with one new token each; by forcing the draft on the model; by
# letting it write and comparing; None: not at all.
Way: TypeAlias = Literal["one request", "prefixes", "replay", "compare"]


@dataclass(frozen=True)
class Asked:
    """One POST. ``shape`` names the fields that are wanted and what to leave unread.

    ``before``: what was charged for the requests that were answered before it.

    ``stream``: how events come: as server-sent ones that end with [DONE], or with the one that says why it ended, or as
    lines of JSON; None: the reply is one event.
    """

    path: str
    body: Json
    shape: type | None = None
    stream: Literal["to done", "to finish", "lines"] | None = None
    before: CloudUsage = NO_USAGE


Altering: TypeAlias = Literal["temperature", "cut", "ban"]
"""What may alter the rows of written tokens: another temperature than 1, top-k, top-p or min-p, and tokens banned."""

Asking: TypeAlias = Generator[Asked, Any, T]
Reading: TypeAlias = Callable[[Any], Chunk]


@dataclass(frozen=True)
class Setup:
    """What every dialect needs to know: the model's name there, the local vocabulary, the salt of the prefix cache."""

    model: str = ""
    spelling: Spelling | None = None
    salt: str | None = None

    @property
    def words(self) -> Spelling:
        """The local vocabulary. Raises ValueError where there is none, which is the caller's fault."""
        if self.spelling is None:
            msg = "this dialect speaks in text and needs the local vocabulary"
            raise ValueError(msg)
        return self.spelling


def rowless(question: WriteQuestion) -> WriteQuestion:
    """Return the same question for an endpoint that gives no log-probabilities: with ``top_k`` 0 none are asked for."""
    return replace(question, top_k=0)


def tells_rows(dialect: Dialect, question: WriteQuestion) -> bool:
    """Whether what is written comes with rows, and these are the model's own under this sampling and ban."""
    sampling, altering = question.sampling, set[Altering]()
    if not sampling.greedy:
        altering |= {"temperature"} if sampling.temperature != 1.0 else set()
        altering |= {"cut"} if sampling.cut else set()
    altering |= {"ban"} if question.ban else set()
    return dialect.rows and not altering & dialect.rows_altered_by


class Dialect(Protocol):
    """One family's words. ``rows``: what it writes comes with log-probabilities."""

    @property
    def name(self) -> str:
        """What ``--dialect`` calls it."""
        ...

    @property
    def way(self) -> Way | None:
        """How it scores."""
        ...

    @property
    def ways(self) -> tuple[Way, ...]:
        """How a server of this family may be able to score, the cheapest first."""
        ...

    @property
    def abilities(self) -> frozenset[Ability]:
        """What can be asked of it."""
        ...

    @property
    def rows(self) -> bool:
        """Whether written tokens come with their rows."""
        ...

    @property
    def rows_altered_by(self) -> frozenset[Altering]:
        """What makes these rows others than the model's own."""
        ...

    @property
    def candidates(self) -> bool:
        """Whether rows can hold tokens asked for by id."""
        ...

    @property
    def most_k(self) -> int | None:
        """The longest top-k list that its documents allow; None: they name no limit."""
        ...

    @property
    def keeps_cache(self) -> bool | None:
        """Whether its documents say that a check reads the prefix cache."""
        ...

    def score(self, question: ScoreQuestion) -> Asking[Scores]:
        """Yield the requests that score a draft, and return its rows."""
        ...

    def worst(self, question: Question) -> CloudUsage:
        """Return the most that answering may be charged."""
        ...

    def least(self, question: Question) -> CloudUsage:
        """Return the least that answering is charged: the tokens that are sent, and those that a check has written."""
        ...

    def charged(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Return what one reply to a check says it was charged, and shows that it wrote, whatever else stands there."""
        ...

    def write(self, question: WriteQuestion) -> tuple[Asked, Reading] | None:
        """Return the request that continues a text and what reads each event of it; None: nothing can be asked here."""
        ...


class OpenAiUsage:
    """What those dialects have in common whose replies say what they were charged as OpenAI's do."""

    def charged(self, question: ScoreQuestion, reply: Any) -> CloudUsage:  # noqa: ARG002  (others need the question)
        """Return what is told, and no fewer tokens than are shown."""
        return shown(reply)


@dataclass(frozen=True)
class ByIds(OpenAiUsage):
    """What those dialects have in common that name tokens by number and score a draft in one request."""

    setup: Setup
    name: str = ""
    way: Way | None = "one request"
    ways: tuple[Way, ...] = ("one request",)
    abilities: frozenset[Ability] = frozenset(("score", "write", "open", "ids"))
    rows: bool = True
    rows_altered_by: frozenset[Altering] = frozenset()
    candidates: bool = False
    most_k: int | None = None
    keeps_cache: bool | None = None

    def worst(self, question: Question) -> CloudUsage:
        """Nothing cached; what is written runs to its limit."""
        return worst(question)

    def least(self, question: Question) -> CloudUsage:
        """Return the ids that are sent."""
        return least(question)
