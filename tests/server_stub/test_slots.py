"""Slots: what is answered depends on the prompt alone, whatever was cached, and whoever leaves gives the slot back."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import suppress

import numpy as np
import pytest
from cases import each_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.engine import Interrupted, Worker, num_shared
from hybrid.engine.llama import Weights
from hybrid.prob import Dense
from hybrid.settings.names import MODELS
from server_stub.app import App, Served
from server_stub.ask import NO_TOKEN, Scoring
from server_stub.slots import PrefixCache, Slot, Slots

TOP = 2  # rows that are kept do not know every token
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=80).map(tuple)
CALLS = st.one_of(
    st.tuples(st.just("prefill"), IDS, st.just(0)),
    st.tuples(st.sampled_from(["score", "score again"]), IDS, st.just(0)),
    st.tuples(st.just("score again"), IDS, st.just(1)),  # told to stop before its second group
    st.tuples(st.just("prefill"), IDS, st.just(-1)),  # told to stop at once
    st.tuples(st.sampled_from(["extend", "forget"]), IDS, st.just(0)),
)


def never() -> bool:
    return False


def told_after(groups: int):
    if not groups:
        return never
    asked = iter(range(max(groups, 0)))
    return lambda: next(asked, None) is None


def ask(slot: Slot, call: str, ids: tuple[int, ...], cancelled=never):
    """Return what an answer is made of (rows, scores after the prompt), and how many tokens were cached."""
    if call == "prefill":
        logits, cached = slot.prefill(ids, cancelled)
        return [], logits.tolist(), cached
    rows, logits, cached = slot.score(ids, Scoring(keeps_rows=call == "score again"), cancelled)
    shown = [None if row is None else (row.top, row.actual(ids[n])) for n, row in enumerate(rows)]
    return shown, logits.ravel().tolist(), cached


@settings(max_examples=60)
@given(calls=st.lists(CALLS, max_size=8), last=IDS, how=st.sampled_from(["prefill", "score", "score again"]))
def test_an_answer_depends_on_the_prompt_alone(scripted, calls, last, how):
    """``cached_tokens`` is a discount: it must change the bill and nothing else.

    What a slot holds of the cache is not computed again; the rest is, as no other slot's context can be read.
    """
    slot = Slot(scripted(), None, TOP)
    for call, ids, groups in [*calls, (how, last, 0)]:
        before, held = slot.engine.num_decoded, slot.engine.ids
        if call == "forget":
            slot.forget()
            assert slot.engine.ids == ()
        elif call == "extend":
            fresh = scripted().extend((*slot.engine.ids, ids[0]), 1)
            assert slot.extend(ids[0], never).tolist() == fresh.ravel().tolist()
        else:
            with suppress(Interrupted):
                rows, logits, cached = ask(slot, call, ids, told_after(groups))
                assert (rows, logits) == ask(Slot(scripted(), None, TOP), call, ids)[:2]
                kept = len(ids) - (slot.engine.num_decoded - before)
                most = min(cached, num_shared(held, ids))
                assert (kept <= most and not kept % slot.engine.prompt_block) if call == "prefill" else kept == most
                assert cached < len(ids)
                assert call != "score" or cached == 0
                assert slot.engine.ids == ids


def test_a_prompt_keeps_the_whole_blocks_of_what_was_read_and_is_charged_as_cached_all_the_same(scripted):
    """What was written or read in other shapes is read again: other batches are other sums."""
    slot, ids = Slot(scripted(), None, TOP), (1, 2, 0, 1) * 40
    block = slot.engine.prompt_block
    for cached, kept in ((0, 0), (159, 2 * block)):
        before = slot.engine.num_decoded
        assert slot.prefill(ids, never)[1] == cached
        assert slot.engine.num_decoded - before == len(ids) - kept
    for _ in range(35):
        slot.extend(1, never)
    slot.remember()
    before = slot.engine.num_decoded
    assert slot.prefill((*ids, *[1] * 35), never)[1] == 194
    assert slot.engine.num_decoded - before == 195 - 2 * block, "the third block was not read as one"


def test_what_is_written_is_the_same_to_the_last_bit_whatever_a_slot_has_read():
    """Of a real model: two slots with other pasts write after the same prompts; each is held against a fresh one."""
    weights = Weights(MODELS / "small.gguf")
    rng, compared = np.random.default_rng(0), 0
    text = tuple(rng.integers(3, 200, 300).tolist())
    slots = [Slot(weights.context(320, threads=1), None, TOP) for _ in range(3)]
    for length in (70, 66, 200, 33, 150, 299):
        for slot in slots[:2]:
            slot.prefill(text[: int(rng.integers(1, 290))], never)
            for _ in range(int(rng.integers(0, 9))):
                slot.extend(text[len(slot.engine.ids)], never)
            if rng.random() < 0.5:
                slot.score(text[: int(rng.integers(2, 290))], Scoring(), never)
        slots[2].forget()
        first, *others = (
            [slot.prefill(text[:length], never)[0], *(slot.extend(token, never) for token in (5, 6, 7))]
            for slot in (slots[2], *slots[:2])
        )
        for other in each_of(others):
            compared += 1
            assert all((ours == theirs).all() for ours, theirs in zip(first, other, strict=True)), length
    for slot in slots:
        slot.engine.close()
    weights.close()
    assert compared == 12


def test_a_kept_prefix_is_scored_once(scripted):
    slot, ids = Slot(scripted(), None, TOP), (1, 2, 0, 1, 2)
    assert ask(slot, "score again", ids)[2] == 0
    assert ask(slot, "score again", ids)[2] == 4
    assert ask(slot, "score again", (*ids, 1, 1))[2] == 4  # the row after ids was kept, but not for this next token
    assert ask(slot, "score", ids)[2] == 0


def test_only_rows_that_were_computed_are_answered_again(scripted):
    """A prefill leaves a prefix in the cache and no rows along it."""
    slot, ids = Slot(scripted(), None, TOP), (1, 2, 0, 1, 2)
    ask(slot, "prefill", ids)
    assert ask(slot, "score again", ids)[2] == 0
    assert ask(slot, "prefill", ids)[2] == 4


@settings(max_examples=60)
@given(before=IDS, ids=IDS, start=st.integers(0, 90), max_cached=st.integers(0, 90))
def test_rows_from_a_start_are_those_of_the_whole_prompt(scripted, before, ids, start, max_cached):
    """What the cache held decides which rows can be told, and none of their values."""
    slot, watched = Slot(scripted(), None, TOP), ((4, NO_TOKEN),) * max(0, len(ids) - 1 - start)
    ask(slot, "score", before)
    shared, decoded = num_shared(before, ids), slot.engine.num_decoded
    rows, logits, cached = slot.score(ids, Scoring(start, TOP + 1, watched, max_cached), never)
    whole, last, _ = Slot(scripted(), None, TOP + 1).score(ids, Scoring(), never)
    assert cached == min(shared, len(ids) - 1, max_cached)
    assert slot.engine.num_decoded - decoded == len(ids) - cached
    assert logits.tolist() == last.tolist()
    assert len(rows) == len(ids)
    for n, (row, expected) in each_of(enumerate(zip(rows, whole, strict=True))):
        assert (row is not None) == (n > start and n > cached)
        if row is not None:
            assert (row.top, row.beside) == (expected.top, expected.beside)
            logprobs = Dense.from_logits(scripted().extend(ids[:n]).ravel()).logprobs
            assert row.watched == ((4, logprobs[4]), (NO_TOKEN, -np.inf))


def test_rows_need_what_the_cache_does_not_keep(scripted):
    """SGLang's boundary: with the prefix read from the cache, the row of the token at ``start`` is not to be had."""
    slot, ids = Slot(scripted(), None, TOP), (1, 2, 0, 1, 2)
    ask(slot, "prefill", ids)
    rows, _, cached = slot.score(ids, Scoring(start=2, max_cached=2), never)
    assert [row is None for row in rows] == [True, True, True, False, False]
    assert cached == 2
    rows, _, cached = slot.score(ids, Scoring(start=2, max_cached=9), never)
    assert [row is None for row in rows] == [True] * 5
    assert cached == 4


