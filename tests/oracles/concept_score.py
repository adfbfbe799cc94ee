"""A learned score whose decision is plain to see: one stump over the entropy over concepts."""

from __future__ import annotations

from critic_score import nothing, stump

from hybrid.defer import LearnedScore
from hybrid.defer.features import CONCEPT_FEATURES, NUM_IDS, TOKEN_FEATURES
from hybrid.defer.learned import ExcessLine
from hybrid.defer.signals import CONCEPT_STATISTICS


def concept_score(digest: str, feature: str = "entropy over concepts", at: float = 0.5) -> LearnedScore:
    """A score that rejects where a number over concepts is above ``at``."""
    names = (*TOKEN_FEATURES[:-NUM_IDS], *CONCEPT_FEATURES)
    hazard = stump(names.index(feature), at, len(names) + NUM_IDS, -5.0, 5.0)
    models = nothing(1), nothing(1), nothing(30 + 2 * len(CONCEPT_STATISTICS)), hazard
    return LearnedScore("kl:0.7", 0.6, *models, ExcessLine(0.1, 0.7, 0.5), concepts=digest)
