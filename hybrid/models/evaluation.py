"""Count right answers of one model alone, family by family.

The laws, tested in ``tests/models/test_evaluation.py``: the same model on the same problems gives the same figures;
families weigh alike, whatever the number of problems of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hybrid.errors import UsageError
from hybrid.models.answering import AnsweringModel, ModelAnswer
from hybrid.models.groups import LADDER, ModelGroup
from hybrid.tasks import Problem, Split, distinct
from hybrid.tasks.statistics import Estimate, wilson

# Called before each family with its name.
ReportProgress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class GradedAnswer:
    """A problem, the answer, and whether it is right."""

    problem: Problem
    written: ModelAnswer
    correct: bool


@dataclass(frozen=True)
class Accuracy:
    """A number of problems, and how many were answered rightly."""

    num_problems: int
    num_correct: int

    @property
    def share(self) -> Estimate:
        """The share with Wilson's interval."""
        return wilson(self.num_correct, self.num_problems)


def count_right(graded: Sequence[GradedAnswer]) -> Accuracy:
    """Count right answers."""
    return Accuracy(len(graded), sum(answer.correct for answer in graded))


def problems_of(split: Split, num_problems: int, seed: int = 0, group: ModelGroup = LADDER) -> dict[str, list[Problem]]:
    """Draw as many problems of each family of a group. Raises UsageError where a family has not so many."""
    try:
        return {name: distinct(family, split, num_problems, seed) for name, family in group.families.items()}
    except ValueError as error:
        raise UsageError(str(error)) from None


def evaluate(
    model: AnsweringModel,
    problems: Mapping[str, Sequence[Problem]],
    report_progress: ReportProgress,
    *,
    group: ModelGroup = LADDER,
    keep_rows: bool = True,
) -> dict[str, list[GradedAnswer]]:
    """Let a model answer problems of a group, and grade it. ``keep_rows`` as in ``AnsweringModel.write``."""
    found: dict[str, list[GradedAnswer]] = {}
    for name, asked in problems.items():
        report_progress(name)
        grade = group.families[name].grade
        answers = [(each, model.write(each.question, group.max_tokens, keep_rows=keep_rows)) for each in asked]
        found[name] = [GradedAnswer(each, written, grade(each, written.text)) for each, written in answers]
    return found


def overall(scores: Mapping[str, Accuracy]) -> float:
    """Return the share of right answers, each family weighing alike."""
    return sum(score.share.value for score in scores.values()) / len(scores)


def to_json(model: str, graded: Mapping[str, Sequence[GradedAnswer]]) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    scores = {name: count_right(answers) for name, answers in graded.items()}
    return {
        "model": model,
        "overall": round(overall(scores), 4),
        "families": {name: accuracy_to_json(found) for name, found in scores.items()},
    }


def accuracy_to_json(found: Accuracy) -> dict[str, float]:
    """Return a family's figures for JSON."""
    return {
        "n": found.num_problems,
        "correct": found.num_correct,
        "low": round(found.share.low, 4),
        "high": round(found.share.high, 4),
    }
