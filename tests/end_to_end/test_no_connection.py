"""A real ``hybrid ask`` while the machine's resolver hangs: it ends when it has given up, or when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from cases import each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Python reads this at its start: the resolver of the machine hangs, and a file says that it was asked.
HANGS = """
import pathlib, socket, time
def hang(*_, **__):
    pathlib.Path({mark!r}).touch()
    time.sleep(300)
socket.getaddrinfo = hang
"""


@pytest.fixture
def ask(tmp_path, bundled):
    """Start ``hybrid ask`` in a process whose resolver hangs; deadlines are settings, in seconds."""
    mark = tmp_path / "asked"
    (tmp_path / "sitecustomize.py").write_text(HANGS.format(mark=str(mark)))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    @contextmanager
    def start(url, **deadlines):
        settings = {f"HYBRID_{name.upper()}": str(value) for name, value in deadlines.items()}
        command = [
            sys.executable,
            "-m",
            "hybrid",
            "ask",
            "--local",
            "small",
            "--cloud",
            url,
            "--max-tokens",
            "8",
            "What is 47 + 86?",
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path} | settings, **pipes) as process:
            try:
                process.mark = mark
                yield process
            finally:
                process.kill()

    return start


@each("deadlines", [{"request_timeout_s": 2}, {"connect_timeout_s": 2, "retries": 0}], ids=str)
def test_a_resolver_that_hangs_keeps_neither_the_answer_nor_the_process(ask, deadlines):
    """It would hang for 300 seconds; a look-up in asyncio's own threads is waited for at exit."""
    with ask("http://there.invalid", **deadlines) as process:
        out, err = process.communicate(timeout=60)
    assert process.mark.exists()
    assert process.returncode == 0
    assert out.strip()
    assert "after 2 s" in err or "within 2 s" in err
    assert err.count("\n") == 1


def test_ctrl_c_ends_it_while_the_resolver_hangs(ask):
    with ask("http://there.invalid", connect_timeout_s=200, request_timeout_s=200) as process:
        ends_at = time.monotonic() + 60
        while not process.mark.exists():
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
