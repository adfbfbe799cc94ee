"""The work of a batch: questions to the client, answers into the output, and how far it is to whoever watches.

The law: what is wrong with a line is its own answer; what is wrong with the models, the endpoint or the machine is
raised. No model is loaded where nothing is left to be asked (``tests/cli/test_batch.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from hybrid.batch.output import BatchOutput, CloudNames, Outcome
from hybrid.batch.parallel import ParallelLines
from hybrid.batch.questions import InputLine, id_of, object_of, question_of
from hybrid.cli.command import is_shown_on_a_terminal, progress, run_until_interrupted
from hybrid.cli.show import tell_assumed
from hybrid.cli.tally import LineTally
from hybrid.errors import MissingCapability, UsageError, escape_controls
from hybrid.record.answer import Answer
from hybrid.record.state import Spent
from hybrid.spend import as_usd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hybrid.assemble import ClientOpener
    from hybrid.run import AsyncClient

__all__ = ["RECENT_LINES", "BatchProgress", "BatchWork", "answered", "duration"]


# How far a batch is: lines, money, the rate of late, and the time that is left by it.
#
# The law: lines that an earlier run has answered count as done and never as fast; what earlier runs spent counts as
# spent, and what is reserved is told apart from it (``tests/cli/test_batch_progress.py``). Where it is shown, and how
# often, is said by who asks.

# The rate is that of so many lines at most: of late, and steady enough to tell a time by.
RECENT_LINES = 64


@dataclass
class BatchProgress:
    """Counts lines as they are finished. ``total``: None where nobody knows; times are seconds of one clock."""

    began_s: float
    total: int | None = None
    cap: str | None = None
    spent_before_nanousd: int | None = 0
    reserved_before_nanousd: int = 0
    done: int = 0
    _finished_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LINES + 1))

    def __post_init__(self) -> None:
        """Measure the first line from the beginning on."""
        self.begin(self.began_s)

    def begin(self, at_s: float) -> None:
        """Measure the rate from a time on: before it nothing was answered."""
        self._finished_s.clear()
        self._finished_s.append(at_s)

    def finish(self, at_s: float) -> None:
        """Count a line that was answered at a time."""
        self.done += 1
        self._finished_s.append(at_s)

    def rate(self, now_s: float) -> float | None:
        """Return lines a second, of late; None before the first is finished.

        >>> progress = BatchProgress(began_s=100.0)
        >>> progress.finish(102.0), progress.rate(104.0)
        (None, 0.25)
        """
        took = now_s - self._finished_s[0]
        lines = len(self._finished_s) - 1
        return lines / took if lines and took > 0 else None

    def text(self, spent: Spent, now_s: float) -> str:
        """Say it all; ``spent`` is what this run has spent, with what is reserved for its requests."""
        parts = [
            f"{self.done} of {self.total} lines" if self.total is not None else f"{self.done} lines",
            self._money(spent),
        ]
        if (rate := self.rate(now_s)) is not None:
            parts.append(f"{rate:.2g} lines/s" if rate < 10 else f"{rate:.0f} lines/s")
            if self.total is not None and self.total > self.done:
                parts.append(f"{duration((self.total - self.done) / rate)} left")
        return ", ".join(parts)

    def _money(self, spent: Spent) -> str:
        """Say what is spent, apart from what is reserved and may be given back."""
        before, reserved = self.spent_before_nanousd, self.reserved_before_nanousd + spent.reserved_nanousd
        if before is None or spent.nanousd is None:
            return "cost unknown"
        said = as_usd(before + spent.nanousd - spent.reserved_nanousd).removesuffix(" USD")
        if reserved:
            said += f" spent and {as_usd(reserved).removesuffix(' USD')} reserved"
        return f"{said} USD" if self.cap is None else f"{said} of {self.cap} USD"


def duration(seconds: float) -> str:
    """Say a time as a clock shows it.

    >>> duration(59.6), duration(3_725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# Choices by which a line can need something that the endpoint lacks and other lines do not need.
DECODING = frozenset(("policy", "gate", "judge"))
GenerateAnswer: TypeAlias = Callable[..., Coroutine[Any, Any, Answer]]
# How often a terminal, and a file, is told how far it is.
TERMINAL_EVERY_S, FILE_EVERY_S = 0.5, 60.0


class BatchWork:
    """Answers lines into an output. ``tally`` is what its lines came to, whoever has answered them."""

    def __init__(
        self, opening: ClientOpener, output: BatchOutput, total: int | None, asked: frozenset[Outcome] = frozenset()
    ) -> None:
        """Take the client that is about to be opened, and the output.

        ``total``: lines of the input; None: not known, and nobody is told how far it is.
        ``asked``: what lines came to that are answered once more (``--again``).
        """
        self.tally = LineTally()
        self._opening, self._output, self._asked = opening, output, asked
        self._progress = BatchProgress(time.monotonic(), total, opening.settings.cap)
        self._cloud = (
            CloudNames() if opening.settings.offline else CloudNames(opening.endpoint, opening.settings.cloud_model)
        )

    def answer(self, lines: Iterator[InputLine], *, is_told: bool) -> None:
        """Answer what is left of the input. Raises what ends the batch, once everything is at rest."""
        todo = self._output.remaining(lines, self._cloud, self._asked)
        num_kept = sum(entry.outcome not in self._asked for entry in self._output.entries.values())
        if not self._asked:
            self._progress.done = num_kept
        elif self._progress.total is not None:
            self._progress.total -= num_kept
        if (first := next(todo, None)) is not None:
            run_until_interrupted(lambda: self._answer(chain([first], todo), is_told=is_told))
        self.tally = self._counted()
        if self._opening.settings.cap is not None:
            self.tally.open_nanousd = asyncio.run(self._left_open())

    def _counted(self) -> LineTally:
        """Count the lines that count, in the order of the input."""
        output = self._output
        tally = LineTally(asked_again=output.asked_again, better=output.better)
        for number, entry in sorted(output.entries.items()):
            tally.add(entry, output.attempts.get(number), is_kept=number not in output.answered)
        return tally

    async def _left_open(self) -> int:
        """Return what is still reserved under the cap, now that nothing runs: nobody knows what it was charged."""
        async with AsyncExitStack() as stack, self._opening.account(stack).open_budget() as budget:
            return sum(cap.reserved_nanousd for cap in await budget.cap_statuses() if cap.level == "client")

    async def _answer(self, todo: Iterator[InputLine], *, is_told: bool) -> None:
        with ExitStack() as stack:
            tell = stack.enter_context(progress("the local model is loaded")) if is_told else None
            async with self._opening as client:

                async def answer(line: InputLine) -> dict[str, Any]:
                    return await answered(line, client.generate, client.settings.seed, self._cloud)

                for note in client.notes if is_told else ():
                    typer.echo(f"hybrid: {escape_controls(note)}", err=True)
                run = ParallelLines(client.parallel, answer, self._keep)
                await self._start_progress(client)
                try:
                    async with self._told(client, tell):
                        await run.run(todo)
                finally:
                    tell_assumed(client.spent.assumed_nanousd, client.settings.cloud)

    async def _start_progress(self, client: AsyncClient) -> None:
        """Find out what earlier runs have spent: by the cap's own account, or else by the bills of their lines."""
        own = [cap for cap in await client.cap_statuses() if cap.level == "client"]
        self._progress.spent_before_nanousd = own[0].spent_nanousd if own else self._counted().cost_nanousd
        self._progress.reserved_before_nanousd = own[0].reserved_nanousd if own else 0
        self._progress.begin(time.monotonic())

    @asynccontextmanager
    async def _told(self, client: AsyncClient, tell: Callable[[str], None] | None) -> AsyncIterator[None]:
        async def keep_telling(tell: Callable[[str], None]) -> None:
            while True:
                await asyncio.sleep(TERMINAL_EVERY_S if is_shown_on_a_terminal() else FILE_EVERY_S)
                tell(self._progress.text(client.spent, time.monotonic()))

        if tell and is_shown_on_a_terminal():
            tell(self._progress.text(client.spent, time.monotonic()))

        telling = asyncio.create_task(keep_telling(tell)) if tell else None
        try:
            yield
        finally:
            if telling:
                telling.cancel()

    def _keep(self, line: InputLine, found: dict[str, Any]) -> None:
        self._output.add(line, found)
        self._progress.finish(time.monotonic())


async def answered(
    line: InputLine, generate: GenerateAnswer, seed: int | None = None, cloud: CloudNames | None = None
) -> dict[str, Any]:
    """Return what a line comes to: its id, and the answer or what is wrong with the line.

    ``seed``: that of every line that names none; None: the line's own, so that starting again draws the same.
    ``cloud``: told with an answer; one that the local model was to write alone has none.
    What is wrong with the models, the endpoint or the machine is raised: it is no line's fault.
    """
    found: dict[str, Any] = {"id": None}
    try:
        fields = object_of(line)
        found["id"] = id_of(fields)
        prompt, choices = question_of(fields)
        seeded = {"seed": line.seed if seed is None else seed} | choices
        answer = await _generated(generate, prompt, seeded)
        named = CloudNames() if cloud is None or answer.policy.partition(" ")[0] == "local" else cloud
        return found | answer.to_json() | {"cloud": named.endpoint, "cloud_model": named.model}
    except UsageError as error:
        return found | {"error": str(error)}


async def _generated(generate: GenerateAnswer, prompt: object, choices: dict[str, Any]) -> Answer:
    try:
        return await generate(prompt, **choices)
    except MissingCapability as error:
        if choices.keys() & DECODING:  # the line's own wish, not the command's
            raise UsageError(str(error)) from error
        raise
