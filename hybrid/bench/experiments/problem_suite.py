"""What ``hybrid bench auto`` runs: the problems of the bundled pair, the presets beside ``auto``, and the sections.

Scores are fitted on problems of the calibration split, so what is tuned is tried on other problems of that split, and
the test split is asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hybrid.bench.arms import Arm
from hybrid.bench.experiments.problem_trial import ProblemQuestion
from hybrid.bench.experiments.section import CLOUD, LOCAL
from hybrid.tasks import FAMILIES, MAX_TOKENS, Problem, distinct

PAIR = "bundled"
# The divergence that turns a token down: the demonstration's.
THRESHOLD = 0.7
SPAN = 128
PRESETS = (
    CLOUD,
    LOCAL,
    Arm("kl, hold 12", "kl", {"threshold": THRESHOLD, "span": SPAN, "hold": 12}),
    Arm("kl, hold 96", "kl", {"threshold": THRESHOLD, "span": SPAN, "hold": 96}),
    Arm("kl, the rest", "kl", {"threshold": THRESHOLD, "span": SPAN, "hold": MAX_TOKENS}),
    Arm("once", "once", {"threshold": THRESHOLD}),
    *(Arm(f"doubt {entropy:g}", "doubt", {"entropy": entropy}) for entropy in (0.03, 0.1, 0.3, 0.5, 1.0)),
)
# Problems of the calibration split that scores are fitted on: so many of each family, drawn with this seed.
NUM_FITTED, FITTED_SEED = 80, 0
NUM_TRIED = 50
# The table is made of the first seed; the others stand beside it, and families are pooled over all.
SEEDS = (1, 0, 2)

TriedSplit = Literal["calibration", "test"]


@dataclass(frozen=True)
class ProblemPlan:
    """What was asked for: the split, problems a family, and the seeds that they are drawn with."""

    split: TriedSplit = "test"
    num: int = NUM_TRIED
    seeds: tuple[int, ...] = SEEDS


def draw_problems(split: TriedSplit, num: int, seed: int) -> tuple[Problem, ...]:
    """Draw ``num`` problems a family, the families taking turns, but of the calibration split none that fits a score.

    A family that has fewer gives what it has.
    """
    fitted = frozenset(each.canonical for each in fitted_problems()) if split == "calibration" else frozenset[str]()
    drawn: list[Sequence[Problem]] = []
    for family in FAMILIES:
        # A longer draw begins as a shorter one, so this many hold the wanted ones where the family has them.
        wanted = num + (NUM_FITTED if fitted else 0)
        found = [each for each in distinct(family, split, wanted, seed) if each.canonical not in fitted]
        drawn.append(found[:num])
    return tuple(problems[turn] for turn in range(num) for problems in drawn if turn < len(problems))


def fitted_problems() -> tuple[Problem, ...]:
    """Return the calibration problems that scores are fitted on, the families taking turns."""
    drawn = [distinct(family, "calibration", NUM_FITTED, FITTED_SEED) for family in FAMILIES]
    return tuple(problems[turn] for turn in range(NUM_FITTED) for problems in drawn)


def as_questions(problems: Sequence[Problem]) -> tuple[ProblemQuestion, ...]:
    """Return problems as questions."""
    return tuple(ProblemQuestion(each) for each in problems)
