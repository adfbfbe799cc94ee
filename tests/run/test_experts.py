"""Several local models through the whole client: overlap changes nothing, a trace replays, an answer says who wrote."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from cases import each, each_of
from picky_house import MAX_TOKENS, PROMPT, answer, picky_house
from scripted_house import SMALL, table

from hybrid.record.events import TRACE_VERSION, to_json
from hybrid.run.replay import replay
from hybrid.run.replay_trace import MissingRow

__all__ = ["answer", "picky_house"]


def in_turn(first, then):
    """The one table or the other, four tokens each."""
    return lambda prefix: (first, then)[len(prefix) // 4 % 2](prefix)


# The cloud is mostly like SMALL, and so is the one model or the other.
MODELS = {"small": in_turn(SMALL, table("one")), "beside": {"other": in_turn(table("two"), SMALL)}}
EVERY = [
    {"policy": name, "span": span, "threshold": threshold, "temperature": temperature, "entropy": 0.9}
    for name in ("kl", "greedy-exact", "exact", "doubt", "paper", "excess")
    for span in (4, 1)
    for threshold in (0.3, 1.0)
    for temperature in (0.0, 1.0)
    if not (name == "greedy-exact" and temperature) and not (name == "exact" and not temperature)
]
FEW = [{"policy": "kl", "span": 4, "threshold": 0.3}]


@pytest.mark.parametrize("inputs", [FEW, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["few", "all"])
def test_overlap_changes_no_text_no_weight_no_request_and_no_bill(answer, inputs):
    """New weights mix other rows out of the same parts, and a model that begins to write has decoded nothing ahead."""
    for mix in ("mix", "select"):
        models = MODELS | {"queue": {"mix": mix}}
        for choices in each_of(inputs):
            for seed in each_of(range(2 if choices.get("temperature") else 1)):
                expected, none, _ = answer(None, models, seed=seed, **choices)
                assert none == 0, choices
                for num_ahead in (0, 1, 3, 99):
                    got, _, _ = answer(num_ahead, models, seed=seed, **choices)
                    assert got == expected, (mix, choices, seed, num_ahead)


async def recorded(client, path, **choices):
    """Answer, and write every event as the command line does."""
    with path.open("w") as file:
        print(json.dumps({"trace": TRACE_VERSION}), file=file)
        async for event in client.stream(PROMPT, raw=True, trace_rows=True, max_tokens=MAX_TOKENS, **choices):
            print(json.dumps(to_json(event)), file=file)
    return event.answer


def told(answer):
    """What of an answer does not depend on the clock or on the price."""
    usage = asdict(answer.usage)
    return [(t.id, t.text, t.source, t.how, t.why, t.kl) for t in answer.tokens], usage, answer.experts


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["mix", "select"])
@each("overlap", [True, False])
@each("choices", [{"span": 4, "threshold": 0.3}, {"policy": "exact", "temperature": 1.0}, {"policy": "doubt"}])
def test_an_answer_is_replayed_with_its_weights(house, run, tmp_path, mix, overlap, choices):
    """A trace has each model's own rows, so that weights are worked out again."""
    path = tmp_path / "trace.jsonl"
    h = house(**MODELS, queue={"mix": mix})
    answer = run(recorded(h.client, path, overlap=overlap, **choices))
    assert told(run(replay(path))) == told(answer)
    assert answer.experts["local"] != 0.5


def test_under_another_rule_a_trace_gives_what_its_rows_allow(house, run, tmp_path):
    """At another threshold other weights follow: the text is the client's own, or a row is missing."""
    path = tmp_path / "trace.jsonl"
    run(recorded(house(**MODELS).client, path, policy="kl", span=4, threshold=0.0))
    expected = run(house(**MODELS).client.generate(PROMPT, raw=True, policy="kl:0", span=2, max_tokens=MAX_TOKENS))
    assert told(run(replay(path, policy="kl:0", span=2)))[0] == told(expected)[0]
    with pytest.raises(MissingRow):
        run(replay(path, policy="kl:inf"))


@each("mix", ["mix", "select"])
def test_an_answer_says_what_each_model_weighed_at_the_end(house, run, mix):
    answer = run(
        house(**MODELS, queue={"mix": mix}).client.generate(PROMPT, raw=True, span=4, threshold=0.6, max_tokens=30)
    )
    assert set(answer.to_json()["experts"]) == {"local", "other"}
    assert sum(answer.experts.values()) == pytest.approx(1.0)
    names = {"local+other"} if mix == "mix" else {"local", "other"}
    assert {token.model for token in answer.tokens if token.source == "local"} == names
    assert run(house().client.generate(PROMPT, raw=True, max_tokens=5)).experts == {}


def test_one_model_alone_answers_as_without_experts(house, run):
    """``--expert a`` is ``--local a``, to the last bit."""
    for choices in ({"threshold": 0.3}, {"policy": "exact", "temperature": 1.0, "seed": 1}, {"policy": "local"}):
        answers = []
        for experts in ((), ("local",)):
            h = house()
            h.client._contexts._experts = experts
            answers.append(run(h.client.generate(PROMPT, raw=True, max_tokens=MAX_TOKENS, **choices)))
        one, other = answers
        assert (one.text, one.tokens, one.usage, one.bill) == (other.text, other.tokens, other.usage, other.bill)


@pytest.mark.parametrize("mix", ["mix", "select"])
def test_an_answer_that_is_left_leaves_no_token_that_was_not_shown(house, run, mix):
    """In no model's cache."""
    h = house(**MODELS, queue={"mix": mix})
    run(h.client.generate(PROMPT, raw=True, threshold=0.3, max_tokens=12))
    shown = run(h.client.generate(PROMPT, raw=True, threshold=0.3, max_tokens=12))
    text = h.prompt + tuple(token.id for token in shown.tokens)
    context = h.client._contexts.pool.free[0]
    for cursor in (context.cursor, *context.others.values()):
        assert cursor.engine.ids == text[: len(cursor.engine.ids)]
