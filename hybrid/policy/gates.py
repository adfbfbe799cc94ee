"""Gates: keep, check or write? Asked with local signals only, token by token, while a span is drafted.

The law: a gate may end a draft before a token is drawn (``before``) or after one was drawn and kept (``after``); it
never drops a drawn token, for that would bias every exact rule. ``full`` is what it says of a span that reached its
limit or an end token. What a gate says depends on its arguments alone: a draft that was decoded ahead meets it again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from hybrid.policy.coins import CoinKey, SeededCoin
from hybrid.prob import Dense, Greedy, Rule, skip_certificate, warp
from hybrid.types import Sampling

GateDecision: TypeAlias = Literal["keep", "check", "write"]


class DraftPosition(NamedTuple):
    """Where a gate is asked: the position in the answer, and the local rows of what the draft holds already."""

    position: int
    drafted: Sequence[Dense]


class Gate(Protocol):
    """Local signals in, a call out; None means: go on drafting."""

    @property
    def full(self) -> GateDecision:
        """What to do with a span that was drafted to its limit."""
        ...

    @property
    def calls(self) -> frozenset[GateDecision]:
        """All that it may ever say."""
        ...

    def why(self, row: Dense | None) -> str:
        """Say why the pen is handed over at a row."""
        ...

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:
        """May end the draft before a token is drawn from ``row``."""
        ...

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:
        """May end the draft with the drawn ``token`` kept; ``place`` is the token's, before it was drawn."""
        ...


class _GoOnGate:
    """A gate that goes on, where it is not said otherwise."""

    full: GateDecision

    @property
    def calls(self) -> frozenset[GateDecision]:
        """What it says of a span, and what it may say before."""
        return frozenset((self.full, getattr(self, "call", self.full)))

    def why(self, row: Dense | None) -> str:  # noqa: ARG002
        """Say nothing that is not known."""
        return "the gate hands the pen over"

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002  (the port's shape)
        """Go on."""
        return None

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Go on."""
        return None


@dataclass(frozen=True)
class FixedGate(_GoOnGate):
    """Says the same of every span and never ends one early."""

    full: GateDecision


@dataclass(frozen=True)
class _DoubtGate(_GoOnGate, ABC):
    """Ends the draft before a row in doubt, with one call; says the other of a span that came to its end."""

    limit: float
    call: GateDecision = "write"
    full: GateDecision = "keep"

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Ask at the doubtful position itself, before a token is drawn there."""
        return self.call if self.in_doubt(row) else None

    def why(self, row: Dense | None) -> str:
        """Say how doubtful the local model was."""
        return "the local model is in doubt" + (f": entropy {row.entropy():.3g} nats" if row else "")

    @abstractmethod
    def in_doubt(self, row: Dense) -> bool:
        """Whether the row is one to ask about."""


@dataclass(frozen=True)
class EntropyGate(_DoubtGate):
    """In doubt where the local row's entropy, in nats at temperature 1, exceeds ``limit``."""

    def in_doubt(self, row: Dense) -> bool:
        """Compare the entropy."""
        return row.entropy() > self.limit


@dataclass(frozen=True)
class MarginGate(_DoubtGate):
    """In doubt where the two likeliest tokens are nearer than ``limit``, in probability."""

    def in_doubt(self, row: Dense) -> bool:
        """Compare the margin."""
        (_, first), *second = row.top(2)
        return math.exp(first) - sum(math.exp(logprob) for _, logprob in second) < self.limit


@dataclass(frozen=True)
class MaxProbGate(_DoubtGate):
    """In doubt where the likeliest token has less than ``limit``: the fall-back of BiLD (arXiv:2302.07863)."""

    def in_doubt(self, row: Dense) -> bool:
        """Compare the largest probability."""
        return math.exp(row.top(1)[0][1]) < self.limit


@dataclass(frozen=True)
class RandomGate(_GoOnGate):
    """Hands the pen over at a position with chance ``rate``: what every gate should be compared with."""

    rate: float
    seed: int = 0
    call: GateDecision = "write"
    full: GateDecision = "keep"

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Toss a coin that depends on the seed and the position alone."""
        odds = np.array([self.rate, 1.0 - self.rate])
        return self.call if SeededCoin(self.seed)(odds, CoinKey(place.position, "gate", 0)) == 0 else None

    def why(self, row: Dense | None) -> str:  # noqa: ARG002
        """Say that it means nothing."""
        return "a coin said so"


class _CheckingGate(_GoOnGate):
    """A gate that may have a drawn token checked."""

    @property
    def calls(self) -> frozenset[GateDecision]:
        """What it says of a span, and of a token."""
        return frozenset((self.full, "check"))


@dataclass(frozen=True)
class PerturbationGate(_CheckingGate):
    """Checks a drawn token that other temperatures would often have drawn otherwise (U-HLM, arXiv:2412.12687).

    The uncertainty is the share of draws, one at each of some temperatures, that differ from the token: here its
    expectation, which needs no coins.
    """

    limit: float
    temperatures: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    full: GateDecision = "keep"

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Ask about the token itself; it stays drawn."""
        at = np.array([token])
        agree = [float(warp(row, Sampling(temperature)).probs_of(at)[0]) for temperature in self.temperatures]
        return "check" if 1.0 - sum(agree) / len(agree) > self.limit else None


@dataclass(frozen=True)
class CertifiedSkipGate(_CheckingGate):
    """Checks a drawn token unless KL(cloud || local) up to ``bound`` nats could not make the rule reject it.

    Law: where the divergence is within the bound, what is kept unchecked the rule would have accepted, if the draft is
    greedy. The bound is the user's: a quantile that was measured, or a belief.
    """

    bound: float
    rule: Rule = field(default_factory=Greedy)
    full: GateDecision = "keep"

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Compare the least divergence that could overturn the local row's favourite."""
        return None if token == row.best and skip_certificate(row, self.rule) > self.bound else "check"


@dataclass(frozen=True)
class SurvivalGate(_CheckingGate):
    """Ends a draft for checking when the chance that all of it stands is predicted below ``limit``.

    A token's chance is predicted as 1 - sqrt(entropy / 5), at least 0: AdaEDL's entropy bound (arXiv:2410.18351), its
    constant fitted to nothing. Positions multiply.
    """

    limit: float
    full: GateDecision = "check"

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Multiply over the draft and the token just drawn."""
        chance = math.prod(max(0.0, 1.0 - math.sqrt(seen.entropy() / 5.0)) for seen in (*place.drafted, row))
        return "check" if chance < self.limit else None


NEVER = FixedGate("keep")
ALWAYS = FixedGate("check")
