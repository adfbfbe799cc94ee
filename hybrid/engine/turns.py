"""Turns of one decode thread: what several contexts over one set of weights decode, one after another.

A decode is a token, or a chunk of at most 256. A context waits for its own, so that it has one in line at most, and a
line of first come, first served is round robin by decode: another's long prompt delays a token by one chunk.

The laws (``tests/engine/test_turns.py``): two decodes never run at a time; they run in the order in which they were
asked for; an exception reaches whoever asked, and nobody else. This file knows nothing of llama.cpp.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

from hybrid.errors import EngineError


class Turns:
    """Runs decodes one after another: on the caller's thread while there is one context, else on a thread of its own.

    llama.cpp's OpenMP keeps a team of threads for every thread that has decoded, and idle teams spin. So contexts that
    are open at the same time share one thread. A context that is alone need not pay for the hop.
    """

    def __init__(self) -> None:
        """Serve no context yet; the thread is made when a second one comes."""
        self._num_contexts = 0
        self._thread: ThreadPoolExecutor | None = None
        # A context that was alone may still be decoding on its own thread when the second one comes.
        self._decoding = threading.Lock()
        self._changing = threading.Lock()
        self._closed = False

    def join(self) -> None:
        """Count one more context."""
        with self._changing:
            self._num_contexts += 1
            if self._num_contexts > 1 and self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hybrid-decode")

    def leave(self) -> None:
        """Count one context less; the last one but one ends the thread, once what waits in line is done."""
        with self._changing:
            self._num_contexts -= 1
            thread, self._thread = (self._thread, None) if self._num_contexts <= 1 else (None, self._thread)
        if thread is not None:
            thread.shutdown(wait=True)

    def run(self, decode: Callable[[], int]) -> tuple[int, float]:
        """Run a decode in its turn and return its result, and the seconds that it has waited for the turns of others.

        Raises what ``decode`` raises, and EngineError where the turns were closed before this one came.
        """
        asked = time.perf_counter()
        with self._changing:
            waiting = None if self._thread is None else self._thread.submit(self._timed, decode)
            closed = self._closed
        if closed:
            raise EngineError(_CLOSED)
        if waiting is None:
            result, took = self._timed(decode)
        else:
            try:
                result, took = waiting.result()
            except CancelledError:
                raise EngineError(_CLOSED) from None
        return result, max(0.0, time.perf_counter() - asked - took)

    def close(self) -> None:
        """Wait for the decode that runs. Those in line, and all that come, raise EngineError."""
        with self._changing:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)
        with self._decoding:
            pass

    def _timed(self, decode: Callable[[], int]) -> tuple[int, float]:
        with self._decoding:
            began = time.perf_counter()
            return decode(), time.perf_counter() - began


_CLOSED = "the local model was closed while something was being decoded"
