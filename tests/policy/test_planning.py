"""The planner takes the cheapest action: against an enumeration, in one direction with worth and price, by ratios."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from naive_planner import Case, Shop
from naive_planner import place_of_rejection as naive_place
from planner_cases import SETTINGS, cases, nats, planner_of, prices, signals
from toy_score import ToyScore

from hybrid.defer import QuestionForecast, UninformedScore
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner, place_of_rejection
from hybrid.spend import AskPrices
from hybrid.types import Ability


def plan_of(case, **more):
    drafted = signals(len(case.hazard), case.shown, case.prompt)
    return planner_of(case, **more).plan(drafted, final=True, known=case.known)


@given(cases)
def test_every_cost_is_that_of_a_naive_sum_over_the_places_of_the_first_rejection(case):
    plan = plan_of(case)
    costs = plan.costs
    assert costs.keep == pytest.approx(case.keep(), rel=1e-9, abs=1e-9)
    assert costs.check == pytest.approx(case.check(), rel=1e-9)
    assert costs.write == pytest.approx(min(case.write(at) for at in range(len(case.hazard))), rel=1e-9)
    best, at = case.best()
    cheapest = min(costs.keep, costs.check, costs.write)
    if {"keep": costs.keep, "check": costs.check, "write": costs.write}[best] == cheapest:
        assert plan.action == best
    if plan.action == "write":
        assert case.write(plan.at) == pytest.approx(case.write(at), rel=1e-9)
    else:
        assert plan.at == len(case.hazard)
    assert plan.limit is None


@given(cases, st.floats(0.0, 0.98), st.floats(1.0, 60.0))
def test_a_block_costs_beside_its_own_what_is_cheapest_of_the_tail_that_the_question_lets_expect(case, chance, tokens):
    """The tail has the question's hazard, the same at each token."""
    num = len(case.hazard)
    case = replace(case, known=min(case.known, case.prompt + case.shown))
    planner = planner_of(case)
    planner = replace(planner, score=replace(planner.score, question=QuestionForecast(chance, tokens, 1.0)))
    costs = planner.plan(signals(num, case.shown, case.prompt), final=False, known=case.known).costs
    left = max(tokens - case.shown - num, num / 2, 1.0)
    worth = case.multiple * case.shop.write(case.prompt, case.shown + num + left, 0)
    stands, of_tail = math.prod(1.0 - each for each in case.hazard), 1.0 - (1.0 - chance) ** (left / tokens)
    assert costs.worth == pytest.approx(worth)
    tail = case.tail(left, case.known, of_tail, worth)
    assert costs.keep == pytest.approx((1.0 - stands) * worth + stands * tail, rel=1e-6, abs=1e-6)
    start = case.prompt + case.shown
    check = case.shop.check(start, num, case.known) + stands * case.tail(left, start + num, of_tail, worth)
    for place, falls in case.outcomes(num):
        if place is not None:
            check += falls * case.shop.write(start + place + 1, num - place - 1 + left, start + place)
    assert costs.check == pytest.approx(check, rel=1e-6)


@given(cases, st.lists(st.floats(0.0, 20.0), min_size=2, max_size=6).map(sorted))
def test_more_worth_never_asks_less(case, multiples):
    asked = [plan_of(replace(case, multiple=each)).action != "keep" for each in multiples]
    assert asked == sorted(asked)


@given(cases, st.lists(st.floats(0.0, 80.0), min_size=2, max_size=5).map(sorted), st.booleans())
def test_a_dearer_check_never_checks_more(case, closings, final):
    planner = planner_of(case)
    checked = [
        replace(planner, prices=replace(planner.prices, closing=closing))
        .plan(signals(len(case.hazard), case.shown, case.prompt), final=final, known=case.known)
        .action
        == "check"
        for closing in closings
    ]
    assert checked == sorted(checked, reverse=True)


