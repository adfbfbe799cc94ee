"""``hybrid bench chain``: what a chain of local models takes, beside each of them alone and what the scheduler chose.

The bundled models small and mid draft for the bundled large one behind a server that takes 80 ms for a reply, greedily
and exactly (``greedy-exact``), so that every arm writes the same texts but for near ties. Problems come in rounds: each
arm answers a round's before the next round begins, so that a slow minute slows all. With several questions at once each
has a context of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.assemble import BUNDLED_CLOUD, ClientOpener, bundled_server
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread, ratio
from hybrid.policy import preset
from hybrid.policy.choices import PolicyOptions
from hybrid.record.events import Event, Finished, SpanDrafted, SpanRead
from hybrid.run import AsyncClient
from hybrid.settings.config import NO_LEDGER, Settings
from hybrid.settings.names import MODELS
from hybrid.tasks import FAMILIES, distinct

LATENCY_MS, AT_ONCE, MAX_TOKENS, POLICY = 80, (1, 2, 4, 8), 96, "greedy-exact"
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


@dataclass
class _Arm:
    """What one way to draft took: seconds of each round, and counts over all of them."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    checks: int = 0
    nanousd: int = 0
    drafted: int = 0
    read: int = 0
    texts: dict[str, str] = field(default_factory=dict)

    def hear(self, question: str, event: Event) -> None:
        """Add what happened while a question was answered."""
        match event:
            case SpanDrafted(ids=ids):
                self.drafted += len(ids)
            case SpanRead(num_tokens=num):
                self.read += num
            case Finished(answer=answer):
                self.tokens += len(answer.tokens)
                self.checks += answer.usage.checks
                self.nanousd += answer.bill.nanousd or 0
                self.texts[question] = answer.text


def run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Measure so many rounds of a problem of each family with one question at once, and fewer with several."""
    figures: list[Measurement] = []
    for at_once in AT_ONCE:
        rounds = repetitions if at_once == 1 else max(2, repetitions // 3)
        figures += asyncio.run(_measured(at_once, rounds, report_progress))
    setting = f"the bundled models by {POLICY}, spans of 8, an endpoint that takes {LATENCY_MS} ms, prices {PRICE}"
    return BenchmarkReport("chain", setting, tuple(figures))


async def _measured(at_once: int, rounds: int, report_progress: Callable[[str], None]) -> list[Measurement]:
    questions = [[each.question for each in distinct(family, "test", rounds, seed=0)] for family in FAMILIES]
    arms = {name: _Arm() for name in ARMS}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bundled_server(BUNDLED_CLOUD, "--latency-ms", str(LATENCY_MS)))
        clients = {name: await stack.enter_async_context(_opener(url, at_once, own)) for name, own in ARMS.items()}
        for number in range(-1, rounds):  # the first is for the caches
            report_progress(f"{at_once} at once, round {number + 1} of {rounds}")
            for name in list(ARMS) if number % 2 else list(reversed(ARMS)):
                asked = [family[max(0, number)] for family in questions]
                taken = await _round(clients[name], asked, arms[name] if number >= 0 else _Arm(), at_once)
                if number >= 0:
                    arms[name].seconds.append(taken)
        figures = _figures(at_once, arms)
        return figures + (_of_the_choice(clients["chosen"], arms) if at_once == 1 else [])


def _opener(url: str, at_once: int, own: dict[str, Any]) -> ClientOpener:
    """Return a client whose settings are constructed, not loaded: the user's own have no say in a measurement."""
    common: dict[str, Any] = {"cloud": url, "api_key_env": "", "price": PRICE, "ledger": Path(NO_LEDGER), "threads": 1}
    return ClientOpener(Settings.model_construct(**common, seed=0, ctx=512, parallel=at_once, policy=POLICY, **own))


async def _round(client: AsyncClient, questions: Sequence[str], arm: _Arm, at_once: int) -> float:
    """Answer questions, so many at once; return the seconds."""
    room = asyncio.Semaphore(at_once)

    async def ask(question: str) -> None:
        async with room:
            async for event in client.stream(question, max_tokens=MAX_TOKENS):
                arm.hear(question, event)

    began = time.perf_counter()
    await asyncio.gather(*map(ask, questions))
    return time.perf_counter() - began


def _figures(at_once: int, arms: dict[str, _Arm]) -> list[Measurement]:
    """Return time, checks, bill and local work of each arm, with ``at_once`` questions at once."""
    figures = []
    for name, arm in arms.items():
        per = f"{name}, {at_once} at once"
        figures += [
            Measurement(f"{per}: time over small's", ratio(arm.seconds, arms["small"].seconds), "ratio"),
            Measurement(f"{per}: tokens a second", _one(arm.tokens / sum(arm.seconds)), "tokens/s"),
            Measurement(f"{per}: checks per 100 tokens", _one(100 * arm.checks / arm.tokens), "checks"),
            Measurement(f"{per}: bill over small's", _one(arm.nanousd / arms["small"].nanousd), "ratio"),
            Measurement(f"{per}: drafted per token", _one(arm.drafted / arm.tokens), "tokens"),
            Measurement(f"{per}: read by mid per token", _one(arm.read / arm.tokens), "tokens"),
        ]
    asked = arms["mid"].texts
    same = sum(len({arm.texts[question] for arm in arms.values()}) == 1 for question in asked)
    figures.append(Measurement(f"{at_once} at once: texts that all arms share", _one(same), f"of {len(asked)}"))
    return figures


def _of_the_choice(client: AsyncClient, arms: dict[str, _Arm]) -> list[Measurement]:
    """Return how good the choice was, what it takes, and what was predicted."""
    seconds = {name: arms[name].seconds for name in ARMS}
    chosen = seconds.pop("chosen")
    fastest = min(seconds, key=lambda name: sum(seconds[name]))
    luckiest = np.min([*seconds.values()], axis=0).tolist()
    policy = preset(POLICY, PolicyOptions())
    began = time.perf_counter()
    for _ in range(CHOICES):
        chain = client.chains.choose(policy, PolicyOptions().sampling)
    micros = (time.perf_counter() - began) / CHOICES * 1e6
    found = [
        _over("the best arm of all rounds", chosen, seconds[fastest], f"{fastest}; "),
        _over("the best arm of each round", chosen, luckiest),
        Measurement(f"chosen over {fastest}, all rounds", _one(sum(chosen) / sum(seconds[fastest])), "ratio"),
        Measurement("a choice", _one(micros), "us", note=f"{chain} at the end"),
    ]
    for name in ("small", "mid", "small>mid"):
        told = client.chains.predicted(tuple(name.split(">")), policy)
        seen = 1000 * sum(arms[name].seconds) / arms[name].tokens
        shares = ", ".join(f"{share:.2f}" for share in told.acceptance)
        found.append(
            Measurement(f"{name}: predicted over observed time", _one(told.ms_per_token / seen), "ratio", note=shares)
        )
    return found


def _over(what: str, chosen: list[float], best: list[float], note: str = "") -> Measurement:
    worse = sum(a > WORSE * b for a, b in zip(chosen, best, strict=True))
    found = ratio(chosen, best)
    return Measurement(f"chosen over {what}", found, "ratio", f"<= {WORSE}", f"{note}worse in {worse} rounds")


def _one(value: float) -> Spread:
    return Spread.of([value])
