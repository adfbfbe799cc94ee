"""What a run is made of: a section is some questions over one pair of models, and what is kept of each of them.

A kind of section is a class of its own: real text (``suite.py``), problems with right answers (``auto_trial.py``).
The run shares its questions among processes and knows nothing else of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from typing import Any, Protocol, TypeAlias

from hybrid.errors import EngineError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.driver_check import SHARE, ServedClient, compare, is_sampled, open_driver
from hybrid.lab.experiments.tariffs import counted
from hybrid.lab.experiments.world import World, WorldAnswer, open_world
from hybrid.store.files import make_folder
from hybrid.types import Sampling

LOCAL, CLOUD = Arm("local", "local"), Arm("cloud", "cloud")
CheckAnswer: TypeAlias = Callable[[Arm, Sampling, WorldAnswer], Awaitable[None]]
"""Called with every answer, before its rows are forgotten."""


class TrialQuestion(Protocol):
    """A question, and how many tokens an answer may have."""

    @property
    def text(self) -> str:
        """What is asked."""
        ...

    @property
    def max_tokens(self) -> int:
        """The most tokens of an answer."""
        ...


class Section(Protocol):
    """Questions over a pair of models, and what is tried with each. Pickled: every process has its own."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    @property
    def pair(self) -> str:
        """The name of its pair of models."""
        ...

    @property
    def questions(self) -> Sequence[TrialQuestion]:
        """Its questions."""
        ...

    @property
    def num_arms(self) -> int:
        """About how many answers a question takes."""
        ...

    def content(self) -> list[Any]:
        """Return all that a record depends on beside models, question and seed, for ``json.dumps``."""
        ...

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Try one question and return its record; the world forgets it afterwards."""
        ...


async def answer_arms(
    world: World, question: TrialQuestion, arms: Sequence[Arm], sampling: Sampling, check: CheckAnswer
) -> dict[str, WorldAnswer]:
    """Let arms answer a question, each answer checked; return them by the arms' names."""
    answers: dict[str, WorldAnswer] = {}
    for arm in arms:
        answers[arm.name] = await world.answer(question.text, arm, sampling, question.max_tokens)
        await check(arm, sampling, answers[arm.name])
    return answers


def arms_to_json(arms: Sequence[Arm]) -> list[Any]:
    """Return arms as what a record depends on."""
    return [(arm.name, arm.policy, dict(arm.choices)) for arm in arms]


def spent_record(answered: WorldAnswer) -> dict[str, Any]:
    """Return what an answer cost, whatever it is worth: who wrote how much, and every request in numbers."""
    return {
        "cloud_tokens": answered.answer.usage.cloud_tokens,
        "degraded": answered.answer.degraded,
        "requests": [
            (each.kind, each.num_sent, each.num_scored, each.num_known, each.num_completion)
            for each in counted(answered.requests)
        ],
    }


# Run sections in several processes, question by question, so that a run that was interrupted goes on.
#
# Each process writes what it has found of a question as one line of a part file of its own. A line counts if it is
# whole and belongs to this run: same models, rules, questions, seed. The parent hands out questions and says how far it
# is. An interruption ends the children; what was written stays.

VERSION = 1
# How long the parent waits for news before it looks whether the children live.
PATIENCE_S = 2.0


@dataclass(frozen=True)
class ModelPair:
    """The files of a pair, and of a critic beside it."""

    local: Path
    cloud: Path
    critic: Path | None = None


@dataclass(frozen=True)
class SectionRun:
    """What is run: sections, the files of their pairs, the folder of the part files, and the seed of all draws.

    ``check_share``: how many of the answers are written again by the client over the bundled server.
    """

    sections: tuple[Section, ...]
    pairs: Mapping[str, ModelPair]
    folder: Path
    seed: int = 0
    num_processes: int = 2
    check_share: float = SHARE

    @property
    def units(self) -> list[tuple[int, int]]:
        """Every section and question, by their numbers."""
        return [(s, q) for s, section in enumerate(self.sections) for q in range(len(section.questions))]

    def key(self, unit: tuple[int, int]) -> str:
        """Name a question of a section by all that its record depends on."""
        section = self.sections[unit[0]]
        pair, question = self.pairs[section.pair], section.questions[unit[1]]
        files = [(path.name, path.stat().st_size) for path in (pair.local, pair.cloud, pair.critic) if path]
        what = [VERSION, files, *section.content(), question.text, question.max_tokens]
        return hashlib.sha256(json.dumps([*what, self.seed, self.check_share]).encode()).hexdigest()[:24]

    def cost(self, unit: tuple[int, int]) -> float:
        """Estimate how long a question takes, in tokens of all its answers."""
        section = self.sections[unit[0]]
        return (section.num_arms + 1.0) * section.questions[unit[1]].max_tokens


