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
from itertools import chain, cycle, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.tasks.assistant import KINDS, QUESTIONS
from hybrid.types import Ids

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


# What a benchmark decodes: a model, a text for it, and how much of it is in the cache at a measurement.
#
# Two kinds. A random model has the shape of a real one at 152k tokens, and its text is drawn. A model that the user
# names is measured on questions in English, also where its context is nearly full.

# Tokens in the cache; the longer ones are measured where a named model was trained with as many.
NEAR, LONG = 100, (2000, 7000)
# Ids below this may be control tokens or bytes in a random model's vocabulary.
FIRST_WORD = 300


@dataclass(frozen=True)
class NamedPair:
    """Models that the user named; the ``cloud`` one is the reference, and has the same vocabulary."""

    local: Path
    cloud: Path


def mixed_questions() -> list[str]:
    """Return every question to an assistant, the kinds in turn."""
    by_kind = [[question.text for question in QUESTIONS if question.kind == kind] for kind in KINDS]
    return [text for text in chain.from_iterable(zip_longest(*by_kind)) if text is not None]


def check_same_vocabulary(local: Weights, cloud: Weights) -> None:
    """Raise UsageError where the models do not name tokens alike."""
    if local.vocabulary_digest != cloud.vocabulary_digest:
        msg = f"{local.path} and {cloud.path} have different vocabularies: one cannot check what the other drafts"
        raise UsageError(msg)


@dataclass(frozen=True)
class BenchmarkLoad:
    """A model and its text. ``lengths``: after how many tokens something is measured."""

    model: Path
    lengths: tuple[int, ...] = (NEAR,)
    named: bool = False

    @classmethod
    def of(cls, model: Path, room: int) -> BenchmarkLoad:
        """Take a model that the user names, at each length that leaves ``room`` tokens in its trained context.

        Raises EngineError where it cannot be loaded, UsageError where its context is too short.
        """
        weights = Weights(model)
        most = weights.longest_context
        weights.close()
        lengths = tuple(length for length in (NEAR, *LONG) if most is None or length + room <= most)
        if not lengths:
            msg = f"{model} was trained with {most} tokens of context: {NEAR + room} are needed to measure it"
            raise UsageError(msg)
        return cls(model, lengths, named=True)

    def text(self, weights: Weights, num_tokens: int) -> Ids:
        """Return the first tokens of the text, the same ones every time."""
        if not self.named:
            drawn = np.random.default_rng(0).integers(FIRST_WORD, weights.num_tokens, num_tokens)
            return tuple(drawn.tolist())
        ids = weights.tokenize("".join(f"{question}\n\n" for question in mixed_questions()))
        return tuple(islice(cycle(ids), num_tokens))

    def describe(self, weights: Weights) -> str:
        """Name the model by its size, and by its file where the user named it."""
        size = f"{weights.num_parameters // 1_000_000} M parameters, {weights.num_tokens} tokens"
        return f"{self.model.name}, {size}" if self.named else f"{size}, 8 bits"
