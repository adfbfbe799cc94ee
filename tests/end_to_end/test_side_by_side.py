"""Questions that are answered at once, by real models over HTTP, are answered as they would be one by one.

The server is the bundled one as vLLM, which tells no cached tokens: where a server tells them, charges depend on what
it was asked before. What it writes is the same to the last bit, whatever a context of its own has read before.
"""

from __future__ import annotations

import asyncio
import gc
import random

import psutil
import pytest
from cases import each

import hybrid
from hybrid.policy import PRESETS
from hybrid.record.events import Queued, to_json
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.tasks import FAMILIES, distinct

OF_THE_MOMENT = {"ms", "wait_ms", "away_ms", "timing", "request_id", "num_ready"}


@pytest.fixture(autouse=True)
def no_note_of_dear_checks(monkeypatch):
    """It comes once in a client, with the answer that finds it first."""
    monkeypatch.setattr("hybrid.record.spending.CheckCostNote.of", lambda *_: None)


@pytest.fixture(scope="module")
def silent_stub(bundled, start_server):
    return start_server(model=bundled[1])


def opened(stub, parallel, **settings):
    chosen = {"seed": 3, "learn": False, "price": "1/0.1/4", "ledger": "none", "threads": 1, **settings}
    return hybrid.open(local="small", cloud=stub.url, parallel=parallel, **chosen)


def told(events):
    lines = [to_json(event) for event in events if not isinstance(event, Queued)]
    return [{name: value for name, value in line.items() if name not in OF_THE_MOMENT} for line in lines]


def problems(num):
    per_family = -(-num // len(FAMILIES))
    return [each.question for family in FAMILIES for each in distinct(family, "test", per_family, seed=0)][:num]


async def answered(client, question, choices):
    return told([event async for event in client.stream(question, **choices)])


async def at_once_and_one_by_one(stub, asked):
    """Return both, each from a client that was asked nothing before."""
    async with opened(stub, 4) as client:
        assert client.parallel == 4
        beside = await asyncio.gather(*(answered(client, *one) for one in asked))
    async with opened(stub, 1) as client:
        return beside, [await answered(client, *one) for one in asked]


def same(beside, alone):
    """Hold each trace against its own, a line at a time: a whole one is too long to be read in a failure."""
    for number, (found, expected) in enumerate(zip(beside, alone, strict=True)):
        for ours, theirs in zip(found, expected, strict=False):
            assert ours == theirs, number
        assert len(found) == len(expected), number


def test_eight_questions_at_once_are_answered_as_one_by_one(silent_stub):
    """Rows and all, so to the last bit; greedy and sampled, the cloud writing and checking."""
    policies = ["kl", "cloud", "exact", "local"]
    asked = [
        (question, {"policy": policies[i % 4], "max_tokens": 24, "trace_rows": True, "overlap": False, "seed": i})
        for i, question in enumerate(problems(8))
    ]
    asked = [(text, chosen | ({"temperature": 1.0} if i % 3 == 1 else {})) for i, (text, chosen) in enumerate(asked)]
    same(*asyncio.run(at_once_and_one_by_one(silent_stub, asked)))


@pytest.mark.slow
@pytest.mark.timeout(900)
@each("sampled", [False, True])
@pytest.mark.parametrize("policy", list(PRESETS))
def test_questions_at_once_are_answered_as_one_by_one(silent_stub, policy, sampled):
    """Every preset, two of them on more. The span is given: auto's own follows from a clock."""
    if sampled and policy == "greedy-exact":
        return
    sampling = {"temperature": 1.0} if sampled else {}
    span = {"span": 8} if policy == "auto" else {}
    asked = [
        (question, {"policy": policy, "max_tokens": 24, "seed": i, "overlap": i % 2 == 0} | sampling | span)
        for i, question in enumerate(problems(32 if policy in {"kl", "auto"} else 14))
    ]
    same(*asyncio.run(at_once_and_one_by_one(silent_stub, asked)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_300_cancellations_leave_every_context_free_the_ledger_settled_and_the_memory_flat(silent_stub, tmp_path):
    """At random moments, in every policy; what is resident at the end is what was after the first hundred."""
    rng, resident = random.Random(0), []

    async def leave(client, question, policy):
        task = asyncio.create_task(answered(client, question, {"policy": policy, "max_tokens": 64}))
        await asyncio.sleep(rng.random() ** 2)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    async def all_of_them():
        async with opened(silent_stub, 4, ledger=tmp_path / "ledger") as client:
            questions, num_left = problems(30), 0
            for _ in range(30):
                policies = [rng.choice(list(PRESETS)) for _ in range(10)]
                pairs = zip(rng.sample(questions, 10), policies, strict=True)
                num_left += sum(await asyncio.gather(*(leave(client, *pair) for pair in pairs)))
                assert len(client._contexts.pool.free) == client.parallel == 4
                assert client._contexts.pool.num_queued == 0
                gc.collect()
                resident.append(psutil.Process().memory_info().rss / 2**20)
            answer = await client.generate(questions[0], policy="local", max_tokens=8)
            return num_left, answer

    num_left, answer = asyncio.run(all_of_them())
    assert num_left > 100, "most were cancelled while they were answered"
    assert answer.tokens
    assert max(resident[-5:]) <= max(resident[5:10]) + 16, resident
    ledger = LedgerAdmin(FileLedger(tmp_path / "ledger"))
    assert ledger.exists
    assert ledger.open_entries() == [], "nothing is reserved any more"
