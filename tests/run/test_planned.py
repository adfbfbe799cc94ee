"""``auto`` under the real driver, over scripted models: what is planned is told, paid for and done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cases import each
from toy_score import ToyScore

from hybrid.defer import UninformedScore
from hybrid.errors import Unreachable
from hybrid.pairs.profile import PairObserver, PairRecord
from hybrid.policy.plan import DraftPlan, WaitPrice, Worth
from hybrid.policy.planning import Planner
from hybrid.record.events import (
    TRACE_VERSION,
    Finished,
    Planned,
    RequestSent,
    SpanDrafted,
    SpanJudged,
    TokenEmitted,
    to_json,
)
from hybrid.run.deferral import BoundPlanner
from hybrid.run.replay import replay
from hybrid.spend import TokenTimes

PROMPT = "a b c"
LENGTH = 24
# What a draft of so many tokens comes to under scripted models: most parts stand, some are turned down.
DOUBT = ToyScore((0.05,) * LENGTH, judge="kl:0.2")


@dataclass(frozen=True, kw_only=True)
class Scripted(Planner):
    """Plans what it is told, and keeps what it was asked."""

    script: Callable
    seen: list

    def plan(self, signals, *, final, known=0, spans=False, toss=None):
        self.seen.append((signals, final, known))
        return self.script(len(self.seen) - 1, len(signals))


class Source:
    """One planner for every question."""

    def __init__(self, planner):
        self.planner = planner

    def sent(self, prompt):
        """Hear nothing."""

    async def bind(self, asked):
        return BoundPlanner(self.planner)

    def learn(self, bound):
        """Learn nothing."""

    async def aclose(self):
        """Nothing to close."""


def planned(house, planner, **how):
    built = house(**how)
    built.client._memory.planners = Source(planner)
    return built


async def told(built, **choices):
    chosen = {"policy": "auto", "max_tokens": LENGTH} | choices
    return [event async for event in built.client.stream(PROMPT, raw=True, **chosen)]


def plan_of(action, at=None, limit=None):
    return lambda _, num: DraftPlan(action, num if at is None else at, limit)


def kinds(events, *wanted):
    return [event for event in events if isinstance(event, wanted)]


def test_what_is_judged_counts_under_the_judge_that_the_planner_brought(house, run, tmp_path):
    """Not under the one that the policy has before it is bound to a question."""
    record = PairRecord(tmp_path / "counts.json", "digest", "http://there")
    score = ToyScore((0.5,) * LENGTH, judge="kl:0.25")
    built = planned(house, Scripted(script=plan_of("check"), seen=[], score=score))
    built.client._memory.pair = PairObserver(record)

    async def answered():
        await told(built)
        await built.client._memory.pair.aclose()

    run(answered())
    assert record.read("scripted").keys() == {"kl:0.25"}


@each("action", ["keep", "check", "write"])
def test_a_plan_is_told_before_what_it_asks_for_and_a_verdict_before_what_stands(house, run, action):
    planner = Scripted(script=plan_of(action, 3 if action == "write" else None), seen=[], score=DOUBT)
    built = planned(house, planner)
    events = kinds(run(told(built)), Planned, SpanJudged, RequestSent, TokenEmitted)
    assert isinstance(events[0], Planned)
    assert (events[0].position, events[0].action) == (0, action)
    order = [event.kind if isinstance(event, RequestSent) else type(event).__name__ for event in events]
    if action == "keep":
        assert order == ["Planned"] + ["TokenEmitted"] * LENGTH
    if action == "check":
        assert order[:3] == ["Planned", "check", "SpanJudged"]
        judged = events[2]
        assert judged.num_judged == LENGTH
        tokens = [event.token for event in kinds(events, TokenEmitted)]
        assert [token.how for token in tokens[: judged.num_accepted]] == ["accepted"] * judged.num_accepted
        assert judged.rejected
        assert tokens[judged.num_accepted].source == "cloud"
        asked = [(event.kind, event.num_tokens) for event in kinds(events, RequestSent)]
        assert asked[1:] == [("write", LENGTH - judged.num_accepted - 1)], "the rest, in one request"
        assert len(kinds(events, Planned)) == 1, "nothing is weighed after a rejection"
    if action == "write":
        assert order[:5] == ["Planned"] + ["TokenEmitted"] * 3 + ["write"]
        assert events[4].num_tokens == LENGTH - 3, "the rest, in one request, and no more"
        assert all(token.token.kl is not None for token in events[5:]), "labels: both models' rows"


def test_what_a_plan_was_decided_from_is_in_the_event_and_not_in_the_trace(house, run):
    """Words and tokens of a question do not belong into a file of what it cost."""
    built = planned(house, Planner(score=DOUBT, words=(5, 6), prompt_tokens=3, worth=Worth(9.0)))
    plan = kinds(run(told(built)), Planned)[0]
    assert len(plan.signals) == len(plan.forecast.hazard) == LENGTH
    line = json.loads(json.dumps(to_json(plan)))
    assert set(line) == {"event", "position", "action", "at", "limit", "floor", "propensity", "costs", "paced"}
    assert line["event"] == "planned"
    assert line["costs"]["turned_down"] == pytest.approx(1 - 0.95**LENGTH)


@each("seed", [None, 5])
@each("stream", ["whole", "blocks", "early"])
@each("worth", [0.3, 1.0, 30.0])
def test_what_is_decoded_ahead_changes_no_plan_and_no_token(house, run, seed, stream, worth):
    sampling = {} if seed is None else {"temperature": 1.0, "seed": seed}
    seen = []
    for overlap in (True, False):
        planner = Planner(score=DOUBT, prompt_tokens=3, worth=Worth(worth), stream=stream, block=7, floor=0.3)
        built = planned(house, planner)
        events = run(told(built, overlap=overlap, **sampling))
        plans = [(e.position, e.action, e.at, e.limit, e.costs, e.floor) for e in kinds(events, Planned)]
        tokens = [(e.token.id, e.token.how) for e in kinds(events, TokenEmitted)]
        seen.append((plans, tokens, kinds(events, Finished)[0].answer.bill.nanousd))
    assert seen[0] == seen[1]


def test_a_draft_that_fills_the_answer_or_the_context_is_final(house, run):
    for how, choices, shown in (({}, {"max_tokens": 6}, 6), ({"num_context": 9}, {}, 6)):
        planner = Scripted(script=plan_of("keep"), seen=[], score=DOUBT, stream="blocks", block=4)
        run(told(planned(house, planner, **how), **choices))
        assert [(len(signals), final) for signals, final, _ in planner.seen] == [(4, False), (shown - 4, True)]


@each("action", ["check", "write"])
def test_without_money_or_a_cloud_the_draft_is_shown_and_the_answer_is_whole(house, run, action):
    for how in ({"cap": 0}, {"fault": lambda _: Unreachable("gone")}):
        planner = Scripted(script=plan_of(action, 0 if action == "write" else None), seen=[], score=DOUBT)
        built = planned(house, planner, **how)
        answer = kinds(run(told(built)), Finished)[0].answer
        assert tuple(token.id for token in answer.tokens) == built.small(LENGTH)
        assert answer.degraded
        assert len(planner.seen) == 1, "nothing is drafted twice"


@each("cap", [3_000, 30_000, 60_000, 90_000])
def test_no_cap_is_passed_and_the_local_model_finishes(house, run, cap):
    for stream, worth in (("whole", 2.2), ("blocks", 2.2), ("blocks", 50.0), ("early", 50.0)):
        planner = Planner(score=DOUBT, prompt_tokens=3, worth=Worth(worth), stream=stream, block=5)
        built = planned(house, planner, cap=cap)
        answer = kinds(run(told(built)), Finished)[0].answer
        assert answer.bill.nanousd <= cap
        assert len(answer.tokens) == LENGTH or answer.finish_reason == "stop"


def test_the_floors_coin_is_the_seeds_and_falls_as_often_as_it_says(house, run):
    """60 seeds at 0.3: outside of 8 to 28 with a chance of 1 in 1,000. The text that is kept is the same without it."""
    sure = ToyScore((1e-4,) * LENGTH, judge="kl:5")
    fallen = 0
    for seed in range(60):
        built = planned(house, Planner(score=sure, prompt_tokens=3, floor=0.3))
        plan = kinds(run(told(built, max_tokens=4, seed=seed)), Planned)[0]
        again = kinds(run(told(built, max_tokens=4, seed=seed)), Planned)[0]
        assert (plan.action, plan.floor, plan.propensity) == (again.action, again.floor, again.propensity)
        assert (plan.action, plan.propensity) == (("check", 0.3) if plan.floor else ("keep", 0.7))
        fallen += plan.floor
    assert 8 <= fallen <= 28
    built = planned(house, Planner(score=sure, prompt_tokens=3, floor=0.3))
    texts = [
        tuple(event.token.id for event in kinds(run(told(each, temperature=1.0, seed=3)), TokenEmitted))
        for each in (built, planned(house, Planner(score=sure, prompt_tokens=3)))
    ]
    assert texts[0] == texts[1]


def test_what_a_draft_would_only_be_waited_for_is_one_request_from_the_start_and_so_it_is_replayed(
    house, run, tmp_path
):
    wait = WaitPrice(1e6, 50.0, TokenTimes(20.0, 0.2, 0.1, 50.0), ((0.1, 0.5), (0.97, 1.0)))
    planner = Planner(score=UninformedScore("kl:0.2", chance=0.9), prompt_tokens=3, wait=wait, stream="blocks", block=5)
    built = planned(house, planner)
    events = run(told(built, trace_rows=True))
    (plan,) = kinds(events, Planned)
    assert (plan.position, plan.action, plan.at, plan.signals) == (0, "write", 0, None)
    assert not kinds(events, SpanDrafted, SpanJudged)
    (sent,) = kinds(events, RequestSent)
    assert (sent.kind, sent.num_tokens) == ("write", LENGTH)
    answer = kinds(events, Finished)[0].answer
    assert (
        answer.tokens[0].why
        == "waiting for a draft may cost more than it saves: it takes about 3.2 s, and is turned down with chance 0.9"
    )
    path = tmp_path / "trace.jsonl"
    lines = [{"trace": TRACE_VERSION}, *map(to_json, events)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = run(replay(path))
    assert [(token.id, token.how, token.why) for token in again.tokens] == [
        (token.id, token.how, token.why) for token in answer.tokens
    ]
