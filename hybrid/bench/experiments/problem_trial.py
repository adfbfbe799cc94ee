"""Problems with right answers as questions, and what is kept of an answer to one.

The problems are those of ``hybrid.tasks``, or any whose answers somebody grades. A record says whether an answer is
right, and every request in numbers, so that another tariff needs no second run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hybrid.bench.experiments.section import spent_record
from hybrid.bench.experiments.world import WorldAnswer
from hybrid.tasks import BY_NAME, MAX_TOKENS, Problem


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
