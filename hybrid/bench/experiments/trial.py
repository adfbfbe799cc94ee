"""One question under the rules of a section, as plain data: what a part file keeps, and tables are made of.

Nothing here is a table yet: losses are kept as sums with the number of tokens they are over, requests as counts. So
another tariff or another mean needs no second run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import numpy as np

from hybrid.bench.arms import Arm
from hybrid.bench.experiments.positions import positions
from hybrid.bench.experiments.suite import CLOUD, LOCAL, Section
from hybrid.bench.experiments.tariffs import counted
from hybrid.bench.experiments.world import World, WorldAnswer
from hybrid.tasks.assistant import AssistantQuestion
from hybrid.tasks.text_statistics import repetition
from hybrid.types import Ids, Sampling

CheckAnswer: TypeAlias = Callable[[Arm, Sampling, WorldAnswer], Awaitable[None]]
"""Called with every answer, before its rows are forgotten."""


async def try_question(
    world: World, section: Section, question: AssistantQuestion, seed: int, check: CheckAnswer
) -> dict[str, Any]:
    """Let every rule of a section answer a question; the world forgets it afterwards."""
    sampling = Sampling(section.temperature, section.top_k, seed=seed)
    answers: dict[str, WorldAnswer] = {}
    for arm in section.arms:
        answers[arm.name] = await world.answer(question.text, arm, sampling, question.max_tokens)
        await check(arm, sampling, answers[arm.name])
    cloud = answers[CLOUD.name]
    records = {name: answer_record(world, answered, cloud.ids, question) for name, answered in answers.items()}
    records[LOCAL.name] |= draft_signals(world, answers[LOCAL.name])
    compared = positions(world, cloud.prompt, cloud.ids) if section.positions else []
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
        "cloud_tokens": answered.answer.usage.cloud_tokens,
        "same": ids == clouds,
        "repetition": repetition(ids),
        "right": question.grade(answered.answer.text) if question.graded else None,
        "degraded": answered.answer.degraded,
        "requests": [
            (each.kind, each.num_sent, each.num_scored, each.num_known, each.num_completion)
            for each in counted(answered.requests)
        ],
    }


def draft_signals(world: World, drafted: WorldAnswer) -> dict[str, float]:
    """Return what the local model knows of its own draft: sums over its tokens of log-probability and of entropy."""
    text = drafted.ids
    if not text:
        return {"logprob": 0.0, "entropy": 0.0}
    rows, _ = world.rows(drafted.prompt, text)
    logprob = sum(float(row.logprobs_of(np.array([token]))[0]) for row, token in zip(rows, text, strict=True))
    return {"logprob": logprob, "entropy": sum(row.entropy() for row in rows)}
