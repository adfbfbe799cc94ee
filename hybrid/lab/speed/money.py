"""Money and what is kept: ``hybrid bench bill``, ``ledger`` and ``growth``.

``bill``: the cost of ``kl`` behind a long shared prefix, as a multiple of the large model's own bill. ``ledger``: the
cost of keeping a cap, durably. ``growth``: an answer and a ledger's first operation, by how much is kept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, bundled_server
from hybrid.cloud import Capabilities, Chunk, ModelQuestion, ScoreQuestion, Scores, WriteQuestion
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.port import BeforeSend, unrecorded
from hybrid.defer import DraftOutcome, OnlineLearner
from hybrid.defer.signals import STATISTICS
from hybrid.engine.identity import identify
from hybrid.errors import EngineError
from hybrid.lab.arms import LARGE, PRICE, Arm, draw_balanced
from hybrid.lab.demo import KL
from hybrid.lab.speed.measure import (
    WARM_UP,
    Bench,
    WatchedEndpoint,
    endpoint_at,
    milliseconds,
    problems_of,
    ratio,
    run_in_turn,
    turns,
    watched_client,
    whole_answer,
)
from hybrid.pairs.knowledge import PairKnowledge
from hybrid.pairs.store import PairStore, calibration_for
from hybrid.run.deferral import PlannerFactory, PlanningContext
from hybrid.spend import Account, Denial, MaxCost, Price, Settlement, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable.schema import rebuild_totals
from hybrid.tasks import FAMILIES, MAX_TOKENS, Problem
from hybrid.types import NO_USAGE, CloudUsage, Ids, Sampling

# The bundled pair answers the demonstration's problems. Each of its requests is sent a second time, to the measured
# server, with 500 tokens in front; the bill is made of that server's usage. The pair itself answers without the 500
# tokens: it was trained on texts of a question's length and writes noise behind longer ones. For the same reason the
# measured server's own text is not read. It is asked for as many tokens as the answer has, without an end token. One
# more request, which is not billed, then puts the answer's own text into its cache.
#
# Prices are the demonstration's. Each arm has its own prefix, which is in no cache when its first question comes.

SHARED = 500
ARMS = (LARGE, KL, Arm("kl, span 16", "kl", {**KL.choices, "span": 16}))
# How the bundled server stands for three others, by the dialect it is asked in.
BUNDLED = {
    "vllm": ("--enable-prompt-tokens-details",),
    "vllm-tokens": ("--enable-prompt-tokens-details", "--enable-scale-out", "--v2-runner"),
    "sglang": ("--dialect", "sglang"),
}


async def bill(bench: Bench) -> str:
    """Measure a running server of the bundled large model, or the bundled server in the role of three others.

    The number of pairs is that of the problems of each family.
    """
    problems = draw_balanced(bench.num * len(FAMILIES), "test", 0)
    if bench.server:
        await _bill_at(bench, problems, bench.server.url, bench.server.dialect)
    else:
        for dialect, flags in BUNDLED.items():
            async with bundled_server(BUNDLED_CLOUD, *flags) as url:
                await _bill_at(bench, problems, url, dialect)
    where = bench.server.url if bench.server else "the bundled server, which stands for each of these"
    return f"{len(problems)} problems behind {SHARED} tokens, prices {PRICE}, {where}"


async def _bill_at(bench: Bench, problems: tuple[Problem, ...], url: str, dialect: str | None) -> None:
    rng, bills = np.random.default_rng(), dict[str, list[int]]()
    async with (
        bundled_server(BUNDLED_CLOUD) as plain,
        watched_client(
            BUNDLED_LOCAL,
            lambda weights: weights.context(0, 1),
            lambda engine: _RepricedEndpoint(
                endpoint_at(plain, engine, "vllm"), engine, endpoint_at(url, engine, dialect)
            ),
            Price.parse(PRICE),
            cloud=url,
            max_tokens=MAX_TOKENS,
            retries=0,
        ) as (client, behind),
    ):
        for arm in ARMS:
            # Digits are tokens, and no two runs have the same ones.
            behind.shared, behind.checks = behind.engine.tokenize("".join(map(str, rng.integers(0, 10, SHARED)))), []
            bills[arm.name] = []
            for problem in problems:
                bench.say(f"{url}: {arm.name}, {len(bills[arm.name])} of {len(problems)} answered")
                answer = await whole_answer(client, problem.question, **{**arm.choices, "policy": arm.policy})
                bills[arm.name].append(answer.bill.nanousd or 0)
            if arm is not LARGE:
                name = f"{behind.measured.knowledge.dialect.name}: bill of {arm.name} over the large model's own"
                _add_bill(bench, name, bills[arm.name], bills[LARGE.name], behind.checks)


def _add_bill(bench: Bench, name: str, bills: list[int], alone: list[int], checks: list[CloudUsage]) -> None:
    """Add the ratio of all bills together. The note has the questions' median and what the checks were charged."""
    prompt, cached = (sum(getattr(check, what) for check in checks) for what in ("prompt_tokens", "cached_tokens"))
    again = sum(check.requests > 1 for check in checks)
    note = (
        f"median question {median(a / b for a, b in zip(bills, alone, strict=True)):.2f}; {len(checks)} checks, "
        f"{100 * cached / max(1, prompt):.0f} % of their prompt cached, {again} took several requests"
    )
    bench.add(name, [sum(bills) / sum(alone)], "ratio", None, note)


