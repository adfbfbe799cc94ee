"""What the bundled models are for: questions of the families on which they were trained, and no others.

The law (``tests/run/test_known_families.py``): of the families' own problems fewer than 1 % are taken for others, and
of everyday questions more than 95 % are. It is decided by the question alone, never by what was asked before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from hybrid.defer import Familiarity
from hybrid.pairs.calibrations import SHIPPED
from hybrid.record.conversation import TextOrTurns, last_question, words_of
from hybrid.tasks import FAMILIES, wordings

# The novelty (``Familiarity.novelty``) from which a question is of none of the families: chosen on 4,200 problems of
# the calibration split and 34 everyday questions, of which 0.4 % and all lie beyond; README.md has the test split's.
STRANGE_NOVELTY = 0.5


@dataclass(frozen=True, eq=False)
class KnownFamilies:
    """How new the words of a question are, from 0 to 1, and the families' names."""

    novelty: Callable[[TextOrTurns], float]
    names: tuple[str, ...]

    @classmethod
    def of_pair(cls, local: str | None) -> KnownFamilies | None:
        """Return those of the bundled pair that a local model belongs to; None where they are not known."""
        return cls.of_wordings() if local in wordings.TASTES else cls.of_bundled()

    @classmethod
    def of_wordings(cls) -> KnownFamilies:
        """Return those of the wordings pair, which reads no word that is not of its world."""
        names = tuple(family.name for family in wordings.FAMILIES)
        return cls(lambda question: float(not wordings.is_told(last_question(question))), names)

    @classmethod
    @lru_cache(maxsize=1)
    def of_bundled(cls) -> KnownFamilies | None:
        """Return those of the bundled pair, by the questions of its shipped calibration; None where there is none."""
        try:
            shipped = json.loads((SHIPPED / "bundled.json").read_text(encoding="utf-8"))
            familiarity = Familiarity.from_json(shipped["score"]["familiarity"])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return None
        names = tuple(family.name.replace("_", " ") for family in FAMILIES)
        return cls(lambda question: familiarity.novelty(words_of(question)), names)

    def told(self, question: TextOrTurns) -> str:
        """Say what the models are for, where a question is of none of the families; empty otherwise."""
        if self.novelty(question) <= STRANGE_NOVELTY:
            return ""
        known = ", ".join(self.names)
        return (
            f"the bundled models answer generated problems of {len(self.names)} families ({known}; hybrid tasks list), "
            "and this question is of none: name models of your own with --local and --cloud"
        )
