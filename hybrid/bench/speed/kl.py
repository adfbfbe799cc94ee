"""``hybrid bench kl``: the cost of one divergence, the local row given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hybrid.bench.speed.measure import BenchmarkReport, Measurement, milliseconds, ratio, run_in_turn
from hybrid.bench.speed.random_model import HALF_BILLION
from hybrid.prob import Dense, TopK, kl_divergence

TOP_K = 20
# Standard deviations of random scores: the less they differ, the more mass lies outside the top 20.
SCALES = {"a steep row": 8.0, "a middling one": 4.5, "a shallow one": 3.0}
# What the interval of a sure local model needs more: its tail is too little to be what the shown tokens leave of one.
SURE = 40.0


def run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time the interval at a 152k vocabulary, beside one pass of numpy's exp over the same row."""
    figures = []
    for name, (scores, target) in _rows().items():
        report_progress(f"KL of {name}")
        figures.append(_time(name, TopK.from_dense(target, TOP_K), Dense.from_logits(scores), repetitions))
    return BenchmarkReport(
        "kl", f"{HALF_BILLION.num_tokens} tokens, k = {TOP_K}, float32 scores, one thread", tuple(figures)
    )


def _rows() -> dict[str, tuple[NDArray[np.float32], Dense]]:
    """Return local scores and the target's row, by name."""
    rng, size = np.random.default_rng(0), HALF_BILLION.num_tokens
    rows = {}
    for name, scale in SCALES.items():
        scores = rng.standard_normal(size).astype(np.float32) * scale
        rows[name] = scores, Dense.from_logits(scores + rng.standard_normal(size).astype(np.float32))
    scores, target = rows["a middling one"]
    for name, token in (("sure and right", target.best), ("sure and wrong", int(target.logits.argmin()))):
        sure = scores.copy()
        sure[token] = scores.max() + SURE
        rows[name] = sure, target
    flat = rng.standard_normal(size).astype(np.float32) * 0.01
    rows["flat: every token alike"] = flat, Dense.from_logits(-flat)
    return rows


def _time(name: str, target: TopK, local: Dense, repetitions: int) -> Measurement:
    whole = local.logprobs
    interval, exp = run_in_turn(lambda _: kl_divergence(target, local), lambda _: np.exp(whole), repetitions)
    note = f"unseen mass {target.tail:.2g}; {ratio(interval, exp).median:.1f} times one exp over the row"
    return Measurement(
        f"KL interval, {name}", milliseconds(interval), "ms", None if name.startswith("flat") else "<= 0.5", note
    )
