"""The default policy over the real pair: its choices follow from ratios of prices, and a trace makes them again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace

import pytest

import hybrid
from hybrid.record.events import TRACE_VERSION, Finished, Planned, RequestSent, to_json
from hybrid.run.replay import replay
from hybrid.spend import AskPrices
from hybrid.tasks import FAMILIES, distinct

QUESTIONS = [problem.question for family in FAMILIES for problem in distinct(family, "calibration", 2, seed=77)[1:]]


def choices(home, price, questions=QUESTIONS):
    """What was done with every draft of every question, and the answers, where nothing was learned before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(home / str(price).replace("/", "-")))
        # Of a cache that nobody tells of time is saved and money is not: here it is told.
        of = AskPrices.of
        patched.setattr(AskPrices, "of", lambda price, **facts: of(price, **facts | {"tells_cache": True}))
        return told(price, questions)


def told(price, questions):
    found = []
    with hybrid.open(policy="auto", price=price, ledger="none", seed=3, learn=True) as client:
        for question in questions:
            events = list(client.stream(question, stream="whole"))
            plans = [(e.position, e.action, e.at, e.limit, e.floor) for e in events if isinstance(e, Planned)]
            answer = next(e.answer for e in events if isinstance(e, Finished))
            found.append((question, plans, answer.text, answer.usage.cloud_requests))
    return found


@pytest.mark.slow
def test_where_nothing_is_charged_the_bundled_pair_chooses_as_at_the_usual_ratio_of_prices(bundled, tmp_path):
    """Question by question, and what is learned on the way leads to the same next choices."""
    free, paid = choices(tmp_path, None), choices(tmp_path, "1/0.1/4")
    assert free == paid
    actions = {action for _, plans, *_ in free for _, action, *_ in plans}
    assert actions == {"keep", "check", "write"}
    assert choices(tmp_path, "1/0.1/40", QUESTIONS[:4]) != paid[:4]


async def recorded(client, path, question, **choices):
    with path.open("w") as file:
        print(json.dumps({"trace": TRACE_VERSION}), file=file)
        events = []
        async for event in client.stream(question, trace_rows=True, **choices):
            print(json.dumps(to_json(event)), file=file)
            events.append(event)
    return events


def decided(events):
    """Everything that must be made again to the last bit."""
    answer = next(event.answer for event in events if isinstance(event, Finished))
    tokens = [(t.id, t.text, t.source, t.how, t.why, t.kl) for t in answer.tokens]
    plans = [to_json(event) for event in events if isinstance(event, Planned)]
    sent = [(e.kind, e.position, e.num_tokens, e.reserved_nanousd) for e in events if isinstance(e, RequestSent)]
    return (
        answer.text,
        answer.finish_reason,
        tokens,
        asdict(replace(answer.usage, bytes_sent=0)),
        answer.bill,
        plans,
        sent,
    )


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_replay_makes_every_decision_again_and_overlap_changes_none(own_stub, tmp_path, temperature):
    """Text, requests and bill, to the last bit, through llama.cpp: whatever is planned with a draft."""

    async def all_of_them():
        actions = set()
        async with hybrid.open(
            policy="auto",
            local="small",
            cloud=own_stub().url,
            price="1/0.1/4",
            ledger="none",
            seed=5,
            temperature=temperature,
        ) as client:
            for question in QUESTIONS[::3]:
                with_overlap, without = [
                    await recorded(client, tmp_path / f"{overlap}.jsonl", question, overlap=overlap, span=24)
                    for overlap in (True, False)
                ]
                assert decided(without) == decided(with_overlap), question
                again = []
                await replay(tmp_path / "True.jsonl", again.append, price="1/0.1/4")
                assert decided(again) == decided(with_overlap), question
                actions |= {event.action for event in again if isinstance(event, Planned)}
        return actions

    assert asyncio.run(all_of_them()) == {"keep", "check", "write"}
