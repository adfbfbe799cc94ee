"""``hybrid bench serve``: what an answer takes longer over the endpoint's wire than from the library.

The same question goes in turn to a client in this process and to ``hybrid serve`` in a child, over one connection that
stays open. Both decode with the bundled small model on one thread, and no cloud is asked: what differs is the wire. A
relay is held against its upstream, a server in this process that answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from hybrid.assemble import BUNDLED_LOCAL, ClientOpener
from hybrid.errors import EngineError
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, milliseconds
from hybrid.run import AsyncClient, TokenEmitted
from hybrid.settings.config import Settings
from hybrid.tasks import BY_NAME, distinct
from hybrid.types import Message

FAMILY, QUESTIONS, MAX_TOKENS = "multiplication", 10, 64
WARM_UP = 2
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
RELAYED = {
    "model": "hybrid",
    "messages": [{"role": "user", "content": "Is it so?"}],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}],
    "max_tokens": 9,
}
STARTS_WITHIN_S = 60.0


@dataclass(frozen=True)
class TimedAnswer:
    """Seconds to an answer's first text and to its end, and in how many parts it came."""

    first_s: float
    whole_s: float
    parts: int

    @property
    def part_s(self) -> float:
        """Seconds a part after the first, the end of the answer included."""
        return (self.whole_s - self.first_s) / max(1, self.parts - 1)


def run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Measure both in turn."""
    return asyncio.run(_run(report_progress, repetitions))


async def _run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    questions = [each.question for each in distinct(BY_NAME[FAMILY], "test", QUESTIONS, seed=0)]
    library, wire, models, relays = list[TimedAnswer](), list[TimedAnswer](), list[float](), list[float]()
    settings = Settings.model_construct(
        local=BUNDLED_LOCAL, cloud=None, offline=True, policy="local", threads=1, parallel=1, seed=0
    )
    async with (
        ClientOpener(settings) as client,
        _upstream() as upstream,
        _served(upstream) as url,
        _connection(url) as connection,
        _connection(upstream) as direct,
    ):
        for turn in range(-WARM_UP, repetitions):
            report_progress(f"an answer from the library, and over the wire: {max(0, turn)} of {repetitions}")
            question = questions[turn % QUESTIONS]
            pair = await _library(client, question), await connection.answer(question)
            if turn >= 0:
                library.append(pair[0])
                wire.append(pair[1])
        for turn in range(-WARM_UP, repetitions):  # apart: what decodes in between leaves nothing in a core's cache
            relayed, listed = await connection.relayed() - await direct.relayed(), await connection.models()
            if turn >= 0:
                relays.append(relayed)
                models.append(listed)
    setting = "the bundled small model alone, one thread; hybrid serve in a process of its own, one connection"
    return BenchmarkReport("serve", setting, (*_figures(library, wire), *_plain(models, relays)))


def _figures(library: Sequence[TimedAnswer], wire: Sequence[TimedAnswer]) -> tuple[Measurement, ...]:
    pairs = list(zip(wire, library, strict=True))
    first = milliseconds([one.first_s - other.first_s for one, other in pairs])
    part = milliseconds([one.part_s - other.part_s for one, other in pairs])
    alone = milliseconds([each.first_s for each in library]), milliseconds([each.part_s for each in library])
    return (
        Measurement("first token, over the library's", first, "ms", "<= 2", f"there: {alone[0].median:.1f} ms"),
        Measurement("further chunk, over the library's", part, "ms", "<= 0.15", f"there: {alone[1].median:.2f} ms"),
    )


def _plain(models: Sequence[float], relays: Sequence[float]) -> tuple[Measurement, ...]:
    return (
        Measurement("a relay, over its upstream", milliseconds(relays), "ms", "<= 1.5"),
        Measurement("GET /v1/models", milliseconds(models), "ms", "<= 50"),
    )


async def _library(client: AsyncClient, question: str) -> TimedAnswer:
    began, times = time.perf_counter(), list[float]()
    turns = [Message("user", question)]
    async with aclosing(client.stream(turns, max_tokens=MAX_TOKENS)) as events:
        async for event in events:
            if isinstance(event, TokenEmitted) and event.token.text:
                times.append(time.perf_counter() - began)
    return TimedAnswer(times[0], time.perf_counter() - began, len(times))


# ---- the wire --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    """Answer every request at once with the same reply; yield the address."""
    reply = json.dumps({"choices": [{"message": {"content": "yes"}}], "usage": USAGE}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(reply)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: (\d+)", asked)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(head + reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def _served(upstream: str) -> AsyncIterator[str]:
    """Serve from a child process with nobody's own settings; yield its address."""
    with tempfile.TemporaryDirectory(prefix="hybrid-bench-") as folder:
        own = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
        own |= {"HYBRID_RELAY_URL": f"{upstream}/v1", "HYBRID_RELAY_MODEL": "upstream", "HYBRID_RELAY_PRICE": "free"}
        flags = ("--threads", "1", "--parallel", "1", "--seed", "0", "--port", "0")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "hybrid", "serve", *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=own | {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder},
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield await _address(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(STARTS_WITHIN_S):
        line = (await process.stdout.readline()).decode()
    found = re.search(r"OPENAI_BASE_URL=(http://[^/]+)/v1", line)
    if found is None:
        msg = "hybrid serve did not start"
        raise EngineError(msg)
    return found[1]


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[_Wire]:
    """Yield one connection that stays open."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield _Wire(reader, writer, address.netloc)
    finally:
        writer.close()


class _Wire:
    """HTTP/1.1 over one connection, as little of it as the endpoint answers in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    async def models(self) -> float:
        """Return the seconds that the list of models takes."""
        began = time.perf_counter()
        self._send("GET", "/v1/models", b"")
        length = re.search(rb"content-length: (\d+)", await self._head())
        assert length is not None
        await self._reader.readexactly(int(length[1]))
        return time.perf_counter() - began

    async def relayed(self) -> float:
        """Return the seconds that an answer takes which no hybrid can give."""
        began = time.perf_counter()
        self._send("POST", "/v1/chat/completions", json.dumps(RELAYED).encode())
        length = re.search(rb"content-length: (\d+)", await self._head())
        assert length is not None
        await self._reader.readexactly(int(length[1]))
        return time.perf_counter() - began

    async def answer(self, question: str) -> TimedAnswer:
        """Return how long an answer took that is streamed."""
        body = {"model": "hybrid:local", "messages": [{"role": "user", "content": question}], "stream": True}
        sent = json.dumps(body | {"max_tokens": MAX_TOKENS}).encode()
        began, times = time.perf_counter(), list[float]()
        self._send("POST", "/v1/chat/completions", sent)
        await self._head()
        while (size := int(await self._reader.readline(), 16)) > 0:
            part = await self._reader.readexactly(size + 2)
            texts = part.count(b'"content":"') - part.count(b'"content":""')
            times += [time.perf_counter() - began] * texts
        await self._reader.readline()
        return TimedAnswer(times[0], time.perf_counter() - began, len(times))

    def _send(self, method: str, path: str, body: bytes) -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            msg = "hybrid serve refuses the benchmark's request"
            raise EngineError(msg)
        return head.lower()
