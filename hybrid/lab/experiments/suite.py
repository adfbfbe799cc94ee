"""What is run: the pairs, the rules with their dials, and the sections of the default run.

A section is a pair of models at one temperature, some questions, and the rules that answer them. The sections' sizes
are chosen so that all of them fit 45 minutes on two idle cores (``lab/README.md`` has the measured speeds).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hybrid.lab.arms import Arm
from hybrid.lab.experiments.position_table import positions
from hybrid.lab.experiments.section import CLOUD, LOCAL, CheckAnswer, answer_arms, arms_to_json, spent_record
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.tasks.assistant import QUESTIONS, AssistantQuestion, QuestionSplit
from hybrid.tasks.statistics import repetition
from hybrid.types import Ids, Sampling

# One question of real text under the rules of a section, as plain data: what a part file keeps.
#
# Nothing here is a table yet: losses are kept as sums with the number of tokens they are over, requests as counts. So
# another tariff or another mean needs no second run.


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
        answers = await answer_arms(world, question, self.arms, sampling, check)
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


PairName = Literal["q3", "d2", "d4"]
REFERENCE = "real"
PAIRS: dict[str, str] = {"q3": "real:q3", "d2": "real:d2", "d4": "real:d4"}
# A rule's default, and the dials that tell the most of it: thresholds in nats.
RULES = (
    *(
        Arm(f"kl {t:g}, span {span}", "kl", {"threshold": t, "span": span})
        for t, span in ((0.5, 32), (1.5, 32), (3, 64))
    ),
    *(Arm(f"doubt {entropy:g}", "doubt", {"entropy": entropy}) for entropy in (0.5, 1.5, 3)),
    *(Arm(f"doubt {h:g}, back at 0.5", "doubt", {"entropy": h, "threshold": 0.5}) for h in (3, 4)),
    *(Arm(f"excess {t:g}", "excess", {"threshold": t}) for t in (0.5, 1, 2)),
    *(Arm(f"excess {t:g}, hold 12", "excess", {"threshold": t, "hold": 12}) for t in (0.5, 1, 2)),
    *(Arm(f"once {t:g}", "once", {"threshold": t}) for t in (0.5, 1.5)),
    *(Arm(name, name) for name in ("paper", "fsd", "relaxed", "cascade", "certified", "bild", "random")),
)
EXACT_GREEDY = Arm("greedy-exact", "greedy-exact")
EXACT_SAMPLED = (Arm("exact", "exact"), Arm("block", "block"), Arm("u-hlm", "u-hlm"))
# Where only new tokens are paid, a drafted token that is turned down is paid for nothing: fewer at once cost less.
SHORT_SPANS = tuple(Arm(f"excess {t:g}, span 4", "excess", {"threshold": t, "span": 4}) for t in (0.5, 1, 2))
# Below temperature 1 a rule that draws the cloud's token must know its distribution: 19 tokens, of 20 that are shown.
SAMPLED_TOP_K = 19


@dataclass(frozen=True)
class TextPlan:
    """What was asked for. None of ``num``, ``pair`` and ``temperature``: the default run's."""

    num: int | None = None
    pair: PairName | None = None
    temperature: float | None = None
    split: QuestionSplit = "test"
    seed: int = 0


def greedy_arms() -> tuple[Arm, ...]:
    """Return every rule that a greedy text can have, the two models alone first."""
    return (CLOUD, LOCAL, *RULES, EXACT_GREEDY)


def sampled_arms(temperature: float) -> tuple[Arm, ...]:
    """Return the rules of a sampled run; at temperature 1 the exact ones, whose law holds there without a cut."""
    return (CLOUD, LOCAL, *EXACT_SAMPLED) if temperature == 1.0 else (CLOUD, LOCAL, *RULES, *EXACT_SAMPLED)


def draw_questions(
    split: QuestionSplit | None, num: int, seed: int, *, graded: bool = False
) -> Sequence[AssistantQuestion]:
    """Draw questions in an order that the seed alone decides; fewer where there are not so many."""
    found = [each for each in QUESTIONS if split in {None, each.split} and (each.graded or not graded)]
    return sorted(found, key=lambda each: hashlib.sha256(f"{seed} {each.text}".encode()).digest())[:num]


def sections(plan: TextPlan) -> tuple[TextSection, ...]:
    """Return what a plan runs."""

    def section(pair: PairName, temperature: float, num: int, arms: tuple[Arm, ...]) -> TextSection:
        drawn = draw_questions(plan.split, plan.num or num, plan.seed)
        top_k = 0 if temperature in {0.0, 1.0} else SAMPLED_TOP_K
        return TextSection(
            f"{pair} at {temperature:g}", pair, temperature, tuple(drawn), arms, temperature == 0.0, top_k
        )

    def graded(pair: PairName) -> TextSection:
        drawn = draw_questions(None, plan.num or 300, plan.seed, graded=True)
        return TextSection(f"{pair} graded", pair, 0.0, tuple(drawn), (CLOUD, LOCAL))

    def short_spans(pair: PairName, num: int) -> TextSection:
        drawn = draw_questions(plan.split, plan.num or num, plan.seed)
        return TextSection(f"{pair} at 0, short spans", pair, 0.0, tuple(drawn), (CLOUD, LOCAL, *SHORT_SPANS))

    every = (
        section("q3", 0.0, 100, greedy_arms()),
        short_spans("q3", 60),
        graded("q3"),
        section("q3", 0.7, 30, sampled_arms(0.7)),
        section("q3", 1.0, 24, sampled_arms(1.0)),
        section("d2", 0.0, 40, greedy_arms()),
        short_spans("d2", 40),
        graded("d2"),
        section("d2", 0.7, 40, (CLOUD, LOCAL)),
        section("d4", 0.0, 40, (CLOUD, LOCAL)),
    )
    chosen = [each for each in every if plan.pair in {None, each.pair}]
    if plan.temperature is None:
        return tuple(chosen)
    same = [each for each in chosen if each.temperature == plan.temperature]
    if same:
        return tuple(same)
    return (section(plan.pair or "q3", plan.temperature, 40, sampled_arms(plan.temperature)),)
