"""Speed: what this client's mechanisms cost, as ratios against bare llama.cpp, measured inside one run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from hybrid.lab.speed import answers, check, engine, money, serve, start, waiting
from hybrid.lab.speed.measure import LENGTHS, Bench, BenchmarkReport, MeasuredServer, NamedPair

# By its name: what measures it and returns its setting, and the pairs of runs where nobody says how many: enough for a
# steady median, and no benchmark above a few minutes.
BENCHMARKS: Mapping[str, tuple[Callable[[Bench], str | Coroutine[Any, Any, str]], int]] = {
    "engine": (engine.engine, 100),
    "kl": (engine.kl, 100),
    "check": (check.check, 30),
    "prefix": (check.prefix, 8),
    "bill": (money.bill, 1),
    "overlap": (answers.overlap, 40),
    "ledger": (money.ledger, 300),
    "recurrent": (engine.recurrent, 8),
    "parallel": (serve.parallel, 30),
    "batch": (serve.batch, 1),
    "serve": (serve.serve, 100),
    "chain": (answers.chain, 10),
    "waiting": (waiting.waiting, 14),
    "start": (start.start, 20),
    "growth": (money.growth, 30),
}


def run(
    benchmark: str,
    folder: Path,
    report_progress: Callable[[str], None],
    repetitions: int | None = None,
    server: MeasuredServer | None = None,
    pair: NamedPair | None = None,
) -> BenchmarkReport:
    """Run one benchmark; the other arguments are those of its ``Bench``."""
    measure, usual = BENCHMARKS[benchmark]
    bench = Bench(repetitions or usual, folder, report_progress, server, pair)
    setting = measure(bench)
    if not isinstance(setting, str):
        setting = asyncio.run(setting)
    return BenchmarkReport(benchmark, setting, tuple(bench.figures))


__all__ = ["BENCHMARKS", "LENGTHS", "BenchmarkReport", "MeasuredServer", "NamedPair", "run"]
