"""Draws: an answer has a seed of its own, unless one is given, and the seed that it tells gives it again."""

from __future__ import annotations

import json

import pytest
from cases import each, each_of

from hybrid.cloud import WriteQuestion
from hybrid.policy import SeededCoin
from hybrid.record.events import TRACE_VERSION, to_json
from hybrid.run.composition import Decoding
from hybrid.run.replay import replay

HOT = {"temperature": 1.5, "raw": True, "max_tokens": 20}
# At other temperatures than 1 these need a law that a list determines.
CUT = {"policy": "exact", "top_k": 3}


@pytest.fixture
def client(house):
    return house(seed=None).client


@each("choices", [{"policy": "local"}, {"policy": "kl", "span": 3}, CUT], ids=str)
def test_the_same_question_gives_another_text_each_time_and_the_told_seed_gives_it_again(client, run, choices):
    """It gave the same text twice, at any temperature."""
    answers = [run(client.generate("a b c", **HOT, **choices)) for _ in range(8)]
    assert len({answer.seed for answer in answers}) == 8
    assert len({answer.text for answer in answers}) > 2
    assert all(0 <= answer.seed < 2**31 for answer in answers)
    for answer in answers:
        again = run(client.generate("a b c", **HOT, **choices, seed=answer.seed))
        assert (again.tokens, again.usage, again.seed) == (answer.tokens, answer.usage, answer.seed)


def test_a_seed_that_is_given_is_the_answers(house, run):
    client = house(seed=7).client
    told = [run(client.generate("a b c", **HOT, seed=seed)).seed for seed in (None, 0, 2**62)]
    assert told == [7, 0, 2**62], "None is not chosen, and 0 is a seed"


def test_at_temperature_0_the_seed_changes_nothing(client, run):
    answers = [run(client.generate("a b c", raw=True, max_tokens=20)) for _ in range(4)]
    assert len({answer.seed for answer in answers}) == 4
    assert len({answer.tokens for answer in answers}) == 1


def test_a_gates_coin_is_keyed_by_the_answers_own_seed(client, run):
    """Though the choices are the same, and are resolved once for all of them."""
    choices = {"policy": "random:0.5", "raw": True, "max_tokens": 20}
    answers = [run(client.generate("a b c", **choices)) for _ in range(8)]
    assert len({tuple(token.source for token in answer.tokens) for answer in answers}) > 2
    for answer in answers:
        assert run(client.generate("a b c", **choices, seed=answer.seed)).tokens == answer.tokens


def test_choices_are_resolved_as_if_nothing_had_been_asked_before(client, run):
    """One client is asked under many choices in turn, another under each for the first time."""
    every = [
        {"policy": policy, "max_tokens": num, "temperature": temperature, "stop": stop}
        for policy in ("kl", "kl:0.1", "local", "exact", "auto", "cloud")
        for num in (0, 3, 9)
        for temperature in (0.0, 1.0)
        for stop in ((), ("x",))
    ]
    for choices in each_of(every * 2):
        kept = client._decoding(choices)
        fresh = Decoding.of(client._settings_with(choices))
        assert (kept.settings, kept.sampling, kept.whole) == (fresh.settings, fresh.sampling, fresh.whole)
        assert str(kept.policy) == str(fresh.policy)
    assert len(client._decodings) < len(every)
    long = {"stop": ("y" * 10_000,)}
    assert client._decoding(long).settings.stop == long["stop"]
    assert not any(len(key) > 5_000 for key in client._decodings)
    # An iterator's text is an address, which the next one has again.
    assert [client._decoding({"stop": (each for each in [word])}).settings.stop for word in ("x", "y")] == [
        ("x",),
        ("y",),
    ]


@each("policy", ["local", "kl"])
def test_a_trace_holds_the_seed_and_its_replay_tells_it(client, run, tmp_path, policy):
    async def recorded():
        return [event async for event in client.stream("a b c", **HOT, policy=policy, trace_rows=True)]

    events = run(recorded())
    lines = [{"trace": TRACE_VERSION}, *map(to_json, events)]
    assert [line["seed"] for line in lines if line.get("event") == "finished"] == [events[-1].answer.seed]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    again = run(replay(tmp_path / "trace.jsonl"))
    assert (again.seed, again.tokens) == (events[-1].answer.seed, events[-1].answer.tokens)


def test_settings_that_name_no_seed_draw_no_seed_before_an_answer_is_asked_for(client):
    assert client.settings.seed is None


def test_requests_of_one_answer_draw_with_seeds_of_their_own_and_with_the_same_ones_again(house, run):
    """Under one seed every opening of a handoff would begin with the same noise."""

    def seeds():
        h = house(seed=7)
        run(h.client.generate("a b c", temperature=1.0, raw=True, max_tokens=40, policy="kl", span=3, threshold=0.0))
        return [asked.sampling.seed for asked in h.cloud.questions if isinstance(asked, WriteQuestion)]

    found = seeds()
    assert len(found) == len(set(found)) > 1
    assert found == seeds()


def test_a_position_that_is_drafted_again_meets_another_coin(house, run, monkeypatch):
    """The coin that was rejected there would draw the rejected token again: the text would not be the cloud's."""
    tossed = []

    class Recorded(SeededCoin):
        def __call__(self, probs, toss):
            tossed.append(toss)
            return super().__call__(probs, toss)

    monkeypatch.setattr("hybrid.run.local_writers.SeededCoin", Recorded)
    choices = {"temperature": 1.0, "raw": True, "max_tokens": 40, "policy": "exact", "overlap": False}
    rejected = 0
    for seed in range(4):
        tossed.clear()
        rejected += run(house(seed=seed).client.generate("a b c", **choices)).usage.rejected
        assert len(tossed) == len(set(tossed)) > 0
    assert rejected
