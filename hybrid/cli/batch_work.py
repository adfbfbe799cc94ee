"""The work of a batch: questions to the client, answers into the output, and how far it is to whoever watches.

The law: what is wrong with a line is its own answer; what is wrong with the models, the endpoint or the machine is
raised. No model is loaded where nothing is left to be asked (``tests/cli/test_batch.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from hybrid.cli.batch_again import OldLines
from hybrid.cli.batch_lines import CloudNames, OutputLine, StoredLine, check_cloud, encode
from hybrid.cli.batch_output import BatchOutput, PrintedOutput
from hybrid.cli.batch_progress import BatchProgress
from hybrid.cli.batch_run import ParallelLines, run_until_interrupted
from hybrid.cli.progress import is_shown_on_a_terminal, progress
from hybrid.cli.questions import InputLine, id_of, object_of, question_of
from hybrid.cli.show import tell_assumed
from hybrid.cli.tally import Tally
from hybrid.errors import MissingCapability, UsageError, escape_controls
from hybrid.run.answer import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hybrid.assemble import ClientOpener
    from hybrid.run import AsyncClient

# Choices by which a line can need something that the endpoint lacks and other lines do not need.
DECODING = frozenset(("policy", "gate", "judge"))
GenerateAnswer: TypeAlias = Callable[..., Coroutine[Any, Any, Answer]]
# How often a terminal, and a file, is told how far it is.
TERMINAL_EVERY_S, FILE_EVERY_S = 0.5, 60.0


class BatchWork:
    """Answers lines into an output. ``tally`` is what its lines came to, whoever has answered them."""

    def __init__(
        self, opening: ClientOpener, output: BatchOutput | PrintedOutput, total: int | None, old: OldLines | None
    ) -> None:
        """Take the client that is about to be opened, and the output.

        ``total``: lines to ask, those that are answered among them; None: not known, and nobody is told how far it is.
        ``old``: the lines that are taken over, or asked anew, under ``--again``.
        """
        self.tally = Tally()
        self._opening, self._output, self._old = opening, output, old
        self._progress = BatchProgress(time.monotonic(), total, opening.settings.cap)
        self._answered: set[int] = set()
        self._cloud = cloud_of(opening)

    def answer(self, lines: Iterator[InputLine], *, is_told: bool) -> None:
        """Answer what is left of the input. Raises what ends the batch, once everything is at rest."""
        todo = self._output.remaining(lines, self._hear)
        self._progress.done += self._output.num_waiting
        if (first := self._first_asked(todo)) is not None:
            run_until_interrupted(lambda: self._answer(chain([first], todo), is_told=is_told))
        if self._opening.settings.cap is not None:
            self.tally.open_nanousd = asyncio.run(self._left_open())

    async def _left_open(self) -> int:
        """Return what is still reserved under the cap, now that nothing runs: nobody knows what it was charged."""
        async with AsyncExitStack() as stack, self._opening.account(stack).open_budget() as budget:
            return sum(cap.reserved_nanousd for cap in await budget.cap_statuses() if cap.level == "client")

    def _first_asked(self, todo: Iterator[InputLine]) -> InputLine | None:
        """Take lines over up to the first that must be asked; return that one."""
        for line in todo:
            if (stored := self._begin(line)) is None:
                return line
            self._keep(line, stored)
        return None

    async def _answer(self, todo: Iterator[InputLine], *, is_told: bool) -> None:
        with ExitStack() as stack:
            tell = stack.enter_context(progress("the local model is loaded")) if is_told else None
            async with self._opening as client:

                async def answer(line: InputLine) -> bytes | StoredLine:
                    found = await answered(line, client.generate, client.settings.seed, self._cloud)
                    return encode(line, found) if self._old is None else self._old.better_of(line, found)

                for note in client.notes if is_told else ():
                    typer.echo(f"hybrid: {escape_controls(note)}", err=True)
                run = ParallelLines(client.parallel, lambda: self._output.is_full, self._begin, answer, self._keep)
                await self._start_progress(client)
                try:
                    async with self._told(client, tell):
                        await run.run(todo)
                finally:
                    tell_assumed(client.spent.assumed_nanousd, client.settings.cloud)

    async def _start_progress(self, client: AsyncClient) -> None:
        """Find out what earlier runs have spent: by the cap's own account, or else by the bills of their lines."""
        own = [cap for cap in await client.cap_statuses() if cap.level == "client"]
        self._progress.spent_before_nanousd = own[0].spent_nanousd if own else self.tally.cost_nanousd
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

    def _begin(self, line: InputLine) -> StoredLine | None:
        self._output.begin(line)
        return self._old.take(line) if self._old else None

    def _keep(self, line: InputLine, result: bytes | StoredLine) -> None:
        if self._old is None or self._old.is_asked(line.number):
            self._answered.add(line.number)
            self._progress.finish(time.monotonic())
        for entry in self._output.add(line.number, result):
            self._count(entry)

    def _hear(self, entry: OutputLine, stored: StoredLine | None) -> None:
        """Count a line that stands there."""
        check_cloud(entry, self._cloud, self._output.path)
        if self._old and stored:
            self._old.check(entry, stored, self._output.path)
        self._progress.done += self._old is None or self._old.is_asked(entry.line)
        self._count(entry)

    def _count(self, entry: OutputLine) -> None:
        attempt = self._old.take_attempt(entry.line) if self._old else None
        self.tally.add(entry, attempt, is_kept=entry.line not in self._answered)
        self._answered.discard(entry.line)
        if self._old:
            self.tally.compare(better=self._old.improved(entry))


def cloud_of(opening: ClientOpener) -> CloudNames:
    """Return what a batch names as its cloud: nothing, where none is asked."""
    settings = opening.settings
    return CloudNames() if settings.offline else CloudNames(opening.endpoint, settings.cloud_model)


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


__all__ = ["BatchWork", "answered"]
