"""A check on the wire: ``hybrid bench check`` and ``prefix``.

``check``: the cost of a warm check over bare decoding, and of the breaker and the retries around it. ``prefix``: bytes
and CPU of a check as the text before it grows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.assemble import BUNDLED_CLOUD, PROBE, bundled_server
from hybrid.cloud import BeforeSend, ScoreQuestion, Scores, unrecorded
from hybrid.cloud.endpoint import Endpoint
from hybrid.engine import IsCancelled
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.engine.port import Logits, never
from hybrid.lab.speed.measure import (
    CONTEXT,
    LEFT,
    LENGTHS,
    NEAR,
    OWN,
    WARM_UP,
    Bench,
    BenchmarkLoad,
    MeasuredServer,
    WatchedEndpoint,
    endpoint_at,
    milliseconds,
    seconds_of,
    turns,
    wait_in_turn,
    watched_client,
    whole_answer,
)
from hybrid.lab.speed.random_model import RandomModelShape, write_random_model
from hybrid.run.retrying import EndpointHealth, RetryingCaller
from hybrid.settings.config import AnswerChoices
from hybrid.spend import Price
from hybrid.types import Ids

TOP_K, SPAN = 20, 16
# Next to no computing and few tokens: here the client's own work is measured.
NIMBLE = RandomModelShape(num_tokens=4096, width=64, hidden=128, layers=1, heads=1, kv_heads=1)
KEEPING = ("--scoring-keeps-cache",)
# Of a named model also in a family that sends the rows of the draft alone: the other's replies grow with the text.
FAMILIES_OF_NAMED = {"vllm": KEEPING, "sglang": ("--dialect", "sglang")}


def check(bench: Bench) -> str:
    """Time a warm check against a bare decode; of a random model, also a check with and without breaker and retries."""
    load = bench.load(SPAN + 1)
    with closing(Weights(load.model)) as weights:
        text = load.text(weights, load.lengths[-1] + SPAN * bench.num)
        for family, flags in (FAMILIES_OF_NAMED if load.named else {"vllm": KEEPING}).items():
            asyncio.run(_time_warm(bench, weights, load, text, (family, *flags)))
        setting = f"{load.describe(weights)}, spans of {SPAN}, k = {TOP_K}, the server keeps its cache while scoring"
    if not load.named:
        with closing(Weights(write_random_model(bench.folder / "nimble.gguf", NIMBLE))) as nimble:
            asyncio.run(_time_guarded(bench, nimble))
    return f"{setting}, one thread on each side"


@asynccontextmanager
async def _endpoint(weights: Weights, family: str, *flags: str) -> AsyncIterator[Endpoint]:
    """Serve a model and connect to it."""
    async with bundled_server(weights.path, *flags, "--parallel", "1") as url:
        endpoint = endpoint_at(url, weights, family)
        try:
            await endpoint.connect(PROBE, weights.tokenize(PROBE))
            yield endpoint
        finally:
            await endpoint.aclose()


def _question(prefix: Ids, span: Ids) -> ScoreQuestion:
    return ScoreQuestion(prefix, span, after=True, top_k=TOP_K)


async def _time_warm(bench: Bench, weights: Weights, load: BenchmarkLoad, text: Ids, served: tuple[str, ...]) -> None:
    """Measure after each length; ``served``: the server's family and its flags."""
    family, *flags = served
    context, held = load.lengths[-1] + SPAN + 1, 0
    with closing(BareContext(weights, context, 1, num_rows=SPAN + 1)) as bare:
        async with _endpoint(weights, family, *flags, "--ctx", str(context)) as endpoint:
            for length in load.lengths:
                bench.say(f"{family}: a warm check after {length} tokens, in turn with a bare decode of {SPAN + 1}")
                prefix = text[:length]
                spans = [text[at : at + SPAN] for at in range(length, length + SPAN * bench.num, SPAN)]
                bare.rewind(held)
                bare.read(prefix[held:-1])
                held = length - 1
                await endpoint.score(_question(prefix, spans[-1]), "bench")
                checking = partial(_check, endpoint, prefix, spans)
                checks, decodes = await wait_in_turn(bench.num, checking, partial(_decode, bare, prefix, spans))
                name = f"{family}, after {length} tokens: a warm check of {SPAN}"
                bench.add_ms(name, checks)
                bench.add_ratio(f"{name} over a bare decode of {SPAN + 1}", checks, decodes, "<= 1.3", "over HTTP")


