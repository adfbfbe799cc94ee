"""The first table: how far two models are apart along the reference's own text.

Every number stands with its count and an interval over questions. This file interprets records; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.world import World
from hybrid.prob import Dense, Floats, TopK
from hybrid.tasks.statistics import TAIL, Estimate, Resamples, ratio
from hybrid.types import Ids

# Intervals for what is measured at many positions of few texts: questions are drawn again, never positions.
#
# Positions of one text are alike, so a bootstrap over positions would promise too much. The law (``tests/bench/
# test_bootstrap.py``): a statistic under weights is that of the data with every question repeated so often as it was
# drawn.

NUM_RESAMPLES = 1000
Statistic: TypeAlias = Callable[[Floats], float | None]
"""From the weight of every position, shape (T,), to a number; None where it is undefined."""


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of several texts: ``owners``, shape (T,), says whose each is, from 0 to ``num_texts`` - 1."""

    owners: NDArray[np.int64]
    num_texts: int
    seed: int = 0

    @cached_property
    def _resamples(self) -> Resamples:
        return Resamples(self.num_texts, self.seed, NUM_RESAMPLES)

    def estimate(self, statistic: Statistic) -> Estimate | None:
        """Return a statistic with its percentile-bootstrap interval over texts; None where it is undefined."""
        every = self._resamples.counts.T if self.owners.size else ()
        return self._interval([statistic(drawn[self.owners]) for drawn in every])

    def _interval(self, columns: Sequence[float | None] | Floats) -> Estimate | None:
        found = np.array(columns, dtype=np.float64)
        if not self.owners.size or np.isnan(found[0]):
            return None
        low, high = np.nanquantile(found[1:], (TAIL, 1.0 - TAIL))
        return Estimate(float(found[0]), float(low), float(high))

    def mean(self, values: NDArray[np.generic]) -> Estimate | None:
        """Return the mean over positions, shape (T,)."""
        ones = np.ones(self.owners.size)
        sums = np.array([np.bincount(self.owners, each, self.num_texts) for each in (values, ones)], dtype=np.float64)
        return self._interval(ratio(*self._resamples.sums(sums)))

    def quantile(self, values: Floats, share: float) -> Estimate | None:
        """Return the smallest value that so large a share of the positions does not exceed."""
        return self.estimate(weighted_quantile(values, share))

    def auroc(self, scores: Floats, positive: NDArray[np.bool_]) -> Estimate | None:
        """Return the chance that a positive's score is above a negative's; None where there is only one kind."""
        return self.estimate(weighted_auroc(scores, positive))


def weighted_quantile(values: Floats, share: float) -> Statistic:
    """Return a quantile as a statistic."""
    order = np.argsort(values, kind="stable")

    def statistic(weights: Floats) -> float | None:
        reached = np.cumsum(weights[order])
        if not reached[-1]:
            return None
        return float(values[order][np.searchsorted(reached, share * reached[-1] * (1.0 - 1e-12))])

    return statistic


def weighted_auroc(scores: Floats, positive: NDArray[np.bool_]) -> Statistic:
    """Return the AUROC as a statistic, ties counting half."""
    values, which = np.unique(scores, return_inverse=True)

    def statistic(weights: Floats) -> float | None:
        good = np.bincount(which, weights * positive, values.size)
        bad = np.bincount(which, weights * ~positive, values.size)
        pairs = good.sum() * bad.sum()
        below = np.cumsum(bad) - bad
        return float(good @ (below + bad / 2) / pairs) if pairs else None

    return statistic


def weighted_spearman(values: Floats, others: Floats) -> Statistic:
    """Return Spearman's rank correlation as a statistic, ties sharing their mean rank; undefined where one is alike."""
    found = [np.unique(each, return_inverse=True) for each in (values, others)]

    def statistic(weights: Floats) -> float | None:
        centred = []
        for kinds, which in found:
            counts = np.bincount(which, weights, kinds.size)
            ranks = (np.cumsum(counts) - counts / 2)[which]
            centred.append(ranks - ranks @ weights / max(1.0, weights.sum()))
        spread = np.sqrt(np.prod([each**2 @ weights for each in centred]))
        return float((centred[0] * centred[1]) @ weights / spread) if spread else None

    return statistic


