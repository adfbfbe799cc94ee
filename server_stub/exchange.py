"""One request being answered, and the route it came by: what a dialect is made of.

A dialect computes nothing and opens nothing. An ``Endpoint`` reads a body into an ``Exchange``; the exchange says what
to compute (its asks) and turns what was computed into JSON. ``App`` does the computing, the HTTP and the bill, alike
for all dialects, so a shape can be tested without a model and a fault strikes every family.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from server_stub.ask import Ask, Row
from server_stub.completion import Charge, Step
from server_stub.wire import Json, WireError


@dataclass
class Answer:
    """What has been computed of one ask so far. ``charge`` is the whole request's, as the client shall be told it.

    ``num_cached`` tokens of this prompt were read from the cache.
    """

    index: int
    ask: Ask
    charge: Charge
    prompt_rows: list[Row | None] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    num_cached: int = 0

    @property
    def written(self) -> list[int]:
        """The tokens written so far."""
        return [step.token for step in self.steps]

    @property
    def rows(self) -> list[Row | None]:
        """A row for each of them."""
        return [step.row for step in self.steps]

    @property
    def text(self) -> str:
        """Their text, as far as it may be shown."""
        return "".join(step.text for step in self.steps)

    @property
    def finish(self) -> str | None:
        """Why the answer ended; None while it goes on. One of no tokens has reached its length."""
        if not self.steps:
            return None if self.ask.max_tokens else "length"
        return self.steps[-1].finish

    @property
    def echoed(self) -> list[Row | None]:
        """A row for every position of the prompt, None where there is none."""
        return self.prompt_rows or [None] * len(self.ask.ids)


class Exchange(ABC):
    """A request that was read: what it wants computed, and how its answer is said."""

    request_id: str
    asks: tuple[Ask, ...]
    streams: bool

    @abstractmethod
    def whole(self, answers: list[Answer]) -> Json:
        """Return the answer in one piece."""

    def opening(self, answer: Answer) -> Iterator[Json]:  # noqa: ARG002  (most have nothing to say yet)
        """Yield what a stream says once the prompt is computed, before the first token."""
        yield from ()

    @abstractmethod
    def chunk(self, answer: Answer) -> Json | None:
        """Return what a stream says of the last step; None: nothing."""

    def closing(self, answers: list[Answer]) -> Iterator[Json]:  # noqa: ARG002
        """Yield what a stream says after the last token."""
        yield from ()


class Endpoint(Protocol):
    """A route that generates."""

    path: str

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body. Raises WireError for what the family refuses. ``request_id`` is the client's, or a new one."""
        ...


@dataclass(frozen=True)
class Framing:
    """How the pieces of a stream stand on the wire."""

    media_type: str
    before: str
    after: str
    end: str

    def frame(self, piece: Json) -> str:
        """Return a piece as it is sent."""
        return f"{self.before}{json.dumps(piece)}{self.after}"


EVENTS = Framing("text/event-stream", "data: ", "\n\n", "data: [DONE]\n\n")
LINES = Framing("application/x-ndjson", "", "\n", "")

Fact = Callable[[bytes], Json | list[Json]]


def detail(error: WireError) -> Json:
    """Return what FastAPI says of a route that is not there."""
    return {"detail": error.message}


@dataclass(frozen=True)
class Family:
    """A server family: its generating routes, what it tells besides (by method and path), and its habits.

    Its prefix cache keeps blocks of ``block_size`` tokens. A request that its server does not survive is answered with
    ``last_words``, or not at all.
    """

    endpoints: tuple[Endpoint, ...]
    facts: Mapping[tuple[str, str], Fact]
    framing: Framing = EVENTS
    refusal: Callable[[WireError], Json] = WireError.body
    unrouted: Callable[[WireError], Json] = WireError.body
    block_size: int = 1
    last_words: WireError | None = None
