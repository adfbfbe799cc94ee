"""The first table: how far two models are apart along the reference's own text, and what a top-k list shows of it.

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
from hybrid.prob import (
    Dense,
    Floats,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    certificate,
    favourite_certificate,
    kl_divergence,
    tree_certificate,
)
from hybrid.tasks.statistics import TAIL, Estimate, Resamples
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
        value = statistic(np.ones(self.owners.size)) if self.owners.size else None
        if value is None:
            return None
        found = [statistic(drawn[self.owners]) for drawn in self._resamples.counts.T[1:]]
        known = [each for each in found if each is not None]
        low, high = np.quantile(known, (TAIL, 1.0 - TAIL))
        return Estimate(value, float(low), float(high))

    def mean(self, values: NDArray[np.generic]) -> Estimate | None:
        """Return the mean over positions, shape (T,)."""
        return self.estimate(weighted_mean(np.asarray(values, dtype=np.float64)))

    def quantile(self, values: Floats, share: float) -> Estimate | None:
        """Return the smallest value that so large a share of the positions does not exceed."""
        return self.estimate(weighted_quantile(values, share))

    def auroc(self, scores: Floats, positive: NDArray[np.bool_]) -> Estimate | None:
        """Return the chance that a positive's score is above a negative's; None where there is only one kind."""
        return self.estimate(weighted_auroc(scores, positive))


def weighted_mean(values: Floats) -> Statistic:
    """Return the mean as a statistic; undefined where nothing was drawn."""
    return lambda weights: float(values @ weights / weights.sum()) if weights.any() else None


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


# What two models make of one text, position by position: agreement, divergence, and what a top-k list leaves of it.
#
# The text is the reference's own greedy one. Everything is measured on full rows; the intervals are what an endpoint
# that shows ``k`` log-probabilities, and the actual token's, leaves to be known.

# Lengths of the top-k list: the least, what is often given, the default, and what few endpoints give.
TOP_KS = (1, 5, 20, 100)
DEFAULT_TOP_K = 20


CERTIFICATES = ("greedy", "multiplicative 0.3", "top 3", "tree of 3")


def positions(world: World, prompt: Ids, text: Ids) -> list[dict[str, Any]]:
    """Measure every position of a text, as plain data; of an empty one there is none.

    Divergences and entropies in nats, the rest probabilities. ``agrees``: both models have one favourite. ``kl``:
    KL(reference || local), on full rows; ``intervals`` are what the first ``k`` entries leave of it, by ``TOP_KS``.
    ``overlap``: the chance that a sampled draft is accepted. ``beyond``: the reference's mass beyond its first 20.
    ``certificates``: the least divergence at which the local favourite can be rejected: by greedy acceptance, by a
    third of the best probability, outside the best three, and outside the best three of the draft.
    """
    if not text:
        return []
    local, reference = world.rows(prompt, text)
    return [_position(*pair) for pair in zip(reference, local, text, strict=True)]


def _position(reference: Dense, local: Dense, token: int) -> dict[str, Any]:
    target, draft = reference.logprobs, local.logprobs
    target_probs = np.exp(target)
    shown = [TopK.from_dense(reference, k, token) for k in TOP_KS]
    bounds = [kl_divergence(row, local) for row in shown]
    row = shown[TOP_KS.index(DEFAULT_TOP_K)]
    return {
        "agrees": reference.best == local.best,
        "kl": float(target_probs @ (target - draft)),
        "entropy": local.entropy(),
        "overlap": float(np.minimum(target_probs, np.exp(draft)).sum()),
        "beyond": 1.0 - float(row.listed.probs.sum()),
        "intervals": tuple((bound.lower, bound.upper) for bound in bounds),
        "certificates": (
            favourite_certificate(row),
            certificate(row, MultiplicativeAcceptance(0.3)),
            certificate(row, TopMAcceptance(3)),
            tree_certificate(row, 3),
        ),
    }


THRESHOLDS = (0.5, 1.5, 3.0)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# What is added to an interval before it is asked whether the value lies in it: rows are rounded numbers.
SLACK_NATS = 1e-6
# Offsets in a drafted span, and parts of a text, at which acceptance is told.
SPAN = 8
PARTS = ((0, 8), (8, 16), (16, 32), (32, 64), (64, None))


def position_table(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the table of a section from the records of its questions."""
    texts = [record["positions"] for record in records]
    flat = [position for text in texts for position in text]
    owners = np.array([number for number, text in enumerate(texts) for _ in text], dtype=np.int64)
    all_of = Positions(owners, len(texts))
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
        "intervals": {str(k): _interval(all_of, kl, flat, i) for i, k in enumerate(TOP_KS)},
        "acceptance": _acceptance(texts, all_of, columns["overlap"]),
        "certificates": _certificates(kl, flat),
    }


