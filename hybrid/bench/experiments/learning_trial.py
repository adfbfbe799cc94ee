"""One problem with all that a stream needs to know of it: both models' answers, and the verdicts on both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid.bench.experiments.label_trial import first_rejection, label, label_to_json, labelled_question
from hybrid.bench.experiments.learning_stream import TaughtQuestion
from hybrid.bench.experiments.problem_trial import GradedQuestion
from hybrid.bench.experiments.section import CLOUD, LOCAL, CheckAnswer
from hybrid.bench.experiments.world import World
from hybrid.types import Sampling


@dataclass(frozen=True)
class TeachingSection:
    """Problems whose greedy drafts, and the cloud's own texts, are judged at a threshold in nats."""

    name: str
    pair: str
    questions: tuple[GradedQuestion, ...]
    threshold: float

    @property
    def num_arms(self) -> int:
        """Both models alone, and each one's rows along the other's text."""
        return 3

    def content(self) -> list[Any]:
        """Return the judge."""
        return ["teaching", self.threshold]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Judge one problem's two answers; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        drafted, written = [
            await world.answer(question.text, arm, sampling, question.max_tokens) for arm in (LOCAL, CLOUD)
        ]
        for arm, answered in ((LOCAL, drafted), (CLOUD, written)):
            await check(arm, sampling, answered)
        labelled = label(world, question.text, drafted, self.threshold)
        local, cloud = world.rows(written.prompt, written.ids) if written.ids else ([], [])
        record = {
            "text": question.text,
            "kind": question.kind,
            "cloud_tokens": len(written.ids) + written.ended,
            "draft": label_to_json(labelled),
            "written_turned_down": first_rejection(written.ids, local, cloud, self.threshold) is not None,
            "local_right": question.grade(drafted.answer.text),
            "cloud_right": question.grade(written.answer.text),
        }
        world.forget()
        return record


def taught_question(record: Mapping[str, Any]) -> TaughtQuestion:
    """Return what a stream needs, from a problem's record."""
    verdicts = (bool(record[name]) for name in ("written_turned_down", "local_right", "cloud_right"))
    return TaughtQuestion(record["kind"], labelled_question(record), *verdicts)
