"""``hybrid bench overlap``: what drafting on during a check saves, and tokens a second by rule and round trip.

A span costs its draft and then its check; drafted ahead, whichever is longer. Measured on a drafter of half a billion
parameters against a reference that computes next to nothing, so that the round trip is what is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hybrid.assemble import BUNDLED_CLOUD, Opening, bundled_server
from hybrid.bench.speed.measure import Figure, Report, Spread
from hybrid.bench.speed.random_model import HALF_BILLION, TINY, write_random_model
from hybrid.bench.tasks import FAMILIES, distinct
from hybrid.config import Settings
from hybrid.run import Answer, Asked, AsyncClient, Drafted, Judged

ROUND_TRIPS_MS = (0, 20, 80, 200)
# Where the round trip hides behind the draft, or the draft behind the round trip; below that there is little to hide.
BOUND_FROM_MS = 80
SPAN, SPANS_AN_ANSWER = 8, 12
POLICIES = ("local", "cloud", "greedy-exact", "kl", "doubt")
PROBLEMS_A_FAMILY = 3


def run(model: Path, tell: Callable[[str], None], repetitions: int) -> Report:
    """Measure spans with overlap on and off, in turn, at each round trip; then the bundled pair's tokens a second."""
    tiny = write_random_model(model.with_name("tiny.gguf"), TINY)
    figures: list[Figure] = []
    for latency in ROUND_TRIPS_MS:
        figures += asyncio.run(_spans(model, tiny, latency, tell, repetitions))
    for latency in ROUND_TRIPS_MS:
        figures += asyncio.run(_throughput(latency, tell))
    millions = HALF_BILLION.num_parameters // 1_000_000
    setting = f"drafter of {millions} M parameters, spans of {SPAN}, every check kept; below it the bundled pair"
    return Report("overlap", setting, tuple(figures))


@asynccontextmanager
async def _client(latency_ms: int, server: Path, **settings: object) -> AsyncIterator[AsyncClient]:
    flags = ("--latency-ms", str(latency_ms), "--ctx", "512", "--scoring-keeps-cache")
    async with bundled_server(server, *flags) as url:
        chosen = Settings(cloud=url, threads=1, ctx=512, **settings)  # type: ignore[arg-type]
        async with Opening(chosen) as client:
            yield client


@dataclass
class Cycles:
    """Seconds of the drafts, the checks and the whole cycles of one way, and how much of the drafts was ready."""

    drafts: list[float] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    drafted: int = 0
    ready: int = 0

    async def answer(self, client: AsyncClient, *, overlap: bool) -> None:
        """Write one answer and add its full spans, all but the first and the last, which have only one neighbour."""
        asked = judged = None
        stream = client.stream(
            "x", raw=True, policy="kl", span=SPAN, threshold=float("inf"), max_tokens=SPAN * SPANS_AN_ANSWER,
            overlap=overlap,
        )  # fmt: skip
        async for event in stream:
            now = time.perf_counter()
            match event:
                case Asked():
                    if asked is not None and judged is not None:
                        self.cycles.append(now - asked)
                    asked = now
                case Judged():
                    judged = now
                    self.checks.append(now - (asked or now))
                case Drafted(ids=ids, num_ready=ready) if judged is not None and len(ids) == SPAN:
                    self.drafts.append(now - judged)
                    self.drafted += len(ids)
                    self.ready += ready


async def _spans(
    model: Path, tiny: Path, latency: int, tell: Callable[[str], None], repetitions: int
) -> Sequence[Figure]:
    tell(f"spans at a round trip of {latency} ms, overlap on and off in turn")
    on, off = Cycles(), Cycles()
    async with _client(latency, tiny, local=model) as client:
        await Cycles().answer(client, overlap=True)  # warm-up
        while len(on.cycles) < repetitions:
            await on.answer(client, overlap=True)
            await off.answer(client, overlap=False)
    draft, check = Spread.of(off.drafts), Spread.of(off.checks)
    longer = max(draft.median, check.median)
    bound = "<= 1.15" if latency >= BOUND_FROM_MS else None
    split = f"draft {1000 * draft.median:.0f} ms, check {1000 * check.median:.0f} ms"
    hits = f"{split}; {100 * on.ready / max(1, on.drafted):.0f} % of the drafted tokens were ready"
    return (
        Figure(
            f"{latency} ms: a span over max(draft, check)",
            Spread.of([c / longer for c in on.cycles]),
            "ratio",
            bound,
            hits,
        ),
        Figure(
            f"{latency} ms: the same without overlap", Spread.of([c / longer for c in off.cycles]), "ratio", None, split
        ),
    )


async def _throughput(latency: int, tell: Callable[[str], None]) -> Sequence[Figure]:
    """Take the bundled pair's tokens a second over the same problems, another rule first at each."""
    problems = [p for family in FAMILIES for p in distinct(family, "test", PROBLEMS_A_FAMILY, seed=0)]
    answers: dict[str, list[Answer]] = {policy: [] for policy in POLICIES}
    async with _client(latency, BUNDLED_CLOUD) as client:
        for i, problem in enumerate(problems):
            tell(f"tokens a second at a round trip of {latency} ms: problem {i + 1} of {len(problems)}")
            for j in range(len(POLICIES)):
                policy = POLICIES[(i + j) % len(POLICIES)]
                await client.generate("x", policy="local", raw=True, max_tokens=1)  # no prompt is left in the cache
                answers[policy].append(await client.generate(problem.question, policy=policy, max_tokens=96))
    return [_rate(f"{latency} ms: {policy}", found) for policy, found in answers.items()]


def _rate(name: str, answers: Sequence[Answer]) -> Figure:
    seconds = [answer.timing.total_ms / 1000 for answer in answers]
    num_tokens = [len(answer.tokens) for answer in answers]
    note = f"{sum(num_tokens) / sum(seconds):.0f} over all {len(answers)} answers of the bundled pair"
    return Figure(name, Spread.of([n / s for n, s in zip(num_tokens, seconds, strict=True)]), "tokens/s", None, note)
