"""One question of open text for a planner to decide about, as plain data: both texts, and the draft's signals.

A planner that keeps a whole draft or has all of it written needs no run of its own: the local model's text or the
reference's is what it shows. So every dial and every tariff is tried on one record. Checks in short spans do need one:
``spans`` of them, each corrected by one token, are run where that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.defer import CriticNumbers, DraftSignals, word_buckets
from hybrid.defer.signals import OF_TOKENS
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.section import CLOUD, LOCAL, CheckAnswer, answer_arms, arms_to_json
from hybrid.lab.experiments.suite import answer_record
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.tasks.assistant import AssistantQuestion
from hybrid.types import Sampling

SPANS = "spans"
# The judge of open text: half a nat holds 96 % of all excess in a quarter of the tokens (a study of the real pairs).
JUDGED_EXCESS = 0.5
# What other orders of questions are made of (``text_report.py``).
DOUBTS = ("logprob", "entropy")


@dataclass(frozen=True)
class RoutedSection:
    """A pair at a temperature on some questions. ``spans``: tokens of a check; None: no such answer is run.

    ``top_k``: tokens that are drawn from; 0: all.
    """

    name: str
    pair: str
    temperature: float
    questions: tuple[AssistantQuestion, ...]
    spans: int | None = None
    top_k: int = 0

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The two models alone, and the checks in short spans."""
        if self.spans is None:
            return (CLOUD, LOCAL)
        return (CLOUD, LOCAL, Arm(SPANS, "excess", {"threshold": JUDGED_EXCESS, "span": self.spans}))

    @property
    def num_arms(self) -> int:
        """The arms."""
        return len(self.arms)

    def content(self) -> list[Any]:
        """How is drawn, and the arms."""
        return ["routed", (self.temperature, self.top_k), arms_to_json(self.arms)]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Let both models answer a question; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(self.temperature, self.top_k, seed=seed)
        answers = await answer_arms(world, question, self.arms, sampling, check)
        clouds, drafted = answers[CLOUD.name].ids, answers[LOCAL.name]
        records = {name: answer_record(world, answered, clouds, question) for name, answered in answers.items()}
        signals = signals_of(world, question.text, drafted)
        records[LOCAL.name] |= {name: float(getattr(signals, name)[: len(drafted.ids)].sum()) for name in DOUBTS}
        world.forget()
        return {
            "text": question.text,
            "kind": question.kind,
            "seed": seed,
            "prompt_tokens": len(drafted.prompt),
            "spans": self.spans,
            "signals": signals_to_json(signals),
            "arms": records,
        }


def signals_of(world: World, question: str, drafted: WorldAnswer) -> DraftSignals:
    """Return what is known of a local answer as one draft. The token that ended it is the likeliest such."""
    text = drafted.ids
    rows = world.rows(drafted.prompt, text)[0] if text else []
    if drafted.ended:
        last, ends = world.local_row(drafted.prompt + text), np.array(sorted(world.local.end_ids))
        rows, text = [*rows, last], (*text, int(ends[np.argmax(last.logits[ends])]))
    return DraftSignals.of_rows(word_buckets(question), len(drafted.prompt), 0, text, rows, ended=drafted.ended)


def signals_to_json(signals: DraftSignals) -> dict[str, Any]:
    """Return a first draft's signals as plain data, without the question's."""
    numbers = {name: getattr(signals, name).tolist() for name in ("tokens", *OF_TOKENS)}
    return {**numbers, "ended": signals.ended}


def signals_of_json(
    told: Mapping[str, Any], words: tuple[int, ...], prompt_tokens: int, critic: CriticNumbers | None = None
) -> DraftSignals:
    """Read what ``signals_to_json`` gave, of a question's words and the tokens of its prompt."""
    tokens = np.array(told["tokens"], dtype=np.int64)
    entropy, top, second, logprob = (np.array(told[name], dtype=np.float64) for name in OF_TOKENS)
    ended = told["ended"]
    return DraftSignals(words, prompt_tokens, 0, tokens, entropy, top, second, logprob, ended=ended, critic=critic)


def recorded_signals(record: Mapping[str, Any]) -> DraftSignals:
    """Read the signals of a record's draft."""
    return signals_of_json(record["signals"], word_buckets(record["text"]), record["prompt_tokens"])
