"""What would change a choice is what the planner would really choose there."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.defer import DraftSignals, Forecast, QuestionForecast
from hybrid.policy.explanation import MOST_TIMES, action_of, explain
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices


@dataclass(frozen=True)
class HazardScore:
    """Forecasts what it is told, of a question of which nothing else is known."""

    hazard: tuple[float, ...]
    again: float = 0.5
    judge: str = "kl:0.5"
    critic: str | None = None

    def forecast(self, signals):
        return Forecast(np.array(self.hazard), np.zeros(len(self.hazard)))

    def before(self, words, prompt_tokens):
        return QuestionForecast(0.5, 20.0, 1.0)


def prices(scoring="uncached"):
    return AskPrices(1.0, 0.1, 4.0, scoring=scoring, closing=4.0)


def signals(num, prompt, shown=0):
    floats = np.full(num, 0.5)
    return DraftSignals((), prompt, shown, np.arange(num), floats, floats, floats / 2, -floats, ended=True)


chances = st.floats(0.0, 0.9)
# A planner and a draft.
cases = st.builds(
    lambda hazard, prompt, shown, scoring, worth, again: (
        Planner(score=HazardScore(hazard, again), prices=prices(scoring), worth=Worth(worth), prompt_tokens=prompt),
        signals(len(hazard), prompt, shown),
    ),
    st.lists(chances, min_size=1, max_size=14).map(tuple),
    st.integers(1, 60),
    st.integers(0, 9),
    st.sampled_from(["uncached", "cached"]),
    st.sampled_from([0.4, 1.0, 2.2, 9.0]),
    chances,
)


def explained(planner, drafted, known=0):
    return explain(drafted.shown, planner.plan(drafted, final=True, known=known))


def at_worth(planner, drafted, times, known=0):
    scaled = replace(planner, worth=Worth(planner.worth.multiple * times))
    return action_of(scaled.plan(drafted, final=True, known=known))


@settings(max_examples=60)
@given(cases)
def test_beyond_a_named_worth_the_planner_chooses_what_is_said_and_just_before_it_what_it_chose(case):
    planner, drafted = case
    found = explained(planner, drafted)
    for change in (found.less, found.more):
        if change is not None:
            before = change.times * (1.0015 if change is found.less else 1 / 1.0015)
            assert at_worth(planner, drafted, change.times) == change.becomes != found.action
            assert at_worth(planner, drafted, before) == found.action


@settings(max_examples=60)
@given(cases)
def test_what_is_kept_is_kept_at_every_lower_worth_and_what_is_asked_is_kept_at_none_above(case):
    planner, drafted = case
    found = explained(planner, drafted)
    if found.action == "keep":
        assert found.less is None
        assert found.more is None or found.more.becomes != "keep"
    else:
        assert found.more is None or found.more.becomes != "keep"
        assert found.less is not None or at_worth(planner, drafted, 2 / MOST_TIMES) == found.action


def test_two_actions_by_hand():
    """Kept it loses V/2 = 0.5 x 2 x (10 + 4 x 10) = 50; written it costs 50 all the same, from nothing at all."""
    planner = Planner(
        score=HazardScore((0.0,) * 9 + (0.5,)),
        prices=prices(),
        worth=Worth(1.0),
        prompt_tokens=10,
        abilities=frozenset({"open"}),
    )
    found = explained(planner, signals(10, prompt=10))
    assert (found.action, found.costs.keep, found.costs.write, found.costs.check) == ("keep", 25.0, 50.0, None)
    assert found.less is None
    assert found.more.becomes == "write"
    assert found.more.times == pytest.approx(2.0, rel=2e-3)
    assert found.worth_at(found.more) == found.more.times
    assert found.costs.place == 9
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["costs"] == {"keep": 25.0, "check": None, "write": 50.0, "spans": None}
    assert (told["loss"], told["unit"], told["worth"], told["turned_down"]) == ("verdict", "tokens", 1.0, 0.5)
    assert [(each["action"], each["worth"]) for each in told["would_change"]] == [("write", found.more.times)]


@each("worth", [Worth(2.0), Worth(amount=100.0)])
def test_a_worth_that_is_one_amount_has_no_multiple(worth):
    planner = Planner(score=HazardScore((0.1,) * 10), prices=prices(), worth=worth, prompt_tokens=10)
    found = explained(planner, signals(10, prompt=10))
    for change in (found.less, found.more):
        if change is not None:
            assert (found.worth_at(change) is None) == (worth.amount is not None)


def test_where_a_level_of_risk_decides_no_worth_changes_anything():
    planner = Planner(score=HazardScore((0.1,) * 10), prices=prices(), prompt_tokens=10, keep_below=0.9)
    found = explained(planner, signals(10, prompt=10))
    assert (found.action, found.less, found.more) == ("keep", None, None)
    assert found.to_json()["keep_below"] == 0.9


def test_a_coin_of_the_floor_is_no_part_of_what_would_change():
    """It had a draft checked that would be kept; what is said is of the draft."""
    planner = Planner(score=HazardScore((0.01,) * 10), prices=prices(), worth=Worth(0.5), prompt_tokens=10, floor=1.0)
    drafted = signals(10, prompt=10)
    plan = planner.plan(drafted, final=True, toss=lambda _: 0)
    found = explain(0, plan)
    assert (found.action, found.floor) == ("check", True)
    assert found.more is not None
    assert at_worth(replace(planner, floor=0.0), drafted, found.more.times) == found.more.becomes != "keep"


def test_what_is_decided_by_the_question_alone_is_explained_with_what_the_question_lets_expect():
    planner = Planner(score=HazardScore(()), prices=prices(), worth=Worth(9.0), prompt_tokens=10, stream="early")
    found = explain(0, planner.opening())
    assert (found.num_tokens, found.action, found.costs.turned_down, found.excess) == (0, "write", 0.5, 1.0)
    assert action_of(replace(planner, worth=Worth(9.0 * found.less.times)).opening()) == found.less.becomes == "keep"
