"""What came of a planned draft, without its text: all that is ever learned online is a function of such records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.signals import STATISTICS, DraftSignals, mean_surprise, statistics
from hybrid.defer.words import BUCKETS
from hybrid.prob import Floats

# What labels a draft: what the cloud's rows said of it. What was kept unchecked has no label.
#
# A check of a whole draft is one, and so is what the cloud wrote, along which both models' rows are known.


@dataclass(frozen=True, eq=False)
class LabelledDraft:
    """A draft of T tokens and what the cloud's rows said of it.

    ``first_rejection``: the offset of the first token that the judge rejects, None where it accepts all. Shapes (T,):
    ``excess``, each token's excess loss in nats, log P_cloud(best) - log P_cloud(token); ``divergence``, the measured
    KL in nats. ``kept_tokens``: how many tokens the judge accepts, each by itself. None: not known.
    """

    signals: DraftSignals
    first_rejection: int | None
    excess: Floats
    divergence: Floats | None = None
    kept_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the label does not fit the draft."""
        if len(self.excess) != len(self.signals) or not 0 <= (self.first_rejection or 0) < max(1, len(self.signals)):
            raise ValueError("a label of another draft")


@dataclass(frozen=True, eq=False)
class LabelledQuestion:
    """A calibration question: its whole first draft, and how long the cloud's own answer is (end token counted)."""

    draft: LabelledDraft
    cloud_tokens: int


DraftPlace: TypeAlias = Literal["start", "block", "handback"]
"""A question's first draft, the next block of one of which all before was kept, or one behind text of the cloud's."""

# So many significant digits of a statistic are kept.
DIGITS = 5


@dataclass(frozen=True)
class DraftOutcome:
    """A draft, what was decided of it, and the verdict if somebody gave one.

    ``told``: the chance that it is turned down, by the score as it was fitted once; ``chance``: the same as corrected,
    by which it was decided. ``keeps``: the decision, the floor's coin aside. ``floor``: the share of what would be kept
    that was checked at random then. ``turned_down``: the verdict of the judge, by a check or along what the cloud wrote
    in the draft's place; None: nobody looked. ``cutoff``: the highest chance that was kept then, where a risk was asked
    for. ``words``, ``statistics``: the question's buckets and the draft's numbers; empty where there is no verdict.
    ``surprise``: the mean of -log P over the local model's favourites, in nats. ``whole_cost``: what the cloud alone
    would take, in the pair's unit of money. ``kept_tokens`` of ``judged_tokens`` were accepted. ``score``: the
    ``score_digest`` of the score that told; empty: of before it was kept.
    """

    told: float
    chance: float
    keeps: bool
    floor: float
    turned_down: bool | None
    after: DraftPlace = "start"
    words: tuple[int, ...] = ()
    statistics: tuple[float, ...] = ()
    surprise: float = 0.0
    whole_cost: float = 0.0
    cutoff: float | None = None
    kept_tokens: int = 0
    judged_tokens: int = 0
    score: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for what no draft can have had: files are read into this."""
        known = self.turned_down is not None
        shares = (self.told, self.chance, self.floor)
        if not (
            all(0.0 <= share <= 1.0 for share in shares)
            and (self.propensity > 0.0 or not known)
            and all(0 <= bucket < BUCKETS for bucket in self.words)
            and len(self.statistics) == (len(STATISTICS) if known else 0)
            and 0 <= self.kept_tokens <= self.judged_tokens
            and math.isfinite(self.surprise + self.whole_cost + sum(self.statistics))
        ):
            raise ValueError("no draft can have come to this")

    @classmethod
    def of(cls, signals: DraftSignals, *, turned_down: bool | None, **more: Any) -> DraftOutcome:
        """Take from a draft's signals what is kept of them. ``more``: the other fields."""
        known = turned_down is not None
        numbers = tuple(float(f"{number:.{DIGITS}g}") for number in statistics(signals)) if known else ()
        return cls(
            turned_down=turned_down,
            words=signals.words if known else (),
            statistics=numbers,
            surprise=mean_surprise(signals),
            **more,
        )

    @property
    def propensity(self) -> float:
        """The chance with which it was asked about, given all that was known."""
        return self.floor if self.keeps else 1.0


# What shares are computed from, as columns of shape (N,): a walk through 5,000 records takes a millisecond each time.
OutcomeRows: TypeAlias = NDArray[np.void]
_NUMBERS = ("chance", "propensity", "surprise", "whole_cost", "kept_tokens", "judged_tokens")
_COLUMNS = [
    *((name, bool) for name in ("starts", "known", "turned_down", "keeps")),
    *((name, float) for name in _NUMBERS),
]
_numbers = attrgetter(*_NUMBERS)


def rows_of(outcomes: Iterable[DraftOutcome] | OutcomeRows) -> OutcomeRows:
    """Return outcomes as rows, shape (N,), in their order; rows as they are.

    ``starts``: a question's first draft; ``known``: it has a verdict; the others as in ``DraftOutcome``.
    """
    if isinstance(outcomes, np.ndarray):
        return outcomes
    rows = [
        (each.after == "start", each.turned_down is not None, each.turned_down is True, each.keeps, *_numbers(each))
        for each in outcomes
    ]
    return np.array(rows, _COLUMNS)
