"""llama.cpp's C interface, loaded here and nowhere else: where it cannot be, that is one sentence.

The other files of this room write ``from hybrid.engine.native import ll``. The law (``tests/engine/test_native.py``): a
library that is missing, was built for another system or lacks one of its own is an EngineError, and a processor that
lacks an instruction of it ends the process with a sentence and the exit code of an unusable model.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from hybrid.errors import EngineError, to_one_line

__all__ = [
    "EXIT_ENGINE",
    "DecodeQueue",
    "MappedFiles",
    "default_threads",
    "end_process",
    "forget_errors",
    "last_error",
    "ll",
    "recent_errors",
    "safe_model_params",
    "take_log",
    "why_not_loaded",
]


# The exit code of a local model that cannot be used, as ``hybrid.cli`` has it.
EXIT_ENGINE = 3
MEND = "build it on this machine: pip install --force-reinstall --no-deps --no-binary llama-cpp-python llama-cpp-python"


def end_process(said: str) -> None:
    """End the process at once, with a sentence: what the library has done cannot be raised as an exception."""
    os.write(2, f"hybrid: {said}\n".encode())
    os._exit(EXIT_ENGINE)


def _illegal(_: int) -> None:
    end_process(f"this processor lacks an instruction that llama.cpp was built with: {MEND}")


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_ILLEGAL = _HANDLER(_illegal)  # the process keeps the pointer; so must we


def _mind_processor() -> None:
    """End with a sentence at an illegal instruction, where nobody else minds that signal (faulthandler does).

    Python's own handlers would be called between two of its instructions, to which such a process never comes.
    """
    if os.name != "posix" or signal.getsignal(signal.SIGILL) is not signal.SIG_DFL:
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    previous = libc.signal(signal.SIGILL, ctypes.cast(_ILLEGAL, ctypes.c_void_p))
    if previous:  # a handler that Python does not know
        libc.signal(signal.SIGILL, previous)


def _reason(error: BaseException) -> str:
    """Return what the loader said: the first error of a chain names the library that is missing."""
    while error.__context__ is not None:
        error = error.__context__
    return to_one_line(error) or type(error).__name__


_mind_processor()
try:
    import llama_cpp as ll
except ModuleNotFoundError as error:
    _said = f"llama.cpp is not installed: {_reason(error)} (pip install llama-cpp-python)"
    raise EngineError(_said) from None
except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
    _said = f"llama.cpp cannot be loaded: {_reason(error)}; {MEND}"
    raise EngineError(_said) from None


# llama.cpp in this process: its log, its last words, its threads, and what every model is loaded with.

_ERROR_LEVEL = 4


def default_threads() -> int:
    """One thread fewer than physical or permitted cores: llama.cpp spins while it waits for a core that is busy."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed) - 1)


class _Log:
    """Takes llama.cpp's log over and keeps its last errors, for the sentence of an EngineError."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._callback = ll.llama_log_callback(self._take)  # llama.cpp keeps the pointers; so must we
        self._last_words = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_give_up)

    def install(self) -> None:
        """Take llama.cpp's messages over, and its last words."""
        ll.llama_log_set(self._callback, ctypes.c_void_p(0))
        if set_last_words := getattr(ll.llama_cpp._lib, "ggml_set_abort_callback", None):
            set_last_words(self._last_words)

    def _take(self, level: int, text: bytes, _: object) -> None:
        if level == _ERROR_LEVEL:
            self.errors = [*self.errors[-4:], text.decode("utf-8", "replace").strip()]


def _give_up(reason: bytes) -> None:
    """End the process with the exit code of an unusable model; llama.cpp would abort it, with a core dump.

    An assertion of llama.cpp cannot be raised as an exception: it fails on any thread, and llama.cpp aborts once this
    function returns. ``engine.model_check`` refuses the models whose assertions were ever seen to fail.
    """
    end_process(f"llama.cpp cannot go on with this model: {_without_folder(reason.decode('utf-8', 'replace'))}")


