"""Measure on a noisy machine: ways of doing a thing in turn, the ratio of each pair, the median of the ratios.

The law (``tests/bench/test_speed.py``): both sides of a ratio ran in the same process, turn by turn, so that a slow
minute slows both. A bound is printed beside a figure and never enforced; the reader judges. What is timed is not known
here: a benchmark is a function that takes a ``Bench``, adds figures to it, and returns its setting in words.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain, cycle, islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hybrid.assemble import BUNDLED_LOCAL, PROBE, ClientOpener
from hybrid.cloud import Capabilities, Cloud
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.engine import Worker
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.errors import Unreachable, UsageError
from hybrid.lab.speed.random_model import HALF_BILLION, write_random_model
from hybrid.prob import UNMEASURED
from hybrid.run import Answer, AsyncClient, LocalModel
from hybrid.run.deferral import PlannerSource
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.spend import Account, MemoryLedger, Price
from hybrid.tasks import BY_NAME, distinct
from hybrid.tasks.assistant import KINDS, QUESTIONS
from hybrid.types import Ids

T = TypeVar("T")
E = TypeVar("E", bound=LlamaEngine)
W = TypeVar("W", bound="WatchedEndpoint")
# The first runs of each way are left out.
WARM_UP = 2


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


def turns(num: int, ways: int) -> Iterator[tuple[int, int]]:
    """Yield the number of a turn and of a way: each way once a turn, another one first from turn to turn."""
    return ((i, (i + j) % ways) for i in range(num) for j in range(1, ways + 1))


def run_in_turn(
    first: Callable[[int], object], second: Callable[[int], object], num: int, warm_up: int = WARM_UP
) -> tuple[list[float], list[float]]:
    """Return the seconds of ``num`` runs of each, run in turn. Each is told its run's number, warm-up runs included."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for i, which in turns(num + warm_up, 2):
        began = time.perf_counter()
        (first, second)[which](i)
        seconds[which].append(time.perf_counter() - began)
    return seconds[0][warm_up:], seconds[1][warm_up:]


async def wait_in_turn(num: int, *ways: Callable[[int], Awaitable[T]], warm_up: int = 0) -> list[list[T]]:
    """Return what ``num`` runs of each way returned, run in turn; each is told its run's number, as above."""
    found: list[list[T]] = [[] for _ in ways]
    for i, which in turns(num + warm_up, len(ways)):
        found[which].append(await ways[which](i))
    return [each[warm_up:] for each in found]


async def seconds_of(work: Awaitable[object]) -> float:
    """Wait for a piece of work, and return how long it took."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


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


def problems_of(family: str, num: int) -> list[str]:
    """Return the first test questions of a family."""
    return [each.question for each in distinct(BY_NAME[family], "test", num, seed=0)]


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


# Lengths of text before a check, and the context that they leave room in: of the model that a server is measured with.
LENGTHS, CONTEXT = (100, 1000, 8000), 8192
# Tokens that a text ends in of its own, and those of the spans behind it.
OWN, LEFT = 8, 80


@dataclass(frozen=True)
class MeasuredServer:
    """A running server to measure instead of the bundled one, and the lengths of text before a check.

    ``dialect`` None: it is discovered. The server must serve a model of the bundled vocabulary with room for
    ``lengths``.
    """

    url: str
    dialect: str | None = None
    lengths: tuple[int, ...] = LENGTHS

    def __post_init__(self) -> None:
        """Raise UsageError for a length that leaves no room."""
        most = CONTEXT - LEFT
        if not self.lengths or not all(OWN < length <= most for length in self.lengths):
            msg = f"a text of {OWN + 1} to {most} tokens before a check can be measured, not {self.lengths}"
            raise UsageError(msg)


@dataclass
class Bench:
    """A benchmark under way: pairs of runs a figure, what was asked for, and the figures so far.

    ``folder``: where the models it needs are written to unless they are there. ``server``: what ``prefix`` or ``bill``
    measures in the place of the bundled one. ``pair``: what ``engine``, ``kl``, ``check`` and ``overlap`` decode with
    instead of random weights.
    """

    num: int
    folder: Path
    say: Callable[[str], None]
    server: MeasuredServer | None = None
    pair: NamedPair | None = None
    figures: list[Measurement] = field(default_factory=list)

    def load(self, room: int) -> BenchmarkLoad:
        """Return the model to measure, with ``room`` for tokens behind its text; the random one is written."""
        if self.pair:
            return BenchmarkLoad.of(self.pair.local, room)
        self.say("the random model is written, or used again where it is kept")
        return BenchmarkLoad(write_random_model(self.folder / "half-billion.gguf", HALF_BILLION))

    def add(self, name: str, values: Sequence[float], unit: str, bound: str | None = None, note: str = "") -> None:
        """Add a figure of some values."""
        self.figures.append(Measurement(name, Spread.of(values), unit, bound, note))

    def add_ms(self, name: str, seconds: Sequence[float], bound: str | None = None, note: str = "") -> None:
        """Add a figure of some seconds, in milliseconds."""
        self.figures.append(Measurement(name, milliseconds(seconds), "ms", bound, note))

    def add_ratio(
        self, name: str, first: Sequence[float], second: Sequence[float], bound: str | None = None, note: str = ""
    ) -> None:
        """Add the pairs' ratios, first over second."""
        self.figures.append(Measurement(name, ratio(first, second), "ratio", bound, note))


