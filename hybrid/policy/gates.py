"""Gates: keep, check or write? Decided from local signals only, token by token, while a span is drafted. And coins.

The law: a gate may end a draft before a token is drawn (``before``) or after one was drawn and kept (``after``); it
never drops a drawn token, for that would bias every exact judge. ``when_full`` is its decision about a span that
reached its limit or an end token. A decision depends on the gate's arguments alone: what was decoded ahead meets the
same gate again. A gate also says what is known of the tokens that it lets through (``unchecked``).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from hybrid.prob import AcceptanceRule, Dense, Floats, GreedyAcceptance, skip_certificate, warp
from hybrid.types import Sampling

# Coins: the only randomness of decoding, as a port, so that whole answers can be enumerated and repeated.
#
# A coin takes probabilities and returns an index. The seeded one is keyed by (seed, position, role, rejections so far,
# level): with the position alone as key, a position drafted again after a rejection would repeat the rejected token,
# and two levels of a chain would toss alike. The first level's key names no level: so it was when there was no other.


class CoinKey(NamedTuple):
    """What a toss is for; ``level``: the level of a chain whose token or judge it is, 1 for a draft."""

    position: int
    role: str
    rejections: int
    level: int = 1


Coin: TypeAlias = Callable[[Floats, CoinKey], int]


class SeededCoin:
    """The same toss of the same seed always falls alike, on every machine."""

    def __init__(self, seed: int) -> None:
        """Take any integer."""
        self._seed = seed

    def __call__(self, probs: Floats, toss: CoinKey) -> int:
        """Return an index drawn from ``probs``, shape (V,). An index of probability 0 is never drawn."""
        above = f"/{toss.level}" if toss.level > 1 else ""
        key = f"{self._seed}/{toss.position}/{toss.role}/{toss.rejections}{above}".encode()
        # 53 bits are what a float holds; one more could round up to 1 and draw an index that is not there.
        uniform = (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11) / 2**53
        ladder = np.cumsum(probs)
        return int(np.searchsorted(ladder, uniform * ladder[-1], side="right"))


GateDecision: TypeAlias = Literal["keep", "check", "write"]


def number_text(value: float) -> str:
    """Return a number as the command line takes it, to the last digit.

    >>> number_text(2.0), number_text(0.1)
    ('2', '0.1')
    """
    return repr(float(value)).removesuffix(".0")


class DraftPosition(NamedTuple):
    """Where a gate decides: the position in the answer, and the local rows of what the draft holds already."""

    position: int
    drafted: Sequence[Dense]


class Gate(Protocol):
    """Local signals in, a decision out; None means: go on drafting."""

    @property
    def when_full(self) -> GateDecision:
        """What to do with a span that was drafted to its limit."""
        ...

    @property
    def decisions(self) -> frozenset[GateDecision]:
        """All that it may ever decide."""
        ...

    @property
    def unchecked(self) -> str | None:
        """What is true of a token that it lets through, as what follows ``a token``; None: nothing is known."""
        ...

    @property
    def exact_within_nats(self) -> float | None:
        """The KL(cloud || local) up to which a token that it lets through is the cloud's best; None: not known."""
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


