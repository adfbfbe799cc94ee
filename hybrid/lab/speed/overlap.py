"""``hybrid bench overlap``: what drafting during a check saves, and tokens a second by policy and round trip.

Without overlap a span takes its draft plus its check, with overlap the longer of the two. The random drafter has half a
billion parameters, its reference ten million and the same vocabulary: most of its work are 17 rows of 152k tokens. Of
named models both have their own work, on the same machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, ClientOpener, bundled_server
from hybrid.engine.llama import Weights
from hybrid.errors import Unreachable, UsageError
from hybrid.lab.speed.measure import (
    BenchmarkLoad,
    BenchmarkReport,
    Measurement,
    Spread,
    check_same_vocabulary,
    milliseconds,
    mixed_questions,
)
from hybrid.lab.speed.random_model import TINY, write_random_model
from hybrid.run import Answer, AsyncClient, CheckAnswered, Degraded, RequestSent, SpanDrafted
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.tasks import FAMILIES, distinct

ROUND_TRIPS_MS = (0, 20, 80, 200)
# Where the round trip hides behind the draft, or the draft behind the round trip; below that there is little to hide.
BOUND_FROM_MS = 80
SPAN, SPANS_AN_ANSWER = 8, 12
POLICIES = ("local", "cloud", "greedy-exact", "kl", "doubt")
PROBLEMS_A_FAMILY, QUESTIONS_OF_NAMED = 3, 8
CONTEXT = 512
# Reading thousands of tokens takes a minute.
PATIENCE_S = 300.0


@dataclass(frozen=True)
class WrittenPair:
    """Models whose answers are timed, and the questions."""

    local: Path
    cloud: Path
    questions: tuple[str, ...]
    max_tokens: int
    context: int = CONTEXT


def run(
    load: BenchmarkLoad, report_progress: Callable[[str], None], repetitions: int, cloud: Path | None = None
) -> BenchmarkReport:
    """Measure spans with overlap on and off, in turn, at each round trip; then a pair's tokens a second.

    ``cloud`` is the reference of a named model; where it is another one, the pair is theirs. Of a random model both are
    chosen here: a tiny reference, and the bundled pair.
    """
    setting, prompts = _prompts(load, cloud)
    reference = cloud or write_random_model(load.model.with_name("tiny.gguf"), TINY)
    figures: list[Measurement] = []
    for latency in ROUND_TRIPS_MS:
        at = prompts if latency == BOUND_FROM_MS else {n: prompts[n] for n in load.lengths[:1]}
        figures += asyncio.run(_spans(load, reference, at, latency, report_progress, repetitions))
    if (pair := _written(load.model, cloud)) is not None:
        setting += f"; tokens a second of {pair.local.name} and {pair.cloud.name}"
        for latency in ROUND_TRIPS_MS if cloud is None else (ROUND_TRIPS_MS[0], BOUND_FROM_MS):
            figures += asyncio.run(_throughput(pair, latency, report_progress))
    return BenchmarkReport("overlap", setting, tuple(figures))


def _prompts(load: BenchmarkLoad, cloud: Path | None) -> tuple[str, dict[int, str]]:
    """Return the setting in words, and the text before the spans by its length in tokens."""
    with closing(Weights(load.model)) as weights:
        if cloud is not None:
            with closing(Weights(cloud)) as reference:
                check_same_vocabulary(weights, reference)
        # The pieces of a random vocabulary do not come back as they were.
        text = load.text(weights, load.lengths[-1]) if load.named else weights.tokenize("x")
        prompts = {n: b"".join(map(weights.piece, text[:n])).decode("utf-8", "ignore") for n in load.lengths}
        return f"drafter {load.describe(weights)}, spans of {SPAN}, every check kept", prompts


def _written(local: Path, cloud: Path | None) -> WrittenPair | None:
    """Return the pair whose answers are timed; None where a model would check itself."""
    if cloud is None:
        questions = [p.question for family in FAMILIES for p in distinct(family, "test", PROBLEMS_A_FAMILY, seed=0)]
        return WrittenPair(BUNDLED_LOCAL, BUNDLED_CLOUD, tuple(questions), 96)
    if local == cloud:
        return None
    # A real model takes seconds for an answer.
    return WrittenPair(local, cloud, tuple(mixed_questions()[:QUESTIONS_OF_NAMED]), 48)


@asynccontextmanager
async def _client(local: Path, cloud: Path, latency_ms: int, context: int) -> AsyncIterator[AsyncClient]:
    """Open a client whose settings are constructed, not loaded: the user's own have no say in a measurement."""
    flags = ("--latency-ms", str(latency_ms), "--ctx", str(context), "--scoring-keeps-cache")
    async with bundled_server(cloud, *flags) as url:
        settings = Settings.model_construct(
            local=local,
            cloud=url,
            api_key_env="",
            price="free",
            threads=1,
            ctx=context,
            seed=0,
            first_byte_timeout_s=PATIENCE_S,
            read_timeout_s=PATIENCE_S,
            request_timeout_s=PATIENCE_S,
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


async def _answer(client: AsyncClient, prompt: str, *, overlap: bool) -> SpanTimings:
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
    async for event in client.stream(prompt, **choices):
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
    load: BenchmarkLoad,
    cloud: Path,
    prompts: Mapping[int, str],
    latency: int,
    report_progress: Callable[[str], None],
    repetitions: int,
) -> list[Measurement]:
    """Measure behind each prompt, the next of which goes on where the last one ended."""
    figures: list[Measurement] = []
    async with _client(load.model, cloud, latency, load.lengths[-1] + CONTEXT) as client:
        for length, prompt in prompts.items():
            name = f"{latency} ms, after {length} tokens" if load.named else f"{latency} ms"
            pairs: list[tuple[float, float, float, float, int]] = []
            await _answer(client, prompt, overlap=True)  # warm-up
            for turn in range(repetitions):
                report_progress(f"spans, {name}, overlap on and off in turn: {len(pairs)} of {repetitions}")
                orders = (True, False) if turn % 2 else (False, True)
                both = {on: await _answer(client, prompt, overlap=on) for on in orders}
                on, off = both[True], both[False]
                pairs += zip(on.cycles, off.cycles, off.drafts, off.checks, on.ready, strict=False)
                if len(pairs) >= repetitions or not pairs:
                    break
            figures += _span_figures(name, pairs, "<= 1.15" if latency >= BOUND_FROM_MS else None)
    return figures


