"""Speed: what this client's mechanisms cost, as ratios against bare llama.cpp, measured inside one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hybrid.bench.speed import bill, check, engine, kl, ledger, overlap, prefix
from hybrid.bench.speed.measure import BenchmarkReport
from hybrid.bench.speed.prefix import LENGTHS, MeasuredServer
from hybrid.bench.speed.random_model import HALF_BILLION, write_random_model

# Pairs of runs where nobody says how many: enough for a steady median, and no benchmark above a few minutes.
REPETITIONS = {"engine": 100, "kl": 100, "check": 30, "prefix": 8, "bill": 1, "overlap": 40, "ledger": 300}


def run(
    benchmark: str,
    folder: Path,
    report_progress: Callable[[str], None],
    repetitions: int | None = None,
    server: MeasuredServer | None = None,
) -> BenchmarkReport:
    """Run one benchmark; the models it needs are written to ``folder`` unless they are there.

    ``server``: what ``prefix`` or ``bill`` measures in the place of the bundled one.
    """
    num = repetitions or REPETITIONS[benchmark]
    if benchmark == "kl":
        return kl.run(report_progress, num)
    if benchmark == "ledger":
        return ledger.run(folder, report_progress, num)
    if benchmark == "prefix":
        return prefix.run(folder, report_progress, num, server)
    if benchmark == "bill":
        return bill.run(report_progress, num, server)
    report_progress("the random model is written, or used again where it is kept")
    model = write_random_model(folder / "half-billion.gguf", HALF_BILLION)
    return {"engine": engine.run, "check": check.run, "overlap": overlap.run}[benchmark](model, report_progress, num)


__all__ = ["LENGTHS", "REPETITIONS", "BenchmarkReport", "MeasuredServer", "run"]
