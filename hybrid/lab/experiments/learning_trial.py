"""One problem with all that a stream needs to know of it: both models' answers, and the verdicts on both.

Where it is asked for, other arms answer it as well, and the local model draws some more answers: then every rule that
decides about whole questions, and each of those arms, can be tried on the one record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybrid.lab.arms import Arm
from hybrid.lab.experiments.auto_trial import first_rejection, label, label_to_json, labelled_question
from hybrid.lab.experiments.learning_stream import TaughtQuestion
from hybrid.lab.experiments.problem_suite import GradedQuestion, graded_record
from hybrid.lab.experiments.section import CLOUD, LOCAL, CheckAnswer, answer_arms, arms_to_json
from hybrid.lab.experiments.world import World
from hybrid.types import Sampling


@dataclass(frozen=True)
class TeachingSection:
    """Problems whose greedy drafts, and the cloud's own texts, are judged at a threshold in nats.

    ``arms``: others that answer each. ``num_drawn``: so many more answers of the local model are drawn at
    ``temperature``.
    """

    name: str
    pair: str
    questions: tuple[GradedQuestion, ...]
    threshold: float
    arms: tuple[Arm, ...] = ()
    num_drawn: int = 0
    temperature: float = 0.7

    @property
    def num_arms(self) -> int:
        """Both models alone, each one's rows along the other's text, and the others."""
        return 3 + len(self.arms) + self.num_drawn

    def content(self) -> list[Any]:
        """Return the judge, and what else answers."""
        others = [arms_to_json(self.arms), self.num_drawn, self.temperature]
        return ["teaching", self.threshold, *(others if self.arms or self.num_drawn else [])]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Judge one problem's two answers; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        drafted, written = (await answer_arms(world, question, (LOCAL, CLOUD), sampling, check)).values()
        labelled = label(world, question.text, drafted, self.threshold)
        local, cloud = world.rows(written.prompt, written.ids) if written.ids else ([], [])
        record: dict[str, Any] = {
            "text": question.text,
            "kind": question.kind,
            "cloud_tokens": len(written.ids) + written.ended,
            "draft": label_to_json(labelled),
            "written_turned_down": first_rejection(written.ids, local, cloud, self.threshold) is not None,
            "local_right": question.grade(drafted.answer.text),
            "cloud_right": question.grade(written.answer.text),
        }
        if self.arms:
            answers = await answer_arms(world, question, self.arms, sampling, check)
            record["arms"] = {name: graded_record(answered, question) for name, answered in answers.items()}
        if self.num_drawn:
            record |= {"text_drafted": drafted.answer.text, "texts_drawn": []}
        for number_drawn in range(self.num_drawn):
            drawing = replace(sampling, temperature=self.temperature, seed=seed + number_drawn)
            drawn = await world.answer(question.text, LOCAL, drawing, question.max_tokens)
            record["texts_drawn"].append(drawn.answer.text)
        world.forget()
        return record


def taught_question(record: Mapping[str, Any]) -> TaughtQuestion:
    """Return what a stream needs, from a problem's record."""
    verdicts = (bool(record[name]) for name in ("written_turned_down", "local_right", "cloud_right"))
    return TaughtQuestion(record["kind"], labelled_question(record), *verdicts)
