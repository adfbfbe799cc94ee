"""``hybrid bench batch``: what several lines at once save, over an endpoint that takes 100 ms for a reply.

The real command answers 200 problems in a process of its own, one at a time and four at a time, from its start to its
end. Both outputs are compared: four at a time that were not the texts of one at a time would be no saving.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, bundled_server
from hybrid.errors import EngineError
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread, ratio
from hybrid.tasks import BY_NAME, distinct

LATENCY_MS, LINES, PARALLEL = 100, 200, 4
FAMILY, MAX_TOKENS = "arithmetic", 48


def run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Measure pairs of batches, one line at a time and four at a time in turn."""
    with tempfile.TemporaryDirectory(prefix="hybrid-bench-") as folder:
        pairs = asyncio.run(_pairs(Path(folder), report_progress, repetitions))
    alone, together = ([seconds[i] for seconds in pairs] for i in (0, 1))
    rates = [Spread.of([LINES / seconds for seconds in each]) for each in (alone, together)]
    figures = (
        Measurement(f"{LINES} lines, one at a time over {PARALLEL} at a time", ratio(alone, together), "ratio", ">= 3"),
        Measurement("one at a time", rates[0], "lines/s"),
        Measurement(f"{PARALLEL} at a time", rates[1], "lines/s"),
    )
    setting = f"the bundled pair by kl, an endpoint that takes {LATENCY_MS} ms for a reply, whole processes"
    return BenchmarkReport("batch", setting, figures)


async def _pairs(folder: Path, report_progress: Callable[[str], None], repetitions: int) -> list[tuple[float, float]]:
    questions = [each.question for each in distinct(BY_NAME[FAMILY], "test", LINES, seed=0)]
    (folder / "in").write_text("".join(f"{json.dumps(each)}\n" for each in questions), encoding="utf-8")
    pairs = []
    for turn in range(repetitions):
        async with bundled_server(BUNDLED_CLOUD, "--latency-ms", str(LATENCY_MS)) as url:
            found: dict[int, tuple[float, list[str]]] = {}
            for parallel in (1, PARALLEL) if turn % 2 == 0 else (PARALLEL, 1):
                report_progress(f"{LINES} lines, {parallel} at a time: pair {turn + 1} of {repetitions}")
                found[parallel] = await _batch(folder, url, parallel)
        if found[1][1] != found[PARALLEL][1]:
            msg = f"{PARALLEL} lines at a time have other texts than one at a time"
            raise EngineError(msg)
        pairs.append((found[1][0], found[PARALLEL][0]))
    return pairs


async def _batch(folder: Path, url: str, parallel: int) -> tuple[float, list[str]]:
    """Return the seconds that a batch takes, and its texts. Raises EngineError where it fails."""
    out = folder / "out"
    out.unlink(missing_ok=True)
    flags = {"--local": BUNDLED_LOCAL, "--cloud": url, "--price": "free", "--policy": "kl", "--max-tokens": MAX_TOKENS}
    flags |= {"--threads": 1, "--seed": 0, "--ledger": "none", "--parallel": parallel}
    # The user's own settings have no say in a measurement.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "hybrid", "batch", str(folder / "in"), str(out), "--json"),
        *(str(part) for flag in flags.items() for part in flag),
        cwd=folder,
        env=environment | {"XDG_CONFIG_HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, failed = await process.communicate()
    seconds = time.perf_counter() - began
    if process.returncode != 0 or (summary := json.loads(said))["degraded"] or summary["answered"] != LINES:
        msg = f"the batch did not answer every line: {failed.decode(errors='replace').strip() or said.decode()}"
        raise EngineError(msg)
    return seconds, [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()]
