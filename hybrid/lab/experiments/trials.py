"""What is tried with a question in a world, and the record that is kept of it, as plain data.

A record is no table yet: losses are kept as sums with the number of tokens they are over, every request as counts. So
another tariff or another mean needs no second run. A planner that keeps a whole draft or has all of it written needs no
run of its own, either: both models' texts are in the record.

A label is what a check of the whole draft would tell: the judge of ``once`` decides on the rows that an endpoint shows.
The signals are those of the rows that the draft was taken from (``tests/bench/test_labels.py`` holds both against an
answer's own).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hybrid.defer import CriticNumbers, DraftSignals, LabelledDraft, LabelledQuestion
from hybrid.defer.signals import OF_TOKENS
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import counted
from hybrid.lab.experiments.grid import CLOUD, LOCAL, CheckAnswer, GradedQuestion, Grid, Record, arms_to_json
from hybrid.lab.experiments.world import World, WorldAnswer, shown_row
from hybrid.policy import PolicyOptions, preset
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.prob import Dense
from hybrid.record.conversation import words_of
from hybrid.types import Ids, Sampling

TOP_K = 20
OF_CRITIC = ("kl", "logprob")


async def answer_arms(
    world: World, question: GradedQuestion, arms: Sequence[Arm], sampling: Sampling, check: CheckAnswer
) -> dict[str, WorldAnswer]:
    """Let arms answer a question, each answer checked; return them by the arms' names."""
    answers: dict[str, WorldAnswer] = {}
    for arm in arms:
        answers[arm.name] = await world.answer(question.text, arm, sampling, question.max_tokens)
        await check(arm, sampling, answers[arm.name])
    return answers


def spent_record(answered: WorldAnswer) -> dict[str, Any]:
    """Return what an answer cost, whatever it is worth: who wrote how much, and every request in numbers."""
    return {
        "cloud_tokens": answered.answer.usage.cloud_tokens,
        "degraded": answered.answer.degraded,
        "requests": list(counted(answered.requests)),
    }


def graded_record(answered: WorldAnswer, question: GradedQuestion) -> dict[str, Any]:
    """Return what is kept of an answer. ``tokens`` counts the shown ones; ``right`` is None where nothing is graded."""
    return {
        "right": question.grade(answered.answer.text) if getattr(question, "graded", True) else None,
        "tokens": len(answered.ids),
    } | spent_record(answered)


def answer_record(world: World, answered: WorldAnswer, question: GradedQuestion) -> dict[str, Any]:
    """Return what is kept of an answer. ``tokens`` counts the one that ended the text, the others do not."""
    loss = world.loss(answered)
    return graded_record(answered, question) | {
        "ids": answered.ids,
        "tokens": len(loss.nll),
        "excess": float(loss.excess.sum()),
        "nll": float(loss.nll.sum()),
    }


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
    own = {"words": list(signals.words), "prompt_tokens": signals.prompt_tokens}
    if signals.critic is not None:
        own["critic"] = {name: getattr(signals.critic, name).tolist() for name in OF_CRITIC}
    return {
        **own,
        **signals_to_json(signals),
        "first_rejection": labelled.first_rejection,
        "excess": labelled.excess.tolist(),
    }


def label_of_json(kept: Mapping[str, Any]) -> LabelledDraft:
    """Read what ``label_to_json`` gave."""
    said = kept.get("critic")
    critic = None if said is None else CriticNumbers(*(np.array(said[name], dtype=np.float64) for name in OF_CRITIC))
    signals = signals_of_json(kept, tuple(kept["words"]), kept["prompt_tokens"], critic)
    return LabelledDraft(signals, kept["first_rejection"], np.array(kept["excess"], dtype=np.float64))


def labelled_question(record: Mapping[str, Any]) -> LabelledQuestion:
    """Return the label of a question from its record."""
    return LabelledQuestion(label_of_json(record["draft"]), record["cloud_tokens"])


# The grids: what each tries with a question, and all that its record depends on.


def teaching_grid(
    name: str, questions: Sequence[GradedQuestion], threshold: float, arms: tuple[Arm, ...] = (), num_drawn: int = 0
) -> Grid:
    """Return problems whose greedy drafts, and the cloud's own texts, are judged at a threshold in nats.

    ``arms``: others that answer each. ``num_drawn``: so many more answers of the local model are drawn.
    """
    temperature = 0.7
    others = (arms_to_json(arms), num_drawn, temperature) if arms or num_drawn else ()
    trial = partial(try_problem, threshold, arms, num_drawn, temperature)
    return Grid(name, name, tuple(questions), trial, ("teaching", threshold, *others), 3 + len(arms) + num_drawn)


async def try_problem(
    threshold: float,
    arms: tuple[Arm, ...],
    num_drawn: int,
    temperature: float,
    world: World,
    question: GradedQuestion,
    sampling: Sampling,
    check: CheckAnswer,
) -> Record:
    """Judge one problem's two answers, and grade what other arms and drawn answers come to."""
    drafted, written = (await answer_arms(world, question, (LOCAL, CLOUD), sampling, check)).values()
    labelled = label(world, question.text, drafted, threshold)
    local, cloud = world.rows(written.prompt, written.ids) if written.ids else ([], [])
    record: Record = {
        "text": question.text,
        "kind": question.kind,
        "cloud_tokens": len(written.ids) + written.ended,
        "draft": label_to_json(labelled),
        "written_turned_down": first_rejection(written.ids, local, cloud, threshold) is not None,
        "local_right": question.grade(drafted.answer.text),
        "cloud_right": question.grade(written.answer.text),
    }
    if arms:
        answers = await answer_arms(world, question, arms, sampling, check)
        record["arms"] = {name: graded_record(answered, question) for name, answered in answers.items()}
    if num_drawn:
        record |= {"text_drafted": drafted.answer.text, "texts_drawn": []}
    for number in range(num_drawn):
        drawing = replace(sampling, temperature=temperature, seed=sampling.seed + number)
        drawn = await world.answer(question.text, LOCAL, drawing, question.max_tokens)
        record["texts_drawn"].append(drawn.answer.text)
    return record
