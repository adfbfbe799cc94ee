"""Both models' dense rows along two texts, the cloud's greedy one and the local one's, and what is kept of them.

One grid for the sections truncation, certificates and temperature. What is compared is what a check compares: the cloud
reads a text in one batch, the local model token by token. The laws are tested in ``tests/bench/test_study_rows.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hybrid.engine import Cursor
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.grid import CLOUD, LOCAL, CheckAnswer, GradedQuestion, Grid, Record, arms_to_json
from hybrid.lab.experiments.memo import MemoEngine
from hybrid.lab.experiments.position_table import compare_rows
from hybrid.lab.experiments.trials import answer_arms, spent_record
from hybrid.lab.experiments.world import World
from hybrid.prob import (
    AcceptanceRule,
    Dense,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    certificate,
    kl,
    kl_divergence,
    tree_certificate,
    warp,
)
from hybrid.types import Ids, Sampling

if TYPE_CHECKING:
    from hybrid.lab.study.design import Design

EXACT_GREEDY = Arm("greedy-exact", "greedy-exact")
ARMS, TEXTS = (CLOUD, LOCAL, EXACT_GREEDY), (CLOUD.name, LOCAL.name)
# Lengths of the top-k list: the least, what is often given, the default, and what few endpoints give.
TOP_KS = (1, 5, 20, 100)
RULES: Mapping[str, AcceptanceRule] = {
    "greedy": GreedyAcceptance(),
    "multiplicative 0.3": MultiplicativeAcceptance(0.3),
    "top 3": TopMAcceptance(3),
}
TREE = 3
# What is added to an interval before it is asked whether a value lies in it, and decimals: rows are rounded numbers.
SLACK_NATS, DIGITS = 1e-6, 9
# The temperatures that are tried, and how many tokens an endpoint shows there.
TEMPERATURES, HEATED_K = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5), 20
TextReading: TypeAlias = dict[str, Any]
"""What ``read_text`` gives."""


def rows_grids(design: Design) -> tuple[Grid, ...]:
    """Return each pair's questions, to be read along both greedy texts; option ``temperatures``."""
    temperatures = tuple(np.atleast_1d(design.options.get("temperatures", TEMPERATURES)).tolist())
    content, trial = ("rows", TOP_KS, temperatures, arms_to_json(ARMS)), partial(try_rows, temperatures)
    num = len(ARMS) + 2 * len(TEXTS)  # either model reads a text twice
    asked = read_questions(design)
    return tuple(Grid(f"rows of {pair}", pair, each, trial, content, num, ARMS) for pair, each in asked.items())


def read_questions(design: Design) -> dict[str, tuple[GradedQuestion, ...]]:
    """Return each pair's questions, each once; option ``read``: so many of each seed."""
    most = int(design.options["read"]) if "read" in design.options else None
    drawn = {pair: [e for of in design.drawn.values() for e in of[pair][:most]] for pair in design.pairs}
    return {pair: tuple({each.text: each for each in own}.values()) for pair, own in drawn.items()}


async def try_rows(
    temperatures: Sequence[float], world: World, question: Any, sampling: Sampling, check: CheckAnswer
) -> Record:
    """Compare two models along both texts, and let ``greedy-exact`` answer for what it costs."""
    answers = await answer_arms(world, question, ARMS, sampling, check)
    spent = {name: spent_record(answered) for name, answered in answers.items()}
    texts = {name: read_text(world, answers[name].prompt, answers[name].ids, temperatures) for name in TEXTS}
    return {"text": question.text, "kind": question.kind, "seed": sampling.seed, "texts": texts, "arms": spent}


def read_text(world: World, prompt: Ids, text: Ids, temperatures: Sequence[float]) -> TextReading:
    """Return a text's ``positions``, and by temperature (``heated``) the sums of ``compare_heated`` over them.

    A position is that of ``compare_rows`` and ``show_lists``, with ``floor``: KL between two readings of the cloud's
    row, of the local one's, and the difference of KL between the models, both read in one batch or token by token.
    """
    (cloud, slow_cloud), (fast_local, local) = (read_twice(each, prompt, text) for each in (world.cloud, world.local))
    positions, heated = [], {f"{at:g}": np.zeros(8) for at in temperatures}
    for target, draft, other_target, other_draft, token in zip(cloud, local, slow_cloud, fast_local, text, strict=True):
        moved = kl(target, other_draft) - kl(other_target, draft)
        floor = [abs(nats) for nats in (kl(target, other_target), kl(draft, other_draft), moved)]
        positions.append(compare_rows(target, draft) | show_lists(target, draft, token) | {"floor": floor})
        for at in temperatures:
            heated[f"{at:g}"] += compare_heated(target, draft, at)
    found = {"positions": positions, "heated": {at: sums.tolist() for at, sums in heated.items()}}
    told: TextReading = json.loads(json.dumps(found), parse_float=lambda number: round(float(number), DIGITS))
    return told


def read_twice(engine: MemoEngine, prompt: Ids, text: Ids) -> tuple[list[Dense], list[Dense]]:
    """Return the rows before each token of a text, read in one batch, and token by token after the prompt."""
    found = []
    for together in (None, len(prompt)):
        engine.forget()
        engine.together = together
        found.append(Cursor(engine).rows(prompt + text[:-1], len(text)) if text else [])
    engine.together = None
    return found[0], found[1]


def show_lists(reference: Dense, local: Dense, token: int) -> dict[str, Any]:
    """Return what lists by ``TOP_KS``, each with the text's token, show of KL, and what rules say of local's favourite.

    ``certificates``, of the dense row and of each list: the least KL at which the favourite can be rejected by
    ``RULES``, and at which the reference's best is outside the draft's best three. ``rejected``: where that is so.
    """
    shown = [TopK.from_dense(reference, k, token) for k in TOP_KS]
    known: list[TopK | Dense] = [reference, *shown]
    row, best = TopK.from_dense(reference, TOP_KS[-1], local.best), dict(local.top(TREE))
    return {
        "intervals": [(bounds.lower, bounds.upper) for bounds in (kl_divergence(each, local) for each in shown)],
        "certificates": [
            [*(certificate(each, rule) for rule in RULES.values()), tree_certificate(each, TREE)] for each in known
        ],
        "rejected": [*(not rule.accepts(row, local.best) for rule in RULES.values()), reference.best not in best],
    }


def compare_heated(reference: Dense, local: Dense, temperature: float) -> tuple[float, ...]:
    """Return KL in nats with both models at a temperature, the ends that a list of it leaves, and 1 if it is outside.

    Then the same four with the local model alone at that temperature, and the reference at 1.
    """
    draft, found = warp(local, Sampling(temperature)), []
    for target in (warp(reference, Sampling(temperature)), reference):
        true, bounds = kl(target, draft), kl_divergence(TopK.from_dense(target, HEATED_K), draft)
        held = bounds.lower - SLACK_NATS <= true <= bounds.upper + SLACK_NATS
        found += [true, bounds.lower, bounds.upper, float(not held)]
    return tuple(found)