# What two models make of one text, the reference's own greedy one, position by position, on full rows. What a top-k
# list leaves of it is a section of a study (``study/row_sections.py``).

DEFAULT_TOP_K = 20


def positions(world: World, prompt: Ids, text: Ids) -> list[dict[str, Any]]:
    """Measure every position of a text, as plain data; of an empty one there is none.

    Divergences and entropies in nats, the rest probabilities. ``agrees``: both models have one favourite. ``kl``:
    KL(reference || local). ``overlap``: the chance that a sampled draft is accepted. ``beyond``: the reference's mass
    beyond its first 20.
    """
    if not text:
        return []
    local, reference = world.rows(prompt, text)
    return [compare_rows(*pair) for pair in zip(reference, local, strict=True)]


def compare_rows(reference: Dense, local: Dense) -> dict[str, Any]:
    """Measure one position, as ``positions`` has it."""
    target, draft = reference.logprobs, local.logprobs
    target_probs = np.exp(target)
    return {
        "agrees": reference.best == local.best,
        "kl": float(target_probs @ (target - draft)),
        "entropy": local.entropy(),
        "overlap": float(np.minimum(target_probs, np.exp(draft)).sum()),
        "beyond": TopK.from_dense(reference, DEFAULT_TOP_K).tail,
    }


THRESHOLDS = (0.5, 1.5, 3.0)
# Offsets in a drafted span at which acceptance is told.
SPAN = 8


def position_table(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the table of a section from the records of its questions."""
    texts = [record["positions"] for record in records]
    flat, all_of = flattened(texts)
    columns = {
        name: np.array([each[name] for each in flat]) for name in ("agrees", "kl", "entropy", "overlap", "beyond")
    }
    agrees, kl = columns["agrees"].astype(bool), columns["kl"]
    return {
        "questions": len(texts),
        "positions": len(flat),
        "agreement": estimate_to_json(all_of.mean(agrees)),
        "kl_mean": estimate_to_json(all_of.mean(kl)),
        "kl_median": estimate_to_json(all_of.quantile(kl, 0.5)),
        "kl_above": {f"{limit:g}": estimate_to_json(all_of.mean(kl > limit)) for limit in THRESHOLDS},
        "entropy_auroc": estimate_to_json(all_of.auroc(columns["entropy"], ~agrees)),
        "beyond_top_20": {
            "median": estimate_to_json(all_of.quantile(columns["beyond"], 0.5)),
            "p90": estimate_to_json(all_of.quantile(columns["beyond"], 0.9)),
        },
        "acceptance": _acceptance(texts, all_of, columns["overlap"]),
    }


def flattened(texts: Sequence[Sequence[dict[str, Any]]]) -> tuple[list[dict[str, Any]], Positions]:
    """Return the positions of all texts, and whose each is."""
    owners = np.array([number for number, text in enumerate(texts) for _ in text], dtype=np.int64)
    return [position for text in texts for position in text], Positions(owners, len(texts))


def _acceptance(texts: Sequence[Sequence[dict[str, Any]]], all_of: Positions, overlap: Floats) -> dict[str, Any]:
    """Tell how many drafted tokens stand, by the offset in a span.

    ``span``: of the greedy drafts that begin anywhere and have stood so far, the share that stands at the next token.
    """
    stood = [run_lengths([each["agrees"] for each in text]) for text in texts]
    span = []
    for offset in range(SPAN):
        tried = sum(sum(run >= offset and at + offset < len(runs) for at, run in enumerate(runs)) for runs in stood)
        kept = sum(sum(run > offset for run in runs) for runs in stood)
        span.append({"offset": offset, "tried": tried, "kept": round(kept / tried, 4) if tried else None})
    return {"sampled": estimate_to_json(all_of.mean(overlap)), "span": span}


def run_lengths(holds: Sequence[bool]) -> list[int]:
    """Return for every position at how many from there on something holds: of T, T, F, T it is 2, 1, 0, 1."""
    runs, run = [], 0
    for each in reversed(holds):
        run = run + 1 if each else 0
        runs.append(run)
    return runs[::-1]