def _span_figures(
    name: str, pairs: Sequence[tuple[float, float, float, float, int]], bound: str | None
) -> Sequence[Measurement]:
    """Return the figures of spans, each with and without overlap: the texts are the same."""
    if not pairs:
        msg = "the local model ends its text at once: there are no spans to measure"
        raise UsageError(msg)
    hits = [pair for pair in pairs if pair[-1]]
    share = sum(pair[-1] for pair in pairs) / (SPAN * len(pairs))
    draft, check = (milliseconds([pair[i] for pair in pairs]).median for i in (2, 3))
    alone = f"without overlap a draft takes {draft:.0f} ms, a check {check:.0f} ms"
    ready = f"{len(hits)} of {len(pairs)} spans found {100 * share:.0f} % of their tokens ready"
    return (
        Measurement(
            f"{name}: a span over max(draft, check)",
            Spread.of([on / max(draft, check) for on, _, draft, check, _ in hits or pairs]),
            "ratio",
            bound,
            ready,
        ),
        Measurement(
            f"{name}: the same without overlap",
            Spread.of([off / max(draft, check) for _, off, draft, check, _ in pairs]),
            "ratio",
            None,
            alone,
        ),
    )


async def _throughput(pair: WrittenPair, latency: int, report_progress: Callable[[str], None]) -> Sequence[Measurement]:
    """Take a pair's tokens a second over the same problems, another rule first at each."""
    answers: dict[str, list[Answer]] = {policy: [] for policy in POLICIES}
    async with _client(pair.local, pair.cloud, latency, pair.context) as client:
        for i, question in enumerate(pair.questions):
            report_progress(
                f"tokens a second at a round trip of {latency} ms: problem {i + 1} of {len(pair.questions)}"
            )
            for j in range(len(POLICIES)):
                policy = POLICIES[(i + j) % len(POLICIES)]
                await client.generate("x", policy="local", raw=True, max_tokens=1)  # no prompt is left in the cache
                answers[policy].append(await client.generate(question, policy=policy, max_tokens=pair.max_tokens))
    return [_rate(f"{latency} ms: {policy}", found) for policy, found in answers.items()]


def _rate(name: str, answers: Sequence[Answer]) -> Measurement:
    seconds = [answer.timing.total_ms / 1000 for answer in answers]
    num_tokens = [len(answer.tokens) for answer in answers]
    note = f"{sum(num_tokens) / sum(seconds):.0f} over all {len(answers)} answers"
    return Measurement(
        name, Spread.of([n / s for n, s in zip(num_tokens, seconds, strict=True)]), "tokens/s", None, note
    )
