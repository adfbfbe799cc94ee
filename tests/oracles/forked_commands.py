"""``hybrid`` commands by the hundred: each a fork of a process that has everything imported, measured by the kernel.

Run as a program it is that process: requests on standard input, a JSON object a line, and how each ended on standard
output. A child has a session of its own, so that what it starts ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

KEPT = 2000


@dataclass(frozen=True)
class Ended:
    """How a command ended: ``code`` None where it had to be killed. ``peak_mib`` is above what was there before it."""

    code: int | None
    stderr: str
    stdout: str
    cpu_s: float
    peak_mib: float
    seconds: float

    @property
    def sentence(self) -> bool:
        """Whether it ended in one line of printable text, and not in a traceback."""
        said = self.stderr.strip()
        return said.count("\n") == 0 and said.startswith("hybrid: ") and said.isprintable()


class Commands:
    """The process that forks. ``run`` gives it a command line, variables and a working directory."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def run(self, *words: str, cwd: Path, limit_s: float = 30.0, **variables: str) -> Ended:
        assert self._child.stdin
        assert self._child.stdout
        asked = {"argv": words, "cwd": str(cwd), "limit_s": limit_s, "env": variables}
        self._child.stdin.write(json.dumps(asked) + "\n")
        self._child.stdin.flush()
        return Ended(**json.loads(self._child.stdout.readline()))


def command(argv: Sequence[str], cwd: str, env: Mapping[str, str], output: Sequence[int]) -> int:
    """Be the command; return its exit code."""
    from hybrid.__main__ import main

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, there in enumerate((nothing, *output)):
        os.dup2(there, number)
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["hybrid", *argv]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  (whatever it is, it is told)
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Fork, wait and measure."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as shown:
        began = time.monotonic()
        before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if not (pid := os.fork()):
            os._exit(command(asked["argv"], asked["cwd"], asked["env"], (shown.fileno(), said.fileno())))
        killed = False
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            if not killed and time.monotonic() - began > asked["limit_s"]:
                killed = True
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.002)
        used = ended[2]
        texts = []
        for file in (said, shown):
            file.seek(0)
            texts.append(file.read().decode(errors="replace")[-KEPT:])
    return {
        "code": None if killed else os.waitstatus_to_exitcode(ended[1]),
        "stderr": texts[0],
        "stdout": texts[1],
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mib": (used.ru_maxrss * 1024 - before) / 2**20,
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    import numpy as np  # noqa: F401  (imported once, not once a command)

    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
