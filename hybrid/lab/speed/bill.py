"""``hybrid bench bill``: the cost of ``kl`` behind a long shared prefix, as a multiple of the large model's own bill.

The bundled pair answers the demonstration's problems. Each of its requests is sent a second time, to the measured
server, with 500 tokens in front; the bill is made of that server's usage. The pair itself answers without the 500
tokens: it was trained on texts of a question's length and writes noise behind longer ones. For the same reason the
measured server's own text is not read. It is asked for as many tokens as the answer has, without an end token. One more
request, which is not billed, then puts the answer's own text into its cache.

Prices are the demonstration's. Each arm has its own prefix, which is in no cache when its first question comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, PROBE, bundled_server
from hybrid.cloud import Capabilities, Chunk, Cloud, ModelQuestion, ScoreQuestion, Scores, WriteQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.port import BeforeSend, unrecorded
from hybrid.cloud.wire import Wire
from hybrid.engine import Worker
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.errors import Unreachable
from hybrid.lab.arms import LARGE, PRICE, Arm, draw_balanced
from hybrid.lab.demo import KL
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread
from hybrid.lab.speed.prefix import MeasuredServer
from hybrid.prob import UNMEASURED
from hybrid.run import Answer, AsyncClient, LocalModel
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.spend import Account, MemoryLedger, Price
from hybrid.tasks import FAMILIES, MAX_TOKENS, Problem
from hybrid.types import NO_USAGE, CloudUsage, Ids, Sampling

SHARED = 500
ARMS = (LARGE, KL, Arm("kl, span 16", "kl", {**KL.choices, "span": 16}))
# A server may take its time: the runner of vLLM that needs a GPU is interpreted on a processor.
PATIENCE = Timeouts(first_byte=300.0, read=300.0, total=300.0)
# How the bundled server stands for four others, by the dialect it is asked in.
BUNDLED = {
    "vllm": ("--enable-prompt-tokens-details",),
    "vllm-tokens": ("--enable-prompt-tokens-details", "--enable-scale-out", "--v2-runner"),
    "sglang": ("--dialect", "sglang"),
    "llama-server": ("--dialect", "llama-server"),
}


def run(
    report_progress: Callable[[str], None], repetitions: int, server: MeasuredServer | None = None
) -> BenchmarkReport:
    """Measure a running server of the bundled large model; None: the bundled server in the role of four others.

    ``repetitions``: problems of each family.
    """
    problems = draw_balanced(repetitions * len(FAMILIES), "test", 0)
    running = (
        _measure_server(problems, report_progress, server.url, server.dialect)
        if server
        else _measure_bundled(problems, report_progress)
    )
    figures = asyncio.run(running)
    where = server.url if server else "the bundled server, which stands for each of these"
    return BenchmarkReport(
        "bill", f"{len(problems)} problems behind {SHARED} tokens, prices {PRICE}, {where}", tuple(figures)
    )


async def _measure_bundled(problems: tuple[Problem, ...], report_progress: Callable[[str], None]) -> list[Measurement]:
    figures: list[Measurement] = []
    for dialect, flags in BUNDLED.items():
        async with bundled_server(BUNDLED_CLOUD, *flags) as url:
            figures += await _measure_server(problems, report_progress, url, dialect)
    return figures


async def _measure_server(
    problems: tuple[Problem, ...], report_progress: Callable[[str], None], url: str, dialect: str | None
) -> list[Measurement]:
    rng, bills, figures = np.random.default_rng(), dict[str, list[int]](), list[Measurement]()
    async with _client(url, dialect) as (client, behind):
        for arm in ARMS:
            # Digits are tokens, and no two runs have the same ones.
            behind.shared, behind.checks = behind.words.tokenize("".join(map(str, rng.integers(0, 10, SHARED)))), []
            answers = list[Answer]()
            for problem in problems:
                report_progress(f"{url}: {arm.name}, {len(answers)} of {len(problems)} answered")
                choices: AnswerChoices = {**arm.choices, "policy": arm.policy}
                answers.append(await client.generate(problem.question, **choices))
                _refuse_degraded(answers[-1])
            bills[arm.name] = [answer.bill.nanousd or 0 for answer in answers]
            if arm is not LARGE:
                name = f"{behind.measured.knowledge.dialect.name}: bill of {arm.name} over the large model's own"
                figures.append(_figure(name, bills[arm.name], bills[LARGE.name], behind.checks))
    return figures


def _refuse_degraded(answer: Answer) -> None:
    if answer.degraded is not None:
        msg = f"the server failed during a measurement: {answer.degraded}"
        raise Unreachable(msg)


def _figure(name: str, bills: list[int], alone: list[int], checks: list[CloudUsage]) -> Measurement:
    """Return the ratio of all bills together. The note has the questions' median and what the checks were charged."""
    prompt, cached = (sum(getattr(check, what) for check in checks) for what in ("prompt_tokens", "cached_tokens"))
    again = sum(check.requests > 1 for check in checks)
    note = (
        f"median question {median(a / b for a, b in zip(bills, alone, strict=True)):.2f}; {len(checks)} checks, "
        f"{100 * cached / max(1, prompt):.0f} % of their prompt cached, {again} took several requests"
    )
    return Measurement(name, Spread.of([sum(bills) / sum(alone)]), "ratio", None, note)


