"""Which of several local models to take beside one cloud: the one whose drafts leave the least loss for the same money.

Whole questions go to the cloud, in the order of what their drafts are expected to lose per price, until a share of its
bill is spent; what is left is the excess loss of the drafts that are kept, in nats a token. It is averaged over all
shares of the bill. All drafters stand beside one cloud, so both mean the same for each of them.

The law (``tests/tune/test_calibrating.py``): what is left is the area under the curve that a sum over every prefix of
that order makes; a choice between drafters that the questions do not tell apart is not called sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.tune.calibrating import CalibratedPair

RESAMPLES, SURE = 1_000, 0.95


@dataclass(frozen=True)
class DrafterChoice:
    """The pair to take, and the share of resamples of the questions in which it leaves less than any other."""

    best: CalibratedPair
    share: float

    @property
    def sure(self) -> bool:
        """Whether these questions tell it from all the others."""
        return self.share >= SURE


def nats_left(pair: CalibratedPair, drawn: NDArray[np.int64] | None = None) -> float:
    """Return the nats a token that a drafter leaves, over all shares of the bill. ``drawn``: of these questions."""
    questions, prices = pair.calibration.questions, pair.prices
    numbers = np.arange(len(questions)) if drawn is None else drawn
    counts = np.array([(each.prompt_tokens, each.draft_tokens, each.cloud_tokens) for each in questions], dtype=float)
    prompt, draft, written = counts[numbers].T
    told, excess = np.array([(each.excess_told, each.excess) for each in questions])[numbers].T
    alone = np.asarray(prices.write(prompt, written, 0))
    order = np.argsort(-told / np.asarray(prices.write(prompt, draft, 0)), kind="stable")
    spent = np.concatenate([[0.0], np.cumsum(alone[order])]) / alone.sum()
    kept = np.concatenate([[0.0], np.cumsum(excess[order])])
    left = (kept[-1] - kept) / len(numbers)
    return float(np.diff(spent) @ (left[1:] + left[:-1]) / 2.0)


def choose_drafter(pairs: Sequence[CalibratedPair]) -> DrafterChoice:
    """Return the pair that leaves least, and how often it does when the questions are drawn anew (seeded)."""
    best = min(range(len(pairs)), key=lambda number: nats_left(pairs[number]))
    rng = np.random.default_rng(0)
    sizes = [len(pair.calibration.questions) for pair in pairs]
    wins = 0
    for _ in range(RESAMPLES):
        # The same questions for all, where all were asked the same ones.
        shared = rng.integers(sizes[0], size=sizes[0])
        draws = [shared if size == sizes[0] else rng.integers(size, size=size) for size in sizes]
        left = [nats_left(pair, drawn) for pair, drawn in zip(pairs, draws, strict=True)]
        wins += left.pop(best) < min(left, default=np.inf)
    return DrafterChoice(pairs[best], wins / RESAMPLES)