@dataclass
class _RepricedEndpoint(WatchedEndpoint):
    """The plain endpoint's answers, charged as the measured endpoint charges them with ``shared`` in front."""

    measured: Endpoint
    shared: Ids = ()
    checks: list[CloudUsage] = field(default_factory=list)

    def _behind_prefix(self, question: Any, **changes: Any) -> Any:
        return replace(question, prefix=self.shared + question.prefix, **changes)

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Connect both."""
        await self.measured.connect(probe, probe_ids, asked_at)
        return await self.endpoint.connect(probe, probe_ids, asked_at)

    async def aclose(self) -> None:
        """Close both."""
        await self.measured.aclose()
        await self.endpoint.aclose()

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that the measured endpoint charges."""
        return self.measured.max_usage(self._behind_prefix(question))

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score with both."""
        scores = await self.endpoint.score(question, request_id)
        charged = (await self.measured.score(self._behind_prefix(question), request_id, before_send)).usage
        self.checks.append(charged)
        return replace(scores, usage=charged)

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Write with the plain one, then have the measured one write as many tokens, also if the stream was closed."""
        written, last = tuple[int, ...](), NO_USAGE
        try:
            async with aclosing(self.endpoint.write(question, request_id)) as chunks:
                async for chunk in chunks:
                    written += chunk.ids
                    last = chunk.usage or last
                    yield replace(chunk, usage=None)
        finally:
            num_tokens = max(last.completion_tokens, len(written))
            same = self._behind_prefix(question, limit=num_tokens, ban=self.engine.end_ids, begun=0)
            told = [chunk.usage async for chunk in self.measured.write(same, request_id, before_send) if chunk.usage]
            # Of the last token no server has computed what a cache keeps.
            left = WriteQuestion(self.shared + question.prefix + written[:-1], 1, 0, Sampling())
            async for _ in self.measured.write(left, "left"):
                pass
        yield Chunk(usage=told[-1])


# ---- the ledger ------------------------------------------------------------------------------------------------------

LEDGER_PRICE = Price.parse("1/0.1/4")
CAP_NANOUSD = 10**12
ROUND_TRIP_S = 0.080
# An answer as ``kl`` writes it: a prompt of 200 tokens, a check every 16; the server has the prefix cached.
CHECKS, PROMPT, SPAN = 8, 200, 16
PAGE = b"\0" * 4096


