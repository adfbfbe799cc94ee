"""A day's pacing lowers the worth; a plan says where the planner without it would have asked the cloud for more."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from planner_cases import cases, nats, planner_of, prices, signals
from toy_score import ToyScore

from hybrid.defer import QuestionForecast
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner

factors = st.floats(0.001, 0.999)
ACTIONS = [
    DraftPlan("keep", 5),
    DraftPlan("check", 5),
    DraftPlan("check", 2, 0),
    DraftPlan("write", 0),
    DraftPlan("write", 3),
]


def paced(planner, factor):
    return replace(planner, worth=planner.worth.times(factor), unpaced_worth=planner.worth)


def choice(plan):
    return plan.action, plan.at, plan.limit


@given(cases, factors)
def test_a_plan_is_marked_where_it_costs_more_than_another_without_pacing_and_it_never_asks_for_more(case, factor):
    """The costs are a naive sum's. What the lower worth chooses loses as much as the higher one's choice, or more."""
    low, planner = replace(case, multiple=case.multiple * factor), planner_of(case)
    draft = {"signals": signals(len(case.hazard), case.shown, case.prompt), "final": True, "known": case.known}
    plan, full = paced(planner, factor).plan(**draft), planner.plan(**draft)
    mine, others = choice(plan), choice(full)
    close = 1e-9 * max(1.0, case.worth)
    assert plan.paced == (mine != others and full.action != "keep")
    assert plan.paced or case.cost_of(*mine[:2]) <= case.cost_of(*others[:2]) + close
    lost = [case.cost_of(*each[:2]) - low.cost_of(*each[:2]) for each in (mine, others)]
    assert lost[0] >= lost[1] - close
    assert not full.paced


@given(cases)
def test_an_equal_worth_never_marks(case):
    plan = paced(planner_of(case), 1.0).plan(signals(len(case.hazard)), final=True, known=case.known)
    assert not plan.paced


def test_of_two_plans_that_differ_the_first_asks_less_but_where_the_second_keeps():
    for one, other in product(ACTIONS, ACTIONS):
        assert one.asks_less(other) == (one != other and other.action != "keep")


@each("factor", [0.001, 0.3, 0.9])
def test_the_question_alone_is_marked_in_the_same_way(factor):
    seen = set()
    for chance in (0.0, 0.2, 0.5, 0.9):
        score = ToyScore(question=QuestionForecast(chance, 60.0, 1.0))
        planner = Planner(score=score, prompt_tokens=34, stream="early")
        plan, full = paced(planner, factor).opening(), planner.opening()
        assert plan.paced == (choice(plan) != choice(full))
        seen.add((plan.action, full.action, plan.paced))
    assert ("keep", "write", True) in seen or factor == 0.9
    assert ("write", "keep", True) not in seen
    spans = nats((), prices=prices("new"), kept_share=0.77, stream="early")
    assert (paced(spans, factor / 1000).opening().action, paced(spans, factor / 1000).opening().paced) == ("keep", True)


@each("stream", ["whole", "blocks"])
def test_whole_answers_and_blocks_are_marked(stream):
    """``route`` has two actions, and a block the tail that is expected behind it."""
    planner = Planner(score=ToyScore((0.2,) * 8), prompt_tokens=30, worth=Worth(9.0), stream=stream, block=8)
    for each_planner in (planner, planner.of_whole_answers()):
        plan = paced(each_planner, 0.001).plan(signals(8), final=stream == "whole")
        assert (plan.action, plan.paced) == ("keep", True)
        assert each_planner.plan(signals(8), final=stream == "whole").action != "keep"


@each("falls", [0, 1])
def test_what_the_floors_coin_had_checked_is_marked_only_where_more_would_have_been_asked(falls):
    def marks(hazard, multiple):
        planner = Planner(score=ToyScore((hazard,) * 40), floor=0.05, prompt_tokens=300, worth=Worth(multiple))
        plan = paced(planner, 0.001).plan(signals(40), final=True, toss=lambda _: falls)
        return plan.action, planner.plan(signals(40), final=True).action, plan.paced

    kept = "check" if falls == 0 else "keep"
    assert marks(0.0001, 2.2) == (kept, "keep", False)
    assert marks(0.01, 9.0) == (kept, "check", falls == 1)
    assert marks(0.3, 9.0) == (kept, "write", True)


def test_a_level_of_risk_is_not_moved_by_pacing():
    """What is kept is said by the level alone."""
    for hazard in (0.1, 0.9):
        planner = Planner(score=ToyScore((hazard,)), prompt_tokens=300, keep_below=0.5, worth=Worth(9.0))
        plan, full = paced(planner, 0.001).plan(signals(1), final=True), planner.plan(signals(1), final=True)
        assert (plan.action == "keep") == (full.action == "keep") == (hazard < 0.5)


def test_a_planner_is_kept_with_its_worth_without_pacing_and_one_of_before_has_none():
    planner = paced(Planner(worth=Worth(float("inf"))), 0.1)
    again = Planner.from_json(planner.to_json())
    assert again.unpaced_worth == planner.unpaced_worth == Worth(float("inf"))
    old = {name: value for name, value in planner.to_json().items() if name != "unpaced_worth"}
    assert Planner.from_json(old).unpaced_worth is None
    with pytest.raises(ValueError, match="no planner"):
        Planner.from_json(old | {"unpaced_worth": "2"})
