"""From a raw distribution to the law tokens are drawn from: temperature, top-k, top-p, in that order.

The order is vLLM's and is fixed here on purpose: the same three numbers in another order are another law. Divergences
are never taken on warped distributions; thresholds are in nats on the raw ones.
"""

from __future__ import annotations

import numpy as np

from hybrid.prob.distribution import Dense, Floats
from hybrid.types import Sampling


def warp(raw: Dense, sampling: Sampling) -> Dense:
    """Return the law that ``sampling`` draws from. Temperature 0 puts everything on the most likely token.

    >>> law = warp(Dense.from_probs(np.array([0.5, 0.3, 0.2])), Sampling(temperature=1.0, top_p=0.7))
    >>> law.probs.round(3).tolist()
    [0.625, 0.375, 0.0]
    """
    if sampling.greedy:
        point = np.full(raw.num_tokens, -np.inf)
        point[raw.best] = 0.0
        return Dense(point)
    with np.errstate(over="ignore"):  # at 1e-310 all but the best go to -inf, which is what such a temperature means
        logprobs = (raw.logprobs - raw.logprobs.max()) / sampling.temperature
    if 0 < sampling.top_k < raw.num_tokens:
        logprobs = keep_top_k(logprobs, sampling.top_k)
    law = Dense.from_logits(logprobs)
    return keep_top_p(law, sampling.top_p) if sampling.top_p < 1.0 else law


def keep_top_k(logprobs: Floats, k: int) -> Floats:
    """Keep the k best (ties by id), -inf elsewhere. Shape (V,) -> (V,), not normalised."""
    kept = np.full_like(logprobs, -np.inf)
    best = [i for i, _ in Dense(logprobs).top(k)]
    kept[best] = logprobs[best]
    return kept


def keep_top_p(law: Dense, top_p: float) -> Dense:
    """Keep the smallest set of best tokens whose mass reaches ``top_p``; at least one token is kept."""
    order = np.argsort(-law.logprobs, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(law.probs[order])[:-1]))
    kept = order[(before < top_p) | (np.arange(order.size) == 0)]
    logprobs = np.full_like(law.logprobs, -np.inf)
    logprobs[kept] = law.logprobs[kept]
    return Dense.from_logits(logprobs)
