"""Several lines of a batch at once: tasks that answer, one loop that begins and keeps lines, and what ends it.

The law: at most so many lines are being answered at once as there are places; they are begun in the input's order; what
ends the batch (a failure that is no line's, Ctrl-C, SIGTERM) cancels those that are being answered and returns when
they are settled, and what was finished until then is kept (``tests/cli/test_batch_run.py``). One line at a time is the
same loop. What a line asks, and where it is kept, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, Generic, TypeVar

from hybrid.batch.questions import InputLine

Found = TypeVar("Found")


@dataclass(frozen=True)
class ParallelLines(Generic[Found]):
    """How lines are answered and kept, and how many at once. ``keep`` may raise what ends the batch."""

    parallel: int
    answer: Callable[[InputLine], Coroutine[Any, Any, Found]]
    keep: Callable[[InputLine, Found], None]

    async def run(self, todo: Iterator[InputLine]) -> None:
        """Answer all these lines. Raises what ended the batch; nothing is being answered any more then."""
        running: dict[asyncio.Task[Found], InputLine] = {}
        reading: asyncio.Task[InputLine | None] | None = None
        is_over = False
        try:
            while True:
                if not (is_over or reading or len(running) >= self.parallel):
                    reading = asyncio.create_task(_read(todo))
                if not (waiting := {*running, *([reading] if reading else [])}):
                    return
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                self._keep(running, done)
                if reading in done:
                    line, reading = reading.result(), None
                    is_over = line is None
                    if line is not None:
                        running[asyncio.create_task(self.answer(line))] = line
        finally:
            await _settled({*running, *([reading] if reading else [])})
            with suppress(asyncio.CancelledError, Exception):  # what ended the batch is told
                self._keep(running, set(running))

    def _keep(self, running: dict[asyncio.Task[Found], InputLine], done: set[asyncio.Task[Any]]) -> None:
        """Keep what lines came to, and only then raise what one of them raised."""
        finished = sorted(done & running.keys(), key=lambda task: running[task].number)
        failed = [task for task in finished if task.cancelled() or task.exception()]
        for task in finished:
            line = running.pop(task)
            if task not in failed:
                self.keep(line, task.result())
        for task in failed:
            task.result()


async def _read(lines: Iterator[InputLine]) -> InputLine | None:
    """Return the next line, None at the end. It is read in a thread that nobody waits for: a pipe may stay silent."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[InputLine | None] = loop.create_future()

    def read() -> None:
        try:
            found = next(lines, None)
        except Exception as error:  # noqa: BLE001  (raised where the line is waited for)
            tell(line.set_exception, error)
        else:
            tell(line.set_result, found)

    def tell(how: Callable[[Any], None], what: object) -> None:
        with suppress(RuntimeError):  # the batch has ended, and its loop is closed
            loop.call_soon_threadsafe(lambda: None if line.done() else how(what))

    Thread(target=read, daemon=True).start()
    return await line


async def _settled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return once they have ended."""
    for task in tasks:
        task.cancel()
    while any(not task.done() for task in tasks):
        with suppress(asyncio.CancelledError):  # asked to hurry: they are ending already
            await asyncio.wait(tasks)
    for task in tasks:
        _ = task.cancelled() or task.exception()  # seen, so that nobody reports it as lost
