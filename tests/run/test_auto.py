"""The policy auto through a whole client: every endpoint serves it, and its planner is that of the question."""

from __future__ import annotations

import json

import pytest
from cases import each

from hybrid.pairs.knowledge import ASKS_FOR_CHECKS, UNCALIBRATED
from hybrid.record.events import TRACE_VERSION, Planned, to_json
from hybrid.run import Finished, NoteAdded, RequestSent
from hybrid.run.replay import replay

PROMPT = "a b c"
# What an endpoint can do, and where it may then be asked to write: None: anywhere.
KINDS = {
    "all": {},
    "no rows": {"rows": False},
    "no scoring": {"scoring_method": None},
    "opens only": {"rows": False, "scoring_method": None, "continues": False, "ids": False},
    "scores and opens": {"continues": False},
}


async def asked(client, **choices):
    choices = {"max_tokens": 24} | choices
    return [event async for event in client.stream(PROMPT, raw=True, policy="auto", **choices)]


def finished(events):
    return next(event.answer for event in events if isinstance(event, Finished))


@pytest.mark.slow
@each("stream", ["whole", "blocks", "early"])
@each("worth", [0.001, 2.2, 1000.0])
@each("kind", KINDS)
def test_every_endpoint_serves_auto_with_what_it_can_do(house, run, kind, worth, stream):
    for temperature in (0.0, 1.0):
        h = house(can=KINDS[kind], rows=KINDS[kind].get("rows", True))
        events = run(asked(h.client, worth=worth, stream=stream, span=6, temperature=temperature, learn=False))
        answer = finished(events)
        assert answer.text
        assert answer.degraded is None
        sent = [event for event in events if isinstance(event, RequestSent)]
        if kind in {"no rows", "no scoring", "opens only"}:
            assert {event.kind for event in sent} <= {"write"}, "nothing else can be asked"
        if kind in {"opens only", "scores and opens"}:
            assert {event.position for event in sent if event.kind == "write"} <= {0}
        if worth < 1:
            assert not sent, "not worth a token"
            assert answer.usage.cloud_tokens == 0


@each("kind", KINDS)
def test_what_is_worth_anything_is_asked_of_every_endpoint(house, run, kind):
    h = house(can=KINDS[kind], rows=KINDS[kind].get("rows", True))
    answer = finished(run(asked(h.client, worth=1000.0, stream="whole")))
    assert answer.usage.cloud_requests > 0
    if kind in {"no rows", "no scoring", "opens only"}:
        assert answer.usage.cloud_tokens == len(answer.tokens), "the cloud writes the whole answer"
        assert answer.text.split() == [h.engine.piece(i).decode() for i in h.large(24)] or answer.text


def test_the_planner_is_the_questions_own_and_what_it_decides_is_told(house, run):
    events = run(asked(house().client, worth=1000.0))
    plans = [event for event in events if isinstance(event, Planned) and event.signals is not None]
    assert plans
    assert plans[0].signals.prompt_tokens == 3
    assert plans[0].costs.alone > 0.0
    notes = [event.why for event in events if isinstance(event, NoteAdded)]
    assert (
        UNCALIBRATED.format(asks=ASKS_FOR_CHECKS, measured="no share of the cloud's own bill was measured yet") in notes
    )
    assert not any("its checks made" in why for why in notes), "auto prices its own checks"


def test_nothing_is_bound_for_a_policy_that_weighs_nothing(house, run, monkeypatch):
    h = house()

    async def never(_):
        pytest.fail("nothing to bind")

    monkeypatch.setattr(h.client._memory.planners, "bind", never)
    for policy in ("kl", "doubt", "local", "cloud", "once"):
        run(h.client.generate(PROMPT, raw=True, policy=policy, max_tokens=4))
    run(h.client.generate(PROMPT, raw=True, policy="auto", offline=True, max_tokens=4))


def test_a_replay_decides_by_the_planner_that_was_recorded(house, run, tmp_path):
    """The dial is in the planner and nowhere else in the trace: no replay without it asks alike."""
    for worth in (0.001, 1000.0):
        path = tmp_path / "trace.jsonl"
        with path.open("w") as file:
            print(json.dumps({"trace": TRACE_VERSION}), file=file)
            events = run(asked(house().client, worth=worth, trace_rows=True, learn=False))
            file.writelines(f"{json.dumps(to_json(event))}\n" for event in events)
        again = []
        run(replay(path, again.append))
        for kind in (Planned, RequestSent):
            told = [[replaced(event) for event in each if isinstance(event, kind)] for each in (events, again)]
            assert told[0] == told[1]
        assert finished(again).text == finished(events).text


def test_a_text_that_is_over_tells_whether_the_model_ended_it(house, run):
    """A stop string and an end token are one reason to an answer, and two to whoever learns of it."""
    h = house()
    text = [h.engine.piece(i).decode() for i in h.large(200)]
    assert 5 < len(text) < 200, "it ends by itself"

    def over(**choices):
        events = run(asked(h.client, **({"worth": 1000.0, "max_tokens": 200, "learn": False} | choices)))
        return next((event.answer.finish_reason, event.by_itself) for event in events if isinstance(event, Finished))

    assert over() == ("stop", True)
    assert over(max_tokens=5) == ("length", False)
    assert over(stop=["".join(text[:3])]) == ("stop", False)


def test_a_replay_tosses_the_floors_coin_as_it_fell(house, run, tmp_path, monkeypatch):
    monkeypatch.setattr("hybrid.defer.online.floor_after", lambda _: 0.5)
    fallen = []
    for seed in range(8):
        path = tmp_path / "trace.jsonl"
        with path.open("w") as file:
            print(json.dumps({"trace": TRACE_VERSION}), file=file)
            choices = {"worth": 0.001, "stream": "whole", "seed": seed, "trace_rows": True, "learn": True}
            events = run(asked(house().client, **choices))
            file.writelines(f"{json.dumps(to_json(event))}\n" for event in events)
        again = []
        run(replay(path, again.append))
        first, second = (next(event for event in each if isinstance(event, Planned)) for each in (events, again))
        assert (first.floor, first.propensity) == (second.floor, second.propensity)
        fallen.append(first.floor)
    assert set(fallen) == {True, False}


def replaced(event):
    """What of an event does not depend on the clock, on a name or on the price."""
    if isinstance(event, RequestSent):
        return event.kind, event.position, event.num_tokens
    return event.position, event.action, event.at, event.limit, event.costs