@given(cases, st.sampled_from([2.0**-20, 0.5, 8.0, 2.0**30]), st.booleans())
def test_only_the_ratios_of_prices_matter(case, factor, nats):
    """Powers of two, which round nothing."""
    more = {"mean_excess": 0.5, "kept_share": 0.8} if nats else {}
    planner = planner_of(case, **more)
    ask = planner.prices
    scaled = replace(
        ask,
        fresh=ask.fresh * factor,
        cached=ask.cached * factor,
        written=ask.written * factor,
        closing=ask.closing * factor,
        request=ask.request * factor,
    )
    for amount in (None, 100.0):
        plans = [
            replace(planner, prices=each, worth=Worth(2.2, None if amount is None else amount * by)).plan(
                signals(len(case.hazard), case.shown), final=False, known=case.known
            )
            for each, by in ((ask, 1.0), (scaled, factor))
        ]
        assert replace(plans[0], costs=None) == replace(plans[1], costs=None)
        assert plans[0].costs.keep * factor == plans[1].costs.keep
        asked = [each.costs.spans if nats else each.costs.check for each in plans]
        assert asked[0] * factor == asked[1]


def test_ties_go_to_keep():
    """Without a chance of being turned down, or a worth, every answer is kept for nothing."""
    for hazard, multiple in (((0.0, 0.0), 2.2), ((0.3, 0.3), 0.0)):
        plan = plan_of(Case(Shop(), hazard, 30, 0, 0, multiple))
        assert (plan.action, plan.at, plan.costs.keep) == ("keep", 2, 0.0)
    free = AskPrices(0.0, 0.0, 0.0, closing=0.0)
    assert Planner(score=ToyScore((0.5,)), prices=free).plan(signals(1), final=True).action == "keep"


def test_an_infinite_worth_never_keeps_what_may_be_turned_down():
    for stream in (True, False):
        planner = Planner(score=ToyScore((0.0, 1e-6, 0.0)), worth=Worth(float("inf")), prompt_tokens=9)
        assert planner.plan(signals(3), final=stream).action != "keep"


# ---- what the endpoint can do ----------------------------------------------------------------------------------------


@each("abilities", [(), ("open",), ("open", "write"), ("open", "write", "score"), ("open", "score"), ("write",)])
def test_only_what_the_endpoint_can_do_is_planned(abilities):
    """Never refused: with nothing at all everything is kept."""
    able: frozenset[Ability] = frozenset(abilities)
    seen = set()
    for place in (0, 5, 11):
        for shown in (0, 3):
            hazard = tuple(0.6 if i == place else 0.01 for i in range(12))
            plan = plan_of(Case(Shop(), hazard, 200, shown, 0, 9.0), abilities=able)
            seen.add(plan.action)
            if plan.action == "check":
                assert {"score", "write"} <= able
            if plan.action == "write":
                assert ("write" if plan.at + shown else "open") in able
    assert seen == ({"keep"} if not able else seen)
    assert able != {"open"} or seen == {"keep", "write"}


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_a_block_is_not_kept_for_nothing_where_the_rest_is_expected_to_be_turned_down():
    """Each block alone looks cheap; all of them together are not."""
    doubtful = ToyScore((0.02,) * 8, question=QuestionForecast(0.95, 80.0, 1.0))
    planner = Planner(score=doubtful, prompt_tokens=30, worth=Worth(2.2))
    assert planner.plan(signals(8), final=True).action == "keep"
    assert planner.plan(signals(8), final=False).action != "keep"
    sure = replace(planner, score=replace(doubtful, hazard=(0.005,) * 8, question=QuestionForecast(0.01, 80.0, 1.0)))
    assert sure.plan(signals(8), final=False).action == "keep"


# ---- the floor -------------------------------------------------------------------------------------------------------


