"""Two servers that nobody here wrote, over a model file: llama.cpp's own (from xllamacpp) and llama-cpp-python's.

As a program (``python real_servers.py llama-server MODEL``) it is one of them, on a free port of the loopback, and ends
when its standard input closes, however the test session ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx

# What each is started from, and a route of its own that answers once the model is loaded.
PACKAGES = {"llama-server": ("xllamacpp", "/health"), "llama-cpp-python": ("fastapi", "/v1/models")}
CONTEXT = 1024
STARTS_WITHIN_S = 60.0


def missing(family: str) -> str | None:
    """Say what must be installed for a server, if it is not."""
    package, _ = PACKAGES[family]
    return None if find_spec(package) else f"{package} is not installed: pip install '.[compat]'"


@dataclass
class RealServer:
    """A running one. ``context`` is what it says of the longest text (None: it does not say)."""

    family: str
    url: str
    process: subprocess.Popen
    context: int | None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(family: str, model: Path, log: Path) -> Iterator[RealServer]:
    """Start one, wait until it answers, kill it at the end. ``log`` takes everything it says."""
    with log.open("wb") as said:
        command = [sys.executable, __file__, family, str(model)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
    with process:
        try:
            url = _address(process, log, PACKAGES[family][1])
            yield RealServer(family, url, process, CONTEXT if family == "llama-server" else None)
        finally:
            process.kill()


def _address(process: subprocess.Popen, log: Path, route: str) -> str:
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        found = re.search(rb"(?:listening|running) on (http://[\w.]+:\d+)", log.read_bytes())
        if found:
            url = found[1].decode()
            try:
                if httpx.get(url + route, trust_env=False).is_success:
                    return url
            except httpx.TransportError:
                pass
        time.sleep(0.05)
    raise AssertionError("the server did not start:\n" + log.read_text(errors="replace")[-2000:])


def _llama_server(model: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.port = CONTEXT, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    # As hybrid.engine.native.safe_model_params: on quantised weights tile instructions end the process.
    params.no_extra_bufts = True
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    threading.Event().wait()


def _llama_cpp_python(model: str) -> None:
    import runpy

    flags = {"model": model, "logits_all": "true", "n_ctx": CONTEXT, "n_threads": 1, "n_threads_batch": 1}
    flags |= {"host": "127.0.0.1", "port": 0}
    sys.argv[1:] = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    runpy.run_module("llama_cpp.server", run_name="__main__")


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    {"llama-server": _llama_server, "llama-cpp-python": _llama_cpp_python}[sys.argv[1]](sys.argv[2])
