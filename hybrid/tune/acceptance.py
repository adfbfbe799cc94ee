"""How many of a drafter's tokens the cloud will accept, greedily: told before a drafter is taken.

Speculative decoding at temperature 0 writes the cloud's own text, so what counts is along that text: the share of its
tokens that are the drafter's most likely ones. A calibration has bought the cloud's text with the drafter's rows. The
law (``tests/tune/test_acceptance.py``): the interval holds the share on as many other questions of the same kind in
about 95 of 100 cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import DraftSignals
from hybrid.tune.bought import BoughtQuestion

RESAMPLES = 1_000
# A token is a row's likeliest where its probability is the largest, but for rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class ExpectedAcceptance:
    """The share of accepted tokens, and where it is expected on as many other questions: 95 %."""

    share: float
    low: float
    high: float
    num_tokens: int


def is_favourite(signals: DraftSignals) -> NDArray[np.bool_]:
    """Return which tokens are the drafter's likeliest ones, shape (T,)."""
    return np.asarray(signals.logprob >= np.log(signals.top) - ROUNDING, dtype=np.bool_)


def greedy_acceptance(questions: Sequence[BoughtQuestion]) -> ExpectedAcceptance:
    """Return what to expect of a drafter whose rows along the cloud's texts are known; of at least one token.

    The interval is that of the difference of two samples of as many questions (a seeded bootstrap).
    """
    signals = [each.written.signals for each in questions]
    agreed = np.array([float(is_favourite(each).sum()) for each in signals])
    tokens = np.array([float(len(each)) for each in signals])
    rng, share = np.random.default_rng(0), float(agreed.sum() / tokens.sum())
    drawn = rng.integers(len(signals), size=(2 * RESAMPLES, len(signals)))
    shares = agreed[drawn].sum(axis=1) / np.maximum(1.0, tokens[drawn].sum(axis=1))
    low, high = np.percentile(shares[:RESAMPLES] - shares[RESAMPLES:], [2.5, 97.5])
    return ExpectedAcceptance(share, max(0.0, share + float(low)), min(1.0, share + float(high)), int(tokens.sum()))
