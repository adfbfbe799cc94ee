"""Run a command (``python supervised.py COMMAND ...``) until standard input closes: however the test session ends.

Every process that came of the command is ended with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import psutil

ENDS_WITHIN_S = 10.0


def _supervise(command: list[str]) -> None:
    """Run a command in a session of its own; end all of it when it ends or standard input does."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), ended.set()), daemon=True).start()
    threading.Thread(target=lambda: (server.wait(), ended.set()), daemon=True).start()
    ended.wait()
    family = _processes_of(server.pid)
    server.terminate()  # it frees its shared memory
    psutil.wait_procs(family, timeout=ENDS_WITHIN_S)
    for process in {*family, *_processes_of(server.pid)}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(0)


def _processes_of(session: int) -> list[psutil.Process]:
    """Find what belongs to a session, and what came of it and left."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == session:
                found += [process, *process.children(recursive=True)]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this
    _supervise(sys.argv[1:])
