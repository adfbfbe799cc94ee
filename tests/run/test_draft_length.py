"""The draft length against the closed form of its own model, and against a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.pairs.timings import LONGEST_SPAN, best_length

chances = st.floats(0.05, 0.98)
seconds = st.floats(0.001, 2.0)


def closed_form(acceptance, overhead, per_token):
    """The real-valued optimum: with L = -ln a, u - ln u = 1 + L (A / B - 1), and g = (u - 1) / L - A / B."""
    rate, ratio = -math.log(acceptance), overhead / per_token
    wanted = 1 + rate * (ratio - 1)
    if ratio <= 1:
        return 0.0
    u = wanted + 1
    for _ in range(200):
        u -= (u - math.log(u) - wanted) / (1 - 1 / u)
    return (u - 1) / rate - ratio


@given(chances, seconds, seconds)
def test_it_is_next_to_the_real_valued_optimum(acceptance, overhead, per_token):
    exact = closed_form(acceptance, overhead, per_token)
    found = best_length(acceptance, overhead, per_token, longest=4000)
    assert math.floor(exact) <= found <= max(1, math.ceil(exact))


@each(("acceptance", "overhead"), [(0.6, 0.1), (0.9, 0.1), (0.9, 0.4)])
def test_no_other_length_shows_more_tokens_a_second_in_a_simulation(acceptance, overhead):
    """20,000 rounds of each length; the standard error of a mean is below half a percent."""
    rng = np.random.default_rng(1)
    stands = rng.random((20_000, 40)) < acceptance
    runs = np.where(stands.all(axis=1), 40, stands.argmin(axis=1))
    rates = {g: (np.minimum(runs, g) + 1).mean() / (overhead + 0.02 * g) for g in range(1, 40)}
    assert rates[best_length(acceptance, overhead, 0.02, 39)] > 0.985 * max(rates.values())


@given(chances, seconds, seconds, st.floats(1.0, 5.0))
def test_a_longer_round_trip_and_a_better_draft_never_shorten_it(acceptance, overhead, per_token, more):
    here = best_length(acceptance, overhead, per_token)
    assert best_length(acceptance, overhead * more, per_token) >= here
    assert best_length(min(1.0, acceptance * more), overhead, per_token) >= here


def test_the_ends():
    assert best_length(0.0, 1.0, 0.01) == 1
    assert best_length(1.0, 1.0, 0.01) == LONGEST_SPAN
    for wrong in ((1.5, 1.0, 0.1), (0.5, -1.0, 0.1), (0.5, 1.0, 0.0), (float("nan"), 1.0, 0.1)):
        with pytest.raises(ValueError, match="no draft length"):
            best_length(*wrong)
