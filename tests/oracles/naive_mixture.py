"""Sums of laws and the weights of Soft-Bayes, token by token with plain floats: for ``tests/prob/test_mixture.py``."""

from __future__ import annotations

import math


def naive_mixture(laws, weights):
    return [math.fsum(w * law[token] for w, law in zip(weights, laws, strict=True)) for token in range(len(laws[0]))]


def naive_gains(target, listed, laws, weights, floor):
    """Gains over the listed tokens and the rest, each law with a grain of the uniform one."""
    size = len(target)
    cells = [[token] for token in listed] + [[token for token in range(size) if token not in listed]]
    floored = [[(1 - floor) * prob + floor / size for prob in law] for law in laws]

    def mass(law, cell):
        return math.fsum(law[token] for token in cell)

    mixed = naive_mixture(floored, weights)
    return [
        math.fsum(mass(target, cell) * mass(law, cell) / mass(mixed, cell) for cell in cells if cell) for law in floored
    ]


def best_fixed(laws_by_time, tokens, steps=4000):
    """Return the least log-loss of a fixed mixture on a sequence of tokens, by expectation maximisation."""
    num = len(laws_by_time[0])
    weights = [1 / num] * num
    for _ in range(steps):
        shares = [0.0] * num
        for laws, token in zip(laws_by_time, tokens, strict=True):
            mixed = math.fsum(w * law[token] for w, law in zip(weights, laws, strict=True))
            for i, law in enumerate(laws):
                shares[i] += weights[i] * law[token] / mixed
        weights = [share / len(tokens) for share in shares]
    return log_loss(laws_by_time, tokens, [weights] * len(tokens))


def log_loss(laws_by_time, tokens, weights_by_time):
    return -math.fsum(
        math.log(math.fsum(w * law[token] for w, law in zip(weights, laws, strict=True)))
        for laws, token, weights in zip(laws_by_time, tokens, weights_by_time, strict=True)
    )
