"""From a raw distribution to the law tokens are drawn from: temperature, min-p, top-k, top-p, in that order.

The order is vLLM's (V1: ``Sampler.sample`` in ``vllm/v1/sample/sampler.py``; V0 had min-p last) and is fixed here on
purpose: the same four numbers in another order are another law. Divergences are never taken on warped distributions;
thresholds are in nats on the raw ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybrid.prob.distribution import Dense, Floats, Ints
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
