"""What every arm of a design makes of a question, kept as one record: what the sections on answers are made of.

The laws (``tests/bench/test_study_answers.py``): greedy, KL's threshold 0 gives the cloud's own text, and an infinite
one the local model's; a trace holds the positions at which both rows were compared, and no other. An answer parts from
the cloud's own where its tokens first differ, and is handed off where the cloud first writes a token of it, or ends it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from hybrid.engine import num_shared
from hybrid.engine.identity import identify
from hybrid.engine.vocabulary import VocabularyFile
from hybrid.lab.arms import Arm
from hybrid.lab.experiments import grid
from hybrid.lab.experiments.frame import ask_prices, rounded
from hybrid.lab.experiments.peers import calibrated_planner
from hybrid.lab.experiments.trials import answer_arms, answer_record, graded_record
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.lab.study.design import Design, Pair
from hybrid.pairs.store import calibration_for
from hybrid.partitions.partition_file import load_partition
from hybrid.policy.planning import Planner
from hybrid.policy.presets import parse_policy
from hybrid.record.conversation import words_of
from hybrid.report import provenance
from hybrid.run.composition import policy_of, weighs
from hybrid.settings.config import Settings
from hybrid.settings.sources import choosing
from hybrid.types import Ids, Sampling

NUM_CANDIDATES = 3


def rule_of(arm: Arm) -> str:
    """Return the rule of which an arm is a dial; ``kl:adaptive`` is one of its own."""
    return arm.policy if arm.policy == "kl:adaptive" else arm.policy.partition(":")[0]


def kl_arms(design: Design) -> list[tuple[float, Arm]]:
    """Return the arms that are the KL hand-off, each with its threshold in nats, the least first."""
    known = [(*parse_policy(arm.policy), arm) for arm in design.arms if rule_of(arm) == "kl"]
    found = [(kl.number.value(arm.choices.get("threshold", own), "kl"), arm) for kl, own, arm in known]
    return sorted(found, key=lambda each: each[0])


def answers_grids(design: Design) -> tuple[grid.Grid, ...]:
    """Return a seed's questions to a pair under every arm. An arm that weighs knows what is shipped of the pair."""
    arms, tariff, grids = (grid.CLOUD, grid.LOCAL, *design.arms), design.tariffs[0], []
    weighing = any(weighs(arm.policy) for arm in arms)
    for seed, drawn in design.drawn.items():
        for pair, files in design.pairs.items():
            known, concepts = None, _concepts(design.arms, files)
            if weighing and isinstance(files, grid.ModelPair):
                critic = None if files.critic is None else identify(files.critic)
                known = calibration_for(identify(files.local), files.cloud.stem, critic=critic, shipped_only=True)
            planner = calibrated_planner(known, ask_prices(tariff.setting, tariff.prices)) if weighing else None
            weighed = (tariff.name, known is not None) if weighing else None
            content = ("answers", design.temperature, grid.arms_to_json(arms), weighed, *concepts)
            trial, more = partial(try_design_arms, arms, planner), (arms, design.temperature, 0, seed)
            grids.append(grid.Grid(f"{pair}, seed {seed}", pair, drawn[pair], trial, content, len(arms), *more))
    return tuple(grids)


def _concepts(arms: Sequence[Arm], pair: Pair) -> list[str]:
    """Return the digest of the concepts that arms compare by, if some do. Raises UsageError where none are kept."""
    named = (choosing(Settings(), {"policy": arm.policy, **arm.choices}) for arm in arms)
    if not isinstance(pair, grid.ModelPair) or not any(policy_of(settings).wants_concepts for settings in named):
        return []
    with closing(VocabularyFile(pair.local)) as words:
        return [load_partition(None, words.vocabulary_digest, words.num_tokens).digest]


async def try_design_arms(
    arms: tuple[Arm, ...],
    planner: Planner | None,
    world: World,
    question: grid.GradedQuestion,
    sampling: Sampling,
    check: grid.CheckAnswer,
) -> grid.Record:
    """Let every arm answer a question, both models alone first."""
    answers = await answer_arms(world, question, arms[:2], sampling, check)
    cloud, local = answers.values()
    bound = planner and replace(planner, words=words_of(question.text), prompt_tokens=len(cloud.prompt))
    others = [replace(arm, planner=bound if weighs(arm.policy) else None) for arm in arms[2:]]
    answers |= await answer_arms(world, question, others, sampling, check)
    own = {"text": question.text, "kind": question.kind, "seed": sampling.seed, "prompt_tokens": len(cloud.prompt)}
    judge = partial(answer_record, world) if world.has_rows else graded_record
    kept = {name: _shown(world, each, local.ids, cloud.ids) for name, each in answers.items()}
    return own | {"arms": {name: kept[name] | judge(each, question=question) for name, each in answers.items()}}


def _shown(world: World, answered: WorldAnswer, local: Ids, cloud: Ids) -> dict[str, Any]:
    """Return an answer's text, who wrote it, where it parts and is handed off, and the positions that were compared.

    ``candidates``: both models' likeliest next tokens where it parts and where it is handed off, by the position.
    """
    ids, tokens, likeliest = answered.ids, answered.answer.tokens, partial(_likeliest, world, answered)
    ended_by_cloud = len(ids) if answered.requests and ids != local else None
    handoff = next((i for i, token in enumerate(tokens) if token.source == "cloud"), ended_by_cloud)
    parts = None if ids == cloud else num_shared(ids, cloud)
    compared = [(i, token.kl.lower, token.kl.upper, token.how) for i, token in enumerate(tokens) if token.kl]
    return {
        "answer": answered.answer.text,
        "pieces": [(token.text, provenance(token.source, token.how)) for token in tokens],
        "handoff": handoff,
        "parts": parts,
        "candidates": {str(i): likeliest(i, NUM_CANDIDATES) for i in (parts, handoff) if i is not None},
        "trace": [
            (i, rounded(low), rounded(high) if math.isfinite(high) else None, how, *(row[0][0] for row in likeliest(i)))
            for i, low, high, how in compared
        ],
        "nanousd": answered.answer.bill.nanousd,
    }


def _likeliest(world: World, answered: WorldAnswer, at: int, num: int = 1) -> list[list[tuple[Any, Any]]]:
    """Return the local model's and the cloud's likeliest tokens at a position, with probabilities, best first."""
    if not world.has_rows:
        return [[(None, None)]] * 2
    prefix, ends, piece = answered.prompt + answered.ids[:at], world.cloud.end_ids, world.cloud.piece
    rows = [row.top(num) for row in (world.local_row(prefix), world.cloud_row(prefix))]
    named = {
        token: "(end)" if token in ends else piece(token).decode("utf-8", "replace") for row in rows for token, _ in row
    }
    return [[(named[token], rounded(math.exp(logprob))) for token, logprob in row] for row in rows]
