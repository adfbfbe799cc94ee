"""Everything that happens while an answer is written, as frozen values on one stream. Unknown is None, never 0.

A trace file holds the same stream: one JSON object an event, named after its class.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from hybrid.defer import CriticNumbers, DraftSignals, Forecast
from hybrid.engine import ThoughtMarks
from hybrid.policy.plan import DraftPlan, JudgedSpan, PlanAction, PlanCosts, PlannerInput
from hybrid.prob import Dense, MixtureRow, TopK
from hybrid.record.answer import Answer, Mixing, RecordedExpert, Token, plain
from hybrid.record.rows import row_to_json
from hybrid.types import CloudUsage, DegradedKind, Ids, Sampling

RequestKind: TypeAlias = Literal["check", "write", "relay"]


class Queued(msgspec.Struct, frozen=True):
    """All contexts are taken, and ``ahead`` questions wait before this one; told again as the line moves."""

    ahead: int


class Started(msgspec.Struct, frozen=True):
    """A question was understood: its prompt, and the policy that will answer it, by its name and as it is composed."""

    prompt: Ids
    policy: str
    composed: str = ""


class RecordingStarted(msgspec.Struct, frozen=True):
    """Rows will follow; here is how they were read and drawn from. ``pieces`` are the bytes of every token, by its id.

    ``choices`` are the other settings that the text depends on, by name, written as a flag has them; ``noise`` and
    ``shift`` are what the local rows may be off by (``prob.Dense``). ``planner``: what weighs drafts or handoffs, as
    JSON and whole: score, prices, worth; None: nothing does. ``thoughts``: the marks around the model's thoughts.
    ``experts``: the models that write as one, and ``mix`` how; their own rows are ``parts`` of each row.
    ``chain``: the spans of the policy's stages, the lowest first; ``models`` names who may write a local token.
    ``concepts``: the tokens that say the same, by their ids; None: nobody knows.
    """

    pieces: tuple[bytes, ...]
    end_ids: Ids
    sampling: Sampling
    max_tokens: int
    choices: Mapping[str, str | Sequence[str]] = msgspec.field(default_factory=dict)
    noise: float = 0.0
    shift: float | None = None
    planner: str | None = None
    thoughts: ThoughtMarks | None = None
    experts: tuple[RecordedExpert, ...] = ()
    mix: Mixing | None = None
    chain: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    concepts: tuple[Ids, ...] | None = None


class Rows(msgspec.Struct, frozen=True, eq=False):
    """One or both models' raw rows after the answer's tokens ``at``.

    ``written`` is the token that the cloud wrote there, from outside ``banned``; ``cut``: it stands for the end of a
    text that had no more room. ``below``: in a chain, ``local`` is the row of the model that stands so many levels
    below the one whose draft the cloud sees.
    """

    at: Ids
    local: Dense | None = None
    cloud: TopK | None = None
    written: int | None = None
    banned: Ids = ()
    cut: bool = False
    below: int = 0


class SpanDrafted(msgspec.Struct, frozen=True):
    """The local model drafted a span, in ``ms``; ``num_ready`` of its tokens had been decoded ahead."""

    position: int
    ids: Ids
    num_ready: int = 0
    ms: float = 0.0


class SpanRead(msgspec.Struct, frozen=True):
    """A larger local model, at a ``level`` of a chain, read a drafted span in ``ms`` and gave ``num_rows``."""

    level: int
    position: int
    num_tokens: int
    num_rows: int
    ms: float


class LevelsCompared(msgspec.Struct, frozen=True):
    """Of ``num`` drafted tokens at which two models of a chain were compared they have one most likely token at some.

    ``upper`` and ``lower`` are their levels; the cloud's is the number of local models. Tokens after the first that the
    upper one would not have written are not compared: its text has none of them.
    """

    upper: int
    lower: int
    num: int
    num_agreed: int


class SpanCritiqued(msgspec.Struct, frozen=True):
    """The critic read a drafted span, in ``ms``. What it says of each token is as ``CriticNumbers`` has it."""

    position: int
    ids: Ids
    kl: tuple[float, ...]
    logprob: tuple[float, ...]
    ms: float = 0.0

    @classmethod
    def of(cls, position: int, ids: Ids, numbers: CriticNumbers, ms: float) -> SpanCritiqued:
        """Tell what was said, exact to the last bit."""
        return cls(position, ids, tuple(numbers.kl.tolist()), tuple(numbers.logprob.tolist()), ms)

    @property
    def numbers(self) -> CriticNumbers:
        """What was said."""
        return CriticNumbers(np.array(self.kl, dtype=np.float64), np.array(self.logprob, dtype=np.float64))


@dataclass(frozen=True)
class Planned:
    """A planner decided about a draft that begins at ``position``; see ``hybrid.policy.plan``.

    ``propensity``: the chance of the coin that had it checked (``floor``) or left; 1 where none was tossed. ``paced``:
    without a day's pacing more would have been asked. ``costs`` are in the unit of the planner's prices. What it was
    decided from is not part of a trace.
    """

    position: int
    action: PlanAction
    at: int
    limit: int | None
    floor: bool
    propensity: float
    costs: PlanCosts | None = None
    signals: DraftSignals | None = field(default=None, compare=False, repr=False)
    forecast: Forecast | None = field(default=None, compare=False, repr=False)
    case: PlannerInput | None = field(default=None, compare=False, repr=False)
    paced: bool = False

    @classmethod
    def of(cls, position: int, plan: DraftPlan) -> Planned:
        """Tell a plan."""
        return cls(position, **vars(plan))

    @property
    def plan(self) -> DraftPlan:
        """The plan that is told."""
        return DraftPlan(**{name: value for name, value in vars(self).items() if name != "position"})


# What a trace tells of a plan.
_PLANNED = ("position", "action", "at", "limit", "floor", "propensity", "costs", "paced")


class SpanJudged(msgspec.Struct, frozen=True):
    """A judge saw ``num_judged`` drafted tokens from ``position`` on: ``num_accepted`` stand; see ``JudgedSpan``."""

    position: int
    num_judged: int
    num_accepted: int
    rejected: bool
    num_wording: int = 0

    @classmethod
    def of(cls, position: int, judged: JudgedSpan) -> SpanJudged:
        """Tell what was judged."""
        return cls(position, judged.num_judged, judged.num_accepted, judged.rejected, judged.num_wording)


class BranchDrawn(msgspec.Struct, frozen=True):
    """A whole answer was drawn, as ``policy.requests.Branch`` has it; the ``chosen`` one of several is shown next."""

    draws: tuple[int, ...]
    num_tokens: int
    text: str
    local_logprob: float
    cloud_logprob: float | None = None
    chosen: bool = False


class RequestSent(msgspec.Struct, frozen=True):
    """A request is about to be sent; its worst case is reserved."""

    request_id: str
    kind: RequestKind
    position: int
    num_tokens: int
    reserved_nanousd: int | None


class RequestSettled(msgspec.Struct, frozen=True):
    """A request is charged. Where its ``usage`` will never be known (None), its reservation stands.

    ``failure``: why it failed, and ``failure_kind`` in words that quote nobody; None: it was answered, or we closed it.
    """

    request_id: str
    kind: RequestKind
    usage: CloudUsage | None
    nanousd: int | None
    ms: float
    failure: str | None = None
    failure_kind: DegradedKind | None = None


class RequestRetried(msgspec.Struct, frozen=True):
    """A request failed before any of its reply was used; another one is sent after ``wait_ms``."""

    why: str
    wait_ms: float


class CheckAnswered(msgspec.Struct, frozen=True):
    """A check came back with rows for ``num_rows`` positions."""

    request_id: str
    num_rows: int


class Degraded(msgspec.Struct, frozen=True):
    """The cloud was not asked, or for less than without a cap, or did not answer.

    The local model goes on. Once, and again after ``CloudRecovered``.
    """

    why: str
    kind: DegradedKind | None = None


class NoteAdded(msgspec.Struct, frozen=True):
    """The cloud answers, but the policy cannot be followed to the letter. Each such sentence comes once."""

    why: str


class CloudRecovered(msgspec.Struct, frozen=True):
    """The cloud answers again, ``away_ms`` after its first failure."""

    away_ms: float


class TokenEmitted(msgspec.Struct, frozen=True):
    """A token of the answer. It is never taken back."""

    position: int
    token: Token


class Flushed(msgspec.Struct, frozen=True):
    """The end of the text, and of thoughts: it might have begun a stop string or a mark, and none came."""

    text: str
    thought_text: str = ""


class Finished(msgspec.Struct, frozen=True):
    """The whole answer. ``by_itself``: with an end token, and at no stop string or limit. Not part of a trace."""

    answer: Answer
    by_itself: bool = False


Event: TypeAlias = (
    Queued
    | Started
    | RecordingStarted
    | Rows
    | SpanDrafted
    | SpanCritiqued
    | SpanRead
    | LevelsCompared
    | Planned
    | SpanJudged
    | BranchDrawn
    | RequestSent
    | RequestSettled
    | RequestRetried
    | CheckAnswered
    | Degraded
    | NoteAdded
    | CloudRecovered
    | TokenEmitted
    | Flushed
    | Finished
)
Publish: TypeAlias = Callable[[Event], None]

# Readers pass over an event that they do not know, so one more is no new version.
TRACE_VERSION = 5


def event_name(kind: type[Event]) -> str:
    """Return what an event is called in a trace: its class's name in snake case.

    >>> event_name(TokenEmitted)
    'token_emitted'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def to_json(event: Event) -> dict[str, Any]:
    """Return one line of a trace file: the event's name and its fields."""
    match event:
        case Finished(answer):
            data = answer.to_json()
        case Rows():
            data = _rows(event)
        case Planned():
            data = plain({name: getattr(event, name) for name in _PLANNED})
        case RecordingStarted():
            data = plain(msgspec.structs.replace(event, pieces=())) | {"pieces": [each.hex() for each in event.pieces]}
        case TokenEmitted(position, token):
            data = {"position": position, "token": token.to_json()}
        case _:
            data = plain(event)
    return {"event": event_name(type(event)), **data}


