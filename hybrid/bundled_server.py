"""A server of our own: ``python -m server_stub`` in a child process, which ends with us."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hybrid.errors import Unreachable
from hybrid.model_names import MODELS

BUNDLED_CLOUD = MODELS / "large.gguf"
STUB_STARTS_WITHIN_S = 60.0


@asynccontextmanager
async def bundled_server(model: Path = BUNDLED_CLOUD, *flags: str) -> AsyncIterator[str]:
    """Serve a model from a child process and yield its URL. The child ends with us, however we end.

    ``flags`` are further ones of ``python -m server_stub``.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "server_stub", "--model", str(model), "--port", "0"),
        *("--threads", "1", "--until-stdin-closes", *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is ours to handle: the child ends when its standard input closes
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # what Windows has of sessions
    )
    try:
        yield await _address(process)
    finally:
        if process.stdin:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    line = b""
    if process.stdout:
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), STUB_STARTS_WITHIN_S)
    before, found, url = line.decode().strip().partition("listening on ")
    if before or not found:
        msg = "the bundled server did not start"
        raise Unreachable(msg, sent=False)
    return url
