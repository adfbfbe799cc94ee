"""Scores as JSON, exact to the last bit, each with the name of its kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, cast

from hybrid.defer.correction import CorrectedScore, Correction
from hybrid.defer.learned import LearnedScore
from hybrid.defer.score import PriorScore, Score

FittedScore: TypeAlias = PriorScore | LearnedScore
KeptScore: TypeAlias = FittedScore | CorrectedScore
_KINDS: dict[str, type[FittedScore]] = {each.kind: each for each in (PriorScore, LearnedScore)}


def score_to_json(score: KeptScore) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    if isinstance(score, CorrectedScore):
        fitted, correction = score_to_json(cast(KeptScore, score.score)), score.correction.to_json()
        return {"kind": score.kind, "score": fitted, "correction": correction}
    return {"kind": score.kind, **score.to_json()}


def score_from_json(kept: Mapping[str, Any]) -> KeptScore:
    """Read what ``score_to_json`` gave. Raises ValueError for anything else."""
    try:
        if kept["kind"] == CorrectedScore.kind:
            return CorrectedScore(score_from_json(kept["score"]), Correction.from_json(kept["correction"]))
        return _KINDS[kept["kind"]].from_json(kept)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        msg = f"this is no score that can be read: {error!r}"
        raise ValueError(msg) from error


def score_digest(score: Score) -> str:
    """Name a score in 16 characters: another score, though of the same pair and judge, has another name."""
    kept = json.dumps(score_to_json(cast(KeptScore, score)), sort_keys=True)
    return blake2b(kept.encode(), digest_size=8).hexdigest()
