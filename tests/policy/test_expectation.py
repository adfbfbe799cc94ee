"""What is expected of a question is what its like would have been asked, at the planner's own prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.defer import CalibrationQuestion, PriorScore
from hybrid.policy.explanation import PlannedOutcome, expect, planned_outcomes
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices

PRICES = AskPrices(1.0, 0.1, 4.0, closing=4.0)
PLANNER = Planner(score=PriorScore("kl:0.7"), prices=PRICES, worth=Worth(2.2))
GOOD = CalibrationQuestion(20, 30, 28, 0.02, turned_down=False, excess_told=0.1, excess=0.1)
BAD = CalibrationQuestion(20, 40, 50, 0.97, turned_down=True, excess_told=1.0, excess=1.2, first_rejection=12)


def outcome(chance, *, asked, paid=1.0):
    return PlannedOutcome("write" if asked else "keep", paid if asked else 0.0, 0.0, 0.0, 2.0, chance)


def test_an_outcome_is_what_the_plan_would_have_cost():
    """The good one is kept. The bad one is written from the start. One in doubt is checked."""
    good, bad = planned_outcomes((GOOD, BAD), PLANNER)
    assert (good.action, good.paid, good.alone) == ("keep", 0.0, 20.0 + 4.0 * 28)
    assert (bad.action, bad.paid, bad.alone) == ("write", 220.0, 20.0 + 4.0 * 50)
    checking = replace(PLANNER, worth=Worth(9.0))
    middle = replace(BAD, chance=0.1)
    (found,) = planned_outcomes((middle,), checking)
    assert found.action == "check"
    assert found.paid == (20 + 40 + 4) + (32 * 0.1 + 1.0 + 4.0 * 37), "the cloud writes on after the token it corrected"
    (unharmed,) = planned_outcomes((replace(middle, turned_down=False, first_rejection=None),), checking)
    assert unharmed.paid == 20 + 40 + 4


def test_at_worth_nothing_is_asked_and_all_is_where_everything_is_worth_it():
    for worth, asks in ((1e-9, 0.0), (1e9, 1.0)):
        found = expect(planned_outcomes((GOOD, BAD), replace(PLANNER, worth=Worth(worth))), 0.5)
        assert found.asks == asks
        assert (found.of_cloud == 0.0) == (asks == 0.0)


outcomes = st.lists(
    st.builds(
        lambda chance, asked, paid: outcome(chance, asked=asked, paid=paid),
        st.floats(0, 1),
        st.booleans(),
        st.floats(0, 9),
    ),
    min_size=1,
    max_size=12,
).map(tuple)


@settings(max_examples=60)
@given(outcomes)
def test_at_their_own_mean_chance_the_expectation_is_the_mean_over_the_questions(seen):
    found = expect(seen, float(np.mean([each.chance for each in seen])))
    if np.ptp([each.chance for each in seen]) > 1e-3:
        assert found.asks == pytest.approx(np.mean([each.action != "keep" for each in seen]), abs=1e-6)
        assert found.of_cloud == pytest.approx(np.mean([each.paid for each in seen]) / 2.0, abs=1e-6)


def test_a_question_is_expected_as_those_of_its_chance_are():
    """Where what is asked about is what has a high chance, a higher chance is asked about more, up to always."""
    seen = [outcome(chance, asked=chance > 0.4) for chance in np.linspace(0.0, 1.0, 21)]
    found = [expect(seen, chance).asks for chance in (0.001, 0.1, 0.3, 0.5, 0.8, 0.999)]
    assert found == sorted(found)
    assert found[0] < 0.01
    assert found[-1] > 0.99


def test_of_no_outcomes_nothing_is_expected():
    assert expect((), 0.5) is None
