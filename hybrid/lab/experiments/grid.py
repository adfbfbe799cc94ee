"""What is run, and how: a grid is some questions over one pair of models, shared among processes.

Each process writes what it has found of a question as one line of a part file of its own. A line counts if it is whole
and belongs to this run: same models, arms, questions, seed. So a run that was interrupted goes on. The parent hands out
questions and says how far it is; an interruption ends the children, and what was written stays. A run knows nothing of
what is tried with a question: that is its ``trial``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from typing import Any, Protocol, TypeAlias

from hybrid.errors import EngineError
from hybrid.lab.arms import Arm, fingerprint
from hybrid.lab.experiments.part_files import open_part, read_lines
from hybrid.lab.experiments.served import SHARE, ServedClient, compare_with_client, is_sampled, open_driver
from hybrid.lab.experiments.world import NUM_CONTEXT, World, WorldAnswer, open_world
from hybrid.store.files import WINDOWS, make_folder
from hybrid.types import Sampling

LOCAL, CLOUD = Arm("local", "local"), Arm("cloud", "cloud")
Record: TypeAlias = dict[str, Any]
Unit: TypeAlias = tuple[int, int]
CheckAnswer: TypeAlias = Callable[[Arm, Sampling, WorldAnswer], Awaitable[None]]
"""Called with every answer, before its rows are forgotten."""
TryQuestion: TypeAlias = Callable[[World, Any, Sampling, CheckAnswer], Awaitable[Record]]
"""Takes a question and how tokens are drawn; returns the record. Pickled."""


class GradedQuestion(Protocol):
    """What may be asked. ``kind``: what is like it; ``max_tokens``: of an answer; ``grade``: whether one is right."""

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def max_tokens(self) -> int: ...  # noqa: D102
    def grade(self, text: str) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class Grid:
    """Questions over a pair of models, and what is tried with each. Pickled: every process has its own.

    ``content``: all that a record depends on beside models, question and seed, for ``json.dumps``. ``num_answers``:
    about how many a question takes. ``top_k``: tokens that are drawn from; 0: all. ``seed``: added to
    that of the run.
    """

    name: str
    pair: str
    questions: tuple[GradedQuestion, ...]
    trial: TryQuestion
    content: tuple[Any, ...]
    num_answers: int
    arms: tuple[Arm, ...] = (CLOUD, LOCAL)
    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> Record:
        """Try one question and return its record; the world forgets it afterwards."""
        sampling = Sampling(self.temperature, self.top_k, seed=seed)
        record = await self.trial(world, self.questions[number], sampling, check)
        world.forget()
        return record


def arms_to_json(arms: Sequence[Arm]) -> list[Any]:
    """Return arms as what a record depends on."""
    return [(arm.name, arm.policy, dict(arm.choices)) for arm in arms]


VERSION = 2  # another one where a rule does by itself what it did not: no name of an arm says so
PART = "part"
OTHERS = "{} records here are of other questions, arms or models, or of an earlier version: they stay, and are not read"
# How long the parent waits for news before it looks whether the children live.
PATIENCE_S = 2.0


@dataclass(frozen=True)
class ModelPair:
    """The files of a pair, and of a critic beside it; ``num_context``: for a prompt and its answer."""

    local: Path
    cloud: Path
    critic: Path | None = None
    num_context: int = field(default=NUM_CONTEXT, kw_only=True)

    @property
    def identity(self) -> list[Any]:
        """What records depend on."""
        paths = (self.local, self.cloud, self.critic)
        return [fingerprint(path) if path.is_file() else path.name for path in paths if path]

    def open(self, folder: Path) -> AbstractAsyncContextManager[World]:  # noqa: ARG002  (an endpoint keeps answers there)
        """Open both models, a context each."""
        return open_world(self.local, self.cloud, self.num_context, self.critic)


@dataclass(frozen=True)
class GridRun:
    """What is run: grids, their pairs (``ModelPair``, or what opens as one), the part files' folder, all draws' seed.

    ``check_share``: how many of the answers are written again by the client over the bundled server.
    """

    grids: tuple[Grid, ...]
    pairs: Mapping[str, Any]
    folder: Path
    seed: int = 0
    num_processes: int = 2
    check_share: float = SHARE

    @property
    def units(self) -> list[Unit]:
        """Every grid and question, by their numbers."""
        return [(g, q) for g, grid in enumerate(self.grids) for q in range(len(grid.questions))]

    def key(self, unit: Unit) -> str:
        """Name a question of a grid by all that its record depends on."""
        grid = self.grids[unit[0]]
        pair, question = self.pairs[grid.pair], grid.questions[unit[1]]
        what = [VERSION, pair.identity, *grid.content, repr(question)]  # with its grader
        return hashlib.sha256(json.dumps([*what, self.seed + grid.seed, self.check_share]).encode()).hexdigest()[:24]

    def cost(self, unit: Unit) -> float:
        """Estimate how long a question takes, in tokens of all its answers."""
        grid = self.grids[unit[0]]
        return (grid.num_answers + 1.0) * grid.questions[unit[1]].max_tokens


def run_grids(run: GridRun, report_progress: Callable[[str], None]) -> list[list[Record]]:
    """Run what was not run before and return the records of each grid's questions. Raises EngineError."""
    make_folder(run.folder)
    keys = {unit: run.key(unit) for unit in run.units}
    done = read_parts(run.folder)
    left = list({keys[unit]: unit for unit in run.units if keys[unit] not in done}.values())  # equal ones once
    if num_done := sum(key in done for key in keys.values()):
        report_progress(f"{num_done} of {len(keys)} questions were answered before")
    if others := len(done.keys() - set(keys.values())):
        report_progress(OTHERS.format(others))
    if left:
        _run_children(run, left, report_progress)
        done = read_parts(run.folder)
    if missing := [unit for unit in run.units if keys[unit] not in done]:
        msg = f"{len(missing)} questions were not answered: run the command again to go on"
        raise EngineError(msg)
    return [[done[keys[number, i]] for i in range(len(grid.questions))] for number, grid in enumerate(run.grids)]