@dataclass
class _RepricedEndpoint:
    """The plain endpoint's answers, charged as the measured endpoint charges them with ``shared`` in front."""

    plain: Endpoint
    measured: Endpoint
    words: LlamaEngine
    shared: Ids = ()
    checks: list[CloudUsage] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on to the plain endpoint."""
        return getattr(self.plain, name)

    def _behind_prefix(self, question: Any, **changes: Any) -> Any:
        return replace(question, prefix=self.shared + question.prefix, **changes)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that the measured endpoint charges."""
        return self.measured.max_usage(self._behind_prefix(question))

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score with both."""
        scores = await self.plain.score(question, request_id)
        charged = (await self.measured.score(self._behind_prefix(question), request_id, before_send)).usage
        self.checks.append(charged)
        return replace(scores, usage=charged)

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Write with the plain one, then have the measured one write as many tokens, also if the stream was closed."""
        written, last = tuple[int, ...](), NO_USAGE
        try:
            async with aclosing(self.plain.write(question, request_id)) as chunks:
                async for chunk in chunks:
                    written += chunk.ids
                    last = chunk.usage or last
                    yield replace(chunk, usage=None)
        finally:
            usage = await self._write_measured(
                question, written, max(last.completion_tokens, len(written)), request_id, before_send
            )
        yield Chunk(usage=usage)

    async def _write_measured(
        self, question: WriteQuestion, written: Ids, num_tokens: int, request_id: str, before_send: BeforeSend
    ) -> CloudUsage:
        same = self._behind_prefix(question, limit=num_tokens, ban=self.words.end_ids, begun=0)
        told = [chunk.usage async for chunk in self.measured.write(same, request_id, before_send) if chunk.usage]
        # Of the last token no server has computed what a cache keeps.
        left = WriteQuestion(self.shared + question.prefix + written[:-1], 1, 0, Sampling())
        async for _ in self.measured.write(left, "left"):
            pass
        return told[-1]


@asynccontextmanager
async def _client(url: str, dialect: str | None) -> AsyncIterator[tuple[AsyncClient, _RepricedEndpoint]]:
    """Open a client whose settings are constructed, not loaded, over both endpoints."""
    async with AsyncExitStack() as stack:
        worker, weights = Worker("bench-engine"), Weights(BUNDLED_LOCAL)
        stack.callback(worker.close)
        stack.callback(weights.close)
        engine = await worker.do(lambda _: weights.context(0, 1))
        stack.callback(engine.close)
        plain_url = await stack.enter_async_context(bundled_server(BUNDLED_CLOUD))
        ends = [Wire(at, None, PATIENCE, through_proxies=False) for at in (plain_url, url)]
        for wire in ends:
            stack.push_async_callback(wire.aclose)
        plain, measured = (
            Endpoint(wire, None, None, engine, name) for wire, name in zip(ends, ("vllm", dialect), strict=True)
        )
        behind = _RepricedEndpoint(plain, measured, engine)
        split = PROBE, engine.tokenize(PROBE)

        async def connect(asked_at: float) -> tuple[Cloud, Capabilities]:
            await measured.connect(*split, asked_at)
            return behind, await plain.connect(*split, asked_at)

        settings = Settings.model_construct(cloud=url, threads=1, max_tokens=MAX_TOKENS, seed=0, retries=0)
        account = Account(Price.parse(PRICE), MemoryLedger(), url, None, None)
        client = AsyncClient(LocalModel([(engine, worker)], UNMEASURED), connect, account, settings)
        stack.push_async_callback(client.aclose)
        yield client, behind
