"""Numbers of a file that somebody may have spoiled: a number that there can be, or a ValueError."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import each, each_of
from damaged_files import WRONG, mutant

from hybrid.defer import Calibration
from hybrid.defer.packed import read_number, read_numbers, scatter
from hybrid.pairs.store import SHIPPED

SEED, NUM = 20261124, 200


@each("kept", WRONG)
def test_a_number_is_read_as_it_stands_or_refused(kept):
    """JSON of others holds NaN, whole numbers without a float, and text that float() would read."""
    plain = isinstance(kept, int | float) and not isinstance(kept, bool)
    if plain and abs(kept) < 1e300:
        assert read_number(kept) == kept
        return
    with pytest.raises(ValueError, match="is no number from"):
        read_number(kept)


@each(("kept", "least", "most"), [(-1e-9, 0, 1), (1.5, 0, 1), (float("nan"), 0, 1), (0, 1, 2)])
def test_a_number_out_of_its_bounds_is_refused(kept, least, most):
    with pytest.raises(ValueError, match="is no number from"):
        read_number(kept, least, most)


@each("kept", [[float("nan")], [None], [10**400], [[1.0], [float("inf")]]])
def test_numbers_that_are_none_are_refused(kept):
    with pytest.raises(ValueError, match="a number that is none"):
        read_numbers(kept)


def test_numbers_stand_at_their_places():
    assert scatter([2, 0], np.array([5.0, 7.0]), 4).tolist() == [7.0, 0.0, 5.0, 0.0]
    assert scatter([], np.array([]), 2).tolist() == [0.0, 0.0]


@each("places", [[-1, 0], [0, 4], [0], [0.0, 1.0], [True, False], [[0, 1]], [2**64, 0], "01", None, 3])
def test_a_place_that_there_is_not_is_refused(places):
    """numpy counts negative places from the end, and spreads one number over many."""
    with pytest.raises(ValueError, match="no place"):
        scatter(places, np.array([5.0, 7.0]), 4)


def test_a_damaged_calibration_is_refused_or_holds_what_a_calibration_can_hold():
    """By number: whoever reads one need not look whether a count is a text or a chance above one."""
    tree = json.loads((SHIPPED / "bundled-critic.json").read_text())
    whole = json.dumps({**tree, "questions": tree["questions"][:4]}).encode()
    read = refused = 0
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number)
        try:
            found = Calibration.from_json(json.loads(raw.decode()))
        except (ValueError, RecursionError):
            refused += 1
            continue
        read += 1
        assert 0.0 <= found.worth < np.inf, what
        assert np.isfinite(found.score.familiarity.counts).all(), what
        for question in each_of(found.questions):
            assert type(question.prompt_tokens) is int, what
            assert 0.0 <= question.chance <= 1.0, what
            assert question.prompt_tokens >= 0, what
        again = Calibration.from_json(json.loads(json.dumps(found.to_json())))
        assert again.to_json() == found.to_json(), what
    assert min(read, refused) > NUM / 50