def run_sections(run: SectionRun, report_progress: Callable[[str], None]) -> dict[tuple[int, int], dict[str, Any]]:
    """Run what was not run before and return every record by its unit. Raises EngineError where a child fails."""
    make_folder(run.folder)
    keys = {unit: run.key(unit) for unit in run.units}
    done = read_parts(run.folder)
    left = [unit for unit in run.units if keys[unit] not in done]
    if len(left) < len(keys):
        report_progress(f"{len(keys) - len(left)} of {len(keys)} questions were answered before")
    if left:
        _run_children(run, left, report_progress)
        done = read_parts(run.folder)
    missing = [unit for unit in run.units if keys[unit] not in done]
    if missing:
        msg = f"{len(missing)} questions were not answered: run the command again to go on"
        raise EngineError(msg)
    return {unit: done[key] for unit, key in keys.items()}


def read_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of all part files by their keys; a line that was cut off is passed over."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("part-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            found[record["key"]] = record
    return found


def _run_children(run: SectionRun, left: Sequence[tuple[int, int]], report_progress: Callable[[str], None]) -> None:
    """Share the questions among child processes and say how far they are."""
    context = multiprocessing.get_context("spawn")
    tasks, news = context.Queue(), context.Queue()
    for unit in left:
        tasks.put(unit)
    num = min(run.num_processes, len(left))
    children = [context.Process(target=_child, args=(run, tasks, news), daemon=True) for _ in range(num)]
    for _ in children:
        tasks.put(None)
    with _stopped(children):
        _follow(run, left, children, news, report_progress)


def _follow(
    run: SectionRun,
    left: Sequence[tuple[int, int]],
    children: Sequence[BaseProcess],
    news: Any,
    say: Callable[[str], None],
) -> None:
    """Take the children's news until all is done. Raises EngineError for what a child says or dies of."""
    began, total, cost_done, num_done = time.monotonic(), sum(map(run.cost, left)), 0.0, 0
    while num_done < len(left):
        try:
            told = news.get(timeout=PATIENCE_S)
        except Empty:
            if not any(child.is_alive() for child in children):
                msg = f"a process ended after {num_done} of {len(left)} questions: run the command again to go on"
                raise EngineError(msg) from None
            continue
        if isinstance(told, str):
            raise EngineError(told)
        num_done, cost_done = num_done + 1, cost_done + run.cost(told)
        seconds = time.monotonic() - began
        minutes_left = seconds * (total / cost_done - 1.0) / 60
        section = run.sections[told[0]]
        say(f"{section.name}: question {told[1] + 1} of {len(section.questions)}; about {minutes_left:.0f} min left")


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
                child.join()


def _child(run: SectionRun, tasks: Any, news: Any) -> None:
    """Answer questions until there are no more, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        asyncio.run(_answer_all(run, tasks, news))
    except Exception as error:  # noqa: BLE001  (the parent says it, in a sentence)
        news.put(f"{type(error).__name__}: {error}" if not isinstance(error, EngineError) else str(error))


async def _answer_all(run: SectionRun, tasks: Any, news: Any) -> None:
    parent = multiprocessing.parent_process()
    path = run.folder / f"part-{os.getpid()}.jsonl"
    async with AsyncExitStack() as stack:
        worlds: dict[str, World] = {}
        drivers: dict[str, ServedClient] = {}
        with path.open("a", encoding="utf-8") as part:
            while (unit := tasks.get()) is not None and parent is not None and parent.is_alive():
                section = run.sections[unit[0]]
                pair = run.pairs[section.pair]
                if section.pair not in worlds:
                    worlds[section.pair] = await stack.enter_async_context(
                        open_world(pair.local, pair.cloud, critic=pair.critic)
                    )
                    if run.check_share:
                        driver = open_driver(pair.local, pair.cloud, pair.critic)
                        drivers[section.pair] = await stack.enter_async_context(driver)
                record = await _answer(run, unit, worlds[section.pair], drivers.get(section.pair))
                part.write(json.dumps({"key": run.key(unit)} | record) + "\n")
                part.flush()
                news.put(unit)


async def _answer(run: SectionRun, unit: tuple[int, int], world: World, client: ServedClient | None) -> dict[str, Any]:
    """Answer one question under every rule, and a sample of the answers a second time by the client."""
    section = run.sections[unit[0]]
    question = section.questions[unit[1]]
    checked = []

    async def check(arm: Any, sampling: Any, answered: Any) -> None:
        if client is not None and is_sampled(question.text, arm, run.check_share):
            checked.append(await compare(client, world, question.text, arm, sampling, answered, question.max_tokens))

    record = await section.answer(world, unit[1], run.seed + unit[1], check)
    return record | {"checked": checked}