# Clients whose settings are constructed, not loaded: the user's own have no say in a measurement.

# A server may take its time: reading thousands of tokens takes a minute, and the runner of vLLM that needs a GPU is
# interpreted on a processor.
PATIENCE = Timeouts(first_byte=300.0, read=300.0, total=300.0)

# Every draft is checked, and kept.
KEPT: AnswerChoices = {"policy": "kl", "threshold": float("inf")}


def client_of(cloud: str | None, **own: Any) -> ClientOpener:
    """Return a client on one thread over a server; it pays nothing where no price is given."""
    settings = {"local": BUNDLED_LOCAL, "api_key_env": "", "price": "free", "threads": 1, "seed": 0, **own}
    return ClientOpener(Settings.model_construct(cloud=cloud, **settings))


def endpoint_at(url: str, words: Any, dialect: str | None) -> Endpoint:
    """Return an endpoint that waits long, not yet connected; whoever asked for it closes it."""
    return Endpoint(Wire(url, None, PATIENCE, through_proxies=False), None, None, words, dialect)


@dataclass
class WatchedEndpoint:
    """An endpoint, some of whose answers are measured on their way to a client; the others it passes on."""

    endpoint: Endpoint
    engine: LlamaEngine

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on to the endpoint."""
        return getattr(self.endpoint, name)


@asynccontextmanager
async def watched_client(
    model: Path,
    context: Callable[[Weights], E],
    watch: Callable[[E], W],
    price: Price,
    planners: PlannerSource | None = None,
    **own: Any,
) -> AsyncIterator[tuple[AsyncClient, W]]:
    """Open a client over one context of a model and the endpoint that ``watch`` makes for it; close all of it."""
    async with AsyncExitStack() as stack:
        worker, weights = Worker("bench-engine"), Weights(model)
        stack.callback(worker.close)
        stack.callback(weights.close)
        engine = await worker.do(lambda _: context(weights))
        stack.callback(engine.close)
        watched = watch(engine)
        stack.push_async_callback(watched.aclose)

        async def connect(asked_at: float) -> tuple[Cloud, Capabilities]:
            return watched, await watched.connect(PROBE, engine.tokenize(PROBE), asked_at)

        settings = Settings.model_construct(threads=1, seed=0, **own)
        account = Account(price, MemoryLedger(), settings.cloud or "", None, settings.spender)
        local = LocalModel([(engine, worker)], UNMEASURED)
        client = AsyncClient(local, connect, account, settings, planners=planners)
        stack.push_async_callback(client.aclose)
        yield client, watched


async def whole_answer(client: AsyncClient, question: str, **choices: Any) -> Answer:
    """Answer a question. Raises Unreachable where the server failed."""
    answer = await client.generate(question, **choices)
    if answer.degraded is not None:
        msg = f"the server failed during a measurement: {answer.degraded}"
        raise Unreachable(msg)
    return answer
