"""``hybrid bench check``: the cost of a warm check over bare decoding, and of the breaker and the retries around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np

from hybrid.assemble import PROBE, bundled_server
from hybrid.cloud import ScoreQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import Weights
from hybrid.lab.speed.measure import NEAR, BenchmarkLoad, BenchmarkReport, Measurement, milliseconds, ratio
from hybrid.lab.speed.random_model import RandomModelShape, write_random_model
from hybrid.run.retrying import EndpointHealth, RetryingCaller
from hybrid.types import Ids

TOP_K, SPAN = 20, 16
# Tokens of a context beyond the text before a check.
ROOM = SPAN + 1
# Next to no computing and few tokens: here the client's own work is measured.
NIMBLE = RandomModelShape(num_tokens=4096, width=64, hidden=128, layers=1, heads=1, kv_heads=1)
KEEPING = ("--scoring-keeps-cache",)
# Of a named model also in a family that sends the rows of the draft alone: the other's replies grow with the text.
FAMILIES_OF_NAMED = {"vllm": KEEPING, "sglang": ("--dialect", "sglang")}


def run(load: BenchmarkLoad, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time a warm check against a bare decode; of a random model, also a check with and without breaker and retries."""
    weights = Weights(load.model)
    text = load.text(weights, load.lengths[-1] + SPAN * repetitions)
    figures = list[Measurement]()
    for family, flags in (FAMILIES_OF_NAMED if load.named else {"vllm": KEEPING}).items():
        figures += asyncio.run(_warm(weights, load.lengths, text, (family, *flags), report_progress, repetitions))
    setting = f"{load.describe(weights)}, spans of {SPAN}, k = {TOP_K}, the server keeps its cache while scoring"
    weights.close()
    if not load.named:
        nimble = write_random_model(load.model.with_name("nimble.gguf"), NIMBLE)
        figures += asyncio.run(_time_guarded(nimble, report_progress, repetitions))
    return BenchmarkReport("check", f"{setting}, one thread on each side", tuple(figures))


@asynccontextmanager
async def _endpoint(weights: Weights, family: str, *flags: str) -> AsyncIterator[Endpoint]:
    """Serve a model and connect to it."""
    async with bundled_server(weights.path, *flags, "--parallel", "1") as url:
        wire = Wire(url, None, Timeouts(first_byte=300.0, read=300.0, total=300.0), through_proxies=False)
        endpoint = Endpoint(wire, words=weights, dialect=family)
        try:
            await endpoint.connect(PROBE, weights.tokenize(PROBE))
            yield endpoint
        finally:
            await endpoint.aclose()


def _question(prefix: Ids, span: Ids) -> ScoreQuestion:
    return ScoreQuestion(prefix, span, after=True, top_k=TOP_K)


async def _warm(
    weights: Weights,
    lengths: Sequence[int],
    text: Ids,
    served: tuple[str, ...],
    report_progress: Callable[[str], None],
    repetitions: int,
) -> list[Measurement]:
    """Measure after each length; ``served``: the server's family and its flags."""
    family, *flags = served
    context = lengths[-1] + ROOM
    bare, held, figures = BareContext(weights, context, 1, num_rows=SPAN + 1), 0, list[Measurement]()
    async with _endpoint(weights, family, *flags, "--ctx", str(context)) as endpoint:
        for length in lengths:
            report_progress(f"{family}: a warm check after {length} tokens, in turn with a bare decode of {SPAN + 1}")
            prefix = text[:length]
            spans = [text[at : at + SPAN] for at in range(length, length + SPAN * repetitions, SPAN)]
            bare.rewind(held)
            bare.read(prefix[held:-1])
            held = length - 1
            await endpoint.score(_question(prefix, spans[-1]), "bench")
            checks, decodes = await _take_turns(endpoint, bare, prefix, spans)
            name = f"{family}, after {length} tokens: a warm check of {SPAN}"
            figures += [
                Measurement(name, milliseconds(checks), "ms"),
                Measurement(
                    f"{name} over a bare decode of {SPAN + 1}", ratio(checks, decodes), "ratio", "<= 1.3", "over HTTP"
                ),
            ]
    bare.close()
    return figures


async def _take_turns(
    endpoint: Endpoint, bare: BareContext, prefix: Ids, spans: Sequence[Ids]
) -> tuple[list[float], list[float]]:
    """Check each span, and decode it with the token before it; return the seconds of both."""
    checks, decodes = list[float](), list[float]()
    for i, span in enumerate(spans):
        for checking in (True, False) if i % 2 else (False, True):
            bare.rewind(len(prefix) - 1)
            began = time.perf_counter()
            if checking:
                await endpoint.score(_question(prefix, span), "bench")
                checks.append(time.perf_counter() - began)
            else:
                bare.decode((prefix[-1], *span))
                decodes.append(time.perf_counter() - began)
    return checks, decodes


async def _time_guarded(model: Path, report_progress: Callable[[str], None], repetitions: int) -> list[Measurement]:
    """Time a check over a line (its breaker closed, its retries ready), in turn with the same check without one."""
    report_progress(f"a check of {SPAN} tokens over a line, in turn with a bare one")
    plain: list[float] = []
    guarded: list[float] = []
    caller = RetryingCaller(EndpointHealth(), lambda _: None)
    drawn = np.random.default_rng(0).integers(300, NIMBLE.num_tokens, NEAR + SPAN).tolist()
    question = _question(tuple(drawn[:NEAR]), tuple(drawn[NEAR:]))
    weights = Weights(model)
    async with _endpoint(weights, "vllm", *KEEPING) as endpoint:
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
    weights.close()
    name = f"check after {NEAR} tokens behind a closed breaker over one without"
    return [Measurement(name, ratio(guarded, plain), "ratio", "1", f"{milliseconds(plain).median:.1f} ms without")]
