"""Everything that happens while an answer is written, as frozen values on one stream. Unknown is None, never 0."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from hybrid.run.answer import Answer, Token, finite
from hybrid.types import CloudUsage, Ids

Kind: TypeAlias = Literal["check", "write"]


@dataclass(frozen=True)
class Started:
    """A question was understood: its prompt, and the policy that will answer it."""

    prompt: Ids
    policy: str


@dataclass(frozen=True)
class Drafted:
    """The local model wrote a span that nobody has judged yet; ``num_ready`` of it was decoded ahead."""

    position: int
    ids: Ids
    num_ready: int = 0


@dataclass(frozen=True)
class Asked:
    """A request leaves for the cloud, its worst case reserved."""

    request_id: str
    kind: Kind
    position: int
    num_tokens: int
    reserved_nanousd: int | None


@dataclass(frozen=True)
class Settled:
    """What a request was charged. ``usage`` None: never known, its reservation stands."""

    request_id: str
    kind: Kind
    usage: CloudUsage | None
    nanousd: int | None
    ms: float


@dataclass(frozen=True)
class Judged:
    """A check came back with rows for ``num_rows`` positions."""

    request_id: str
    num_rows: int


@dataclass(frozen=True)
class Degraded:
    """The cloud was not asked, or did not answer; the local model goes on."""

    why: str


@dataclass(frozen=True)
class Shown:
    """A token of the answer. It is never taken back."""

    position: int
    token: Token


@dataclass(frozen=True)
class Finished:
    """The whole answer."""

    answer: Answer


Event: TypeAlias = Started | Drafted | Asked | Settled | Judged | Degraded | Shown | Finished

TRACE_VERSION = 1


def to_json(event: Event) -> dict[str, Any]:
    """Return one line of a trace file: the event's name and its fields."""
    name = type(event).__name__.lower()
    if isinstance(event, Finished):
        return {"event": name, **event.answer.to_json()}
    data = asdict(event)
    if isinstance(event, Shown):
        data["token"]["kl"] = finite(data["token"]["kl"])
    return {"event": name, **data}
