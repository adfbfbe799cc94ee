"""What is expected of a question is what its like would have been asked, at the planner's own prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybrid.defer import CalibrationQuestion, UninformedScore
from hybrid.policy import Policy, SeededCoin, decode, requests
from hybrid.policy.explanation import PlannedOutcome, expect, plan_bill, planned_outcomes
from hybrid.policy.gates import ALWAYS
from hybrid.policy.judges import Judge, Verdict
from hybrid.policy.loop import TO_THE_END
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.prob import Dense
from hybrid.spend import AskPrices, Price

PRICES = AskPrices(1.0, 0.1, 4.0, closing=4.0)
PLANNER = Planner(score=UninformedScore("kl:0.7"), prices=PRICES, worth=Worth(2.2))
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


class Decided(Planner):
    """A planner that has decided."""

    def plan(self, *_, **__):
        return self.words[0]


class PlaceJudge(Judge):
    """Turns down what stands at a place."""

    guarantee = ""

    def __init__(self, place):
        self.place = place

    def __call__(self, span):
        if self.place is None:
            return Verdict(span.tokens)
        return Verdict(span.tokens[: self.place], requests.PendingToken(1, "cloud", "recovered"), rejected=True)


def bill_of_the_loop(plan, prices, prompt, num, written, place):
    """Play a plan for a draft of so many tokens, which the cloud turns down at a place."""
    planner = Decided(prompt_tokens=prompt, words=(plan,), labels=False)
    policy = Policy("auto", num, ALWAYS, PlaceJudge(place), handoff_tokens=TO_THE_END, planner=planner)
    flow, row = decode(policy, SeededCoin(0)), Dense.from_logits(np.zeros(2))
    request, paid, known, shown, end = next(flow), 0.0, 0, 0, num
    while True:
        match request:
            case requests.Draft():
                draft = requests.PendingToken(0, "local", "unchecked", draft_row=row)
                reply = requests.Drafted((draft,) * num, "check", ended=True)
            case requests.Check(at, span):
                paid += float(prices.check(prompt + len(at), len(span), known))
                known = prompt + len(at) + (len(span) if place is None else place)
                end = num if place is None else TO_THE_END
                reply = requests.Scored((row,) * len(span))
            case requests.Write(at, _):
                paid += float(prices.write(prompt + len(at), max(1, written - len(at)), known))
                end = len(at) + 1
                reply = requests.Wrote((requests.PendingToken(1, "cloud", "written"),), ended=True)
            case requests.Emit(tokens):
                shown += len(tokens)
                reply = requests.AnswerContinues() if shown < end else requests.AnswerEnded("stop")
        try:
            request = flow.send(reply)
        except StopIteration:
            return paid


@given(
    st.sampled_from(["keep", "check", "write"]),
    st.sampled_from(["", ":cached", ":uncached", ":new"]),
    st.integers(1, 500),
    st.integers(1, 40),
    st.integers(1, 60),
    st.none() | st.integers(0, 39),
    st.integers(0, 39),
)
@settings(max_examples=60)
@example("check", ":new", 20, 10, 12, 4, 0)
def test_the_bill_of_a_plan_is_that_of_the_requests_that_the_loop_sends(
    action, tariff, prompt, num, written, place, at
):
    """The formula is no loop of its own: no row is kept of a calibration's question, so it cannot be played."""
    prices = AskPrices.of(Price.parse(f"1/0.1/4{tariff}"))
    place = None if place is None else place % num
    plan = DraftPlan(action, at % num if action == "write" else num)
    assert plan_bill(plan, prices, prompt, written, place) == bill_of_the_loop(
        plan, prices, prompt, num, written, place
    )


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