def ledger(bench: Bench) -> str:
    """Time reserving and settling on the folder's file system, beside one page written and flushed there."""
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=bench.folder) as own:
        durable = FileLedger(Path(own) / "ledger.sqlite")
        LedgerAdmin(durable).set_cap("total", CAP_NANOUSD)
        bench.say("reserve, mark and settle, in turn with a page that is written and flushed")
        _time_transactions(bench, durable, Path(own) / "page")
        bench.say(f"answers of {CHECKS} checks")
        asyncio.run(_time_answers(bench, durable))
        durable.close()
    return f"SQLite's log flushed before a reservation is granted; answers of {CHECKS} checks, the prefix cached"


def _time_transactions(bench: Bench, durable: FileLedger, page: Path) -> None:
    spender, claim = SpendScope("http://bench", "question", "conversation", "client"), MaxCost(LEDGER_PRICE, PROMPT, 1)
    file = os.open(page, os.O_CREAT | os.O_WRONLY, 0o600)

    def transaction(_: int) -> None:
        reserved = durable.reserve(claim, spender)
        assert not isinstance(reserved, Denial)
        durable.mark_sent(reserved)
        durable.settle(Settlement(reserved, claim.worst_nanousd // 2))

    def flush(_: int) -> None:
        os.write(file, PAGE)
        os.fsync(file)

    kept, bare = run_in_turn(transaction, flush, bench.num)
    os.close(file)
    note = f"{ratio(kept, bare).median:.1f} times one page written and flushed ({milliseconds(bare).median:.2f} ms)"
    bench.add_ms("reserve, mark as sent and settle, durable", kept, "<= 6", note)


async def _time_answers(bench: Bench, durable: FileLedger) -> None:
    """Pay for answers' checks: the whole of it, and what the checks waited for leave."""
    account, whole, waited = Account(LEDGER_PRICE, durable, "http://bench"), list[float](), list[float]()
    for _ in range(bench.num + 1):
        began, wait = time.perf_counter(), 0.0
        async with account.open_budget() as purse:
            for i in range(CHECKS):
                asked = time.perf_counter()
                grant = await purse.reserve(PROMPT + SPAN * i, 1)
                assert not isinstance(grant, Denial)
                await purse.mark_sent(grant)
                wait += time.perf_counter() - asked
                purse.settle(grant, CloudUsage(grant.prompt_tokens, 1, grant.prompt_tokens - SPAN))
        whole.append(100 * (time.perf_counter() - began) / CHECKS / ROUND_TRIP_S)
        waited.append(100 * wait / CHECKS / ROUND_TRIP_S)
    name = f"of an {1000 * ROUND_TRIP_S:.0f} ms round trip, the ledger of a check"
    bench.add(name, whole[1:], "%", None, "reserving, marking as sent and settling, over the answer's checks")
    bench.add(f"{name}, waited for before it leaves", waited[1:], "%", "<= 5", "the rest is not in the way")


# ---- growth ----------------------------------------------------------------------------------------------------------

# Processor time of this process alone. The worth is so small that drafts are kept but for random checks: an answer that
# the cloud writes takes several times as long, whatever was learned.
OUTCOMES, ENTRIES, WORTH = (50, 5_000), (100, 100_000), "0.0001"


@dataclass(frozen=True)
class _OwnStore(PairStore):
    folder: Path

    @property
    def _folder(self) -> Path:
        return self.folder


class _OwnPlanners(PlannerFactory):
    """Planners of the bundled pair, with outcomes that were drawn: verdicts come as often as they were foretold."""

    def __init__(self, folder: Path, num: int) -> None:
        super().__init__()
        local, rng = identify(BUNDLED_LOCAL), np.random.default_rng(num)
        if (known := calibration_for(local, BUNDLED_CLOUD.stem, shipped_only=True)) is None:
            raise EngineError("the bundled pair's calibration is not in the package")
        drawn = list[DraftOutcome]()
        for told in rng.beta(0.4, 2.0, num).tolist():
            words, numbers = tuple(rng.integers(0, 4096, 20).tolist()), tuple(rng.random(len(STATISTICS)).tolist())
            drawn.append(DraftOutcome(told, told, False, 0.05, bool(rng.random() < told), "start", words, numbers))
        store, learner = _OwnStore(local, "", folder / str(num)), OnlineLearner(known.score, drawn, known)
        if not store.add(known.judge, drawn):
            raise EngineError("what was drawn cannot be written")
        self.pair = PairKnowledge(known.score, learner, known, store, known.judge)

    async def _knowledge(self, asked: PlanningContext) -> PairKnowledge:  # noqa: ARG002  (there is one pair)
        return self.pair


async def growth(bench: Bench) -> str:
    """Measure answers of ``auto`` in turn with few and with many outcomes learned; then ledgers."""
    questions, seconds = problems_of("arithmetic", bench.num + WARM_UP), (list[float](), list[float]())
    settings = {"policy": "auto", "worth": WORTH, "max_tokens": MAX_TOKENS}
    async with bundled_server(BUNDLED_CLOUD) as url, AsyncExitStack() as stack:
        # What grows is made anew: a folder that is kept would have grown by another run.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.folder)))
        every, clients = [_OwnPlanners(folder, num) for num in OUTCOMES], list[Any]()
        for planners in every:
            context, watch = (
                lambda weights: weights.context(0, 1),
                lambda it: WatchedEndpoint(endpoint_at(url, it, "vllm"), it),
            )
            opened = watched_client(BUNDLED_LOCAL, context, watch, Price.parse(PRICE), planners, cloud=url, **settings)
            clients.append((await stack.enter_async_context(opened))[0])
        bench.say(f"answers with {OUTCOMES[0]} and with {OUTCOMES[1]} outcomes learned")
        for turn, which in turns(bench.num + WARM_UP, 2):
            began = time.process_time()
            await whole_answer(clients[which], questions[turn])
            await every[which].aclose()
            seconds[which].append(time.process_time() - began)
        for num in ENTRIES:
            bench.say(f"a ledger of {num} entries")
            path = _write_ledger(folder / f"ledger-{num}.sqlite", num)
            taken = [_first_operation(path) for _ in range(bench.num + 1)][1:]
            bench.add_ms(f"a process's first operation, {num} entries", taken, "<= 50", f"n = {len(taken)}")
    few, many = (taken[WARM_UP:] for taken in seconds)
    for num, taken in zip(OUTCOMES, (few, many), strict=True):
        bench.add_ms(f"an answer, {num} outcomes learned", taken, None, "processor, learning and writing included")
    bench.add_ratio(f"an answer, {OUTCOMES[1]} outcomes over {OUTCOMES[0]}", many, few, "<= 1.1", f"n = {len(many)}")
    return f"processor time; the bundled pair, worth {WORTH}; ledgers with eight entries a question"


def _first_operation(path: Path) -> float:
    """Return the seconds of a first reservation; then settle it, and close the ledger."""
    ledger, claim = FileLedger(path), MaxCost(LEDGER_PRICE, PROMPT, 1)
    began = time.process_time()
    reserved = ledger.reserve(claim, SpendScope("http://bench", "now", "now", "client"))
    taken = time.process_time() - began
    assert not isinstance(reserved, Denial)
    ledger.settle(Settlement(reserved, 1))
    ledger.close()
    return taken


def _write_ledger(path: Path, num: int) -> Path:
    """Write a ledger of settled entries, as copies of the first one under questions of eight."""
    _first_operation(path)
    ledger, columns = FileLedger(path), "at, endpoint, client, price, granted, charged, reserved, owner, nonce, state"
    with ledger.file.transaction(flushed=False) as db:
        copied = f"SELECT {columns}, ?1, ?1 FROM entries WHERE id = 1"  # noqa: S608
        names = [(f"question {i // 8}",) for i in range(num - 1)]
        db.executemany(f"INSERT INTO entries ({columns}, request, conversation) {copied}", names)
        rebuild_totals(db)
    ledger.close()
    return path
