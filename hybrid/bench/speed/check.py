"""``hybrid bench check``: the cost of a warm check over bare decoding, and of the breaker and the retries around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np

from hybrid.assemble import bundled_server
from hybrid.bench.speed.measure import BenchmarkReport, Measurement, milliseconds, ratio
from hybrid.bench.speed.random_model import HALF_BILLION, RandomModelShape, write_random_model
from hybrid.cloud import ScoreQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import Weights
from hybrid.run.retrying import EndpointHealth, RetryingCaller
from hybrid.types import Ids

TOP_K, SPAN, PREFIX = 20, 16, 100
# Next to no computing and few tokens: here the client's own work is measured.
NIMBLE = RandomModelShape(num_tokens=4096, width=64, hidden=128, layers=1, heads=1, kv_heads=1)


def run(model: Path, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time a warm check against a bare decode, and a check with and without a breaker and retries."""
    nimble = write_random_model(model.with_name("nimble.gguf"), NIMBLE)
    figures = asyncio.run(_warm(model, report_progress, repetitions))
    figures += asyncio.run(_time_guarded(nimble, report_progress, repetitions))
    setting = f"spans of {SPAN}, k = {TOP_K}, the server keeps its cache while scoring, one thread on each side"
    return BenchmarkReport("check", setting, tuple(figures))


@asynccontextmanager
async def _endpoint(model: Path, num_tokens: int) -> AsyncIterator[tuple[Endpoint, Callable[[int], Ids]]]:
    """Serve a model and connect to it; beside it, a source of random tokens."""
    rng = np.random.default_rng(0)
    async with bundled_server(model, "--scoring-keeps-cache", "--parallel", "1") as url:
        wire = Wire(url, None, Timeouts(first_byte=300.0, read=300.0, total=300.0), through_proxies=False)
        endpoint = Endpoint(wire, model.stem)
        try:
            yield endpoint, lambda count: tuple(rng.integers(300, num_tokens, count).tolist())
        finally:
            await endpoint.aclose()


def _question(prefix: Ids, span: Ids) -> ScoreQuestion:
    return ScoreQuestion(prefix, span, after=True, top_k=TOP_K)


async def _warm(model: Path, report_progress: Callable[[str], None], repetitions: int) -> list[Measurement]:
    report_progress(f"a warm check of {SPAN} tokens, in turn with a bare decode of {SPAN + 1}")
    weights = Weights(model)
    bare = BareContext(weights, 512, 1, num_rows=SPAN + 1)
    checks, decodes = [], []
    async with _endpoint(model, HALF_BILLION.num_tokens) as (endpoint, draw):
        prefix = draw(PREFIX)
        bare.decode(prefix[:-1], rows=False)
        await endpoint.score(_question(prefix, draw(SPAN)), "bench")
        for i in range(repetitions):
            span = draw(SPAN)
            for checking in (True, False) if i % 2 else (False, True):
                bare.rewind(PREFIX - 1)
                began = time.perf_counter()
                if checking:
                    await endpoint.score(_question(prefix, span), "bench")
                    checks.append(time.perf_counter() - began)
                else:
                    bare.decode((prefix[-1], *span))
                    decodes.append(time.perf_counter() - began)
    bare.close()
    weights.close()
    note = f"after {PREFIX} tokens, {HALF_BILLION.num_parameters // 1_000_000} M parameters, over HTTP and back"
    name = f"warm check of {SPAN} tokens over a bare decode of {SPAN + 1}"
    return [
        Measurement("warm check", milliseconds(checks), "ms"),
        Measurement(name, ratio(checks, decodes), "ratio", "<= 1.3", note),
    ]


async def _time_guarded(model: Path, report_progress: Callable[[str], None], repetitions: int) -> list[Measurement]:
    """Time a check over a line (its breaker closed, its retries ready), in turn with the same check without one."""
    report_progress(f"a check of {SPAN} tokens over a line, in turn with a bare one")
    plain: list[float] = []
    guarded: list[float] = []
    caller = RetryingCaller(EndpointHealth(), lambda _: None)
    async with _endpoint(model, NIMBLE.num_tokens) as (endpoint, draw):
        question = _question(draw(PREFIX), draw(SPAN))
        for i in range(4 * repetitions + 2):  # short pieces of work: more of them
            for over_line in (True, False) if i % 2 else (False, True):
                began = time.perf_counter()
                await (
                    caller.call(partial(endpoint.score, question, "bench"))
                    if over_line
                    else endpoint.score(question, "bench")
                )
                if i >= 2:
                    (guarded if over_line else plain).append(time.perf_counter() - began)
    name = f"check after {PREFIX} tokens behind a closed breaker over one without"
    return [Measurement(name, ratio(guarded, plain), "ratio", "1", f"{milliseconds(plain).median:.1f} ms without")]
