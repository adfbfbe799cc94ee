"""One question of real text under the rules of a section, as plain data: what a part file keeps.

Nothing here is a table yet: losses are kept as sums with the number of tokens they are over, requests as counts. So
another tariff or another mean needs no second run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.bench.arms import Arm
from hybrid.bench.experiments.positions import positions
from hybrid.bench.experiments.section import CLOUD, LOCAL, CheckAnswer, arms_to_json, spent_record
from hybrid.bench.experiments.world import World, WorldAnswer
from hybrid.tasks.assistant import AssistantQuestion
from hybrid.tasks.text_statistics import repetition
from hybrid.types import Ids, Sampling


@dataclass(frozen=True)
class TextSection:
    """A pair at a temperature on some questions. ``positions``: the two models are compared along the cloud's text.

    ``top_k``: tokens that are drawn from; 0: all.
    """

    name: str
    pair: str
    temperature: float
    questions: tuple[AssistantQuestion, ...]
    arms: tuple[Arm, ...]
    positions: bool = False
    top_k: int = 0

    @property
    def num_arms(self) -> int:
        """The rules."""
        return len(self.arms)

    def content(self) -> list[Any]:
        """How is drawn, and by which rules."""
        return [(self.temperature, self.top_k, self.positions), arms_to_json(self.arms)]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Let every rule answer a question; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(self.temperature, self.top_k, seed=seed)
        answers: dict[str, WorldAnswer] = {}
        for arm in self.arms:
            answers[arm.name] = await world.answer(question.text, arm, sampling, question.max_tokens)
            await check(arm, sampling, answers[arm.name])
        cloud = answers[CLOUD.name]
        records = {name: answer_record(world, answered, cloud.ids, question) for name, answered in answers.items()}
        records[LOCAL.name] |= draft_signals(world, answers[LOCAL.name])
        compared = positions(world, cloud.prompt, cloud.ids) if self.positions else []
        world.forget()
        return {
            "text": question.text,
            "kind": question.kind,
            "seed": seed,
            "prompt_tokens": len(cloud.prompt),
            "positions": [each.to_json() for each in compared],
            "arms": records,
        }


def answer_record(world: World, answered: WorldAnswer, clouds: Ids, question: AssistantQuestion) -> dict[str, Any]:
    """Return what is kept of an answer. ``tokens`` counts the one that ended the text, the others do not."""
    loss, ids = world.loss(answered), answered.ids
    return {
        "ids": ids,
        "tokens": len(loss.nll),
        "excess": float(loss.excess.sum()),
        "nll": float(loss.nll.sum()),
        "best": int((loss.excess <= 0.0).sum()),
        "same": ids == clouds,
        "repetition": repetition(ids),
        "right": question.grade(answered.answer.text) if question.graded else None,
    } | spent_record(answered)


def draft_signals(world: World, drafted: WorldAnswer) -> dict[str, float]:
    """Return what the local model knows of its own draft: sums over its tokens of log-probability and of entropy."""
    text = drafted.ids
    if not text:
        return {"logprob": 0.0, "entropy": 0.0}
    rows, _ = world.rows(drafted.prompt, text)
    logprob = sum(float(row.logprobs_of(np.array([token]))[0]) for row, token in zip(rows, text, strict=True))
    return {"logprob": logprob, "entropy": sum(row.entropy() for row in rows)}
