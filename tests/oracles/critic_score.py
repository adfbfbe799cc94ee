"""Learned scores whose decision is plain to see: one stump over what a critic says, or over the entropy."""

from __future__ import annotations

import numpy as np

from hybrid.defer import LearnedScore
from hybrid.defer.features import CRITIC_FEATURES, NUM_IDS, TOKEN_FEATURES
from hybrid.defer.learned import BoostedTrees, ExcessLine
from hybrid.defer.logistic import LinearModel, Scale
from hybrid.defer.signals import CRITIC_STATISTICS
from hybrid.defer.words import BUCKETS


def nothing(width: int) -> LinearModel:
    return LinearModel(0.0, np.zeros(BUCKETS), np.zeros(width), Scale(np.zeros(width), np.ones(width)))


def stump(feature: int, at: float, num_features: int, low: float, high: float) -> BoostedTrees:
    """One tree: log-odds of ``low`` up to a number of a feature, of ``high`` above it."""
    left, right = np.array([1, 1, 2]), np.array([2, 1, 2])
    features = np.array([feature, 0, 0])
    return BoostedTrees(0.0, num_features, np.array([0]), features, np.array([at, low, high]), left, right)


def score_of(critic: str | None = "c1", low: float = -5.0, high: float = 5.0) -> LearnedScore:
    """A score that rejects where the critic's KL is above 0.5 nats; without a critic, where the entropy is."""
    names = (*TOKEN_FEATURES[:-NUM_IDS], *(CRITIC_FEATURES if critic else ()))
    hazard = stump(names.index("critic's KL" if critic else "entropy"), 0.5, len(names) + NUM_IDS, low, high)
    width = 30 + 2 * len(CRITIC_STATISTICS) * (critic is not None)
    models = nothing(1), nothing(1), nothing(width), hazard
    return LearnedScore("kl:0.7", *models, ExcessLine(0.1, 0.7, 0.5), critic=critic)
