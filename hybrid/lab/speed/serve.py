"""Processes and many questions: ``hybrid bench serve``, ``batch`` and ``parallel``.

``serve``: what an answer takes longer over the endpoint's wire than from the library. ``batch``: what several lines at
once save, over an endpoint that takes 100 ms for a reply. ``parallel``: what questions that are answered at once cost
one another, and what they save.
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
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, bundled_server
from hybrid.engine import Worker
from hybrid.engine.llama import Weights
from hybrid.errors import EngineError, Unreachable
from hybrid.lab.speed.measure import (
    KEPT,
    WARM_UP,
    Bench,
    client_of,
    milliseconds,
    problems_of,
    seconds_of,
    wait_in_turn,
)
from hybrid.run import AsyncClient, Finished, LocalModel, RequestSent, Started, TokenEmitted
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.spend import Account, MemoryLedger
from hybrid.types import Message

# The same question goes in turn to a client in this process and to ``hybrid serve`` in a child, over one connection
# that stays open. Both decode with the bundled small model on one thread, and no cloud is asked: what differs is the
# wire. A relay is held against its upstream, a server in this process that answers at once.

ASKED, ANSWER_TOKENS = 10, 64
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
    """Seconds to an answer's first text, and a part after the first, the end of the answer included."""

    first_s: float
    part_s: float

    @classmethod
    def of(cls, began: float, times: list[float]) -> TimedAnswer:
        """Take an answer that has just ended, from when it began and its texts came."""
        return cls(times[0] - began, (time.perf_counter() - times[0]) / max(1, len(times) - 1))


async def serve(bench: Bench) -> str:
    """Measure library and wire in turn; then, apart, what decodes nothing: it leaves nothing in a core's cache."""
    questions = problems_of("multiplication", ASKED)
    async with (
        client_of(None, offline=True, policy="local", parallel=1) as client,
        _upstream() as upstream,
        _served(upstream) as url,
        _connection(url) as wire,
        _connection(upstream) as direct,
    ):

        async def from_library(i: int) -> TimedAnswer:
            bench.say(f"an answer from the library, and over the wire: {max(0, i - WARM_UP)} of {bench.num}")
            return await _ask_library(client, questions[i % ASKED])

        async def relayed_longer(_: int) -> float:
            return await wire.exchange("POST", CHAT, RELAYED) - await direct.exchange("POST", CHAT, RELAYED)

        library, wired = await wait_in_turn(
            bench.num, from_library, lambda i: wire.answer(questions[i % ASKED]), warm_up=WARM_UP
        )
        relays, models = await wait_in_turn(
            bench.num, relayed_longer, lambda _: wire.exchange("GET", "/v1/models"), warm_up=WARM_UP
        )
    for name, part, bound, digits in (("first token", "first_s", "<= 2", 1), ("further chunk", "part_s", "<= 0.15", 2)):
        ours, alone = ([getattr(each, part) for each in way] for way in (wired, library))
        there = f"there: {milliseconds(alone).median:.{digits}f} ms"
        bench.add_ms(f"{name}, over the library's", [a - b for a, b in zip(ours, alone, strict=True)], bound, there)
    bench.add_ms("a relay, over its upstream", relays, "<= 1.5")
    bench.add_ms("GET /v1/models", models, "<= 50")
    return "the bundled small model alone, one thread; hybrid serve in a process of its own, one connection"


async def _ask_library(client: AsyncClient, question: str) -> TimedAnswer:
    began, times = time.perf_counter(), list[float]()
    async with aclosing(client.stream([Message("user", question)], max_tokens=ANSWER_TOKENS)) as events:
        async for event in events:
            if isinstance(event, TokenEmitted) and event.token.text:
                times.append(time.perf_counter())
    return TimedAnswer.of(began, times)


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


