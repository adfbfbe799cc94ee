"""Where time has a price the cloud writes at once what a draft would only be waited for: against a naive sum."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from naive_planner import Case, Shop, place_of_rejection
from naive_policies import text
from planner_cases import SETTINGS, prices
from toy_score import ToyScore

from hybrid.defer import CalibrationQuestion, QuestionForecast, UninformedScore
from hybrid.policy import PolicyOptions, preset
from hybrid.policy.explanation import MOST_DRAFTS, explain, typical_drafts, without_draft
from hybrid.policy.plan import WaitPrice, Worth
from hybrid.policy.planning import Planner
from hybrid.policy.requests import Draft, Write
from hybrid.spend import TokenTimes

TIMES = TokenTimes(25.0, 0.2, 0.1, 100.0)
DRAFTS = ((0.02, 0.1), (0.5, 0.5), (0.98, 1.5))
costs = st.floats(0.01, 40.0)
times = st.builds(TokenTimes, costs, costs, costs, costs)


def planner_of(shop, drafts, num, wait, **more):
    """Of a question that is turned down as often as its like, so that each of these counts as much."""
    mean = float(np.mean([chance for chance, _ in drafts]))
    score = ToyScore(question=QuestionForecast(mean, float(num), 0.5))
    made = {"score": score, "prices": prices(shop.scoring, shop.front), "prompt_tokens": 30, "wait": wait}
    return Planner(**made | {"worth": Worth(2.2)} | more)


def drafting(wait, kept, num, block):
    """What is drafted before so many tokens stand, block after block."""
    drafted = min(block, num)
    while drafted < kept:
        drafted = min(drafted + block, num)
    return wait.drafted_ms * drafted


def naive(shop, chances, num, wait, block, multiple):
    """What writing at once saves in waiting, and what a draft may save; sums over the drafts."""
    waited = saved = 0.0
    for chance in chances:
        case = Case(shop, (1.0 - (1.0 - chance) ** (1 / num),) * num, 30, 0, 0, multiple)
        action, at = case.best()
        saved += (case.write(0) - case.cost_of(action, at)) / len(chances)
        written, read, _, once = wait.cloud
        if action == "keep":
            ms = drafting(wait, num, num, block)
        elif action == "write":
            ms = drafting(wait, at, num, block) + once + read * 30 + written * (num - at)
        else:
            place = place_of_rejection(chance) * num
            stands = drafting(wait, num, num, block) + once + read * (30 + num)
            falls = drafting(wait, place, num, block) + once + read * (30 + num) + once + written * (num - place)
            ms = chance * falls + (1.0 - chance) * stands
        waited += (ms - once - read * 30 - written * num) / len(chances)
    return wait.per_ms * waited, saved


@given(
    st.sampled_from(SETTINGS), st.lists(st.floats(0.0, 0.98), min_size=1, max_size=5), st.integers(1, 20),
    st.builds(WaitPrice, st.sampled_from([0.01, 0.1, 1.0, 9.0]), costs, times, st.just(())),
    st.integers(1, 30), st.sampled_from([0.4, 1.0, 2.2, 9.0]),
)  # fmt: skip
def test_the_cloud_writes_at_once_where_a_naive_sum_says_that_a_draft_saves_less_than_waiting_costs(
    setting, chances, num, wait, block, multiple
):
    shop, drafts = Shop(scoring=setting[0], front=setting[1]), tuple((chance, 0.5) for chance in chances)
    wait = replace(wait, drafts=drafts)
    planner = planner_of(shop, drafts, num, wait, stream="blocks", block=block, worth=Worth(multiple))
    waited, saved = naive(shop, chances, num, wait, block, multiple)
    plan = without_draft(planner)
    if abs(waited - saved) > 1e-6 * (abs(waited) + saved + 1.0):
        assert (plan is not None) == (waited > saved)
    if plan is not None:
        assert (plan.action, plan.at, plan.limit) == ("write", 0, None)
        assert plan.costs.write == pytest.approx(shop.write(30, num, 0))
        assert plan.costs.keep - plan.costs.write == pytest.approx(waited - saved, rel=1e-6, abs=1e-4)


def test_what_is_kept_before_the_cloud_is_asked_is_drafted_block_by_block():
    """Every action, at a price of a second at which no draft comes first; a naive sum says by how much."""
    actions = set()
    for setting, chance, num, block, multiple in each_of(
        itertools.product(SETTINGS, (0.0, 0.1, 0.3, 0.9), (6, 20), (1, 3, 7, 30), (0.4, 2.2, 9.0))
    ):
        shop, wait = Shop(scoring=setting[0], front=setting[1]), WaitPrice(1e3, 100.0, TIMES, ((chance, 0.5),))
        planner = planner_of(shop, wait.drafts, num, wait, stream="blocks", block=block, worth=Worth(multiple))
        waited, saved = naive(shop, (chance,), num, wait, block, multiple)
        plan = without_draft(planner)
        assert (plan is not None) == (waited > saved)
        if plan is not None:
            assert plan.costs.keep - plan.costs.write == pytest.approx(waited - saved, rel=1e-9)
            actions.add(Case(shop, (1.0 - (1.0 - chance) ** (1 / num),) * num, 30, 0, 0, multiple).best()[0])
    assert actions == {"keep", "check", "write"}


waits = st.builds(WaitPrice, costs, costs, st.sampled_from([TIMES, None]), st.just(DRAFTS))
shops = st.sampled_from([Shop(scoring=scoring, front=front) for scoring, front in SETTINGS])


@given(shops, st.integers(1, 30), waits, st.lists(costs, min_size=2, max_size=5).map(sorted))
def test_a_dearer_second_and_a_slower_drafter_never_draft_more(shop, num, wait, several):
    for name in ("per_ms", "drafted_ms"):
        at_once = [
            without_draft(planner_of(shop, DRAFTS, num, replace(wait, **{name: each}))) is not None for each in several
        ]
        assert at_once == sorted(at_once), name


@given(shops, st.integers(1, 30), waits)
def test_where_time_costs_nothing_or_something_else_decides_a_draft_comes_first(shop, num, wait):
    dear = replace(wait, per_ms=1e9, drafted_ms=1e3)
    assert without_draft(planner_of(shop, DRAFTS, num, dear)) is not None
    for planner in (
        planner_of(shop, DRAFTS, num, replace(wait, per_ms=0.0)),
        planner_of(shop, DRAFTS, num, None),
        planner_of(shop, DRAFTS, num, dear, keep_below=0.1),
        planner_of(shop, DRAFTS, num, dear, abilities=frozenset({"score", "write"})),
    ):
        assert without_draft(planner) is None


def test_in_nats_and_where_only_whole_answers_are_decided_it_is_weighed_too():
    wait = WaitPrice(1e3, 20.0, TIMES, DRAFTS)
    by_nats = planner_of(Shop(), DRAFTS, 20, wait, mean_excess=0.7, worth=Worth(amount=300.0), kept_share=0.9)
    for planner in (by_nats, by_nats.of_whole_answers()):
        assert without_draft(planner) is not None
        assert without_draft(replace(planner, wait=replace(wait, per_ms=1e-9))) is None


def test_prices_that_count_time_count_the_cloud_s_once():
    """A draft that is surely turned down is waited for, and saves nothing; one that is surely kept saves it all."""
    for chance, at_once in ((0.99, True), (0.0, False)):
        drafts = ((chance, 0.5),)
        planner = planner_of(Shop(), drafts, 20, WaitPrice(1.0, 2.0, None, drafts))
        assert (without_draft(planner) is not None) == at_once


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 9.0)), max_size=60))
def test_typical_drafts_are_few_and_have_nearly_the_mean_of_all(told):
    questions = [CalibrationQuestion(9, 20, 20, chance, False, excess, excess) for chance, excess in told]
    found = typical_drafts(questions)
    assert len(found) == min(MOST_DRAFTS, len(told))
    assert found == typical_drafts(questions[::-1])
    assert [chance for chance, _ in found] == sorted(chance for chance, _ in found)
    if told and len(told) % MOST_DRAFTS == 0:
        assert np.mean(found, axis=0) == pytest.approx(np.mean(told, axis=0))


# ---- in the loop -----------------------------------------------------------------------------------------------------


def played(toys, pair, per_ms, fails=lambda _: False, **more):
    wait = None if per_ms is None else WaitPrice(per_ms, 100.0, TIMES, DRAFTS)
    made = planner_of(Shop(), DRAFTS, 12, wait, **{"stream": "blocks", "block": 5} | more)
    made = replace(made, score=replace(made.score, hazard=(0.3,) * 12))
    policy = preset("auto", PolicyOptions(planner=made, max_tokens=12))
    return toys.play(policy, *pair, None, 12, k=5, end=-1, fails=fails)


def test_what_a_draft_would_be_waited_for_the_cloud_writes_first_and_without_it_the_local_model(toys, both):
    for small, large in each_of(both):
        shown, log = played(toys, (small, large), 1e3)
        assert not any(isinstance(request, Draft) for request in log)
        assert [token.source for token in shown] == ["cloud"] * 12
        assert any(isinstance(request, Write) for request in log)
        assert shown[0].why == (
            "waiting for a draft may cost more than it saves: it takes about 1.2 s, and is turned down with chance 0.5"
        )
        alone, log = played(toys, (small, large), 1e3, fails=lambda _: True)
        assert [token.source for token in alone] == ["local"] * 12
        assert text(alone) == text(toys.play(preset("local", PolicyOptions()), small, large, None, 12, k=5, end=-1)[0])


def test_after_a_first_request_that_fails_a_draft_is_weighed_as_before(toys, both):
    """The price of a second says who begins, not that nobody is asked again."""
    for pair in each_of(both):
        failed = iter([True])
        shown, log = played(toys, pair, 1e3, fails=lambda _, failed=failed: next(failed, False))
        asked = [request for request in log if isinstance(request, Draft)]
        assert isinstance(log[0], Write)
        assert asked[0].limit == 5, "a block, not token by token"
        failed = iter([])
        assert text(shown) == text(played(toys, pair, None)[0])


def test_where_a_days_pacing_has_a_draft_come_first_that_is_told(toys, both):
    """At the worth without it the cloud would have written at once."""
    dear, cheap = Worth(9.0), Worth(0.01)
    told = set()
    for pair in each_of(both):
        more = {"worth": cheap, "unpaced_worth": dear, "mean_excess": None}
        _, log = played(toys, pair, 0.05, **more)
        plans = [request.plan for request in log if getattr(request, "plan", None) is not None]
        unpaced = planner_of(
            Shop(), DRAFTS, 12, WaitPrice(0.05, 100.0, TIMES, DRAFTS), stream="blocks", block=5, worth=dear
        )
        paced = replace(unpaced, worth=cheap)
        assert without_draft(unpaced) is not None
        assert without_draft(paced) is None
        told.add(plans[0].paced)
    assert told == {True}


@each("stream", ["whole", "blocks", "early"])
def test_time_that_costs_nothing_changes_no_request(toys, both, stream):
    for pair in each_of(both):
        (free, asked), (none, as_before) = (played(toys, pair, per_ms, stream=stream) for per_ms in (0.0, None))
        assert text(free) == text(none)
        assert [type(each) for each in asked] == [type(each) for each in as_before]


def test_it_is_explained_with_the_worth_at_which_a_draft_comes_first():
    planner = planner_of(Shop(), DRAFTS, 40, WaitPrice(0.07, 60.0, TIMES, DRAFTS))
    found = explain(0, without_draft(planner))
    assert (found.action, found.num_tokens) == ("write", 0)
    for change in each_of([change for change in (found.less, found.more) if change is not None]):
        again = without_draft(replace(planner, worth=planner.worth.times(change.times)))
        assert (again is None) == (change.becomes == "draft")


def test_a_trace_keeps_it_and_one_of_before_has_none():
    for wait in (WaitPrice(0.1, 1 / 3, TIMES, DRAFTS), WaitPrice(1.0, 20.0, None, ()), None):
        planner = replace(planner_of(Shop(), DRAFTS, 20, wait), score=UninformedScore("kl:0.5"))
        kept = json.loads(json.dumps(planner.to_json()))
        assert Planner.from_json(kept) == planner
        assert ("wait" in kept) == (wait is not None), "where it is not weighed, a trace is as it was"
    for damaged in (3, "x", {"per_ms": 1.0}, {"more": 1}):
        with pytest.raises(ValueError, match="no planner"):
            Planner.from_json(kept | {"wait": damaged})
