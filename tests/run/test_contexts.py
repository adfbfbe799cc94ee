"""Several questions at once: none of them is answered otherwise than alone, and whoever waits is served in order."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from anyio.from_thread import start_blocking_portal
from cases import each
from scripted_engine import ScriptedEngine

from hybrid.errors import QueueFull, QueueTimeout
from hybrid.policy import PRESETS
from hybrid.record.events import Queued, RequestSent, RequestSettled, to_json
from hybrid.record.spending import check_cost_note
from hybrid.run import Client, Finished, SpanDrafted, TokenEmitted
from hybrid.spend import Price

# What a trace says of the clock and of chance names, and what belongs to waiting.
OF_THE_MOMENT = {"ms", "wait_ms", "away_ms", "timing", "request_id", "num_ready"}
WORDS = tuple("abcdefgh")
ENDLESS = lambda _: [0, 9, 0, 0, 0, 0, 0, 0]  # noqa: E731  (a table, as in conftest)


@dataclass(frozen=True)
class Question:
    """A question with all that it is answered by."""

    prompt: str
    choices: dict = field(default_factory=dict)


def questions(num, seed=0):
    """Every preset, greedy and sampled, behind prompts of several lengths, some of them alike."""
    rng = random.Random(seed)
    for i in range(num):
        policy, sampled = list(PRESETS)[i % len(PRESETS)], bool(i // len(PRESETS) % 2)
        prompt = " ".join(rng.choice(WORDS[:7]) for _ in range(rng.choice((3, 3, 5, 80))))
        sampling = {"temperature": 1.0} if sampled and policy != "greedy-exact" else {}
        yield Question(prompt, {"policy": policy, "max_tokens": 24, "seed": i, "learn": False, **sampling})


def in_fits_and_starts(cloud, seed=0):
    """Have a scripted cloud answer after some turns of the loop, drawn at random, so that answers interleave."""
    rng, score, write = random.Random(seed), cloud.score, cloud.write

    async def scored(*given):
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        return await score(*given)

    async def written(*given):
        async for chunk in write(*given):
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            yield chunk

    cloud.score, cloud.write = scored, written


async def events_of(client, question):
    return [event async for event in client.stream(question.prompt, raw=True, **question.choices)]


def told(events):
    """Return an answer's trace without what belongs to the moment, or to the first dear answer of a client to end."""
    lines = [to_json(event) for event in events if not isinstance(event, Queued)]
    lines = [line for line in lines if not check_cost_note([line.get("why", "")])]
    lines[-1]["notes"] = [note for note in lines[-1]["notes"] if not check_cost_note([note])]
    return [{name: value for name, value in line.items() if name not in OF_THE_MOMENT} for line in lines]


async def at_once(client, asked):
    return [told(events) for events in await asyncio.gather(*(events_of(client, each) for each in asked))]


async def one_by_one(client, asked):
    return [told(await events_of(client, each)) for each in asked]