def _hybrid(folder: str | Path, *args: str, **more: Any) -> Any:
    """Start the real command in a process of its own; the user's own settings have no say in a measurement."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    return asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "hybrid", *args),
        cwd=folder,
        env=own | {"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)} | more.pop("env", {}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        **more,
    )


@asynccontextmanager
async def _served(upstream: str) -> AsyncIterator[str]:
    """Serve from a child process; yield its address."""
    relay = {"HYBRID_RELAY_URL": f"{upstream}/v1", "HYBRID_RELAY_MODEL": "upstream", "HYBRID_RELAY_PRICE": "free"}
    flags = ("--threads", "1", "--parallel", "1", "--seed", "0", "--port", "0")
    with tempfile.TemporaryDirectory(prefix="hybrid-bench-") as folder:
        silent = asyncio.subprocess.DEVNULL
        process = await _hybrid(folder, "serve", *flags, env=relay, stderr=silent, start_new_session=True)
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                line = (await process.stdout.readline()).decode()
            if (found := re.search(r"OPENAI_BASE_URL=(http://[^/]+)/v1", line)) is None:
                raise EngineError("hybrid serve did not start")
            yield found[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


CHAT = "/v1/chat/completions"


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[_Connection]:
    """Yield one connection that stays open."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield _Connection(reader, writer, address.netloc)
    finally:
        writer.close()