async def _check(endpoint: Endpoint, prefix: Ids, spans: Sequence[Ids], i: int) -> float:
    return await seconds_of(endpoint.score(_question(prefix, spans[i]), "bench"))


async def _decode(bare: BareContext, prefix: Ids, spans: Sequence[Ids], i: int) -> float:
    """Decode a span with the token before it."""
    bare.rewind(len(prefix) - 1)
    began = time.perf_counter()
    bare.decode((prefix[-1], *spans[i]))
    return time.perf_counter() - began


async def _time_guarded(bench: Bench, weights: Weights) -> None:
    """Time a check over a line (its breaker closed, its retries ready), in turn with the same check without one."""
    bench.say(f"a check of {SPAN} tokens over a line, in turn with a bare one")
    caller = RetryingCaller(EndpointHealth(), lambda _: None)
    drawn = np.random.default_rng(0).integers(300, NIMBLE.num_tokens, NEAR + SPAN).tolist()
    question = _question(tuple(drawn[:NEAR]), tuple(drawn[NEAR:]))
    async with _endpoint(weights, "vllm", *KEEPING) as endpoint:
        plain, guarded = await wait_in_turn(
            4 * bench.num,  # short pieces of work: more of them
            lambda _: seconds_of(endpoint.score(question, "bench")),
            lambda _: seconds_of(caller.call(partial(endpoint.score, question, "bench"))),
            warm_up=WARM_UP,
        )
    name = f"check after {NEAR} tokens behind a closed breaker over one without"
    bench.add_ratio(name, guarded, plain, "1", f"{milliseconds(plain).median:.1f} ms without")


# ---- as the text before it grows -------------------------------------------------------------------------------------
#
# Bytes are those of the bodies of a check's requests and replies, without headers. CPU is the time of this process, all
# threads, from the beginning of one check to the beginning of the next, less ``Engine.extend``, which is llama.cpp's
# decoding. It contains the request, the reply, the judging, and drafting but for its decoding. *The check alone* is the
# part from the question to its rows. A server is another process and is never counted.
#
# The lengths take turns: a prompt of so many tokens, then a few checks. All prompts of a turn end in the same digits,
# so that the random model drafts the same tokens behind each. The next turn's prompts end in other digits, so that no
# server has seen the whole text. They are one token longer, too: a prompt of whole blocks may be a special case.

# A model of next to no computing: here the bytes and the client's own work are measured.
NIMBLE_LONG = RandomModelShape(width=64, hidden=128, layers=1, heads=2, kv_heads=2, context=CONTEXT)
# How the bundled server is asked where no other is named, and its flags: one family that sends the rows that are due,
# one that sends those that its cache lacks, and one that sends those of the whole prompt.
BUNDLED = {"sglang": ("--dialect", "sglang"), "vllm-tokens": ("--enable-scale-out", "--v2-runner"), "vllm": KEEPING}
# By so many tokens, at most, a prompt is longer than its length: vLLM's blocks on a GPU. The rest is for the checks.
BLOCK = 16
CHECKS = (LEFT - BLOCK) // SPAN
# An answer of a few spans, all of which are checked and kept.
ALL_KEPT: AnswerChoices = {
    "raw": True,
    "policy": "kl",
    "threshold": float("inf"),
    "span": SPAN,
    "max_tokens": SPAN * CHECKS,
    "overlap": False,
}


def prefix(bench: Bench) -> Coroutine[Any, Any, str]:
    """Measure one running server, or the bundled one with the same random model in each dialect of ``BUNDLED``."""
    model = write_random_model(bench.folder / "nimble-8192.gguf", NIMBLE_LONG, vocabulary_of=BUNDLED_CLOUD)
    return _prefix(bench, model)


async def _prefix(bench: Bench, model: Path) -> str:
    if bench.server:
        await _measure_server(bench, model, bench.server)
    else:
        for dialect, flags in BUNDLED.items():
            async with bundled_server(model, *flags, "--ctx", str(CONTEXT), "--parallel", "1") as url:
                await _measure_server(bench, model, MeasuredServer(url, dialect, LENGTHS))
    where = bench.server.url if bench.server else "the bundled server with the same model"
    return f"spans of {SPAN}, k = {TOP_K}, {where}; CPU without llama.cpp's decoding"


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
class _TimedEndpoint(WatchedEndpoint):
    """An endpoint whose checks are measured."""

    engine: _TimedEngine
    checks: list[_CheckTiming] = field(default_factory=list)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score and measure."""
        check, responses = _CheckTiming(self._cpu()), []

        async def request(request: Any) -> None:
            check.sent += len(request.content)

        async def response(response: Any) -> None:
            responses.append(response)

        self.endpoint.wire._client.event_hooks = {"request": [request], "response": [response]}
        scores = await self.endpoint.score(question, request_id, before_send)
        check.seconds = self._cpu() - check.began
        check.received = sum(response.num_bytes_downloaded for response in responses)
        self.checks.append(check)
        return scores

    def _cpu(self) -> float:
        return time.process_time() - self.engine.seconds


async def _measure_server(bench: Bench, model: Path, server: MeasuredServer) -> None:
    rng = np.random.default_rng(0)
    text = "".join(map(str, rng.integers(0, 10, max(server.lengths) + BLOCK)))  # a digit is a token
    own = ["".join(map(str, rng.integers(0, 10, OWN))) for _ in range(bench.num + 1)]
    checks: dict[int, list[list[_CheckTiming]]] = {length: [] for length in server.lengths}
    async with watched_client(
        model,
        lambda weights: _TimedEngine(weights, CONTEXT, 1),
        lambda engine: _TimedEndpoint(endpoint_at(server.url, engine, server.dialect), engine),
        Price(0, 0, 0),
        cloud=server.url,
        ctx=CONTEXT,
        cloud_top_k=TOP_K,
    ) as (client, watched):
        for turn, which in turns(bench.num + 1, len(checks)):
            length, where = server.lengths[which], watched.endpoint.knowledge.dialect.name if turn else server.url
            bench.say(f"{where}: checks after {length} tokens: round {turn} of {bench.num}")
            watched.checks = []
            await whole_answer(client, text[: length + turn % BLOCK - OWN] + own[turn], **ALL_KEPT)
            if turn:  # the first round fills the server's cache
                checks[length].append(watched.checks)
    _add_growth(bench, watched.endpoint.knowledge.dialect.name, checks)


def _add_growth(bench: Bench, name: str, checks: Mapping[int, Sequence[Sequence[_CheckTiming]]]) -> None:
    """Add bytes and CPU of each length's checks, and their ratios to the first length's."""
    received, alone, whole = dict[int, list[float]](), dict[int, list[float]](), dict[int, list[float]]()
    first = next(iter(checks))
    for n, answers in checks.items():
        found = [check for answer in answers for check in answer]
        received[n] = [check.received / 1000 for check in found]
        alone[n] = [check.seconds for check in found]
        whole[n] = [b.began - a.began for answer in answers for a, b in pairwise(answer)]
        after, over = f"{name}: after {n} tokens", f"over that after {first}"
        bench.add(f"{after}, a check sends", [check.sent / 1000 for check in found], "kB")
        bench.add(f"{after}, a check receives", received[n], "kB")
        bench.add_ms(f"{after}, CPU of a check alone", alone[n])
        bench.add_ms(f"{after}, CPU from check to check", whole[n])
        if n != first:
            bench.add_ratio(f"{after}, received {over}", received[n], received[first], "<= 1.2")
            bench.add_ratio(f"{after}, CPU of a check alone {over}", alone[n], alone[first])
            bench.add_ratio(f"{after}, CPU from check to check {over}", whole[n], whole[first], "<= 2")