@each("falls", [0, 1])
def test_the_floor_checks_what_would_be_kept_by_its_own_coin_and_says_with_what_chance(falls):
    tossed = []

    def toss(probs):
        tossed.append(list(probs))
        return falls

    planner = Planner(score=ToyScore((0.01,) * 4), floor=0.05, prompt_tokens=20)
    plan = planner.plan(signals(4), final=True, toss=toss)
    assert tossed == [[0.05, 0.95]]
    assert (plan.action, plan.floor, plan.propensity) == (
        ("check", True, 0.05) if falls == 0 else ("keep", False, 0.95)
    )
    asked = replace(planner, score=ToyScore((0.5,) * 4), worth=Worth(50)).plan(signals(4), final=True, toss=toss)
    assert (asked.action != "keep", asked.floor, asked.propensity) == (True, False, 1.0)
    unable = replace(planner, abilities=frozenset({"open", "write"})).plan(signals(4), final=True, toss=toss)
    assert (unable.action, unable.propensity) == ("keep", 1.0)
    assert len(tossed) == 1


# ---- nats, short spans, risk -----------------------------------------------------------------------------------------


def test_in_nats_the_mean_excess_per_own_price_decides_and_a_check_pays_for_nothing_at_one_to_four():
    for scoring, front in each_of(SETTINGS[:-1]):
        low, high = nats((0.4,) * 50, prices=prices(scoring, front)), nats((2.5,) * 50, prices=prices(scoring, front))
        kept, written = (each.plan(signals(50), final=True) for each in (low, high))
        assert kept.action == "keep"
        assert kept.costs.keep == pytest.approx(200.0 * 0.4)
        assert (written.action, written.at, written.limit) == ("write", 0, None)
    longer = nats((2.5,) * 200).plan(signals(200), final=True)
    assert longer.costs.keep == pytest.approx(500.0), "a token's excess counts less in a longer answer"
    assert longer.action == "keep"


def test_in_nats_nothing_is_checked_whole_and_a_local_beginning_loses_a_sixth_of_the_mean():
    """However sure the score is of the judge: of a pair that nobody measured it knows nothing."""
    hazard, ask = (0.01,) * 50, prices("cached")
    told = (0.0,) * 40 + (25.0,) * 10
    score = ToyScore(hazard, told, "excess:0.5", question=QuestionForecast(0.1, 50.0, 1.0))
    planner = Planner(score=score, prompt_tokens=39, mean_excess=1.0, worth=Worth(amount=200.0), prices=ask)
    plan = planner.plan(signals(50), final=True)
    assert (plan.action, plan.at, plan.limit, plan.costs.check) == ("write", 40, None, None)
    assert plan.costs.write == pytest.approx(39 + 40 + 4 * 10 + 200 / 50 / 6 * 10)
    verdict = replace(planner, mean_excess=None)
    assert verdict.plan(signals(50), final=True).costs.check is not None
    tossed = replace(planner, score=replace(score, excess=(0.0,) * 50), floor=0.05)
    assert tossed.plan(signals(50), final=True, toss=lambda _: 0).action == "check", (
        "the floor's coin asks all the same"
    )


def test_short_spans_are_no_longer_than_what_is_left():
    """One check of a draft of two tokens is one check, not a part of a longer one."""
    ask = prices("uncached")
    costs = nats((2.5,) * 2, prices=ask, kept_share=0.9).plan(signals(2), final=True).costs
    assert costs.spans == pytest.approx(200 / 20 + min(2 * ask.check(40, 1, 39), 2 / 1.9 * ask.check(40, 2, 39)))


