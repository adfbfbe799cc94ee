"""The least divergence under linear constraints, by convex solvers, and distributions on either side of where it lies.

The oracles of ``tests/prob/test_certificates.py``. Nothing here knows a closed form: a relative entropy goes to an
interior-point method as exponential cones, a total variation to a linear program, and a boundary is found by halving.
"""

from __future__ import annotations

import math

import clarabel
import numpy as np
from naive_rules import best_first
from scipy.optimize import linprog
from scipy.sparse import csc_array


def ahead(size, front, behind, share=1.0):
    """Rows that are not negative where each of ``behind`` has at most this share of the token ``front``."""
    rows = np.zeros((len(behind), size))
    rows[:, front] = share
    rows[range(len(behind)), behind] = -1.0
    return rows


def least_kl(first, second, of_first=(), of_second=(), at_least=0.0):
    """Minimise KL(first || second) where one side, or both, are unknown: a size instead of a distribution.

    Each row of ``of_first`` and ``of_second`` times its side is at least ``at_least``. Infinite if nothing is possible.
    """
    size = first if isinstance(first, int) else len(first)
    to_first, to_second, to_gain = np.eye(3 * size).reshape(3, size, 3 * size)
    fixed, values = [], []
    for side, column in ((first, to_first), (second, to_second)):
        fixed.append(column.sum(axis=0, keepdims=True) if isinstance(side, int) else column)
        values.append([1.0] if isinstance(side, int) else side)
    of_first, of_second = np.reshape(of_first, (-1, size)), np.reshape(of_second, (-1, size))
    bounds = np.vstack([of_first @ to_first, of_second @ to_second])
    cones = np.stack([to_gain, to_first, to_second], axis=1).reshape(3 * size, 3 * size)  # gain <= f ln(s / f)
    right = np.concatenate([*values, np.broadcast_to(-np.asarray(at_least), len(bounds)), np.zeros(3 * size)])
    kinds = [clarabel.ZeroConeT(sum(map(len, values))), clarabel.NonnegativeConeT(len(bounds))]
    kinds += [clarabel.ExponentialConeT()] * size
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    left = csc_array(np.vstack([*fixed, -bounds, -cones]))
    nothing = csc_array((3 * size, 3 * size))
    found = clarabel.DefaultSolver(nothing, -to_gain.sum(axis=0), left, right, kinds, settings).solve()
    if "Infeasible" in str(found.status):
        return math.inf
    assert "Solved" in str(found.status), found.status
    return found.obj_val


def least_total_variation(probs, rows):
    """Minimise the total variation from a distribution over those where no row is negative."""
    size = len(probs)
    identity, excess = np.eye(size), np.zeros((len(rows), size))
    found = linprog(
        np.concatenate([np.zeros(size), np.ones(size)]),
        A_ub=np.block([[identity, -identity], [-np.asarray(rows), excess]]),
        b_ub=np.concatenate([probs, np.zeros(len(rows))]),
        A_eq=np.concatenate([np.ones(size), np.zeros(size)])[None],
        b_eq=[1.0],
    )
    return found.fun


def least(probs, rows, measure):
    """Minimise one of the three measures from a distribution to those where no row is negative."""
    if measure == "tv":
        return least_total_variation(probs, rows)
    size = len(probs)
    forward = measure == "forward"
    return least_kl(probs, size, of_second=rows) if forward else least_kl(size, probs, of_first=rows)


def halfway(values, start):
    """Return the level at which what ``start`` gains is what the values above the level lose."""
    low, high = start, values.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > middle - start else (low, middle)
    return high


def levelled(probs, token, measure="forward"):
    """Return the nearest distribution in which no token is likelier than this one."""
    values = np.log(probs) if measure == "reverse" else probs.copy()
    level = halfway(values, values[token])
    values = np.minimum(values, level)
    values[token] = level
    moved = np.exp(values) if measure == "reverse" else values
    return moved / moved.sum()


def demoted(probs, m, measure="forward"):
    """Return the nearest distribution in which the m next tokens are no less likely than the best one."""
    values = np.log(probs) if measure == "reverse" else probs.copy()
    best, *before = best_first(probs)[: m + 1]
    level = -halfway(-values[before], -values[best])
    values[before] = np.maximum(values[before], level)
    values[best] = level
    moved = np.exp(values) if measure == "reverse" else values
    return moved / moved.sum()


def around(rng, probs, boundary):
    """Ten distributions anywhere, and fifteen near some on the boundary: short of it, on it, beyond it."""
    anywhere = rng.dirichlet(np.ones(probs.size), 5)
    nearby = probs * np.exp(rng.normal(size=(5, probs.size)) * rng.choice([0.1, 0.5, 2.0], (5, 1)))
    steps = rng.choice([0.9, 0.999, 1 - 1e-9, 1.0, 1 + 1e-9, 1.001], (15, 1))
    near = probs + steps * (np.array(boundary)[rng.integers(len(boundary), size=15)] - probs)
    found = np.maximum(np.concatenate([anywhere, nearby, near]), 1e-300)
    return found / found.sum(axis=1, keepdims=True)


def distances(given_law, found, measure):
    """Shapes (V,), (N, V) -> (N,)."""
    if measure == "tv":
        return np.abs(found - given_law).sum(axis=1) / 2
    first, second = (given_law, found) if measure == "forward" else (found, given_law)
    return (first * (np.log(first) - np.log(second))).sum(axis=1)
