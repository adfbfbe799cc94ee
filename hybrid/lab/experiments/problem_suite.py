"""What ``hybrid bench auto`` runs: the problems of the bundled pair, the presets beside ``auto``, and the sections.

Scores are fitted on problems of the calibration split, so what is tuned is tried on other problems of that split, and
the test split is asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hybrid.lab.arms import Arm
from hybrid.lab.experiments.section import CLOUD, LOCAL, spent_record
from hybrid.lab.experiments.world import WorldAnswer
from hybrid.tasks import BY_NAME, FAMILIES, MAX_TOKENS, Problem, distinct

# Problems with right answers as questions, and what is kept of an answer to one.
#
# The problems are those of ``hybrid.tasks``, or any whose answers somebody grades. A record says whether an answer is
# right, and every request in numbers, so that another tariff needs no second run.


class GradedQuestion(Protocol):
    """A question whose answers are right or wrong. ``kind``: what is like it, a family of problems."""

    @property
    def text(self) -> str:
        """What is asked."""
        ...

    @property
    def kind(self) -> str:
        """What is like it."""
        ...

    @property
    def max_tokens(self) -> int:
        """The most tokens of an answer."""
        ...

    def grade(self, text: str) -> bool:
        """Tell whether an answer is right."""
        ...


@dataclass(frozen=True)
class ProblemQuestion:
    """A generated problem as a question."""

    problem: Problem
    max_tokens: int = MAX_TOKENS

    @property
    def text(self) -> str:
        """The problem's question."""
        return self.problem.question

    @property
    def kind(self) -> str:
        """The problem's family."""
        return self.problem.family

    def grade(self, text: str) -> bool:
        """Grade as the family does."""
        right: bool = BY_NAME[self.kind].grade(self.problem, text)
        return right


def graded_record(answered: WorldAnswer, question: GradedQuestion) -> dict[str, Any]:
    """Return what is kept of an answer. ``tokens`` counts the shown ones."""
    return {
        "right": question.grade(answered.answer.text),
        "tokens": len(answered.ids),
    } | spent_record(answered)


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