@dataclass
class _Connection:
    """HTTP/1.1 over one connection, as little of it as the endpoint answers in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str

    async def exchange(self, method: str, path: str, body: Any = None) -> float:
        """Return the seconds that a reply takes which is not streamed."""
        began = time.perf_counter()
        length = re.search(rb"content-length: (\d+)", await self._send(method, path, body))
        assert length is not None
        await self.reader.readexactly(int(length[1]))
        return time.perf_counter() - began

    async def answer(self, question: str) -> TimedAnswer:
        """Return how long an answer took that is streamed."""
        body = {"model": "hybrid:local", "messages": [{"role": "user", "content": question}], "stream": True}
        began, times = time.perf_counter(), list[float]()
        await self._send("POST", CHAT, body | {"max_tokens": ANSWER_TOKENS})
        while (size := int(await self.reader.readline(), 16)) > 0:
            part = await self.reader.readexactly(size + 2)
            texts = part.count(b'"content":"') - part.count(b'"content":""')
            times += [time.perf_counter()] * texts
        await self.reader.readline()
        return TimedAnswer.of(began, times)

    async def _send(self, method: str, path: str, body: Any) -> bytes:
        """Return the head of the reply, in small letters."""
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(sent)}\r\n"
        self.writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + sent)
        reply = await self.reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in reply.partition(b"\r\n")[0]:
            raise EngineError("hybrid serve refuses the benchmark's request")
        return reply.lower()


# ---- lines of a batch ------------------------------------------------------------------------------------------------
#
# The real command answers 200 problems in a process of its own, one at a time and four at a time, from its start to its
# end. Both outputs are compared: four at a time that were not the texts of one at a time would be no saving.

LATENCY_MS, LINES, PARALLEL = 100, 200, 4
FAMILY, MAX_TOKENS = "arithmetic", 48


async def batch(bench: Bench) -> str:
    """Measure pairs of batches, one line at a time and four at a time in turn."""
    with tempfile.TemporaryDirectory(prefix="hybrid-bench-") as name:
        folder, texts = Path(name), set[str]()
        questions = problems_of(FAMILY, LINES)
        (folder / "in").write_text("".join(f"{json.dumps(each)}\n" for each in questions), encoding="utf-8")

        async def answer(parallel: int, turn: int) -> float:
            bench.say(f"{LINES} lines, {parallel} at a time: pair {turn + 1} of {bench.num}")
            async with bundled_server(BUNDLED_CLOUD, "--latency-ms", str(LATENCY_MS)) as url:
                seconds = await seconds_of(_answer_batch(folder, url, parallel))
            lines = map(json.loads, (folder / "out").read_text(encoding="utf-8").splitlines())
            texts.add(json.dumps(sorted((line["line"], line["text"]) for line in lines)))
            return seconds

        alone, together = await wait_in_turn(bench.num, partial(answer, 1), partial(answer, PARALLEL))
    if len(texts) > 1:
        raise EngineError("several lines at a time have other texts than one at a time")
    bench.add_ratio(f"{LINES} lines, one at a time over {PARALLEL} at a time", alone, together, ">= 3")
    for name, each in {"one": alone, f"{PARALLEL}": together}.items():
        bench.add(f"{name} at a time", [LINES / seconds for seconds in each], "lines/s")
    return f"the bundled pair by kl, an endpoint that takes {LATENCY_MS} ms for a reply, whole processes"


async def _answer_batch(folder: Path, url: str, parallel: int) -> None:
    """Answer a batch. Raises EngineError where it fails."""
    out = folder / "out"
    out.unlink(missing_ok=True)
    flags = {"--local": BUNDLED_LOCAL, "--cloud": url, "--price": "free", "--policy": "kl", "--max-tokens": MAX_TOKENS}
    flags |= {"--threads": 1, "--seed": 0, "--ledger": "none", "--parallel": parallel}
    args = [str(part) for flag in flags.items() for part in flag]
    process = await _hybrid(
        folder, "batch", str(folder / "in"), str(out), "--json", *args, stderr=asyncio.subprocess.PIPE
    )
    said, failed = await process.communicate()
    if process.returncode != 0 or (summary := json.loads(said))["degraded"] or summary["answered"] != LINES:
        msg = f"the batch did not answer every line: {failed.decode(errors='replace').strip() or said.decode()}"
        raise EngineError(msg)


# ---- questions at once -----------------------------------------------------------------------------------------------
#
# Ten questions over an endpoint that takes 600 ms a reply are waiting most of the time, so four contexts should answer
# them in the time that three take one after another. An offline question should hardly notice one that waits for the
# cloud. And conversations that take turns should find what was read of them: what is read again is counted in tokens.

WAIT_MS, QUESTIONS, CONTEXTS = 600, 10, 4
# Every question takes the same requests: two checks, which keep what was drafted.
CHECKED: AnswerChoices = {**KEPT, "max_tokens": MAX_TOKENS}
# How much longer an offline question may take beside another, whatever it takes alone.
GRACE_S = 0.02
# Of each conversation: a beginning that all of them share, of some 400 tokens, and its turns.
BEGINNING = "You sort numbers. " + " ".join(str(number) for number in range(1000, 1075))
CONVERSATIONS, TURNS = 3, 6


async def parallel(bench: Bench) -> str:
    """Measure all three in one run; each pair asks one question alone and many at once."""
    async with (
        bundled_server(BUNDLED_CLOUD, "--latency-ms", str(WAIT_MS)) as url,
        client_of(url, policy="kl", parallel=CONTEXTS) as client,
    ):
        await _time_many(bench, client)
        await _time_offline(bench, client)
    await _count_conversations(bench)
    server = f"an endpoint that takes {WAIT_MS} ms for a reply"
    return f"the bundled pair, {CONTEXTS} contexts, {server}, two checks a question"


async def _time_many(bench: Bench, client: AsyncClient) -> None:
    """Take one question alone, and ten at once, in turn."""
    questions = problems_of(FAMILY, QUESTIONS)
    await client.generate(questions[0], **CHECKED)  # the connection, and a warm server

    async def last_of(asked: list[str]) -> tuple[float, float]:
        answers = await asyncio.gather(*(client.generate(each, **CHECKED) for each in asked))
        first_ms = max(each.timing.ttft_ms or each.timing.total_ms for each in answers)
        return first_ms / 1000, max(each.timing.total_ms for each in answers) / 1000

    async def at_once(turn: int) -> tuple[float, float]:
        bench.say(f"{QUESTIONS} questions at once, and one alone: {turn} of {bench.num}")
        return await last_of(questions)

    alone, together = await wait_in_turn(bench.num, lambda i: last_of([questions[i % QUESTIONS]]), at_once)
    (first, whole), (last_first, all_done) = (zip(*each, strict=True) for each in (alone, together))
    said = f"first token after {milliseconds(first).median:.0f} ms, done after {milliseconds(whole).median:.0f}"
    bench.add_ratio(f"{QUESTIONS} at once: the last first token over one alone", last_first, first, "<= 5.6")
    bench.add_ratio(f"{QUESTIONS} at once: all done over one alone", all_done, whole, "<= 3.7", f"one alone: {said}")


async def _time_offline(bench: Bench, client: AsyncClient) -> None:
    """Take an offline question alone, and while one that the cloud writes is under way, in turn."""
    asked, other = problems_of(FAMILY, 2)

    async def write(under_way: asyncio.Event) -> None:
        async for event in client.stream(other, policy="cloud", max_tokens=MAX_TOKENS):
            if isinstance(event, RequestSent):
                under_way.set()

    async def offline(turn: int) -> float:
        bench.say(f"an offline question alone, and beside one of the cloud's: {turn} of {bench.num}")
        return await seconds_of(client.generate(asked, offline=True, max_tokens=MAX_TOKENS))

    async def beside_another(turn: int) -> float:
        under_way = asyncio.Event()
        writing = asyncio.create_task(write(under_way))
        await under_way.wait()
        seconds = await offline(turn)
        await writing
        return seconds

    alone, beside = await wait_in_turn(bench.num, offline, beside_another)
    bench.add_ms("an offline question alone", alone)
    name = "an offline question beside one of the cloud's, less 20 ms, over alone"
    bench.add_ratio(name, [max(0.0, each - GRACE_S) for each in beside], alone, "<= 1.5")


async def _count_conversations(bench: Bench) -> None:
    """Count the tokens that conversations in turn read again: those decoded beyond what is new in a turn."""
    bench.say(f"{CONVERSATIONS} conversations in turn")
    reread, talks = list[int](), [[Message("system", BEGINNING)] for _ in range(CONVERSATIONS)]
    held, questions = [0] * CONVERSATIONS, iter(problems_of(FAMILY, CONVERSATIONS * TURNS))
    async with _counted() as (client, num_decoded):
        for turn in range(TURNS):
            for number, talk in enumerate(talks):
                before, held_before = num_decoded(), held[number]
                held[number] = await _ask(client, talk, next(questions))
                if turn:
                    reread.append(max(0, num_decoded() - before - (held[number] - held_before)))
    name = f"{CONVERSATIONS} conversations in turn behind one beginning: tokens read again in a turn"
    bench.add(name, reread, "tokens", "<= 16", f"{max(reread):.0f} at most")


async def _ask(client: AsyncClient, talk: list[Message], question: str) -> int:
    """Put the next question of a conversation; return the tokens of all of it, the answer's among them."""
    talk.append(Message("user", question))
    num_tokens = 0
    async for event in client.stream(list(talk), max_tokens=MAX_TOKENS):
        match event:
            case Started(prompt=prompt):
                num_tokens += len(prompt)
            case Finished(answer):
                num_tokens += len(answer.tokens)
                talk.append(Message("assistant", answer.text))
    return num_tokens


@asynccontextmanager
async def _counted() -> AsyncIterator[tuple[AsyncClient, Callable[[], int]]]:
    """Open an offline client over contexts whose decoded tokens can be counted."""

    async def connect(_: float) -> NoReturn:
        raise Unreachable("an offline client asks nobody")

    with ExitStack() as stack:
        weights = stack.enter_context(closing(Weights(BUNDLED_LOCAL)))
        engines = [stack.enter_context(closing(weights.context(0, 1))) for _ in range(CONTEXTS)]
        workers = [stack.enter_context(closing(Worker(f"bench-engine-{i}"))) for i in range(CONTEXTS)]
        settings = Settings.model_construct(policy="local", offline=True, seed=0)
        local = LocalModel(list(zip(engines, workers, strict=True)))
        client = AsyncClient(local, connect, Account(None, MemoryLedger()), settings)
        try:
            yield client, lambda: sum(engine.num_decoded for engine in engines)
        finally:
            await client.aclose()