def text_of(event: Event) -> str:
    """Return the answer's text that became readable with an event; empty for most, and for thoughts."""
    if isinstance(event, TokenEmitted):
        return event.token.text
    return event.text if isinstance(event, Flushed) else ""


def thoughts_of(event: Event) -> str:
    """Return what became readable of the thoughts with an event; empty for most."""
    if isinstance(event, TokenEmitted):
        return event.token.thought_text
    return event.thought_text if isinstance(event, Flushed) else ""


def key_of(at: Ids) -> str:
    """Return the name of a position in a trace: a hash of the answer's tokens before it."""
    return hashlib.blake2b(np.array(at, dtype=np.int64).tobytes(), digest_size=8).hexdigest()


def _rows(event: Rows) -> dict[str, Any]:
    row = event.cloud
    return {
        "position": len(event.at),
        "key": key_of(event.at),
        "local": None if event.local is None else packed(event.local),
        "cloud": None if row is None else row_to_json(row),
        "written": event.written,
        "banned": list(event.banned),
        **_parts(event.local),
    } | {name: value for name, value in (("cut", event.cut), ("below", event.below)) if value}


def _parts(row: Dense | None) -> dict[str, Any]:
    """Return the rows of several models that write as one, and their weights there."""
    if not isinstance(row, MixtureRow):
        return {}
    return {"parts": [None if part is None else packed(part) for part in row.parts], "weights": row.weights}


def packed(row: Dense) -> str:
    """Return a row's scores, shape (V,), as float32 in base64: to the bit what the engine gave."""
    return base64.b64encode(row.logits.astype("<f4").tobytes()).decode()


def unpacked(text: str, noise: float = 0.0, shift: float | None = None) -> Dense:
    """Read what ``packed`` wrote. Raises ValueError."""
    return Dense.from_logits(np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4"), noise, shift)
