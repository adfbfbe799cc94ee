"""``hybrid bench prefix``: bytes and CPU of a check as the text before it grows.

Bytes are those of the bodies of a check's requests and replies, without headers. CPU is the time of this process, all
threads, from the beginning of one check to the beginning of the next, less ``Engine.extend``, which is llama.cpp's
decoding. It contains the request, the reply, the judging, and drafting but for its decoding. *The check alone* is the
part from the question to its rows. A server is another process and is never counted.

The lengths take turns: a prompt of so many tokens, then a few checks. All prompts of a turn end in the same digits, so
that the random model drafts the same tokens behind each. The next turn's prompts end in other digits, so that no server
has seen the whole text. They are one token longer, too: a prompt of whole blocks may be a special case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.assemble import BUNDLED_CLOUD, PROBE, bundled_server
from hybrid.cloud import BeforeSend, Capabilities, Cloud, ScoreQuestion, Scores, unrecorded
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.engine import IsCancelled, Worker
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.engine.port import Logits, never
from hybrid.errors import Unreachable, UsageError
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread, milliseconds, ratio
from hybrid.lab.speed.random_model import RandomModelShape, write_random_model
from hybrid.prob import UNMEASURED
from hybrid.run import AsyncClient, LocalModel
from hybrid.settings.config import Settings
from hybrid.spend import Account, MemoryLedger, Price
from hybrid.types import Ids

TOP_K, SPAN, CHECKS = 20, 16, 4
LENGTHS = (100, 1000, 8000)
CONTEXT = 8192
# A model of next to no computing: here the bytes and the client's own work are measured.
NIMBLE = RandomModelShape(width=64, hidden=128, layers=1, heads=2, kv_heads=2, context=CONTEXT)
# How the bundled server is asked where no other is named, and its flags: one family that sends the rows that are due,
# one that sends those that its cache lacks, and one that sends those of the whole prompt.
BUNDLED = {
    "sglang": ("--dialect", "sglang"),
    "vllm-tokens": ("--enable-scale-out", "--v2-runner"),
    "vllm": ("--scoring-keeps-cache",),
}
# Digits at the end of a prompt, by which it differs from those of other turns.
OWN = 8
# By so many tokens, at most, a prompt is longer than its length: vLLM's blocks on a GPU.
BLOCK = 16


@dataclass(frozen=True)
class MeasuredServer:
    """A running server to measure instead of the bundled one, and the lengths of text before a check.

    ``dialect`` None: it is discovered. The server must serve a model of the bundled vocabulary with room for
    ``lengths``.
    """

    url: str
    dialect: str | None = None
    lengths: tuple[int, ...] = LENGTHS

    def __post_init__(self) -> None:
        """Raise UsageError for a length that leaves no room."""
        most = CONTEXT - SPAN * CHECKS - BLOCK
        if not self.lengths or not all(OWN < length <= most for length in self.lengths):
            msg = f"a text of {OWN + 1} to {most} tokens before a check can be measured, not {self.lengths}"
            raise UsageError(msg)


def run(
    folder: Path, report_progress: Callable[[str], None], repetitions: int, server: MeasuredServer | None = None
) -> BenchmarkReport:
    """Measure one running server, or the bundled one with the same random model in each dialect of ``BUNDLED``."""
    model = write_random_model(folder / "nimble-8192.gguf", NIMBLE, vocabulary_of=BUNDLED_CLOUD)
    figures = asyncio.run(
        _measure_server(model, server, report_progress, repetitions)
        if server
        else _measure_bundled(model, report_progress, repetitions)
    )
    where = server.url if server else "the bundled server with the same model"
    setting = f"spans of {SPAN}, k = {TOP_K}, {where}; CPU without llama.cpp's decoding"
    return BenchmarkReport("prefix", setting, tuple(figures))


async def _measure_server(
    model: Path, server: MeasuredServer, report_progress: Callable[[str], None], repetitions: int
) -> list[Measurement]:
    async with _client(model, server) as (client, watched):
        return await _measure_lengths(client, watched, server.lengths, report_progress, repetitions)


async def _measure_bundled(model: Path, report_progress: Callable[[str], None], repetitions: int) -> list[Measurement]:
    figures: list[Measurement] = []
    for dialect, flags in BUNDLED.items():
        async with bundled_server(model, *flags, "--ctx", str(CONTEXT), "--parallel", "1") as url:
            figures += await _measure_server(model, MeasuredServer(url, dialect, LENGTHS), report_progress, repetitions)
    return figures


class _TimedEngine(LlamaEngine):
    """Counts the seconds of CPU that decoding takes, on one thread."""

    seconds = 0.0

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        began = time.thread_time()
        try:
            return super().extend(ids, num_rows, cancelled)
        finally:
            self.seconds += time.thread_time() - began


@dataclass
class _CheckTiming:
    """One check: seconds of the process's CPU at its beginning, less decoding, and its own; bytes of bodies."""

    began: float
    seconds: float = 0.0
    sent: int = 0
    received: int = 0


