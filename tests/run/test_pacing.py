"""An answer that a day's pacing has changed says so, by ``paced``; one without that mark is the answer without it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cases import each
from toy_score import ToyScore

from hybrid.cloud import Chunk
from hybrid.defer import QuestionForecast, UninformedScore
from hybrid.errors import Unreachable
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.record.answer_builder import NO_REQUEST, SMALLER_REQUEST
from hybrid.record.events import TRACE_VERSION, Degraded, Finished, Planned, RequestSent, to_json
from hybrid.record.recorded_events import RecordedAnswer
from hybrid.run.deferral import BoundPlanner
from hybrid.run.replay import replay
from hybrid.types import CloudUsage

PROMPT, LENGTH = "a b c", 16
DOUBT = ToyScore((0.05,) * LENGTH, judge="kl:0.2", question=QuestionForecast(0.6, float(LENGTH), 1.0))
WAYS = [("auto", "whole"), ("auto", "blocks"), ("auto", "early"), ("route", "whole"), ("route", "early")]


class Source:
    """One planner for every question."""

    def __init__(self, planner):
        self.planner = planner

    def sent(self, prompt):
        """Hear nothing."""

    async def bind(self, asked):
        return BoundPlanner(self.planner.of_whole_answers() if asked.whole else self.planner)

    def learn(self, bound):
        """Learn nothing."""

    async def aclose(self):
        """Nothing to close."""


def events_of(run, built, planner, **choices):
    built.client._memory.planners = Source(planner)

    async def heard():
        chosen = {"raw": True, "max_tokens": LENGTH} | choices
        return [event async for event in built.client.stream(PROMPT, **chosen)]

    return run(heard())


def pair(worth, factor, stream, **more):
    """The planner without pacing, and the paced one."""
    full = Planner(score=DOUBT, prompt_tokens=3, worth=Worth(worth), stream=stream, block=5, floor=0.2, **more)
    return full, replace(full, worth=full.worth.times(factor), unpaced_worth=full.worth)


def answer_of(events):
    return events[-1].answer


def course(events):
    """What was asked and shown, whatever it was weighed by."""
    asked = [(event.kind, event.position, event.num_tokens) for event in events if isinstance(event, RequestSent)]
    return asked, [(token.id, token.how) for token in answer_of(events).tokens]


@each("way", WAYS, ids=[" ".join(way) for way in WAYS])
def test_an_answer_without_a_mark_is_the_answer_without_pacing(house, run, way):
    """In each way that a plan is made: of a draft, of a block, and of a question alone."""
    policy, stream = way
    sampling = {"policy": policy} | ({"temperature": 1.0, "seed": 5} if stream == "blocks" else {})
    marked, unmarked = 0, 0
    for worth in (1.0, 9.0):
        full, *_ = pair(worth, 1.0, stream)
        expected = course(events_of(run, house(), full, **sampling))
        for factor in (0.001, 0.5):
            events = events_of(run, house(), pair(worth, factor, stream)[1], **sampling)
            told = [event for event in events if isinstance(event, Degraded)]
            answer = answer_of(events)
            assert [event.kind for event in told] == ["paced"] * (answer.degraded is not None)
            assert answer.degraded_kind == ("paced" if any(_paced(events)) else None)
            assert answer.degraded in {None, NO_REQUEST, SMALLER_REQUEST}
            if answer.degraded is None:
                assert course(events) == expected
            marked, unmarked = marked + (answer.degraded is not None), unmarked + (answer.degraded is None)
    assert marked
    assert unmarked


def _paced(events):
    return [event.paced for event in events if isinstance(event, Planned)]


@each("way", WAYS, ids=[" ".join(way) for way in WAYS])
def test_a_trace_holds_the_mark_and_replays_to_it(house, run, tmp_path, way):
    policy, stream = way
    path = tmp_path / "trace.jsonl"
    for factor, kind in ((0.001, "paced"), (1.0, None)):
        planner = replace(pair(9.0, factor, stream)[1], score=UninformedScore("kl:0.2"))
        events = events_of(run, house(), planner, policy=policy, trace_rows=True)
        lines = [json.dumps(line) for line in ({"trace": TRACE_VERSION}, *map(to_json, events))]
        path.write_text("\n".join(lines) + "\n")
        assert answer_of(events).degraded_kind == kind
        again = run(replay(path))
        assert (again.degraded_kind, again.degraded) == (kind, answer_of(events).degraded)
        [kept] = [event for event in RecordedAnswer.read(path).events() if isinstance(event, Finished)]
        assert kept.answer.degraded_kind == kind


def test_what_is_asked_all_the_same_is_said_to_be_less(house, run):
    """Nothing is asked; or the end is written where the whole draft would have been checked."""
    for factor, why in ((0.001, NO_REQUEST), (0.5, SMALLER_REQUEST)):
        planner = replace(
            pair(2.0, factor, "whole")[1], floor=0.0, score=replace(DOUBT, hazard=(0.01,) * 8 + (0.6,) * 8)
        )
        events = events_of(run, house(), planner, policy="auto")
        assert answer_of(events).degraded == why
        assert bool(answer_of(events).usage.cloud_requests) == (why == SMALLER_REQUEST)


def test_a_used_up_cap_is_told_as_one_with_its_amount_and_when_the_next_begins(house, run, tmp_path):
    """No word of pacing: waiting for later that day would not help. A trace replays to the same sentence."""
    planner = replace(pair(9.0, 0.001, "whole")[1], used_up_nanousd=1_500_000, score=UninformedScore("kl:0.2"))
    events = events_of(run, house(), planner, policy="auto", trace_rows=True)
    answer = answer_of(events)
    assert answer.degraded_kind == "paced"
    assert answer.degraded.startswith(
        "the day's cap of 0.0015 USD is used up: the cloud is asked again after 00:00 UTC"
    )
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in ({"trace": TRACE_VERSION}, *map(to_json, events))))
    assert run(replay(path)).degraded == answer.degraded


def test_an_outage_is_told_first_and_money_that_is_gone_is_told_where_something_was_asked(house, run):
    for how, kind in (({"fault": lambda _: Unreachable("gone")}, "unreachable"), ({"cap": 0}, "budget")):
        events = events_of(run, house(retries=0, **how), pair(9.0, 1.0, "whole")[1], policy="auto")
        assert answer_of(events).degraded_kind == kind
    events = events_of(run, house(cap=0), pair(9.0, 0.001, "whole")[1], policy="auto")
    assert answer_of(events).degraded_kind == "paced", "nothing was asked, so no money was refused"


@pytest.mark.parametrize("continues", [True, False])
def test_a_limit_that_a_cap_shortened_is_told_though_nothing_came_of_it(house, run, continues):
    """A model that thinks unseen may use up what it was given before its first visible token."""
    h = house(
        can={"ids": False, "continues": continues, "rows": False, "scoring_method": None, "dialect": "text-chat"},
        cap=60_000,
    )
    h.cloud.questions = []

    async def write(question, request_id, before_send):
        await before_send()
        h.cloud.questions.append(question)
        yield Chunk(finish="length", usage=CloudUsage(9, question.limit))

    h.cloud.write = write
    h.cloud.max_usage = lambda question: CloudUsage(20, question.limit)
    answer = run(h.client.generate(PROMPT, raw=True, policy="cloud", max_tokens=LENGTH))
    assert h.cloud.questions[0].limit < LENGTH
    assert {token.source for token in answer.tokens} == {"local"}
    assert answer.degraded_kind == "budget"
