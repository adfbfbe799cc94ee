"""llama.cpp's C interface, loaded here and nowhere else: where it cannot be, that is one sentence.

The other files of this room write ``from hybrid.engine.native import ll``. The law (``tests/engine/test_native.py``): a
library that is missing, was built for another system or lacks one of its own is an EngineError, and a processor that
lacks an instruction of it ends the process with a sentence and the exit code of an unusable model.
"""

from __future__ import annotations

import ctypes
import os
import signal

from hybrid.errors import EngineError, to_one_line

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

__all__ = ["EXIT_ENGINE", "end_process", "ll"]