@dataclass
class _TimedEndpoint:
    """An endpoint whose checks are measured."""

    endpoint: Endpoint
    wire: Wire
    engine: _TimedEngine
    checks: list[_CheckTiming] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on to the endpoint."""
        return getattr(self.endpoint, name)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score and measure."""
        check, responses = _CheckTiming(self._cpu()), []

        async def request(request: Any) -> None:
            check.sent += len(request.content)

        async def response(response: Any) -> None:
            responses.append(response)

        self.wire._client.event_hooks = {"request": [request], "response": [response]}
        scores = await self.endpoint.score(question, request_id, before_send)
        check.seconds = self._cpu() - check.began
        check.received = sum(response.num_bytes_downloaded for response in responses)
        self.checks.append(check)
        return scores

    def _cpu(self) -> float:
        return time.process_time() - self.engine.seconds


@asynccontextmanager
async def _client(model: Path, server: MeasuredServer) -> AsyncIterator[tuple[AsyncClient, _TimedEndpoint]]:
    """Open a client whose settings are constructed, not loaded, over an engine and an endpoint that are watched."""
    worker, weights = Worker("bench-engine"), Weights(model)
    engine = await worker.do(lambda _: _TimedEngine(weights, CONTEXT, 1))
    wire = Wire(server.url, None, Timeouts(first_byte=300.0, read=300.0, total=300.0), through_proxies=False)
    watched = _TimedEndpoint(Endpoint(wire, None, None, engine, server.dialect), wire, engine)

    async def connect(asked_at: float) -> tuple[Cloud, Capabilities]:
        return watched, await watched.endpoint.connect(PROBE, engine.tokenize(PROBE), asked_at)

    settings = Settings.model_construct(cloud=server.url, threads=1, ctx=CONTEXT, cloud_top_k=TOP_K)
    account = Account(Price(0, 0, 0), MemoryLedger(), server.url, None, settings.spender)
    client = AsyncClient(LocalModel([(engine, worker)], UNMEASURED), connect, account, settings)
    try:
        yield client, watched
    finally:
        await client.aclose()
        await wire.aclose()
        engine.close()
        weights.close()
        worker.close()


async def _measure_lengths(
    client: AsyncClient,
    watched: _TimedEndpoint,
    lengths: tuple[int, ...],
    report_progress: Callable[[str], None],
    repetitions: int,
) -> list[Measurement]:
    """Take the lengths in turn; the first of a round is what the others are compared with."""
    rng = np.random.default_rng(0)
    text = "".join(map(str, rng.integers(0, 10, max(lengths) + BLOCK)))  # a digit is a token
    checks: dict[int, list[list[_CheckTiming]]] = {length: [] for length in lengths}
    for turn in range(repetitions + 1):
        where = watched.endpoint.knowledge.dialect.name if turn else watched.wire.url
        report_progress(f"{where}: checks after {', '.join(map(str, lengths))} tokens: round {turn} of {repetitions}")
        own = "".join(map(str, rng.integers(0, 10, OWN)))
        for length in lengths:
            watched.checks = []
            await _answer(client, text[: length + turn % BLOCK - OWN] + own)
            if turn:  # the first round fills the server's cache
                checks[length].append(watched.checks)
    return _figures(watched.endpoint.knowledge.dialect.name, checks)


async def _answer(client: AsyncClient, prompt: str) -> None:
    """Write an answer of a few spans, all of which are checked and kept."""
    answer = await client.generate(
        prompt,
        raw=True,
        policy="kl",
        threshold=float("inf"),
        span=SPAN,
        max_tokens=SPAN * CHECKS,
        overlap=False,
        seed=0,
    )
    if answer.degraded is not None:
        msg = f"the server failed during a measurement: {answer.degraded}"
        raise Unreachable(msg)


def _figures(name: str, checks: Mapping[int, Sequence[Sequence[_CheckTiming]]]) -> list[Measurement]:
    """Return bytes and CPU of each length's checks, and their ratios to the first length's."""
    each = {n: [check for answer in answers for check in answer] for n, answers in checks.items()}
    received = {n: [check.received / 1000 for check in found] for n, found in each.items()}
    alone = {n: [check.seconds for check in found] for n, found in each.items()}
    whole = {n: [b.began - a.began for answer in answers for a, b in pairwise(answer)] for n, answers in checks.items()}
    first, figures = next(iter(checks)), []
    for n, found in each.items():
        after, over = f"{name}: after {n} tokens", f"over that after {first}"
        figures += [
            Measurement(f"{after}, a check sends", Spread.of([check.sent / 1000 for check in found]), "kB"),
            Measurement(f"{after}, a check receives", Spread.of(received[n]), "kB"),
            Measurement(f"{after}, CPU of a check alone", milliseconds(alone[n]), "ms"),
            Measurement(f"{after}, CPU from check to check", milliseconds(whole[n]), "ms"),
        ]
        if n != first:
            figures += [
                Measurement(f"{after}, received {over}", ratio(received[n], received[first]), "ratio", "<= 1.2"),
                Measurement(f"{after}, CPU of a check alone {over}", ratio(alone[n], alone[first]), "ratio"),
                Measurement(f"{after}, CPU from check to check {over}", ratio(whole[n], whole[first]), "ratio", "<= 2"),
            ]
    return figures