@each("price", ["1/0.1/4", None])
@pytest.mark.parametrize("recorded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_texts_requests_bills_and_traces_are_those_of_questions_asked_one_by_one(house, run, price, recorded):
    asked = list(questions(2 * len(PRESETS)))
    # How much is decoded ahead is a matter of the moment, and a recording holds every row that was read. How long a
    # block of auto's is follows from the local model's measured speed, and a recording holds that, too.
    recording = {"trace_rows": True, "overlap": False, "span": 8} if recorded else {}
    asked = [Question(one.prompt, one.choices | recording) for one in asked]
    alone, beside = house(price=price), house(price=price, parallel=4)
    in_fits_and_starts(beside.cloud)
    expected, found = run(one_by_one(alone.client, asked)), run(at_once(beside.client, asked))
    assert found == expected
    assert sorted(map(repr, beside.cloud.charged.values())) == sorted(map(repr, alone.cloud.charged.values()))
    assert beside.ledger.settled_nanousd == alone.ledger.settled_nanousd
    assert beside.client.spent == alone.client.spent
    assert all(engine.num_decoded > 0 for engine in beside.engines), "they were answered beside one another"


def test_whoever_waits_is_told_how_many_are_ahead_and_is_served_in_order(house, run):
    h, ended = house(), []

    async def ask(i):
        events = await events_of(h.client, Question("a b c", {"policy": "kl", "max_tokens": 8}))
        ended.append(i)
        return [event.ahead for event in events if isinstance(event, Queued)], type(events[0])

    async def three():
        return await asyncio.gather(*(ask(i) for i in range(3)))

    found = run(three())
    assert [ahead for ahead, _ in found] == [[], [0], [1, 0]]
    assert ended == [0, 1, 2]
    assert [first is Queued for _, first in found] == [False, True, True]


def test_a_question_too_many_is_refused_at_once_and_one_that_waits_too_long_in_time(house, run):
    h = house(small=ENDLESS, num_context=10**6, queue={"max_queued": 1, "queue_timeout_s": 0.1})

    async def ask():
        first = asyncio.create_task(h.client.generate("a b c", policy="local", max_tokens=10**6))
        while not h.engine.num_decoded:  # noqa: ASYNC110  (an engine tells nobody)
            await asyncio.sleep(0.001)
        second = asyncio.create_task(h.client.generate("a b c", policy="local"))
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFull, match="no more than 1 may wait for it"):
            await h.client.generate("a b c", policy="local")
        with pytest.raises(QueueTimeout, match=r"busy with other questions for 0\.1 s"):
            await second
        first.cancel()
        await asyncio.wait([first])
        return await h.client.generate("a b c", policy="local", max_tokens=3)

    assert len(run(ask()).tokens) == 3


def test_what_is_measured_of_a_draft_is_its_own_decoding_and_not_its_waiting(house, run):
    """Else the blocks that ``auto`` decides by, and spans, would depend on what runs beside the question."""

    class Crowded(ScriptedEngine):
        """Has waited for others in every decode, as it says."""

        def extend(self, *given):
            self.waited_s += 100.0
            return super().extend(*given)

    events = run(events_of(house(made=Crowded).client, Question("a b c", {"policy": "local", "max_tokens": 8})))
    assert {event.ms for event in events if isinstance(event, SpanDrafted)} == {0.0}


def test_a_conversation_finds_its_own_context_and_reads_only_what_is_new(house, run):
    """Three in turn, behind one long beginning, in four contexts; what was read before is not read again."""
    h = house(parallel=4, num_context=4000)
    beginning = " ".join(random.Random(1).choices(WORDS[:7], k=420))

    async def talk():
        texts, reread = [f"{beginning} {first}" for first in ("a b", "b c", "c d")], []
        held = [0, 0, 0]
        for turn in range(6):
            for i, text in enumerate(texts):
                before = sum(engine.num_decoded for engine in h.engines)
                answer = await h.client.generate(text, raw=True, policy="local", max_tokens=30)
                decoded = sum(engine.num_decoded for engine in h.engines) - before
                new = len(text.split()) - held[i]
                if turn:
                    reread.append(decoded - new - len(answer.tokens))
                held[i] = len(text.split()) + len(answer.tokens)
                texts[i] = f"{text} {answer.text} {random.Random(turn).choice(WORDS[:7])} d"
        return reread

    assert max(run(talk())) <= 16


