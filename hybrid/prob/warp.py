"""From a raw distribution to the law tokens are drawn from: temperature, min-p, top-k, top-p, in that order.

The order is vLLM's (V1: ``Sampler.sample`` in ``vllm/v1/sample/sampler.py``; V0 had min-p last) and is fixed here on
purpose: the same four numbers in another order are another law. Divergences are never taken on warped distributions;
thresholds are in nats on the raw ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybrid.prob.distribution import Dense, Floats, Ints, TopK
from hybrid.prob.divergence import log_mass
from hybrid.prob.terms import ROUNDING
from hybrid.types import Sampling


def warp(raw: Dense, sampling: Sampling) -> Dense:
    """Return the law that ``sampling`` draws from. Temperature 0 puts everything on the most likely token.

    >>> law = warp(Dense.from_probs(np.array([0.5, 0.3, 0.2])), Sampling(temperature=1.0, top_p=0.7))
    >>> law.probs.round(3).tolist()
    [0.625, 0.375, 0.0]
    """
    if sampling.greedy:
        return Dense(scatter(raw.num_tokens, [raw.best], 0.0))
    return truncate(apply_temperature(raw.logprobs, sampling.temperature), sampling)


def apply_temperature(logprobs: Floats, temperature: float) -> Floats:
    """Divide by the temperature; the best becomes 0. Shape (A,) -> (A,), not normalised."""
    with np.errstate(over="ignore"):  # at 1e-310 all but the best go to -inf, which is what such a temperature means
        heated: Floats = (logprobs - logprobs.max()) / temperature
    return heated


def truncate(heated: Floats, sampling: Sampling) -> Dense:
    """Return the law that min-p, top-k and top-p leave of heated log-probabilities. Shape (V,)."""
    if sampling.min_p > 0.0:
        heated = keep_min_p(heated, sampling.min_p)
    if 0 < sampling.top_k < heated.size:
        heated = keep_top_k(heated, sampling.top_k)
    law = Dense.from_logits(heated)
    return keep_top_p(law, sampling.top_p) if sampling.top_p < 1.0 else law


def keep_min_p(logprobs: Floats, min_p: float) -> Floats:
    """Keep what is at least ``min_p`` times as likely as the best. Shape (V,) -> (V,), not normalised."""
    return np.where(logprobs >= logprobs.max() + np.log(min_p), logprobs, -np.inf)


def keep_top_k(logprobs: Floats, k: int) -> Floats:
    """Keep the k best (ties by id), -inf elsewhere. Shape (V,) -> (V,), not normalised."""
    best = [i for i, _ in Dense(logprobs).top(k)]
    return scatter(logprobs.size, best, logprobs[best])


def keep_top_p(law: Dense, top_p: float) -> Dense:
    """Keep the smallest set of best tokens whose mass reaches ``top_p``; at least one token is kept."""
    order = np.argsort(-law.logprobs, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(law.probs[order])[:-1]))
    kept = order[(before < top_p) | (np.arange(order.size) == 0)]
    return Dense.from_logits(scatter(law.num_tokens, kept, law.logprobs[kept]))


def scatter(num_tokens: int, ids: Sequence[int] | Ints, logprobs: Floats | float) -> Floats:
    """Lay log-probabilities out over the vocabulary, -inf elsewhere. Shape (A,) -> (V,)."""
    laid = np.full(num_tokens, -np.inf)
    laid[ids] = logprobs
    return laid


# The distribution that tokens are drawn from, where the top k of the raw one is enough to know it.
#
# The law. ``determined_distribution(TopK.from_dense(full, k), sampling, V)`` is ``warp(full, sampling)`` or None, for
# every ``full``; it is not None where every completion of the tail would be warped alike
# (``tests/prob/test_shown.py``).
#
# Why it can be known: temperature keeps the ranks, and min-p, top-k and top-p each keep a beginning of the ranking. It
# is enough that this beginning lies within the tokens that certainly outrank all unseen ones, and that its end is
# certain. A shown token as likely as ``tail_max`` is not: an unseen one may tie with it and have the lower id. So
# whoever cuts to the k best asks for one more.

# Two log-probabilities closer than this may be one number computed twice, and so may a mass and what it is to reach.
SLACK = 1e-9


def determined_distribution(target: TopK, sampling: Sampling, num_tokens: int) -> Dense | None:
    """Return what ``warp`` makes of the full distribution over ``num_tokens`` ids; None where the list leaves it open.

    An appended actual token changes nothing, even where it proves its rank: whether a law is known must depend on the
    position alone, or a sampler that takes another way where none is known would favour what was drafted.

    >>> full = Dense.from_probs(np.array([0.5, 0.3, 0.1, 0.06, 0.04]))
    >>> row = TopK.from_dense(full, 3)
    >>> determined_distribution(row, Sampling(temperature=1.0, top_p=0.7), 5).probs.round(3).tolist()
    [0.625, 0.375, 0.0, 0.0, 0.0]
    >>> determined_distribution(row, Sampling(temperature=1.0, top_p=0.95), 5)
    """
    k = target.num_listed
    target = TopK(target.ids[:k], target.logprobs[:k], target.tail_max, k)
    num_tail = num_tokens - k
    if int(target.ids.max()) >= num_tokens:
        return None
    # No unseen token is more likely than ``tail_max``, nor than all unseen ones together.
    ceiling = min(target.tail_max, target.tail + ROUNDING) if num_tail else 0.0
    sure = target.logprobs > log_mass(ceiling) + SLACK
    if not sure.any():
        return None
    ids, logprobs = target.ids[sure], target.logprobs[sure]
    if sampling.greedy:
        return Dense(scatter(num_tokens, ids[np.lexsort((ids, -logprobs))[:1]], 0.0))
    heated = apply_temperature(logprobs, sampling.temperature)
    if not num_tail or 0 < sampling.top_k <= ids.size or _drops(sampling, ceiling, float(logprobs.max())):
        return truncate(scatter(num_tokens, ids, heated), sampling)
    order = np.lexsort((ids, -heated))
    before = np.concatenate(([0.0], np.cumsum(np.exp(heated[order]))))
    least, most = _totals(target, sampling.temperature, num_tail)
    if sampling.min_p > 0.0 or 0 < sampling.top_k < num_tokens:
        least = float(before[-1])  # what they leave of the others is not known here
    fewest, num_kept = (
        max(1, int(np.sum(before < sampling.top_p * total))) for total in (least * (1.0 - SLACK), most * (1.0 + SLACK))
    )
    if fewest < num_kept or num_kept > ids.size:
        return None
    kept = order[:num_kept]
    return Dense.from_logits(scatter(num_tokens, ids[kept], heated[kept]))


def _drops(sampling: Sampling, ceiling: float, best: float) -> bool:
    """Whether min-p drops every token up to the probability ``ceiling``, beside a best log-probability."""
    return sampling.min_p > 0.0 and log_mass(ceiling) + SLACK < best + sampling.temperature * log_mass(sampling.min_p)


def _totals(target: TopK, temperature: float, num_tail: int) -> tuple[float, float]:
    """Return the least and the most that all tokens may weigh after the temperature, in weights of the best one.

    ``p ** (1 / temperature)`` is convex or concave: a tail of given mass weighs most or least where it is even, and the
    other where it is heaped under ``tail_max``. Its mass is known up to rounding.
    """
    best = float(target.logprobs.max())

    def weight(prob: float) -> float:
        return float(np.exp(min(0.0, (log_mass(prob) - best) / temperature)))

    def ends(mass: float) -> tuple[float, float]:
        tail_max = max(target.tail_max, mass / num_tail)
        full = int(mass / tail_max + 1e-12) if mass > 0.0 else 0
        return full * weight(tail_max) + weight(mass - full * tail_max), num_tail * weight(mass / num_tail)

    shown = float(np.exp(apply_temperature(target.logprobs, temperature)).sum())
    return shown + min(ends(max(0.0, target.tail - ROUNDING))), shown + max(ends(target.tail + ROUNDING))
