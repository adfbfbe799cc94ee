"""Which models answer which families, and which of them is the one that the others stand beside.

The law, tested in ``tests/models/test_groups.py``: every bundled model is of one group, and no family is in two. A
model that is not bundled is asked what the ladder is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.tasks import BY_NAME, MAX_TOKENS, TaskFamily, wordings
from hybrid.tasks.mix import MIXES


@dataclass(frozen=True)
class ModelGroup:
    """Models that answer the same families, with their families by name; ``large`` is the one that is given all.

    ``max_tokens`` is the most that an answer may have.
    """

    names: tuple[str, ...]
    large: str
    families: Mapping[str, TaskFamily]
    max_tokens: int


LADDER = ModelGroup(tuple(MIXES), "large", BY_NAME, MAX_TOKENS)
WORDINGS = ModelGroup(
    tuple(wordings.TASTES), "wordings-large", {each.name: each for each in wordings.FAMILIES}, wordings.MAX_TOKENS
)
GROUPS = (LADDER, WORDINGS)


def group_of(model: str) -> ModelGroup:
    """Return the group of a model's name; the ladder for any that is not bundled."""
    return next((group for group in GROUPS if model in group.names), LADDER)
