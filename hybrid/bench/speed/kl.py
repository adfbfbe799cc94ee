"""``hybrid bench kl``: what a divergence costs once the local row is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybrid.bench.speed.measure import Figure, Report, in_turn, milliseconds, ratio
from hybrid.bench.speed.random_model import HALF_BILLION
from hybrid.prob import Dense, TopK, kl_divergence

TOP_K = 20
# Standard deviations of random scores: the less they differ, the more mass lies outside the top 20.
SCALES = {"a sure model": 8.0, "an unsure one": 4.5, "one that knows nothing": 3.0}


def run(tell: Callable[[str], None], repetitions: int) -> Report:
    """Time the interval at a 152k vocabulary, beside one pass of numpy's exp over the same row."""
    rng = np.random.default_rng(0)
    figures = []
    for name, scale in SCALES.items():
        tell(f"KL of {name}")
        scores = rng.standard_normal(HALF_BILLION.num_tokens).astype(np.float32) * scale
        noise = rng.standard_normal(HALF_BILLION.num_tokens).astype(np.float32)
        target = TopK.from_dense(Dense.from_logits(scores + noise), TOP_K)
        figures.append(_time(name, target, Dense.from_logits(scores), repetitions))
    return Report("kl", f"{HALF_BILLION.num_tokens} tokens, k = {TOP_K}, float32 scores, one thread", tuple(figures))


def _time(name: str, target: TopK, local: Dense, repetitions: int) -> Figure:
    whole = local.logprobs
    interval, exp = in_turn(lambda _: kl_divergence(target, local), lambda _: np.exp(whole), repetitions)
    note = f"unseen mass {target.tail:.2g}; {ratio(interval, exp).median:.1f} times one exp over the row"
    return Figure(f"KL interval, {name}", milliseconds(interval), "ms", "<= 0.5", note)
