"""How long a user waits: ``hybrid bench waiting``.

Each question is answered under every rule in turn, the cloud alone among them, over the bundled server that takes its
time: milliseconds a token that it writes, a token of a prompt that no cache gives, and a round trip. The drafter is the
bundled small model, as quick as it is, or slowed down to what a model of some billions of parameters takes.

Both figures are shares of what the cloud alone took for the same question: the whole answer, and its first token.

A second of 0.001 USD makes 3.60 USD an hour; it is what the cloud takes for four answers of 60 tokens here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, bundled_server
from hybrid.engine import IsCancelled
from hybrid.engine.identity import identify
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.engine.port import Logits, never
from hybrid.lab.speed.measure import (
    Bench,
    WatchedEndpoint,
    endpoint_at,
    problems_of,
    turns,
    watched_client,
    whole_answer,
)
from hybrid.pairs.profile import PairIdentity
from hybrid.run import Answer, AsyncClient
from hybrid.run.deferral import PlannerFactory
from hybrid.spend import Price, TokenTimes
from hybrid.tasks import FAMILIES
from hybrid.types import Ids

CONTEXT, MAX_TOKENS, PREFILL_MS = 1024, 128, 0.2


class _Cell(NamedTuple):
    """Milliseconds: of a drafted token, of one that the cloud writes, and of a round trip."""

    draft: float
    token: float
    latency: float

    def __str__(self) -> str:
        drafter = f"{self.draft:g} ms drafted, " if self.draft else ""
        return f"{drafter}{self.token:g} ms written, {self.latency:g} ms away"


CELLS = (_Cell(0, 25, 100), _Cell(0, 17, 200), _Cell(20, 25, 100))
ARMS: dict[str, dict[str, Any]] = {
    "cloud": {"policy": "cloud"},
    "auto": {"policy": "auto"},
    "auto, a second 0.001 USD": {"policy": "auto", "second_usd": 0.001},
    "once": {"policy": "once"},
    "kl": {"policy": "kl"},
    "kl, span 4..32": {"policy": "kl", "span": "4..32"},
    "doubt": {"policy": "doubt"},
    "greedy-exact": {"policy": "greedy-exact"},
    "greedy-exact, span 8": {"policy": "greedy-exact", "span": 8},
    "greedy-exact, span 4..32": {"policy": "greedy-exact", "span": "4..32"},
    "greedy-exact, span auto": {"policy": "greedy-exact", "span": "auto"},
}


class _PacedEngine(LlamaEngine):
    """Takes at least so long for a token that is decoded alone; a prompt, in one batch, takes what it takes."""

    token_s = 0.0

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        due = time.monotonic() + self.token_s
        logits = super().extend(ids, num_rows, cancelled)
        if len(ids) == 1:
            time.sleep(max(0.0, due - time.monotonic()))
        return logits


@dataclass
class _RuleWaits:
    """What a rule's answers took, in seconds, and what they sent."""

    whole: list[float]
    first: list[float]
    requests: int = 0
    nanousd: int = 0

    def add(self, answer: Answer) -> None:
        self.whole.append(answer.timing.total_ms / 1000)
        self.first.append((answer.timing.ttft_ms or answer.timing.total_ms) / 1000)
        self.requests += answer.usage.cloud_requests
        self.nanousd += answer.bill.nanousd or 0


async def waiting(bench: Bench) -> str:
    """Measure ``bench.num`` questions of each cell, another rule first at each."""
    for cell in CELLS:
        arms = {name: _RuleWaits([], []) for name in ARMS}
        async with _client(cell) as client:
            await whole_answer(client, "What is 2 + 2?", policy="kl")  # connects
            for number, which in turns(bench.num, len(ARMS)):
                bench.say(f"{cell}: question {number + 1} of {bench.num}")
                name = list(ARMS)[which]
                # No prompt is left in the local cache; the server keeps its own.
                await whole_answer(client, "x", policy="local", raw=True, max_tokens=1)
                arms[name].add(await whole_answer(client, _questions(bench.num)[number], **ARMS[name]))
        _add(bench, cell, arms)
    return f"{BUNDLED_LOCAL.stem} and {BUNDLED_CLOUD.stem}, {PREFILL_MS} ms a prompt's token, shares of the cloud alone"


def _questions(num: int) -> Sequence[str]:
    """Return questions of all families in turn."""
    by_family = [problems_of(family.name, -(-num // len(FAMILIES))) for family in FAMILIES]
    return [question for row in zip(*by_family, strict=True) for question in row][:num]


@asynccontextmanager
async def _client(cell: _Cell) -> AsyncIterator[AsyncClient]:
    flags = ("--token-ms", str(cell.token), "--latency-ms", str(cell.latency), "--prefill-ms", str(PREFILL_MS))

    def context(weights: Weights) -> LlamaEngine:
        engine = _PacedEngine(weights, CONTEXT, 1)
        engine.token_s = cell.draft / 1000
        return engine

    async with bundled_server(BUNDLED_CLOUD, *flags, "--scoring-keeps-cache", "--ctx", str(CONTEXT)) as url:
        times = TokenTimes(cell.token, PREFILL_MS, PREFILL_MS / 10, cell.latency)  # as a probe would measure them
        planners = PlannerFactory(PairIdentity(identify(BUNDLED_LOCAL), lambda _: times, shipped_only=True))
        own = {"cloud": url, "ctx": CONTEXT, "max_tokens": MAX_TOKENS, "learn": False}
        price, watch = Price.parse("1/0.1/4"), lambda it: WatchedEndpoint(endpoint_at(url, it, None), it)
        async with watched_client(BUNDLED_LOCAL, context, watch, price, planners, **own) as (client, _):
            yield client


def _add(bench: Bench, cell: _Cell, arms: dict[str, _RuleWaits]) -> None:
    alone = arms.pop("cloud")
    for name, arm in arms.items():
        total, sent = sum(arm.whole) / sum(alone.whole), arm.requests / len(arm.whole)
        told = f"{total:.2f} over all; {sent:.1f} requests; {arm.nanousd / alone.nanousd:.2f} of the bill"
        bench.add_ratio(f"{cell}: {name}", arm.whole, alone.whole, None, told)
        bench.add_ratio(f"{cell}: {name}, first token", arm.first, alone.first)
