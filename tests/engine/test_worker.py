"""One thing at a time, and no caller leaves while its work still runs."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import pytest

from hybrid.engine import Interrupted, Worker


class Work:
    """Something that stops a while after it is told to, and knows how many like it ran at once."""

    running = 0
    most = 0

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()

    def __call__(self, cancelled):
        Work.running += 1
        Work.most = max(Work.most, Work.running)
        self.started.set()
        give_up = time.monotonic() + 5
        while not cancelled():
            if time.monotonic() > give_up:
                return  # never told, and so never ended
            time.sleep(0.001)
        time.sleep(0.05)  # a chunk that was under way
        Work.running -= 1
        self.ended.set()
        raise Interrupted


@pytest.fixture
def in_loop():
    """Run a coroutine function with a worker, and fail where the loop was handed an exception nobody looked at."""
    lost = []

    async def main(dialogue):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        worker = Worker("engine")
        try:
            await dialogue(worker)
        finally:
            worker.close()

    yield lambda dialogue: asyncio.run(main(dialogue))
    assert lost == []


async def begun(worker: Worker, work: Work) -> asyncio.Task:
    task = asyncio.ensure_future(worker.do(work))
    await asyncio.to_thread(work.started.wait)
    return task


def test_one_thing_runs_at_a_time_and_in_order(in_loop):
    """llama.cpp contexts crash or freeze when two threads meet in them."""
    seen, inside = [], threading.Lock()

    def work(number: int) -> int:
        assert inside.acquire(blocking=False)
        time.sleep(0.002)
        seen.append((number, threading.current_thread().name))
        inside.release()
        return number * 2

    async def dialogue(worker: Worker) -> None:
        numbers = await asyncio.gather(*(worker.do(lambda _, n=n: work(n)) for n in range(10)))
        assert numbers == [n * 2 for n in range(10)]

    in_loop(dialogue)
    assert [number for number, _ in seen] == list(range(10))
    assert {name for _, name in seen} == {"engine_0"}


def test_a_cancelled_caller_returns_once_its_work_has_stopped(in_loop):
    async def dialogue(worker: Worker) -> None:
        work = Work()
        task = await begun(worker, work)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.ended.is_set()

    in_loop(dialogue)


def test_cancelling_again_does_not_let_the_caller_go_earlier(in_loop):
    """A second Ctrl-C, or a timeout inside a closing task group, comes while the first is still honoured."""

    async def dialogue(worker: Worker) -> None:
        work = Work()
        task = await begun(worker, work)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.005)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.ended.is_set()

    in_loop(dialogue)


def test_a_scope_of_anyio_lets_the_caller_go_no_earlier(in_loop):
    """Starlette cancels a stream's task through anyio, which cancels anew at every turn of the loop."""

    async def dialogue(worker: Worker) -> None:
        work = Work()
        with anyio.move_on_after(0.02) as scope:
            await worker.do(work)
        assert scope.cancelled_caught
        assert work.ended.is_set()

    in_loop(dialogue)


def test_whoever_comes_after_a_cancelled_caller_finds_the_thread_at_rest(in_loop):
    async def dialogue(worker: Worker) -> None:
        Work.most = 0
        first, second, third = Work(), Work(), Work()
        tasks = [await begun(worker, first), *(asyncio.ensure_future(worker.do(work)) for work in (second, third))]
        await asyncio.sleep(0.005)
        tasks[1].cancel()  # it waits in line: its turn comes, and it is told at once
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert Work.running == 0
        assert Work.most == 1
        assert await worker.do(lambda cancelled: cancelled()) is False

    in_loop(dialogue)


def test_an_exception_reaches_the_caller_as_it_is(in_loop):
    async def dialogue(worker: Worker) -> None:
        error = ValueError("mine")

        def fail(_):
            raise error

        with pytest.raises(ValueError, match="mine") as caught:
            await worker.do(fail)
        assert caught.value is error
        assert await worker.do(lambda _: "next") == "next"

    in_loop(dialogue)


def test_the_loop_turns_while_work_is_done(in_loop):
    async def dialogue(worker: Worker) -> None:
        gate = threading.Event()
        waiting = asyncio.ensure_future(worker.do(lambda _: gate.wait(10)))
        await asyncio.sleep(0)
        gate.set()  # reached only because the loop is free
        assert await waiting

    in_loop(dialogue)


def test_what_failed_in_line_is_raised_by_what_comes_next_and_only_there(in_loop):
    """Nobody waits for work that was merely begun; a programming error in it must not vanish."""

    async def dialogue(worker: Worker) -> None:
        worker.begin(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await worker.do(lambda _: "never")
        assert await worker.do(lambda _: "next") == "next"

    in_loop(dialogue)


def test_work_that_was_begun_is_done_before_what_comes_next(in_loop):
    async def dialogue(worker: Worker) -> None:
        order = []
        worker.begin(lambda: (time.sleep(0.02), order.append("begun"))[1])
        await worker.do(lambda _: order.append("next"))
        assert order == ["begun", "next"]

    in_loop(dialogue)


def test_closing_waits_for_what_runs():
    ended = threading.Event()

    async def dialogue() -> None:
        worker, started = Worker("engine"), threading.Event()

        def work(_):
            started.set()
            time.sleep(0.02)
            ended.set()

        task = asyncio.ensure_future(worker.do(work))
        await asyncio.to_thread(started.wait)
        worker.close()
        assert ended.is_set()
        await task

    asyncio.run(dialogue())