def test_where_only_new_tokens_are_paid_short_spans_win_and_cost_what_the_break_even_says():
    """The measured share of the first real pair: 0.77 at half a nat."""
    for scoring, written, wins in (("new", 4.0, True), ("cached", 4.0, False), ("uncached", 8.0, False)):
        planner = nats((2.5,) * 50, prices=prices(scoring, written=written), kept_share=0.77)
        plan = planner.plan(signals(50), final=True)
        naive = []
        for span in range(1, 51):
            brings = sum(0.77**i for i in range(span))
            reread = {"new": 0.0, "cached": 0.1, "uncached": 1.0}[scoring]
            row_wanted = {"new": 1.0, "cached": 1.0 + written, "uncached": 1.0 + written}[scoring]
            prompt = 38 * (1.0 - reread)  # once: by the first check
            naive.append(200 / 20 + prompt + 50 * (reread * (39 + 25 - 1) + row_wanted + span) / brings)
        assert plan.costs.spans == pytest.approx(min(naive))
        if wins:
            assert (plan.action, plan.at, plan.limit) == ("check", naive.index(min(naive)) + 1, 0)
            next_plan = planner.plan(signals(plan.at, shown=3), final=False, spans=True)
            assert (next_plan.action, next_plan.at, next_plan.limit) == ("check", plan.at, 0)
        else:
            assert plan.action == "write"
    unmeasured = nats((2.5,) * 50, prices=prices("new")).plan(signals(50), final=True)
    assert unmeasured.costs.spans is None


def test_a_level_of_risk_keeps_exactly_what_is_below_it_and_leaves_nothing_unchecked_before_a_write():
    for hazard, level, kept in ((0.1, 0.2, True), (0.3, 0.2, False), (0.2, 0.2, True)):
        for multiple in (0.0, 100.0):
            case = Case(Shop(), (0.0, 0.0, hazard), 300, 0, 0, multiple)
            plan = plan_of(case, keep_below=level + 1e-12)
            assert (plan.action == "keep") == kept
            assert plan.action != "write" or plan.at == 0


# ---- before a draft --------------------------------------------------------------------------------------------------


def test_a_tail_is_turned_down_where_a_hazard_that_is_the_same_everywhere_lets_expect():
    for chance in (0.0, 1e-3, 0.3, 0.77, 0.99):
        assert place_of_rejection(chance) == pytest.approx(naive_place(chance, pieces=2000), abs=1e-5)


def test_the_question_alone_decides_an_early_stream():
    score = ToyScore(question=QuestionForecast(0.9, 60.0, 1.0))
    planner = Planner(score=score, prompt_tokens=34, stream="early")
    assert planner.opening().action == "write"
    assert planner.opening().costs.keep == pytest.approx(0.9 * 2.2 * 274)
    assert replace(planner, score=replace(score, question=QuestionForecast(0.2, 60.0, 1.0))).opening().action == "keep"
    assert replace(planner, abilities=frozenset({"write"})).opening().action == "keep"
    session = nats((), prices=prices("new"), kept_share=0.77, stream="early").opening()
    assert (session.action, session.limit) == ("check", 0)
    assert session.at > 0


# ---- as it is kept ---------------------------------------------------------------------------------------------------


def test_a_planner_is_kept_as_json_to_the_last_bit():
    planners = [
        Planner(),
        Planner(
            score=UninformedScore("excess:0.5", chance=0.1 + 0.2),
            prices=AskPrices(1 / 3, 0.1, 4.0, scoring="new", shared=7, unit="ms"),
            worth=Worth(float("inf")),
            words=(3, 9),
            prompt_tokens=30,
            abilities=frozenset({"open"}),
            stream="blocks",
            block=9,
            floor=0.05,
            floor_key=1 / 3,
            mean_excess=1 / 7,
            keep_below=0.2,
        ),
        Planner(worth=Worth(amount=1e9 / 7)),
    ]
    for planner in planners:
        assert Planner.from_json(json.loads(json.dumps(planner.to_json()))) == planner
    of_before = planners[1].to_json() | {"back": 4}
    assert Planner.from_json(of_before) == planners[1], "a trace of before there was no handback has its length"
    for damaged in ({}, {"score": 3}, planners[0].to_json() | {"worth": None}, planners[0].to_json() | {"more": 1}):
        with pytest.raises(ValueError, match="no planner that can be read"):
            Planner.from_json(damaged)