def _without_folder(reason: str) -> str:
    r"""Return last words in a line, without the folder of the source file that begins them.

    >>> _without_folder(r"D:\a b\ggml\ggml.c:12: GGML_ASSERT(ne / 2 == n) failed")
    'ggml.c:12: GGML_ASSERT(ne / 2 == n) failed'
    """
    return to_one_line(re.sub(r"\A.*?[\\/](?=[^\\/:]+:[0-9]+: )", "", reason))


_LOG = _Log()


def take_log() -> None:
    """Make llama.cpp ready, forget its last complaints and keep those that follow."""
    _LOG.install()
    ll.llama_backend_init()
    forget_errors()


def why_not_loaded() -> str:
    """Return what llama.cpp said of a file that it did not load."""
    detail = next((e for e in recent_errors() if "error loading model:" in e), "damaged or of an unknown kind")
    return detail.split("error loading model:")[-1].strip()


def forget_errors() -> None:
    """Forget llama.cpp's last complaints."""
    _LOG.errors.clear()


def recent_errors() -> list[str]:
    """Return llama.cpp's last complaints, at most five."""
    return _LOG.errors


def last_error() -> str:
    """Return llama.cpp's last complaint."""
    return _LOG.errors[-1] if _LOG.errors else "no reason given"


def safe_model_params() -> ll.llama_model_params:
    """Return llama.cpp's own parameters of a model, without Intel's tile instructions where it was built for them.

    On quantised weights those end the process: gcc drops llama.cpp's tile configuration as unused, and the first tile
    instruction is then an illegal one (llama.cpp pull request 26954). Without the extra buffer types the weights are
    multiplied as on any other machine.
    """
    params = ll.llama_model_default_params()
    params.use_extra_bufts = b"AMX_INT8 = 1" not in ll.llama_print_system_info()
    return params


# Turns of one decode thread: what several contexts over one set of weights decode, one after another.
#
# A decode is a token, or a chunk of at most 256. A context waits for its own, so that it has one in line at most, and a
# line of first come, first served is round robin by decode: another's long prompt delays a token by one chunk.
#
# The laws (``tests/engine/test_turns.py``): two decodes never run at a time; they run in the order in which they were
# asked for; an exception reaches whoever asked, and nobody else. It knows nothing of llama.cpp.


class DecodeQueue:
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


# The files of a model while llama.cpp has them mapped: what a file loses meanwhile is read as a fault of the memory.
#
# Such a fault (SIGBUS) ends the process, and nothing here can catch it. So the files are looked at before each
# question: of one that has shrunk or been written to since, no more is read. A file that another one has replaced is
# still there for whoever has mapped it, and changes nothing. The law: ``tests/engine/test_mapped_files.py``.


class MappedFiles:
    """Open files, and their sizes and times as they were when this was made."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files. Raises EngineError where that cannot be."""
        self._files: dict[int, tuple[Path, tuple[int, int]]] = {}
        try:
            for path in paths:
                fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                self._files[fd] = (path, _state_of(fd))
        except OSError as error:
            self.close()
            msg = f"the model file {path} cannot be read: {error.strerror}"
            raise EngineError(msg) from error

    def check_named(self) -> None:
        """Raise EngineError where another file has a name by now: which of the two was loaded is not known."""
        for fd, (path, _) in self._files.items():
            with suppress(OSError):
                if os.path.samestat(path.stat(), os.fstat(fd)):
                    continue
            msg = f"the model file {path} was replaced while it was loaded: try again"
            raise EngineError(msg)

    def check_unchanged(self) -> None:
        """Raise EngineError where a file has another size, or was written to."""
        for fd, (path, state) in self._files.items():
            if _state_of(fd) != state:
                msg = f"the model file {path} was changed while it was in use: start again, and replace it by a rename"
                raise EngineError(msg)

    def close(self) -> None:
        """Close the files."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()


def _state_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns
