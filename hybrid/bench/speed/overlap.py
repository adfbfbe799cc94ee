"""``hybrid bench overlap``: what drafting during a check saves, and tokens a second by policy and round trip.

Without overlap a span takes its draft plus its check, with overlap the longer of the two. The drafter has half a
billion parameters, the reference ten million and the same vocabulary: most of its work are 17 rows of 152k tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, ClientOpener, bundled_server
from hybrid.bench.speed.measure import BenchmarkReport, Measurement, Spread, milliseconds
from hybrid.bench.speed.random_model import HALF_BILLION, TINY, write_random_model
from hybrid.config import AnswerChoices, Settings
from hybrid.errors import Unreachable
from hybrid.run import Answer, AsyncClient, CheckAnswered, Degraded, RequestSent, SpanDrafted
from hybrid.tasks import FAMILIES, distinct

ROUND_TRIPS_MS = (0, 20, 80, 200)
# Where the round trip hides behind the draft, or the draft behind the round trip; below that there is little to hide.
BOUND_FROM_MS = 80
SPAN, SPANS_AN_ANSWER = 8, 12
POLICIES = ("local", "cloud", "greedy-exact", "kl", "doubt")
PROBLEMS_A_FAMILY = 3


def run(model: Path, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Measure spans with overlap on and off, in turn, at each round trip; then the bundled pair's tokens a second."""
    tiny = write_random_model(model.with_name("tiny.gguf"), TINY)
    figures: list[Measurement] = []
    for latency in ROUND_TRIPS_MS:
        figures += asyncio.run(_spans(model, tiny, latency, report_progress, repetitions))
    for latency in ROUND_TRIPS_MS:
        figures += asyncio.run(_throughput(latency, report_progress))
    millions = HALF_BILLION.num_parameters // 1_000_000
    setting = f"drafter of {millions} M parameters, spans of {SPAN}, every check kept; below it the bundled pair"
    return BenchmarkReport("overlap", setting, tuple(figures))


@asynccontextmanager
async def _client(latency_ms: int, server: Path, local: Path = BUNDLED_LOCAL) -> AsyncIterator[AsyncClient]:
    """Open a client whose settings are constructed, not loaded: the user's own have no say in a measurement."""
    flags = ("--latency-ms", str(latency_ms), "--ctx", "512", "--scoring-keeps-cache")
    async with bundled_server(server, *flags) as url:
        settings = Settings.model_construct(
            local=local, cloud=url, api_key_env="", price="free", threads=1, ctx=512, seed=0
        )
        async with ClientOpener(settings) as client:
            yield client


@dataclass
class SpanTimings:
    """Seconds of one answer's spans: each check, the draft after it, and both together from question to question.

    ``ready``: how much of that draft had been decoded ahead.
    """

    checks: list[float] = field(default_factory=list)
    drafts: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)


async def _answer(client: AsyncClient, *, overlap: bool) -> SpanTimings:
    """Write one answer whose spans are all kept."""
    spans, asked, judged = SpanTimings(), 0.0, 0.0
    choices: AnswerChoices = {
        "policy": "kl",
        "span": SPAN,
        "threshold": float("inf"),
        "max_tokens": SPAN * SPANS_AN_ANSWER,
        "raw": True,
        "overlap": overlap,
    }
    async for event in client.stream("x", **choices):
        now = time.perf_counter()
        match event:
            case RequestSent():
                if judged:
                    spans.cycles.append(now - asked)
                asked = now
            case CheckAnswered():
                judged = now
                spans.checks.append(now - asked)
            case SpanDrafted() if judged:
                spans.drafts.append(now - judged)
                spans.ready.append(event.num_ready)
            case Degraded(why):
                msg = f"the benchmark's own server failed: {why}"
                raise Unreachable(msg)
    return spans


async def _spans(
    model: Path, tiny: Path, latency: int, report_progress: Callable[[str], None], repetitions: int
) -> Sequence[Measurement]:
    """Write the same answer with overlap on and off, in turn, and compare span by span: the texts are the same."""
    pairs: list[tuple[float, float, float, float, int]] = []
    async with _client(latency, tiny, model) as client:
        await _answer(client, overlap=True)  # warm-up
        for turn in range(1 + (repetitions - 1) // (SPANS_AN_ANSWER - 1)):
            report_progress(
                f"spans at a round trip of {latency} ms, overlap on and off in turn: {len(pairs)} of {repetitions}"
            )
            both = {on: await _answer(client, overlap=on) for on in ((True, False) if turn % 2 else (False, True))}
            on, off = both[True], both[False]
            pairs += zip(on.cycles, off.cycles, off.drafts, off.checks, on.ready, strict=False)
    hits = [pair for pair in pairs if pair[-1]]
    share = sum(pair[-1] for pair in pairs) / (SPAN * len(pairs))
    draft, check = (milliseconds([pair[i] for pair in pairs]).median for i in (2, 3))
    alone = f"without overlap a draft takes {draft:.0f} ms, a check {check:.0f} ms"
    ready = f"{len(hits)} of {len(pairs)} spans found {100 * share:.0f} % of their tokens ready"
    bound = "<= 1.15" if latency >= BOUND_FROM_MS else None
    name = f"{latency} ms: a span over max(draft, check)"
    return (
        Measurement(
            name, Spread.of([on / max(draft, check) for on, _, draft, check, _ in hits or pairs]), "ratio", bound, ready
        ),
        Measurement(
            f"{latency} ms: the same without overlap",
            Spread.of([off / max(draft, check) for _, off, draft, check, _ in pairs]),
            "ratio",
            None,
            alone,
        ),
    )


async def _throughput(latency: int, report_progress: Callable[[str], None]) -> Sequence[Measurement]:
    """Take the bundled pair's tokens a second over the same problems, another rule first at each."""
    problems = [p for family in FAMILIES for p in distinct(family, "test", PROBLEMS_A_FAMILY, seed=0)]
    answers: dict[str, list[Answer]] = {policy: [] for policy in POLICIES}
    async with _client(latency, BUNDLED_CLOUD) as client:
        for i, problem in enumerate(problems):
            report_progress(f"tokens a second at a round trip of {latency} ms: problem {i + 1} of {len(problems)}")
            for j in range(len(POLICIES)):
                policy = POLICIES[(i + j) % len(POLICIES)]
                await client.generate("x", policy="local", raw=True, max_tokens=1)  # no prompt is left in the cache
                answers[policy].append(await client.generate(problem.question, policy=policy, max_tokens=96))
    return [_rate(f"{latency} ms: {policy}", found) for policy, found in answers.items()]


def _rate(name: str, answers: Sequence[Answer]) -> Measurement:
    seconds = [answer.timing.total_ms / 1000 for answer in answers]
    num_tokens = [len(answer.tokens) for answer in answers]
    note = f"{sum(num_tokens) / sum(seconds):.0f} over all {len(answers)} answers of the bundled pair"
    return Measurement(
        name, Spread.of([n / s for n, s in zip(num_tokens, seconds, strict=True)]), "tokens/s", None, note
    )