def test_what_one_slot_computed_is_charged_as_cached_by_every_other(scripted):
    """The cache is the server's. The other slot computes the prefix itself, and says what it said before."""
    slots = [Slot(scripted(), None, TOP) for _ in range(2)]
    Slots(slots).share(PrefixCache(block_size=2))
    ids = (1, 2, 0, 1, 2)
    first, second = (ask(slot, "prefill", ids) for slot in slots)
    assert (first[2], second[2]) == (0, 4)
    assert first[1] == second[1]
    assert [slot.engine.num_decoded for slot in slots] == [5, 5]


@pytest.fixture
def lending(scripted):
    """Run a dialogue with slots; every one must be free again at its end."""

    def run(num_slots: int, dialogue) -> None:
        async def main() -> None:
            workers = [Worker(f"slot-{n}") for n in range(num_slots)]
            slots = Slots([Slot(scripted(), worker, TOP) for worker in workers])
            try:
                await dialogue(slots)
                assert len(slots.pool.free) == num_slots
            finally:
                for worker in workers:
                    worker.close()

        asyncio.run(main())

    return run


def test_a_prefix_is_never_shared_between_salts(lending):
    """Another user's prompt must not be found out by how fast, or how cheaply, one's own is answered."""

    async def dialogue(slots: Slots) -> None:
        ids = (1, 2, 0)
        for salt in ("one", "two", None, "one"):
            async with slots.borrow(ids, salt) as slot:
                assert slot.engine.ids == ()
                ask(slot, "score again", ids)
        async with slots.borrow(ids, "one") as slot:
            assert ask(slot, "score again", ids)[2] == 2

    lending(1, dialogue)