def read_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of all part files by their keys."""
    return {record["key"]: record for record in read_lines(folder, PART)}


def _run_children(run: GridRun, left: Sequence[Unit], report_progress: Callable[[str], None]) -> None:
    """Share the questions among child processes and say how far they are."""
    context = multiprocessing.get_context("spawn")
    tasks, news = context.Queue(), context.Queue()
    # What several grids ask an endpoint is one process's: an answer that they share is bought once.
    same: dict[Any, list[Unit]] = {}
    for g, q in left:
        pair, text = run.pairs[run.grids[g].pair], run.grids[g].questions[q].text
        same.setdefault((g, q) if isinstance(pair, ModelPair) else (str(pair.identity), text), []).append((g, q))
    num = min(run.num_processes, len(same))
    for units in (*same.values(), *[None] * num):
        tasks.put(units)
    children = [context.Process(target=_child, args=(run, tasks, news), daemon=True) for _ in range(num)]
    with _stopped(children):
        _follow(run, left, children, news, report_progress)


def _follow(
    run: GridRun, left: Sequence[Unit], children: Sequence[BaseProcess], news: Any, say: Callable[[str], None]
) -> None:
    """Take the children's news until all is done. Raises EngineError for what a child says or dies of."""
    began, total, cost_done, num_done = time.monotonic(), sum(map(run.cost, left)), 0.0, 0
    while num_done < len(left):
        alive = any(child.is_alive() for child in children)  # what the dead have told is there already
        try:
            told = news.get(timeout=PATIENCE_S)
        except Empty:
            if not alive:
                msg = f"a process ended after {num_done} of {len(left)} questions: run the command again to go on"
                raise EngineError(msg) from None
            continue
        if isinstance(told, str):
            raise EngineError(told)
        num_done, cost_done = num_done + 1, cost_done + run.cost(told)
        minutes_left = (time.monotonic() - began) * (total / cost_done - 1.0) / 60
        grid = run.grids[told[0]]
        say(f"{grid.name}: question {told[1] + 1} of {len(grid.questions)}; about {minutes_left:.0f} min left")


@contextmanager
def _stopped(children: Sequence[BaseProcess]) -> Iterator[None]:
    """Start the processes, and leave none behind, however this ends."""
    try:
        for child in children:
            child.start()
        yield
    finally:
        for child in children:
            if child.pid is not None:
                child.terminate()
        for child in children:
            if child.pid is not None:
                child.join(5 * PATIENCE_S)
                child.kill()
                child.join()


def _child(run: GridRun, tasks: Any, news: Any) -> None:
    """Answer questions until there are no more; it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.umask(0o077)  # questions and answers are for their owner alone
    if parent := multiprocessing.parent_process():  # the next run would buy what this one is buying
        threading.Thread(target=lambda: os._exit(parent.join() or 1), daemon=True).start()  # type: ignore[func-returns-value]
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(_answer_all(run, tasks, news))
    except Exception as error:  # noqa: BLE001  (the parent says it, in a sentence)
        news.put(f"{type(error).__name__}: {error}" if not isinstance(error, EngineError) else str(error))


async def _answer_all(run: GridRun, tasks: Any, news: Any) -> None:
    async with AsyncExitStack() as stack:
        worlds: dict[str, World] = {}
        drivers: dict[str, ServedClient] = {}
        with open_part(run.folder, PART) as part:
            while (units := tasks.get()) is not None:
                pair = run.pairs[run.grids[units[0][0]].pair]
                name = repr(pair)  # two names of one endpoint share what it sold
                if name not in worlds:
                    if not isinstance(pair, ModelPair):  # a request that is under way is settled first
                        _cancel_when_terminated()
                    worlds[name] = await stack.enter_async_context(pair.open(run.folder))
                    if run.check_share and isinstance(pair, ModelPair):
                        driver = open_driver(pair.local, pair.cloud, pair.critic, pair.num_context)
                        drivers[name] = await stack.enter_async_context(driver)
                for unit in units:
                    record = await _answer(run, unit, worlds[name], drivers.get(name))
                    part.write(json.dumps({"key": run.key(unit)} | record) + "\n")
                    part.flush()
                    news.put(unit)


def _cancel_when_terminated() -> None:
    if (task := asyncio.current_task()) is not None and not WINDOWS:  # there a process is ended at once
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _answer(run: GridRun, unit: Unit, world: World, client: ServedClient | None) -> Record:
    """Try one question, and write a sample of the answers a second time by the client."""
    grid, checked = run.grids[unit[0]], []
    question = grid.questions[unit[1]]

    async def check(arm: Arm, sampling: Sampling, answered: WorldAnswer) -> None:
        if client is not None and is_sampled(question.text, arm, run.check_share):
            asked = question.text, arm, sampling, answered, question.max_tokens
            checked.append(await compare_with_client(client, world, *asked))

    record = await grid.answer(world, unit[1], run.seed + grid.seed + unit[1], check)
    return record | {"checked": checked}
