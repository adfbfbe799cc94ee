"""What the cloud's rows say of a whole draft: the labels that scores are fitted on, from a world, for nothing.

A label is what a check of the whole draft would tell: the judge of ``once`` decides on the rows that an endpoint shows.
The signals are those of the rows that the draft was taken from (``tests/bench/test_labels.py`` holds both against an
answer's own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.bench.experiments.section import CLOUD, LOCAL, CheckAnswer, TrialQuestion
from hybrid.bench.experiments.world import World, WorldAnswer, shown_row
from hybrid.defer import CriticNumbers, DraftSignals, LabelledDraft, LabelledQuestion
from hybrid.defer.signals import OF_TOKENS
from hybrid.policy import PolicyOptions, preset
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.prob import Dense
from hybrid.run.conversation import words_of
from hybrid.types import Ids, Sampling

TOP_K = 20
OF_CRITIC = ("kl", "logprob")


@dataclass(frozen=True)
class LabelSection:
    """Questions whose greedy drafts are labelled by the judge of ``once`` at a threshold in nats."""

    name: str
    pair: str
    questions: tuple[TrialQuestion, ...]
    threshold: float

    @property
    def num_arms(self) -> int:
        """Both models alone, and the cloud's rows along the draft."""
        return 2

    def content(self) -> list[Any]:
        """Return the judge."""
        return ["label", self.threshold]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Label one question; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        answers: dict[str, WorldAnswer] = {}
        for arm in (LOCAL, CLOUD):
            answers[arm.name] = await world.answer(question.text, arm, sampling, question.max_tokens)
            await check(arm, sampling, answers[arm.name])
        labelled = label(world, question.text, answers[LOCAL.name], self.threshold)
        cloud = answers[CLOUD.name]
        world.forget()
        return {"text": question.text, "cloud_tokens": len(cloud.ids) + cloud.ended, "draft": label_to_json(labelled)}


def label(world: World, question: str, drafted: WorldAnswer, threshold: float) -> LabelledDraft:
    """Return a draft of the local model alone with what the cloud's rows say of it."""
    tokens = drafted.ids
    if drafted.ended:
        tokens += (world.local_row(drafted.prompt + tokens).best,)
    local, cloud = world.rows(drafted.prompt, tokens) if tokens else ([], [])
    critic = world.critic_numbers(drafted.prompt, tokens, local)
    signals = DraftSignals.of_rows(
        words_of(question), len(drafted.prompt), 0, tokens, local, ended=drafted.ended, critic=critic
    )
    excess = [
        row.top(1)[0][1] - row.logprobs_of(np.array([token]))[0] for row, token in zip(cloud, tokens, strict=True)
    ]
    return LabelledDraft(signals, first_rejection(tokens, local, cloud, threshold), np.array(excess, dtype=np.float64))


def first_rejection(tokens: Ids, local: list[Dense], cloud: list[Dense], threshold: float) -> int | None:
    """Return the offset of the first token that the judge of ``once`` rejects by both models' rows; None: none."""
    judge = preset("once", PolicyOptions(threshold=threshold)).judge
    if judge is None or not tokens:
        return None
    span = tuple(
        PendingToken(token, "local", "accepted", draft_row=row) for token, row in zip(tokens, local, strict=True)
    )
    shown = tuple(shown_row(row, TOP_K, token) for row, token in zip(cloud, tokens, strict=True))
    verdict = judge(DraftedSpan(span, shown, None, False, lambda *_: 0))
    return len(verdict.accepted) if verdict.rejected else None


def label_to_json(labelled: LabelledDraft) -> dict[str, Any]:
    """Return plain data for ``json.dumps``, exact to the last bit."""
    signals = labelled.signals
    arrays = {name: getattr(signals, name).tolist() for name in ("tokens", *OF_TOKENS)}
    own = {"words": list(signals.words), "prompt_tokens": signals.prompt_tokens, "ended": signals.ended}
    if signals.critic is not None:
        own["critic"] = {name: getattr(signals.critic, name).tolist() for name in OF_CRITIC}
    return {**own, **arrays, "first_rejection": labelled.first_rejection, "excess": labelled.excess.tolist()}


def label_of_json(kept: Mapping[str, Any]) -> LabelledDraft:
    """Read what ``label_to_json`` gave."""
    entropy, top, second, logprob = (np.array(kept[name], dtype=np.float64) for name in OF_TOKENS)
    tokens = np.array(kept["tokens"], dtype=np.int64)
    said = kept.get("critic")
    critic = None if said is None else CriticNumbers(*(np.array(said[name], dtype=np.float64) for name in OF_CRITIC))
    words, prompt_tokens, ended = tuple(kept["words"]), kept["prompt_tokens"], kept["ended"]
    signals = DraftSignals(words, prompt_tokens, 0, tokens, entropy, top, second, logprob, ended=ended, critic=critic)
    return LabelledDraft(signals, kept["first_rejection"], np.array(kept["excess"], dtype=np.float64))


def labelled_question(record: Mapping[str, Any]) -> LabelledQuestion:
    """Return the label of a question from its record."""
    return LabelledQuestion(label_of_json(record["draft"]), record["cloud_tokens"])