class Client:
    """The other end of one request, at the level of ASGI: may stall, and may leave."""

    def __init__(self, app, body: dict, *, stalls_after: int | None = None) -> None:
        self._app, self._body, self._stalls_after = app, json.dumps(body).encode(), stalls_after
        self._asked = False
        self.left, self.stalled = asyncio.Event(), asyncio.Event()
        self.sent = []

    async def _receive(self) -> dict:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        self.sent.append(message)
        if len(self.sent) == self._stalls_after:
            self.stalled.set()
            await asyncio.sleep(60)  # the socket is full

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"x-request-id", b"mine")],
        }
        await self._app(scope, self._receive, self._send)


@pytest.fixture
def no_collector():
    """What is given back only by the garbage collector is not given back."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_client_that_leaves_a_stalled_stream_gives_its_slot_back(lending, scripted):
    async def dialogue(slots: Slots) -> None:
        app = App(Served("m", scripted(), 4000), slots).routes()
        client = Client(app, {"prompt": [1], "max_tokens": 1000, "stream": True}, stalls_after=4)
        running = asyncio.ensure_future(client.run())
        await client.stalled.wait()
        client.left.set()
        await asyncio.wait_for(running, 5)

    lending(1, dialogue)


def test_a_client_that_leaves_the_line_is_charged_nothing(lending, scripted):
    async def dialogue(slots: Slots) -> None:
        app = App(Served("m", scripted(), 4000), slots)
        client = Client(app.routes(), {"prompt": [1], "max_tokens": 10})
        async with slots.borrow((1,), None) as slot:
            running = asyncio.ensure_future(client.run())
            await asyncio.sleep(0.01)
            client.left.set()
            await asyncio.wait_for(running, 5)
            assert slot.engine.num_decoded == 0
        [charge] = app._accounts.told()
        assert charge == {"id": "mine", "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}

    lending(1, dialogue)


def test_what_was_written_is_cached_once_its_slot_is_given_back(lending):
    async def dialogue(slots: Slots) -> None:
        async with slots.borrow((1, 2), None) as slot:
            slot.prefill((1, 2), never)
            slot.extend(0, never)
        async with slots.borrow((1, 2, 0, 1), None) as slot:
            assert slot.prefill((1, 2, 0, 1), never)[1] == 3

    lending(2, dialogue)
