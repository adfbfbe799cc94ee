"""Gates: keep, check or write? Asked with local signals only, token by token, while a span is drafted.

The law: a gate may end a draft before a token is drawn (``before``) or after one was drawn and kept (``after``); it
never drops a drawn token, for that would bias every exact rule. ``full`` is what it says of a span that reached its
limit or an end token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from hybrid.prob import Dense

Call: TypeAlias = Literal["keep", "check", "write"]


class Gate(Protocol):
    """Local signals in, a call out; None means: go on drafting."""

    @property
    def full(self) -> Call:
        """What to do with a span that was drafted to its limit."""
        ...

    def before(self, row: Dense, num_drafted: int) -> Call | None:
        """May end the draft before a token is drawn from ``row``."""
        ...

    def after(self, row: Dense, token: int, num_drafted: int) -> Call | None:
        """May end the draft with the drawn ``token`` kept."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Says the same of every span and never ends one early."""

    full: Call

    def before(self, row: Dense, num_drafted: int) -> Call | None:  # noqa: ARG002  (the port's shape)
        """Go on."""
        return None

    def after(self, row: Dense, token: int, num_drafted: int) -> Call | None:  # noqa: ARG002
        """Go on."""
        return None


@dataclass(frozen=True)
class Entropy:
    """Hands the pen over where the local row's entropy, in nats at temperature 1, exceeds ``limit``; else keeps."""

    limit: float
    full: Call = "keep"

    def before(self, row: Dense, num_drafted: int) -> Call | None:  # noqa: ARG002
        """Ask for the cloud's pen at the doubtful position itself, before a token is drawn there."""
        return "write" if row.entropy() > self.limit else None

    def after(self, row: Dense, token: int, num_drafted: int) -> Call | None:  # noqa: ARG002
        """Go on."""
        return None


NEVER = Fixed("keep")
ALWAYS = Fixed("check")
