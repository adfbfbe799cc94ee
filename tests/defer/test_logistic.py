"""Regressions held against scipy's minimiser and the normal equations."""

import numpy as np
import pytest
from scipy.optimize import minimize

from hybrid.defer import BUCKETS
from hybrid.defer.logistic import SparseRows, fit_logistic, fit_ridge, logit_of, sigmoid

NUM_ROWS, NUM_DENSE = 60, 4


def draw_rows(seed):
    """Rows of a dozen buckets, so that most weights have no row."""
    rng = np.random.default_rng(seed)
    buckets = [tuple(sorted({int(b) for b in rng.integers(0, 12, 4)})) for _ in range(NUM_ROWS)]
    dense = rng.normal(size=(NUM_ROWS, NUM_DENSE))
    rows = SparseRows.of(buckets, dense)
    full = np.zeros((NUM_ROWS, rows.num_features))
    for each, found in zip(full, buckets, strict=True):
        each[list(found)] = 1.0
    full[:, BUCKETS:] = dense
    used = np.flatnonzero(full.any(axis=0))
    labels = (rng.random(NUM_ROWS) < sigmoid(full[:, used] @ rng.normal(size=len(used)))).astype(float)
    precision = np.full(rows.num_features, 0.5)
    precision[-1] = 1e-3
    return rows, full[:, used], used, labels, precision, rng


@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_those_of_a_general_minimiser(seed):
    rows, full, used, labels, precision, rng = draw_rows(seed)
    offset, counts = rng.normal(size=NUM_ROWS), rng.uniform(0.2, 3.0, NUM_ROWS)

    def loss(weights):
        logits = offset + full @ weights
        return np.sum(counts * (np.logaddexp(0, logits) - labels * logits)) + np.sum(precision[used] * weights**2) / 2

    best = minimize(loss, np.zeros(len(used)), method="BFGS", options={"gtol": 1e-7})
    found = fit_logistic(rows, labels, precision, offset=offset, weights=counts)
    assert found[used] == pytest.approx(best.x, abs=1e-4)
    assert loss(found[used]) <= best.fun + 1e-9
    assert not np.delete(found, used).any()


def test_a_good_start_ends_where_a_bad_one_does():
    rows, _, _, labels, precision, rng = draw_rows(7)
    found = fit_logistic(rows, labels, precision)
    start = found + rng.normal(size=len(found))
    assert fit_logistic(rows, labels, precision, start=start) == pytest.approx(found, abs=1e-6)


def test_labels_of_one_kind_have_finite_weights():
    """The first labels of a new pair are often all the same."""
    rows, _, _, labels, precision, _ = draw_rows(1)
    assert np.isfinite(fit_logistic(rows, np.ones_like(labels), precision)).all()


def test_ridge_solves_the_normal_equations():
    rows, full, used, _, precision, rng = draw_rows(2)
    targets, counts = rng.normal(size=NUM_ROWS), rng.uniform(0.2, 3.0, NUM_ROWS)
    expected = np.linalg.solve(
        full.T @ (counts[:, None] * full) + np.diag(precision[used]), full.T @ (counts * targets)
    )
    assert fit_ridge(rows, targets, precision, weights=counts)[used] == pytest.approx(expected, abs=1e-9)


def test_log_odds_and_chances_are_each_others_inverse():
    logits = np.array([-800.0, -3.0, 0.0, 0.5, 800.0])
    assert sigmoid(logits) == pytest.approx([0.0, 1 / (1 + np.e**3), 0.5, 1 / (1 + np.e**-0.5), 1.0])
    assert logit_of(sigmoid(logits[1:4])) == pytest.approx(logits[1:4])
    assert logit_of(0.0) == pytest.approx(-np.log(9999))
