"""A process that asks what it is told to on standard input, an object a line, and says how it went and what it took.

    {"cloud": url, "policy": "kl", ...}  ->  {"text": ..., "degraded": ..., "seconds": ..., "grown": bytes}

Many questions share one process, so that a table of hundreds is not hundreds of starts; each has a client of its own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import hybrid
from hybrid.errors import HybridError

PROC = Path("/proc/self")
PATIENCE_S = 60.0


def memory(name: str) -> int:
    """``VmRSS``: what is held, ``VmHWM``: the most since the last ``forget_peak``; bytes."""
    [line] = [line for line in (PROC / "status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    gc.collect()
    (PROC / "clear_refs").write_text("5")


def ask(settings: dict[str, Any]) -> dict[str, Any]:
    forget_peak()
    before, began = memory("VmRSS"), time.monotonic()
    told: dict[str, Any] = {}
    try:
        with hybrid.open(**settings) as client:
            answer = client.generate("What is 47 + 86?")
        sources = [token.source for token in answer.tokens]
        told = {"text": answer.text, "degraded": answer.degraded, "sources": sources, "bill": answer.bill.nanousd}
    except HybridError as error:
        told = {"error": str(error), "kind": type(error).__name__}
    return told | {"seconds": time.monotonic() - began, "grown": memory("VmHWM") - before}


class Child:
    """The process, for whoever asks; a question that takes too long ends it."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def ask(self, **settings: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        impatience = threading.Timer(PATIENCE_S, self._process.kill)
        impatience.start()
        try:
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            impatience.cancel()
        assert line, f"the process ended with {self._process.wait()}"
        return json.loads(line)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(ask(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
