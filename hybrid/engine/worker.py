"""One owner thread per engine: llama.cpp contexts crash or freeze if two threads use them at once.

The law (``tests/engine/test_worker.py``): at most one piece of work runs at a time, and a cancelled caller returns only
once its work has stopped, so that the next caller finds the engine at rest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from hybrid.engine.port import IsCancelled

T = TypeVar("T")


class Worker:
    """A thread that does one thing after another."""

    def __init__(self, name: str) -> None:
        """Name the thread, for debuggers."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._begun: Future[None] | None = None

    async def do(self, work: Callable[[IsCancelled], T]) -> T:
        """Run ``work`` on the thread and return its result. Its argument says whether the caller was cancelled."""
        stop, begun = threading.Event(), self._begun
        self._begun = None

        def in_turn() -> T:
            if begun is not None:
                begun.result()  # it was in line before us, so it has ended
            return work(stop.is_set)

        future = asyncio.get_running_loop().run_in_executor(self._pool, in_turn)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            # Cancelling again (anyio's scopes do, at every turn of the loop) must not free the caller earlier.
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # seen, so that nobody reports it as lost
            raise

    def begin(self, work: Callable[[], None]) -> None:
        """Queue work without waiting for it. The next ``do`` waits for it and raises its exception."""
        self._begun = self._pool.submit(work)

    def close(self) -> None:
        """Wait for the running work and end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)
