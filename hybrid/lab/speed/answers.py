"""Whole answers over a slow endpoint: ``hybrid bench overlap`` and ``chain``.

``overlap``: what drafting during a check saves, and tokens a second by policy and round trip. ``chain``: what a chain
of local models takes, beside each of them alone and what the scheduler chose; also with several questions at once, what
choosing takes by the number of chains, and the memory by their depth.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from os.path import getsize
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, bundled_server
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import Weights
from hybrid.errors import Unreachable, UsageError
from hybrid.lab.speed.engine import alone
from hybrid.lab.speed.measure import (
    KEPT,
    WARM_UP,
    Bench,
    BenchmarkLoad,
    check_same_vocabulary,
    client_of,
    milliseconds,
    mixed_questions,
    problems_of,
    run_in_turn,
    seconds_of,
    turns,
    wait_in_turn,
)
from hybrid.lab.speed.random_model import TINY, write_random_model
from hybrid.pairs.timings import CloudCosts
from hybrid.policy import preset
from hybrid.policy.choices import PolicyOptions
from hybrid.record.events import SpanRead
from hybrid.run import Answer, AsyncClient, CheckAnswered, Degraded, Finished, RequestSent, SpanDrafted
from hybrid.run.chain import LEAST_COMPARED, ChainStatistics, ChosenChain, LevelCost, PairAcceptance
from hybrid.settings.config import NO_LEDGER, AnswerChoices
from hybrid.settings.names import MODELS
from hybrid.tasks import FAMILIES

# Without overlap a span takes its draft plus its check, with overlap the longer of the two. The random drafter has half
# a billion parameters, its reference ten million and the same vocabulary: most of its work are 17 rows of 152k tokens.
# Of named models both have their own work, on the same machine.

ROUND_TRIPS_MS = (0, 20, 80, 200)
# Where the round trip hides behind the draft, or the draft behind the round trip; below that there is little to hide.
BOUND_FROM_MS = 80
SPAN, SPANS_AN_ANSWER = 8, 12
POLICIES = ("local", "cloud", "greedy-exact", "kl", "doubt")
PROBLEMS_A_FAMILY, QUESTIONS_OF_NAMED = 3, 8
CONTEXT = 512
PATIENCE_S = 300.0


def overlap(bench: Bench) -> Coroutine[Any, Any, str]:
    """Measure spans with overlap on and off, in turn, at each round trip; then a pair's tokens a second.

    Of a named pair the reference checks; where it is another model, the pair is theirs. Of a random model both are
    chosen here: a tiny reference, and the bundled pair.
    """
    load, cloud = bench.load(CONTEXT), bench.pair.cloud if bench.pair else None
    with closing(Weights(load.model)) as weights:
        if cloud:
            with closing(Weights(cloud)) as reference:
                check_same_vocabulary(weights, reference)
        # The pieces of a random vocabulary do not come back as they were.
        text = load.text(weights, load.lengths[-1]) if load.named else weights.tokenize("x")
        prompts = {n: b"".join(map(weights.piece, text[:n])).decode("utf-8", "ignore") for n in load.lengths}
        setting = f"drafter {load.describe(weights)}, spans of {SPAN}, every check kept"
    reference_file = cloud or write_random_model(bench.folder / "tiny.gguf", TINY)
    return _overlap(bench, load, reference_file, prompts, setting)


async def _overlap(bench: Bench, load: BenchmarkLoad, cloud: Path, prompts: Mapping[int, str], setting: str) -> str:
    for latency in ROUND_TRIPS_MS:
        at = prompts if latency == BOUND_FROM_MS else {n: prompts[n] for n in load.lengths[:1]}
        async with _slow_client(load.model, cloud, latency, load.lengths[-1] + CONTEXT) as client:
            for length, prompt in at.items():
                name = f"{latency} ms, after {length} tokens" if load.named else f"{latency} ms"
                await _time_spans(bench, client, prompt, name, "<= 1.15" if latency >= BOUND_FROM_MS else None)
    if load.named and load.model == cloud:  # a model that checks itself writes what it would alone
        return setting
    # A real model takes seconds for an answer.
    local, cloud = (load.model, cloud) if load.named else (BUNDLED_LOCAL, BUNDLED_CLOUD)
    of_families = [each for family in FAMILIES for each in problems_of(family.name, PROBLEMS_A_FAMILY)]
    questions = mixed_questions()[:QUESTIONS_OF_NAMED] if load.named else of_families
    for latency in (ROUND_TRIPS_MS[0], BOUND_FROM_MS) if load.named else ROUND_TRIPS_MS:
        async with _slow_client(local, cloud, latency, CONTEXT) as client:
            await _time_policies(bench, client, questions, latency, 48 if load.named else 96)
    return f"{setting}; tokens a second of {local.name} and {cloud.name}"


@asynccontextmanager
async def _slow_client(local: Path, cloud: Path, latency_ms: int, context: int) -> AsyncIterator[AsyncClient]:
    flags = ("--latency-ms", str(latency_ms), "--ctx", str(context), "--scoring-keeps-cache")
    patience = {f"{what}_timeout_s": PATIENCE_S for what in ("first_byte", "read", "request")}
    async with bundled_server(cloud, *flags) as url, client_of(url, local=local, ctx=context, **patience) as client:
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
    num = SPAN * SPANS_AN_ANSWER
    choices: AnswerChoices = {**KEPT, "span": SPAN, "max_tokens": num, "raw": True, "overlap": overlap}
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


async def _time_spans(bench: Bench, client: AsyncClient, prompt: str, name: str, bound: str | None) -> None:
    """Time spans, each with and without overlap: the texts are the same."""
    pairs: list[tuple[float, float, float, float, int]] = []
    both = [await _answer(client, prompt, overlap=True)] * 2  # a warm-up
    for turn, which in turns(bench.num, 2):
        bench.say(f"spans, {name}, overlap on and off in turn: {len(pairs)} of {bench.num}")
        both[which] = await _answer(client, prompt, overlap=which == 1)
        if which == turn % 2:  # the second of a turn
            off, on = both
            pairs += zip(on.cycles, off.cycles, off.drafts, off.checks, on.ready, strict=False)
            if len(pairs) >= bench.num or not pairs:
                break
    if not pairs:
        msg = "the local model ends its text at once: there are no spans to measure"
        raise UsageError(msg)
    hits = [pair for pair in pairs if pair[-1]]
    share = sum(pair[-1] for pair in pairs) / (SPAN * len(pairs))
    ready = f"{len(hits)} of {len(pairs)} spans found {100 * share:.0f} % of their tokens ready"
    ratios = [on / max(draft, check) for on, _, draft, check, _ in hits or pairs]
    bench.add(f"{name}: a span over max(draft, check)", ratios, "ratio", bound, ready)
    draft, check = (milliseconds([pair[i] for pair in pairs]).median for i in (2, 3))
    alone = f"without overlap a draft takes {draft:.0f} ms, a check {check:.0f} ms"
    ratios = [off / max(draft, check) for _, off, draft, check, _ in pairs]
    bench.add(f"{name}: the same without overlap", ratios, "ratio", None, alone)


async def _time_policies(
    bench: Bench, client: AsyncClient, questions: Sequence[str], latency: int, max_tokens: int
) -> None:
    """Take tokens a second over the same problems, another rule first at each."""

    async def rates_of(policy: str, i: int) -> Answer:
        bench.say(f"tokens a second at a round trip of {latency} ms: problem {i + 1} of {len(questions)}")
        await client.generate("x", policy="local", raw=True, max_tokens=1)  # no prompt is left in the cache
        return await client.generate(questions[i], policy=policy, max_tokens=max_tokens)

    answers = await wait_in_turn(len(questions), *(partial(rates_of, policy) for policy in POLICIES))
    for policy, found in zip(POLICIES, answers, strict=True):
        num_tokens, seconds = [len(each.tokens) for each in found], [each.timing.total_ms / 1000 for each in found]
        note = f"{sum(num_tokens) / sum(seconds):.0f} over all {len(found)} answers"
        rates = [num / taken for num, taken in zip(num_tokens, seconds, strict=True)]
        bench.add(f"{latency} ms: {policy}", rates, "tokens/s", None, note)


# ---- a chain of local models -----------------------------------------------------------------------------------------
#
# The bundled models small and mid draft for the bundled large one behind a server that takes 80 ms for a reply,
# greedily and exactly (``greedy-exact``), so that every arm writes the same texts but for near ties. Problems come in
# rounds: each arm answers a round's before the next round begins, so that a slow minute slows all. With several
# questions at once each has a context of its own.

CHAIN_MS, AT_ONCE, MAX_TOKENS, POLICY = 80, (1, 2, 4, 8), 96, "greedy-exact"
PRICE = "1/0.1/4"
SMALL, MID = MODELS / "small.gguf", MODELS / "mid.gguf"
ARMS: dict[str, dict[str, Any]] = {
    "small": {"local": SMALL},
    "mid": {"local": MID},
    "small>mid": {"local": MID, "drafters": (SMALL,), "chain": "small>mid"},
    "chosen": {"local": MID, "drafters": (SMALL,), "chain": "auto"},
}
# Choices that are timed, and how much worse than the best the chosen chain may be.
CHOICES, WORSE = 1000, 1.05
# Numbers of models to choose among: n of them make 2^n chains (the cloud alone is one); so many take seconds, once.
NUMS_OF_MODELS, MANY = (1, 2, 3, 4, 8, 16), 10
MADE_COSTS = CloudCosts(CHAIN_MS, CHAIN_MS, 1.0, 1.0)
# A chain of depth n is the first n of these, the smallest first.
LADDER = (SMALL, MODELS / "student.gguf", MID, BUNDLED_CLOUD)


async def chain(bench: Bench) -> str:
    """Measure rounds of a problem of each family with one question at once, and fewer with several."""
    single: dict[str, _Arm] = {}
    for at_once in AT_ONCE:
        arms = await _time_chains(bench, at_once, bench.num if at_once == 1 else max(2, bench.num // 3))
        single = single or arms
        for name, arm in arms.items() if arms is not single else ():  # the same questions, and nearly the same texts
            one, several = zip(*zip(single[name].seconds, arm.seconds, strict=False), strict=True)
            bench.add_ratio(f"{name}, {at_once} at once: tokens a second over one at a time", one, several)
    _time_choosing(bench)
    _weigh_chains(bench)
    return f"the bundled models by {POLICY}, spans of 8, an endpoint that takes {CHAIN_MS} ms, prices {PRICE}"


async def _time_chains(bench: Bench, at_once: int, rounds: int) -> dict[str, _Arm]:
    questions = [problems_of(family.name, rounds) for family in FAMILIES]
    arms = {name: _Arm() for name in ARMS}
    common = {"price": PRICE, "ledger": Path(NO_LEDGER), "ctx": 512, "parallel": at_once}
    common |= {"policy": POLICY, "span": SPAN}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bundled_server(BUNDLED_CLOUD, "--latency-ms", str(CHAIN_MS)))
        clients = [await stack.enter_async_context(client_of(url, **common, **own)) for own in ARMS.values()]
        for number, which in turns(rounds + 1, len(ARMS)):  # the first is for the caches
            bench.say(f"{at_once} at once, round {number} of {rounds}")
            asked = [family[max(0, number - 1)] for family in questions]
            arm = list(arms.values())[which] if number else _Arm()
            arm.seconds.append(await seconds_of(_answer_round(clients[which], asked, arm, at_once)))
        _add_arms(bench, f"{at_once} at once", arms)
        if at_once == 1:
            _add_choice(bench, clients[-1], arms)
    return arms


@dataclass
class _Arm:
    """What one way to draft took: seconds of each round, counts over all of them, and the texts by their question."""

    seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)


async def _answer_round(client: AsyncClient, questions: Sequence[str], arm: _Arm, at_once: int) -> None:
    """Answer questions, so many at once."""
    room = asyncio.Semaphore(at_once)

    async def ask(question: str) -> None:
        async with room:
            async for event in client.stream(question, max_tokens=MAX_TOKENS):
                match event:
                    case SpanDrafted(ids=ids):
                        arm.counts["drafted"] += len(ids)
                    case SpanRead(num_tokens=num):
                        arm.counts["read"] += num
                    case Finished(answer=answer):
                        arm.counts["tokens"] += len(answer.tokens)
                        arm.counts["checks"] += answer.usage.checks
                        arm.counts["nanousd"] += answer.bill.nanousd or 0
                        arm.texts[question] = answer.text

    await asyncio.gather(*map(ask, questions))


def _add_arms(bench: Bench, at_once: str, arms: dict[str, _Arm]) -> None:
    """Add time, checks, bill and local work of each arm."""
    small = arms["small"]
    for name, arm in arms.items():
        per, counts, tokens = f"{name}, {at_once}", arm.counts, arm.counts["tokens"]
        bench.add_ratio(f"{per}: time over small's", arm.seconds, small.seconds)
        bench.add(f"{per}: tokens a second", [tokens / sum(arm.seconds)], "tokens/s")
        bench.add(f"{per}: checks per 100 tokens", [100 * counts["checks"] / tokens], "checks")
        bench.add(f"{per}: bill over small's", [counts["nanousd"] / small.counts["nanousd"]], "ratio")
        bench.add(f"{per}: drafted per token", [counts["drafted"] / tokens], "tokens")
        bench.add(f"{per}: read by mid per token", [counts["read"] / tokens], "tokens")
    asked = arms["mid"].texts
    same = sum(len({arm.texts[question] for arm in arms.values()}) == 1 for question in asked)
    bench.add(f"{at_once}: texts that all arms share", [same], f"of {len(asked)}")


def _add_choice(bench: Bench, client: AsyncClient, arms: dict[str, _Arm]) -> None:
    """Add how good the choice was, what it takes, and what was predicted."""
    seconds = {name: arm.seconds for name, arm in arms.items()}
    chosen = seconds.pop("chosen")
    fastest = min(seconds, key=lambda name: sum(seconds[name]))
    luckiest = np.min([*seconds.values()], axis=0).tolist()
    policy = preset(POLICY, PolicyOptions())
    began = time.perf_counter()
    for _ in range(CHOICES):
        chain = client.chains.choose(policy, PolicyOptions().sampling)
    micros = (time.perf_counter() - began) / CHOICES * 1e6
    for what, best, note in (("all rounds", seconds[fastest], f"{fastest}; "), ("each round", luckiest, "")):
        worse = sum(a > WORSE * b for a, b in zip(chosen, best, strict=True))
        said = f"{note}worse in {worse} rounds"
        bench.add_ratio(f"chosen over the best arm of {what}", chosen, best, f"<= {WORSE}", said)
    bench.add(f"chosen over {fastest}, all rounds", [sum(chosen) / sum(seconds[fastest])], "ratio")
    bench.add("a choice", [micros], "us", note=f"{chain} at the end")
    for name in seconds:
        told = client.chains.predicted(tuple(name.split(">")), policy)
        seen = 1000 * sum(arms[name].seconds) / arms[name].counts["tokens"]
        shares = ", ".join(f"{share:.2f}" for share in told.acceptance)
        bench.add(f"{name}: predicted over observed time", [told.ms_per_token / seen], "ratio", note=shares)


def _time_choosing(bench: Bench) -> None:
    """Add what a choice takes by the number of chains, in turn with a token of small."""
    num_tokens = (bench.num + WARM_UP) * len(NUMS_OF_MODELS)
    with closing(Weights(SMALL)) as weights, closing(BareContext(weights, num_tokens, 1, num_rows=1)) as bare:
        for num in NUMS_OF_MODELS:
            bench.say(f"choosing among {2**num} chains, in turn with a token of small")
            choose, runs = partial(_choose, made_scheduler(num)), (1, 0) if num > MANY else (bench.num, WARM_UP)
            ours, theirs = run_in_turn(choose, lambda _: bare.decode((1,)), *runs)
            name = f"choosing among {2**num} chains of {num} models over a token of small"
            bench.add_ratio(name, ours, theirs, None, f"{1000 * milliseconds(ours).median:.0f} us")


def _choose(scheduler: ChainStatistics, _: int) -> ChosenChain:
    return scheduler.choose("auto", SPAN, MADE_COSTS, free=True)


def made_scheduler(num: int) -> ChainStatistics:
    """Return a scheduler of so many models that are made up, each two of them compared often enough to choose by."""
    costs = {f"{number}": LevelCost(number + 1.0) for number in range(num)}
    return ChainStatistics(tuple(costs), costs, defaultdict(lambda: PairAcceptance(0.8, 1.0, LEAST_COMPARED)))


def _weigh_chains(bench: Bench) -> None:
    """Compare the peaks of fresh processes, a few a depth, beside the models' files."""
    own = "from hybrid.lab.speed.answers import watch_chain as watch"
    for depth in range(1, len(LADDER) + 1):
        what, files = f"a chain of {depth}", LADDER[:depth]
        bench.say(f"peak memory of {what}")
        peaks = [alone(own, what, f"{depth}") for _ in range(min(bench.num, 3))]
        note = f"{'>'.join(path.stem for path in files)}, files of {sum(map(getsize, files)) / 2**20:.1f} MiB"
        bench.add(f"peak memory of a process with {what}", peaks, "MiB", None, note)


def watch_chain(depth: str) -> None:
    """Answer a question by the local models alone, so many in a chain, and print the peak that was seen, in MiB."""

    async def peak(*drafters: Path, local: Path) -> float:
        resident, question = psutil.Process().memory_info, problems_of(FAMILIES[0].name, 1)[0]
        async with client_of(None, local=local, drafters=drafters, ctx=CONTEXT, policy="local") as client:
            return max([resident().rss async for _ in client.stream(question, max_tokens=MAX_TOKENS)]) / 2**20

    print(asyncio.run(peak(*LADDER[: int(depth) - 1], local=LADDER[int(depth) - 1])))  # noqa: T201  (the answer)
