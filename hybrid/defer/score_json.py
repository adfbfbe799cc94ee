"""Scores as JSON, exact to the last bit, each with the name of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from hybrid.defer.learned import LearnedScore
from hybrid.defer.score import PriorScore

KeptScore: TypeAlias = PriorScore | LearnedScore
_KINDS: dict[str, type[KeptScore]] = {each.kind: each for each in (PriorScore, LearnedScore)}


def score_to_json(score: KeptScore) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    return {"kind": score.kind, **score.to_json()}


def score_from_json(kept: Mapping[str, Any]) -> KeptScore:
    """Read what ``score_to_json`` gave. Raises ValueError for anything else."""
    try:
        return _KINDS[kept["kind"]].from_json(kept)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        msg = f"this is no score that can be read: {error!r}"
        raise ValueError(msg) from error