def _interval(all_of: Positions, kl: Floats, flat: Sequence[dict[str, Any]], which: int) -> dict[str, Any]:
    """Say how wide a top-k list's interval is, whether the value lies in it, and how well it decides at 0.5 nats."""
    lower, upper = (np.array([each["intervals"][which][end] for each in flat]) for end in (0, 1))
    width = np.where(np.isfinite(upper), upper - lower, np.inf)
    covered = (lower <= kl + SLACK_NATS) & (kl <= upper + SLACK_NATS)
    limit = THRESHOLDS[0]
    return {
        "width_median": estimate_to_json(all_of.quantile(width, 0.5)),
        "width_p90": estimate_to_json(all_of.quantile(width, 0.9)),
        "covered": estimate_to_json(all_of.mean(covered)),
        "undecided_at_0.5": estimate_to_json(all_of.mean((lower <= limit) & (limit < upper))),
        "lower_end_right_at_0.5": estimate_to_json(all_of.mean((lower > limit) == (kl > limit))),
        "upper_end_right_at_0.5": estimate_to_json(all_of.mean((upper > limit) == (kl > limit))),
    }


def _acceptance(texts: Sequence[Sequence[dict[str, Any]]], all_of: Positions, overlap: Floats) -> dict[str, Any]:
    """Tell how many drafted tokens stand: by the offset in a span, and by the place in the text.

    ``span``: of the greedy drafts that begin anywhere and have stood so far, the share that stands at the next token.
    """
    places = np.array([place for text in texts for place in range(len(text))], dtype=np.int64)
    agrees = np.array([each["agrees"] for text in texts for each in text], dtype=bool)
    stood = [_stood(text) for text in texts]
    span = []
    for offset in range(SPAN):
        tried = sum(sum(run >= offset and at + offset < len(runs) for at, run in enumerate(runs)) for runs in stood)
        kept = sum(sum(run > offset for run in runs) for runs in stood)
        span.append({"offset": offset, "tried": tried, "kept": round(kept / tried, 4) if tried else None})
    parts = []
    for first, end in PARTS:
        inside = (places >= first) & (places < (end or places.size + 1))
        here = Positions(all_of.owners[inside], all_of.num_texts)
        parts.append(
            {"from": first, "to": end, "positions": int(inside.sum())}
            | {
                "greedy": estimate_to_json(here.mean(agrees[inside])),
                "sampled": estimate_to_json(here.mean(overlap[inside])),
            }
        )
    return {"sampled": estimate_to_json(all_of.mean(overlap)), "span": span, "parts": parts}


def _stood(text: Sequence[dict[str, Any]]) -> list[int]:
    """Return for every position how many tokens from there on the two models agree."""
    runs, run = [], 0
    for each in reversed(text):
        run = run + 1 if each["agrees"] else 0
        runs.append(run)
    return runs[::-1]


def _certificates(kl: Floats, flat: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tell the quantiles of each certificate, and how many positions it proves: those with a smaller divergence."""
    found = {}
    for which, name in enumerate(CERTIFICATES):
        values = np.array([each["certificates"][which] for each in flat])
        upper = np.array([each["intervals"][TOP_KS.index(20)][1] for each in flat])
        quantiles = np.quantile(values, QUANTILES, method="inverted_cdf") if values.size else []
        found[name] = {
            "quantiles": {
                f"{share:g}": round(float(value), 4) for share, value in zip(QUANTILES, quantiles, strict=False)
            },
            "certified_by_the_full_rows": round(float((kl < values).mean()), 4) if values.size else None,
            "certified_by_the_top_20": round(float((upper < values).mean()), 4) if values.size else None,
        }
    return found
