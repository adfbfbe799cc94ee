"""Which worth spends a share of the bill, or recovers a share of the loss, where whole questions are kept or written.

Under the loss "nats" a draft is kept while ``V x told / mean excess <= its cloud-only price``, so questions go to the
cloud in the order of what keeping is expected to lose, per price; V is ``worth`` times the mean cloud-only price of the
calibration's questions. Both dials are read off those questions: no other worth comes nearer to what was asked there
(``tests/defer/test_routing_dial.py``). This file knows numbers alone: no tariff, no model, no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.defer.calibration import CalibrationQuestion
from hybrid.prob import Floats

# Beyond the first and the last question nothing says where a dial should stand: a factor of two leaves them out of it.
BEYOND = 4.0


@dataclass(frozen=True, eq=False)
class RoutedQuestions:
    """Calibration questions and what the cloud alone takes for each, in any one unit. Shapes (N,), N at least 1.

    ``told`` and ``excess``: the mean excess loss of a draft's tokens in nats, as forecast and as it was. ``expected``:
    the cloud-only price as it is expected when the draft is known; ``paid``: as it was. Raises ValueError for arrays of
    several lengths, of length 0, of which none is told to lose anything or loses anything, or without prices.
    """

    told: Floats
    excess: Floats
    expected: Floats
    paid: Floats

    def __post_init__(self) -> None:
        """Raise ValueError where nothing can be told."""
        sizes = {len(each) for each in (self.told, self.excess, self.expected, self.paid)}
        if len(sizes) > 1 or not self.told.size:
            raise ValueError("a dial needs the same questions, at least one, in each of its columns")
        if not (
            self.told.max() > 0.0
            and self.excess.sum() > 0.0
            and (self.expected > 0.0).all()
            and (self.paid > 0.0).all()
        ):
            raise ValueError("a dial needs drafts that lose something, and prices above 0")

    @classmethod
    def of(cls, questions: Sequence[CalibrationQuestion], expected: Floats, paid: Floats) -> RoutedQuestions:
        """Take a calibration's questions with their prices."""
        told = np.array([each.excess_told for each in questions], dtype=np.float64)
        return cls(told, np.array([each.excess for each in questions], dtype=np.float64), expected, paid)

    @property
    def mean_excess(self) -> float:
        """The mean excess of the questions' drafts, in nats a token: what V is the worth of."""
        return float(self.excess.mean())

    def worth_at_bill(self, share: float) -> float:
        """Return the worth at which a share of the questions' bill is spent, as nearly as whole questions allow."""
        return self._worth(self.paid, share)

    def worth_at_recovered(self, share: float) -> float:
        """Return the worth at which a share of the questions' excess loss is not kept, as nearly as they allow."""
        return self._worth(self.excess, share)

    def is_sent(self, worth: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Tell which questions a worth sends, shape (N,): keeping them is expected to lose more than they cost."""
        value = worth * self.paid.mean()
        sent: np.ndarray[tuple[int], np.dtype[np.bool_]] = value * self.told / self.mean_excess > self.expected
        return sent

    def _worth(self, weights: Floats, share: float) -> float:
        """Return the worth that sends questions of so much of the weight, the highest loss per price first."""
        ratios = self.told / self.expected
        order = np.argsort(-ratios, kind="stable")
        falling = ratios[order]
        reached = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
        # No cut-off stands between two questions of one ratio, and none sends what is expected to lose nothing.
        after = np.concatenate([falling[1:], [0.0]])
        parts = np.concatenate([[True], (falling > after) & (falling > 0.0)])
        num_sent = int(np.flatnonzero(parts)[np.argmin(np.abs(reached[parts] - share))])
        above = falling[num_sent - 1] if num_sent else BEYOND * falling[0]
        below = after[num_sent - 1] if num_sent else falling[0]
        cutoff = np.sqrt(above * below) if below > 0.0 else above / 2.0
        return float(self.mean_excess / (cutoff * self.paid.mean()))