class BaseGate:
    """A gate that goes on drafting and promises nothing, where a subclass does not say otherwise."""

    when_full: GateDecision

    @property
    def decisions(self) -> frozenset[GateDecision]:
        """The decision about a full span, and the one that may end it early."""
        return frozenset((self.when_full, getattr(self, "decision", self.when_full)))

    @property
    def unchecked(self) -> str | None:
        """Know nothing of a token."""
        return None

    @property
    def exact_within_nats(self) -> float | None:
        """Know nothing of the cloud."""
        return None

    def why(self, row: Dense | None) -> str:  # noqa: ARG002
        """Name no reason that is not known."""
        return "the gate hands the pen over"

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002  (the port's shape)
        """Go on."""
        return None

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Go on."""
        return None


@dataclass(frozen=True)
class FixedGate(BaseGate):
    """Decides the same about every span and never ends one early."""

    when_full: GateDecision

    def __str__(self) -> str:
        """Return what ``--gate`` calls it."""
        return {"keep": "never", "check": "always"}.get(self.when_full, self.when_full)


@dataclass(frozen=True)
class UncertaintyGate(BaseGate, ABC):
    """Ends the draft before a row that is uncertain, with ``decision``; of a full span it decides ``when_full``."""

    name: ClassVar[str]
    limit: float
    decision: GateDecision = "write"
    when_full: GateDecision = "keep"

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Decide at the uncertain position itself, before a token is drawn there."""
        return self.decision if self.is_uncertain(row) else None

    def __str__(self) -> str:
        """Return what ``--gate`` calls it."""
        return f"{self.name}:{number_text(self.limit)}:{self.decision}"

    def why(self, row: Dense | None) -> str:
        """Say how uncertain the local model was."""
        return "the local model is in doubt" + (f": entropy {row.entropy():.3g} nats" if row else "")

    @abstractmethod
    def is_uncertain(self, row: Dense) -> bool:
        """Whether the row is beyond the limit."""


@dataclass(frozen=True)
class EntropyGate(UncertaintyGate):
    """Uncertain where the local row's entropy, in nats at temperature 1, exceeds ``limit``."""

    name = "entropy"

    @property
    def unchecked(self) -> str:
        """The row was within the limit."""
        return f"was drawn where the local entropy is at most {self.limit:g} nats"

    def is_uncertain(self, row: Dense) -> bool:
        """Compare the entropy."""
        return row.entropy() > self.limit


@dataclass(frozen=True)
class MarginGate(UncertaintyGate):
    """Uncertain where the two likeliest tokens are nearer than ``limit``, in probability."""

    name = "margin"

    @property
    def unchecked(self) -> str:
        """The row was within the limit."""
        return f"was drawn where the two likeliest local tokens are at least {self.limit:g} apart"

    def is_uncertain(self, row: Dense) -> bool:
        """Compare the margin."""
        (_, first), *second = row.top(2)
        return math.exp(first) - sum(math.exp(logprob) for _, logprob in second) < self.limit


@dataclass(frozen=True)
class MaxProbGate(UncertaintyGate):
    """Uncertain where the likeliest token has less than ``limit``: the fall-back of BiLD (arXiv:2302.07863)."""

    name = "max-prob"

    @property
    def unchecked(self) -> str:
        """The row was within the limit."""
        return f"was drawn where the likeliest local token has at least {self.limit:g}"

    def is_uncertain(self, row: Dense) -> bool:
        """Compare the largest probability."""
        return math.exp(row.top(1)[0][1]) < self.limit


@dataclass(frozen=True)
class RandomGate(BaseGate):
    """Hands the pen over at a position with chance ``rate``: what every gate should be compared with."""

    rate: float
    seed: int = 0
    decision: GateDecision = "write"
    when_full: GateDecision = "keep"

    def before(self, row: Dense, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Toss a coin that depends on the seed and the position alone."""
        odds = np.array([self.rate, 1.0 - self.rate])
        return self.decision if SeededCoin(self.seed)(odds, CoinKey(place.position, "gate", 0)) == 0 else None

    @property
    def unchecked(self) -> str:
        """The coin is blind."""
        return f"was left to the local model by a coin of chance {1.0 - self.rate:g}, whatever it is"

    def why(self, row: Dense | None) -> str:  # noqa: ARG002
        """Say that it means nothing."""
        return "a coin said so"

    def __str__(self) -> str:
        """Return what ``--gate`` calls it."""
        return f"random:{number_text(self.rate)}:{self.decision}"


class TokenCheckGate(BaseGate):
    """A gate that may have a drawn token checked."""

    @property
    def decisions(self) -> frozenset[GateDecision]:
        """The decision about a full span, and the one about a token."""
        return frozenset((self.when_full, "check"))


@dataclass(frozen=True)
class PerturbationGate(TokenCheckGate):
    """Checks a drawn token that other temperatures would often have drawn otherwise (U-HLM, arXiv:2412.12687).

    The uncertainty is the share of draws, one at each of some temperatures, that differ from the token: here its
    expectation, which needs no coins.
    """

    limit: float
    temperatures: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    when_full: GateDecision = "keep"

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Decide about the token itself; it stays drawn."""
        at = np.array([token])
        agree = [float(warp(row, Sampling(temperature)).probs_of(at)[0]) for temperature in self.temperatures]
        return "check" if 1.0 - sum(agree) / len(agree) > self.limit else None

    @property
    def unchecked(self) -> str:
        """The uncertainty was within the limit."""
        return f"differs at other temperatures in at most {self.limit:g} of the draws"

    def __str__(self) -> str:
        """Return what ``--gate`` calls it."""
        return f"perturbed:{number_text(self.limit)}"


@dataclass(frozen=True)
class CertifiedSkipGate(TokenCheckGate):
    """Checks a drawn token unless KL(cloud || local) up to ``bound_nats`` could not make the rule reject it.

    Law: where the divergence is within the bound, what is kept unchecked the rule would have accepted, if the draft is
    greedy. The bound is the user's: a quantile that was measured, or a belief.
    """

    bound_nats: float
    rule: AcceptanceRule = field(default_factory=GreedyAcceptance)
    when_full: GateDecision = "keep"

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Compare the least divergence that could overturn the local row's favourite."""
        return None if token == row.best and skip_certificate(row, self.rule) > self.bound_nats else "check"

    @property
    def exact_within_nats(self) -> float | None:
        """The bound, where the rule accepts nothing but the cloud's best token."""
        return self.bound_nats if isinstance(self.rule, GreedyAcceptance) else None

    @property
    def unchecked(self) -> str:
        """The bound is a belief about the cloud."""
        return f"is the local favourite, and accepted if KL(cloud || local) is at most {self.bound_nats:g} nats there"

    def __str__(self) -> str:
        """Return what ``--gate`` calls it."""
        return f"certified:{number_text(self.bound_nats)}"


@dataclass(frozen=True)
class SurvivalGate(TokenCheckGate):
    """Ends a draft for checking when the chance that all of it stands is predicted below ``limit``.

    A token's chance is predicted as 1 - sqrt(entropy / 5), at least 0: AdaEDL's entropy bound (arXiv:2410.18351), its
    constant fitted to nothing. Positions multiply.
    """

    limit: float
    when_full: GateDecision = "check"

    def after(self, row: Dense, token: int, place: DraftPosition) -> GateDecision | None:  # noqa: ARG002
        """Multiply over the draft and the token just drawn."""
        chance = math.prod(max(0.0, 1.0 - math.sqrt(seen.entropy() / 5.0)) for seen in (*place.drafted, row))
        return "check" if chance < self.limit else None

    def __str__(self) -> str:
        """Return what ``--gate`` calls it."""
        return f"survival:{number_text(self.limit)}"


NEVER = FixedGate("keep")
ALWAYS = FixedGate("check")
