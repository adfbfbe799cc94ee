"""``hybrid serve`` as a process under watch: its address, its memory and CPU while it runs, and how it ends.

Knows the command line and Linux's ``/proc``, nothing of the product's code.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

START_S, END_S, SAMPLE_S = 90.0, 30.0, 0.05
MIB = 2**20


class ServeProcess:
    """One server. ``peak_mib``: the most that it held above ``idle_mib`` since ``rest``; ``stderr``: all it said."""

    def __init__(self, folder: Path, *flags: str, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._said = folder / "stderr.txt"
        own = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
        command = [sys.executable, "-m", "hybrid", "serve", "--port", "0", *flags]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, cwd=folder, env=kept | own | variables
            )
        self._ended = threading.Event()
        self._peak = 0.0
        self.idle_mib = 0.0

    def __enter__(self) -> Self:
        self.port = self._find_port()
        self.idle_mib = self._peak = self._memory_mib()
        threading.Thread(target=self._sample, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.process.kill()
        self.process.wait()

    @property
    def stderr(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def peak_mib(self) -> float:
        return max(self._peak, self._memory_mib()) - self.idle_mib

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def cpu_s(self) -> float:
        """CPU seconds of the process so far, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rest(self) -> None:
        """Call this moment idle: what is held now is not counted as any attack's."""
        self.idle_mib = self._peak = self._memory_mib()

    def terminate(self) -> tuple[int | None, float]:
        """Send SIGTERM; return the exit code (None: it had to be killed) and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = None
        return code, time.monotonic() - began

    def _find_port(self) -> int:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.alive:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", self.stderr):
                return int(found[1])
            time.sleep(SAMPLE_S)
        raise RuntimeError(self.stderr)

    def _memory_mib(self) -> float:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0.0
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._peak = max(self._peak, self._memory_mib())


def relay_to(url: str, **more: str) -> Mapping[str, str]:
    """Variables under which a server relays to an upstream that costs nothing."""
    return {"HYBRID_RELAY_URL": url, "HYBRID_RELAY_MODEL": "large-1", "HYBRID_RELAY_PRICE": "free", **more}
