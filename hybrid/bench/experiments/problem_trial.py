"""One problem with a right answer under every arm, as plain data: what a part file keeps.

The problems are those of ``hybrid.tasks``, or any whose answers somebody grades (``GradedQuestion``). An arm's record
says whether its answer is right, and every request in numbers, so that another tariff needs no second run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hybrid.bench.arms import Arm
from hybrid.bench.experiments.section import CheckAnswer, arms_to_json, spent_record
from hybrid.bench.experiments.world import World, WorldAnswer
from hybrid.tasks import BY_NAME, MAX_TOKENS, Problem
from hybrid.types import Sampling


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


@dataclass(frozen=True)
class ProblemSection:
    """Problems that arms answer greedily, whatever the tariff."""

    name: str
    pair: str
    questions: tuple[GradedQuestion, ...]
    arms: tuple[Arm, ...]

    @property
    def num_arms(self) -> int:
        """The arms."""
        return len(self.arms)

    def content(self) -> list[Any]:
        """Return the arms; how an answer is graded depends on the question alone."""
        return ["problem", arms_to_json(self.arms)]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Let every arm answer a problem; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        arms = {}
        for arm in self.arms:
            answered = await world.answer(question.text, arm, sampling, question.max_tokens)
            await check(arm, sampling, answered)
            arms[arm.name] = graded_record(answered, question)
        world.forget()
        return {
            "text": question.text,
            "kind": question.kind,
            "seed": seed,
            "prompt_tokens": len(answered.prompt),
            "arms": arms,
        }


def graded_record(answered: WorldAnswer, question: GradedQuestion) -> dict[str, Any]:
    """Return what is kept of an answer. ``tokens`` counts the shown ones."""
    return {
        "right": question.grade(answered.answer.text),
        "tokens": len(answered.ids),
    } | spent_record(answered)
