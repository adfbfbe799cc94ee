"""Speed: what this client's mechanisms cost, as ratios against bare llama.cpp, measured inside one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hybrid.lab.speed import (
    batch,
    bill,
    chain,
    check,
    engine,
    kl,
    ledger,
    overlap,
    parallel,
    prefix,
    recurrent,
    serve,
)
from hybrid.lab.speed.measure import BenchmarkLoad, BenchmarkReport, NamedPair
from hybrid.lab.speed.prefix import LENGTHS, MeasuredServer
from hybrid.lab.speed.random_model import HALF_BILLION, write_random_model

# Pairs of runs where nobody says how many: enough for a steady median, and no benchmark above a few minutes.
REPETITIONS = {
    "engine": 100,
    "kl": 100,
    "check": 30,
    "prefix": 8,
    "bill": 1,
    "overlap": 40,
    "ledger": 300,
    "recurrent": 8,
    "parallel": 30,
    "batch": 1,
    "serve": 100,
    "chain": 10,
}


def run(
    benchmark: str,
    folder: Path,
    report_progress: Callable[[str], None],
    repetitions: int | None = None,
    server: MeasuredServer | None = None,
    pair: NamedPair | None = None,
) -> BenchmarkReport:
    """Run one benchmark; the models it needs are written to ``folder`` unless they are there.

    ``server``: what ``prefix`` or ``bill`` measures in the place of the bundled one. ``pair``: what ``engine``, ``kl``,
    ``check`` and ``overlap`` decode with instead of random weights.
    """
    num = repetitions or REPETITIONS[benchmark]
    own_models: Mapping[str, Callable[[], BenchmarkReport]] = {
        "kl": lambda: kl.run(report_progress, num, pair),
        "ledger": lambda: ledger.run(folder, report_progress, num),
        "recurrent": lambda: recurrent.run(folder, report_progress, num),
        "parallel": lambda: parallel.run(report_progress, num),
        "batch": lambda: batch.run(report_progress, num),
        "serve": lambda: serve.run(report_progress, num),
        "chain": lambda: chain.run(report_progress, num),
        "prefix": lambda: prefix.run(folder, report_progress, num, server),
        "bill": lambda: bill.run(report_progress, num, server),
    }
    if benchmark in own_models:
        return own_models[benchmark]()
    if pair is not None:
        room = {"engine": engine.room(num), "check": check.ROOM, "overlap": overlap.CONTEXT}[benchmark]
        load = BenchmarkLoad.of(pair.local, room)
    else:
        report_progress("the random model is written, or used again where it is kept")
        load = BenchmarkLoad(write_random_model(folder / "half-billion.gguf", HALF_BILLION))
    if benchmark == "overlap":
        return overlap.run(load, report_progress, num, pair.cloud if pair else None)
    return {"engine": engine.run, "check": check.run}[benchmark](load, report_progress, num)


__all__ = ["LENGTHS", "REPETITIONS", "BenchmarkReport", "MeasuredServer", "NamedPair", "run"]
