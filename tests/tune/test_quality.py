"""Figures of chances, against their definitions written out."""

import numpy as np
import pytest

from hybrid.defer import CalibrationQuestion
from hybrid.tune.diagnosis import auroc, ece


def rows(chances, turned_down):
    return [CalibrationQuestion(1, 1, 1, float(p), bool(y), 0, 0) for p, y in zip(chances, turned_down, strict=True)]


def test_auroc_counts_the_pairs_that_are_in_order():
    rng = np.random.default_rng(0)
    chances, labels = rng.integers(0, 6, 40) / 5, rng.random(40) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in chances[labels] for b in chances[~labels]]
    assert auroc(rows(chances, labels)) == pytest.approx(np.mean(pairs))
    assert auroc(rows([0.5, 0.6], [True, True])) is None


def test_the_calibration_error_is_that_of_groups_of_equal_size():
    chances = np.repeat(np.arange(15) / 20, 4)
    labels = np.tile([True, True, False, False], 15)
    assert ece(rows(chances, labels)) == pytest.approx(np.mean(abs(np.arange(15) / 20 - 0.5)))
    assert ece(rows([0.25] * 4, [True, False, False, False])) == pytest.approx(0.375)