@each("policy", ["kl", "cloud", "exact", "auto", "local"])
def test_cancelled_at_any_moment_every_context_is_free_and_the_ledger_settled(house, run, policy):
    """Forty at a time, a part of them left early, a part cancelled while they wait."""
    rng, h = random.Random(policy), house(parallel=3)
    in_fits_and_starts(h.cloud)

    async def leave(i):
        question = Question("a b c", {"policy": policy, "max_tokens": 200, "seed": i, "learn": False})
        if i % 3 == 0:
            async for _ in (stream := h.client.stream(question.prompt, raw=True, **question.choices)):
                if rng.random() < 0.2:
                    break
            await stream.aclose()
            return
        task = asyncio.create_task(events_of(h.client, question))
        for _ in range(rng.randrange(60)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def everybody():
        await asyncio.gather(*(leave(i) for i in range(40)))
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        free = len(h.client._contexts.pool.free)
        return left, free, await h.client.generate("a b c", policy=policy, max_tokens=5)

    left, free, answer = run(everybody())
    assert (left, free) == ([], 3)
    assert len(answer.tokens) <= 5
    assert h.ledger.reserved_nanousd == 0
    assert h.cloud.num_open == 0
    assert h.ledger.settled_nanousd >= sum(h.price.cost(usage) for usage in h.cloud.charged.values())


def test_a_cap_holds_beside_others_and_nobody_waits_for_anybody_s_money(house, run):
    """Eight at once under a cap that is worth half of them; overshoot 0."""
    price = Price.parse("1/0.1/4")
    cap = 4 * price.worst_case(3, 20)
    h = house(parallel=8, cap=cap)
    in_fits_and_starts(h.cloud)

    async def eight():
        async with asyncio.timeout(20):
            return await asyncio.gather(
                *(h.client.generate("a b c", policy="cloud", max_tokens=20, seed=i) for i in range(8))
            )

    answers = run(eight())
    assert sum(price.cost(usage) for usage in h.cloud.charged.values()) <= cap
    assert h.ledger.settled_nanousd <= cap
    assert {answer.degraded_kind for answer in answers} == {None, "budget"}


def test_the_blocking_client_answers_threads_at_once(house, run):
    asked = list(questions(12))
    expected = run(one_by_one(house().client, asked))
    h = house(parallel=3)
    with start_blocking_portal() as portal, ThreadPoolExecutor(6) as threads:
        client = Client(h.client, portal)
        found = list(threads.map(lambda q: told(client.stream(q.prompt, raw=True, **q.choices)), asked))
        portal.call(h.client.aclose)
    assert found == expected


def test_text_rows_waits_for_a_context_as_a_question_does(house, run):
    h = house()

    async def both():
        rows = asyncio.create_task(h.client.text_rows("a b c", "local", raw=True, max_tokens=8))
        events = asyncio.create_task(events_of(h.client, Question("a b c", {"policy": "local", "max_tokens": 8})))
        return await rows, await events

    rows, events = run(both())
    assert isinstance(events[-1], Finished)
    shown = tuple(event.token.id for event in events if isinstance(event, TokenEmitted))
    assert rows.tokens[: len(shown)] == shown


def test_a_prompt_counts_as_sent_once_its_answer_is_over_and_only_if_a_request_was_sent(house, run):
    """What is beside a question is none of what its endpoint's cache is known to hold."""
    h, heard = house(), []
    h.client._memory.planners.sent = lambda prompt: heard.append((prompt, h.client.spent.requests))
    for policy in ("local", "kl"):
        answer = run(h.client.generate("a b c", raw=True, policy=policy, max_tokens=8))
    assert heard == [(h.prompt, answer.usage.cloud_requests)]


def test_requests_that_cross_are_told_apart_in_what_is_spent_and_learned(house, run):
    """The total is each request's own charge, whoever was sent in between."""
    h = house(parallel=4)
    in_fits_and_starts(h.cloud, seed=3)
    asked = [Question("a b c", {"policy": "kl", "max_tokens": 30, "seed": i}) for i in range(8)]

    async def eight():
        return await asyncio.gather(*(events_of(h.client, one) for one in asked))

    found = [event for events in run(eight()) for event in events]
    sent = [event.request_id for event in found if isinstance(event, RequestSent)]
    settled = {event.request_id: event.nanousd for event in found if isinstance(event, RequestSettled)}
    assert len(sent) == len(set(sent)) == len(settled)
    assert h.client.spent.nanousd == sum(settled.values()) == h.ledger.settled_nanousd
    assert not h.client._memory._timings._under_way
