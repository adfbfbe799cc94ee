"""llama.cpp in this process: its log, its last words, its threads, and what every model is loaded with."""

from __future__ import annotations

import ctypes
import os
import re

import psutil

from hybrid.engine.native import end_process, ll
from hybrid.errors import to_one_line

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
