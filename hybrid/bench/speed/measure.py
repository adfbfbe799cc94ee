"""Measure on a noisy machine: two pieces of work in turn, the ratio of each pair, the median of the ratios.

The law (``tests/bench/test_speed.py``): both sides of a ratio ran in the same process, turn by turn, so that a slow
minute slows both. A bound is printed beside a figure and never enforced; the reader judges.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[int], object]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements and the quartiles around it."""

    median: float
    low: float
    high: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        low, median, high = np.percentile(values, [25, 50, 75])
        return cls(float(median), float(low), float(high), len(values))


@dataclass(frozen=True)
class Measurement:
    """One line of a report. ``unit`` says what the spread counts; ``bound`` what was promised, if anything was."""

    name: str
    value: Spread
    unit: str
    bound: str | None = None
    note: str = ""


@dataclass(frozen=True)
class BenchmarkReport:
    """The measurements of one benchmark, and its setting in a sentence."""

    benchmark: str
    setting: str
    figures: tuple[Measurement, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"machine": machine()}


def run_in_turn(first: Work, second: Work, num: int, warm_up: int = 2) -> tuple[list[float], list[float]]:
    """Return the seconds of ``num`` runs of each, run in turn, the order of a pair changing from pair to pair.

    Each is told the number of its run, warm-up runs included.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for i in range(num + warm_up):
        for which in (0, 1) if i % 2 else (1, 0):
            began = time.perf_counter()
            (first, second)[which](i)
            if i >= warm_up:
                seconds[which].append(time.perf_counter() - began)
    return seconds


def ratio(first: Sequence[float], second: Sequence[float]) -> Spread:
    """Return the spread of the pairs' ratios, first over second."""
    return Spread.of([a / b for a, b in zip(first, second, strict=True)])


def milliseconds(seconds: Sequence[float]) -> Spread:
    """Return the spread in milliseconds."""
    return Spread.of([1000 * s for s in seconds])


def machine() -> str:
    """Describe where this runs: processor, cores we may use, and the versions that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = ", ".join(f"{name} {version(name)}" for name in ("llama-cpp-python", "numpy"))
    return f"{_processor()}, {cores} cores, {platform.system()}, Python {platform.python_version()}, {parts}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
