"""Turns: one decode at a time, first come, first served, whoever asks; and nothing is left running."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cases import each

from hybrid.engine import Interrupted, Worker
from hybrid.engine import llama as llama_room
from hybrid.engine.llama import CHUNK
from hybrid.engine.native import DecodeQueue
from hybrid.errors import EngineError

LONG = tuple(1 + i % 200 for i in range(4 * CHUNK - 30))


def wait_until(done) -> None:
    """Wait for what another thread is about to do; where it never does, the test is to fail and not to hang."""
    give_up = time.monotonic() + 5
    while not done() and time.monotonic() < give_up:
        time.sleep(0.0002)


class Watch:
    """Decodes that note when they run, on which thread, and that no other runs meanwhile."""

    def __init__(self) -> None:
        self.inside = threading.Lock()
        self.order, self.threads = [], set()

    def decode(self, name, *, s=0.002, error=None):
        def work():
            assert self.inside.acquire(blocking=False), "two decodes at a time"
            try:
                self.order.append(name)
                self.threads.add(threading.current_thread().name)
                time.sleep(s)
                if error:
                    raise error
                return 0
            finally:
                self.inside.release()

        return work


def test_two_decodes_never_run_at_a_time_even_while_contexts_come_and_go():
    """A context that was alone decodes on its own thread; it may be in the middle when the second one comes."""
    turns, watch = DecodeQueue(), Watch()

    def use(number):
        for _ in range(5):
            turns.join()
            for i in range(4):
                assert turns.run(watch.decode((number, i), s=0.0005))[0] == 0
            turns.leave()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert len(watch.order) == 80


def test_a_context_that_is_alone_decodes_on_its_own_thread_and_several_on_one_other():
    turns, watch = DecodeQueue(), Watch()
    turns.join()
    turns.run(watch.decode("alone"))
    assert watch.threads == {threading.current_thread().name}
    turns.join()
    watch.threads.clear()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: turns.run(watch.decode(n)), range(9)))
    assert watch.threads == {"hybrid-decode_0"}
    turns.leave()
    watch.threads.clear()
    turns.run(watch.decode("alone again"))
    assert watch.threads == {threading.current_thread().name}


def test_decodes_run_in_the_order_in_which_they_were_asked_for():
    turns, watch, begun = DecodeQueue(), Watch(), threading.Event()
    turns.join()
    turns.join()

    def first():
        begun.set()
        return watch.decode("first", s=0.4)()

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(turns.run, first)]
        begun.wait()
        for n in range(6):
            waiting.append(pool.submit(turns.run, watch.decode(n)))
            wait_until(lambda n=n: turns._thread._work_queue.qsize() > n)
        waits = [future.result()[1] for future in waiting]
    assert watch.order == ["first", *range(6)]
    assert waits[0] < 0.3
    assert all(wait > 0.1 for wait in waits[1:]), "what others took is told, what one took oneself is not"


def test_an_exception_reaches_whoever_asked_and_nobody_else():
    turns, watch = DecodeQueue(), Watch()
    turns.join()
    turns.join()
    error = EngineError("mine")
    with ThreadPoolExecutor(3) as pool:
        good = [pool.submit(turns.run, watch.decode(n)) for n in range(2)]
        bad = pool.submit(turns.run, watch.decode("bad", error=error))
        assert bad.exception() is error
        assert [future.result()[0] for future in good] == [0, 0]
    assert turns.run(watch.decode("next"))[0] == 0


def test_closing_waits_for_what_runs_and_refuses_what_waits_and_what_comes():
    turns, watch, begun = DecodeQueue(), Watch(), threading.Event()
    turns.join()
    turns.join()
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(turns.run, lambda: (begun.set(), watch.decode("running", s=0.05)())[1])
        begun.wait()
        waiting = [pool.submit(turns.run, watch.decode("waiting")) for _ in range(2)]
        wait_until(lambda: turns._thread._work_queue.qsize() == 2)
        turns.close()
        assert watch.order == ["running"]
        assert running.result()[0] == 0
        for future in waiting:
            with pytest.raises(EngineError, match="was closed"):
                future.result()
    with pytest.raises(EngineError, match="was closed"):
        turns.run(watch.decode("late"))


@pytest.fixture
def decodes(monkeypatch):
    """Note whose every llama.cpp decode is and how many tokens it has, and that no two run at a time."""
    seen, inside, decode = [], threading.Lock(), llama_room.ll.llama_decode

    def noted(ctx, batch):
        assert inside.acquire(blocking=False), "two decodes at a time"
        try:
            seen.append((ctx, batch.n_tokens, threading.current_thread().name))
            return decode(ctx, batch)
        finally:
            inside.release()

    monkeypatch.setattr(llama_room.ll, "llama_decode", noted)
    return seen


@each("kind", ["bundled", "hybrid"])
def test_a_long_prompt_delays_anothers_token_by_one_chunk(opened, decodes, monkeypatch, kind):
    """Every decode here waits until the other context is in line; then that one is next."""
    noted = llama_room.ll.llama_decode
    with opened(kind) as reader, opened(kind) as writer:
        decodes.clear()  # a first recurrent context tries its memory
        over, line = threading.Event(), reader._turns._thread._work_queue

        def decode(ctx, batch):
            wait_until(lambda: line.qsize() or over.is_set())
            return noted(ctx, batch)

        monkeypatch.setattr(llama_room.ll, "llama_decode", decode)

        def write():
            for _ in range(3):
                writer.extend((5,))
            over.set()

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(reader.extend, LONG, 1), pool.submit(write)]:
                future.result()
        assert {thread for _, _, thread in decodes} == {"hybrid-decode_0"}
        assert [num_tokens for ctx, num_tokens, _ in decodes if ctx == reader._ctx] == [CHUNK] * 3 + [CHUNK - 31, 1]
        own = [i for i, (ctx, _, _) in enumerate(decodes) if ctx == writer._ctx]
        assert own in ([0, 2, 4], [1, 3, 5]), "a chunk between two tokens"
        assert writer.waited_s > 0


def test_a_cancelled_caller_leaves_no_decode_running_and_no_decode_in_line(opened, decodes):
    with opened("bundled") as one, opened("bundled") as other:

        async def dialogue():
            workers = Worker("one"), Worker("other")
            engines = one, other
            for _ in range(20):
                tasks = [
                    asyncio.ensure_future(worker.do(lambda cancelled, e=engine: e.extend(LONG, 1, cancelled)))
                    for worker, engine in zip(workers, engines, strict=True)
                ]
                await asyncio.sleep(0.001)
                tasks[0].cancel()
                await asyncio.wait([tasks[0]])
                mine = sum(ctx == one._ctx for ctx, _, _ in decodes)
                await tasks[1]
                assert sum(ctx == one._ctx for ctx, _, _ in decodes) == mine
                for engine in engines:
                    engine.rewind(0)
            for worker in workers:
                worker.close()

        asyncio.run(dialogue())


def test_an_interrupted_context_does_not_hold_the_others_up(opened):
    with opened("bundled") as one, opened("bundled") as other:
        with pytest.raises(Interrupted):
            one.extend(LONG, 1, lambda: bool(one.ids))
        assert len(one.ids) == CHUNK
        assert other.extend((1, 2)).shape[0] == 1


def test_a_context_that_is_alone_waits_for_nobody(opened):
    """Of several texts the least wait tells it: the machine may have taken the core away during the others."""
    with opened("bundled") as engine:
        waited = []
        for _ in range(7):
            before = engine.waited_s
            engine.extend(LONG, 1)
            waited.append(engine.waited_s - before)
            engine.rewind(0)
        assert min(waited) < 0.005


def test_contexts_that_are_not_in_turn_decode_beside_the_others(weights, decodes):
    """The server's slots: its figures are those of a server that computes side by side."""
    contexts = [weights["bundled"].context(64, 1, in_turn=False) for _ in range(2)]
    for context in contexts:
        context.extend((1, 2, 3))
        context.close()
    assert {thread for _, _, thread in decodes} == {threading.current_thread().name}
