"""Several lines of a batch at once: tasks that answer, one loop that begins and keeps lines, and what ends it.

The law: at most so many lines are being answered at once as there are places; they are begun in the input's order; what
ends the batch (a failure that is no line's, Ctrl-C, SIGTERM) cancels those that are being answered and returns when
they are settled, and what was finished until then is kept (``tests/cli/test_batch_run.py``). One line at a time is the
same loop. What a line asks, and where it is kept, is not known here.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, Generic, TypeVar

from hybrid.batch.output import BatchOutput, beside
from hybrid.batch.output_lines import (
    CloudNames,
    Outcome,
    OutputLine,
    StoredLine,
    add_known,
    check_cloud,
    decode,
    encode,
    with_discarded,
)
from hybrid.batch.questions import InputLine
from hybrid.ending_signals import ending_signals, handled
from hybrid.errors import UsageError, to_one_line

# ``hybrid batch --again``: lines of an output are asked anew, into a file that takes its place once it is complete.
#
# The law: the lines that are not asked anew are those of the output, byte for byte, and an answer gives way only to a
# better one: never to an error, and one that went on without the cloud never to another such. What the other attempts
# of a line have cost stays with it (``tests/cli/test_batch_money.py``). Until the new file is complete the output is
# the old one, untouched; what stands in the new one of another output is refused (``tests/cli/test_batch_again.py``).
# Who answers is not known here.

WORDS = {"degraded": Outcome.DEGRADED, "failed": Outcome.FAILED}


def outcomes_of(words: str) -> frozenset[Outcome]:
    """Read ``degraded``, ``failed`` or both, with a comma. Raises UsageError for anything else."""
    named = [word.strip() for word in words.split(",")]
    if unknown := [word for word in named if word not in WORDS]:
        msg = f"--again {to_one_line(unknown[0])}: give degraded, failed or degraded,failed"
        raise UsageError(msg)
    return frozenset(WORDS[word] for word in named)


def file_for(out: Path, asked: frozenset[Outcome]) -> Path:
    """Return the file that the new lines go to: one for each choice of what is asked, so that each can go on."""
    return beside(out, "-".join(["again", *(word for word, outcome in WORDS.items() if outcome in asked)]))


class OldLines:
    """The lines of an output that stands, found in its order while the same input is answered into another."""

    def __init__(
        self, out: BatchOutput, asked: frozenset[Outcome], lines: Iterator[InputLine], cloud: CloudNames
    ) -> None:
        """Compare the whole output with the input, and change nothing.

        ``num_taken``: the lines that are not asked anew. Raises UsageError where output and input do not belong
        together; where lines that failed are asked, they may have been corrected in the input.
        """
        self._out, self._asked = out, asked
        out.compare(lines, lambda entry, _: check_cloud(entry, cloud, out.path), corrected=Outcome.FAILED in asked)
        self.num_taken = sum(entry.outcome not in asked for entry, _ in out.stored())
        self._stored = out.stored()
        self._ahead = next(self._stored, None)
        self._open: dict[int, tuple[OutputLine, StoredLine]] = {}
        self._not_better: dict[int, OutputLine] = {}

    def take(self, line: InputLine) -> StoredLine | None:
        """Return the line that is taken over as it stands; None where the line is asked."""
        found = self._find(line.number)
        return found[1] if found and found[0].outcome not in self._asked else None

    def is_asked(self, number: int) -> bool:
        """Whether a line is asked: anew, or because it was not there."""
        found = self._find(number)
        return found is None or found[0].outcome in self._asked

    def better_of(self, line: InputLine, found: Mapping[str, Any]) -> bytes | StoredLine:
        """Return what a line that was asked comes to: what was found, or the old line where that is the better one.

        Either carries on what the other attempts have cost.
        """
        raw = encode(line, found)
        if (old := self._find(line.number)) is None:
            return raw
        new, (before, stored) = decode(raw, self._out.path), old
        # Of two that are degraded the old one may hold what the cloud wrote, and the bill of it.
        if before.outcome == Outcome.FAILED or new.outcome > before.outcome:
            return with_discarded(raw, before.cost_nanousd)
        self._not_better[line.number] = new
        if new.cost_nanousd == 0:
            return stored
        return with_discarded(stored.read(), add_known(before.discarded_nanousd, new.cost_nanousd))

    def take_attempt(self, number: int) -> OutputLine | None:
        """Return, once, what this run's attempt of a line came to where the old line was kept."""
        return self._not_better.pop(number, None)

    def check(self, entry: OutputLine, stored: StoredLine, path: Path) -> None:
        """Raise UsageError where a line of the new file was taken over from another output than this."""
        old = self._find(entry.line)
        if old and old[0].outcome not in self._asked and old[1].read() != stored.read():
            msg = f"{path} was begun for another output than {self._out.path}: remove it to begin again"
            raise UsageError(msg)

    def improved(self, entry: OutputLine) -> bool | None:
        """Return whether a line of the new file is better than the old; None where it was not asked anew."""
        found = self._find(entry.line)
        self._open.pop(entry.line, None)
        if found is None or found[0].outcome not in self._asked:
            return None
        return entry.outcome > found[0].outcome

    def _find(self, number: int) -> tuple[OutputLine, StoredLine] | None:
        while self._ahead is not None and self._ahead[0].line <= number:
            self._open[self._ahead[0].line] = self._ahead
            self._ahead = next(self._stored, None)
        return self._open.get(number)


Found = TypeVar("Found")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ParallelLines(Generic[Found]):
    """How lines are begun, answered and kept, and how many at once.

    ``begin`` takes a line before anything else is done with it and returns what it comes to where that is known;
    ``is_full`` says that no other may be begun yet. ``keep`` may raise what ends the batch.
    """

    parallel: int
    is_full: Callable[[], bool]
    begin: Callable[[InputLine], Found | None]
    answer: Callable[[InputLine], Coroutine[Any, Any, Found]]
    keep: Callable[[InputLine, Found], None]

    async def run(self, todo: Iterator[InputLine]) -> None:
        """Answer all these lines. Raises what ended the batch; nothing is being answered any more then."""
        running: dict[asyncio.Task[Found], InputLine] = {}
        reading: asyncio.Task[InputLine | None] | None = None
        is_over = False
        try:
            while True:
                if not (is_over or reading or len(running) >= self.parallel or self.is_full()):
                    reading = asyncio.create_task(_read(todo))
                if not (waiting := {*running, *([reading] if reading else [])}):
                    return
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                self._keep(running, done)
                if reading in done:
                    line, reading = reading.result(), None
                    is_over = line is None
                    if line is not None:
                        self._start(line, running)
        finally:
            await _settled({*running, *([reading] if reading else [])})
            with suppress(asyncio.CancelledError, Exception):  # what ended the batch is told
                self._keep(running, set(running))

    def _start(self, line: InputLine, running: dict[asyncio.Task[Found], InputLine]) -> None:
        if (known := self.begin(line)) is None:
            running[asyncio.create_task(self.answer(line))] = line
        else:
            self.keep(line, known)

    def _keep(self, running: dict[asyncio.Task[Found], InputLine], done: set[asyncio.Task[Any]]) -> None:
        """Keep what lines came to, and only then raise what one of them raised."""
        finished = sorted(done & running.keys(), key=lambda task: running[task].number)
        failed = [task for task in finished if task.cancelled() or task.exception()]
        for task in finished:
            line = running.pop(task)
            if task not in failed:
                self.keep(line, task.result())
        for task in failed:
            task.result()


def run_until_interrupted(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine function on an event loop of its own. The first Ctrl-C, SIGTERM or SIGHUP cancels it.

    Raises KeyboardInterrupt, with the signal's number, once it has come to rest. The second one ends the process at
    once, as the system does it.
    """
    heard: list[int] = []

    async def main() -> Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def interrupt(number: int, _: FrameType | None) -> None:
            heard.append(number)
            signal.signal(number, signal.SIG_DFL)
            if task and len(heard) == 1:
                loop.call_soon_threadsafe(task.cancel)

        # One that is ignored (nohup) stays ignored.
        with handled([each for each in ending_signals() if callable(signal.getsignal(each))], interrupt):
            return await work()

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt(*heard[:1]) from None


async def _read(lines: Iterator[InputLine]) -> InputLine | None:
    """Return the next line, None at the end. It is read in a thread that nobody waits for: a pipe may stay silent."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[InputLine | None] = loop.create_future()

    def read() -> None:
        try:
            found = next(lines, None)
        except Exception as error:  # noqa: BLE001  (raised where the line is waited for)
            tell(line.set_exception, error)
        else:
            tell(line.set_result, found)

    def tell(how: Callable[[Any], None], what: object) -> None:
        with suppress(RuntimeError):  # the batch has ended, and its loop is closed
            loop.call_soon_threadsafe(lambda: None if line.done() else how(what))

    Thread(target=read, daemon=True).start()
    return await line


async def _settled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return once they have ended."""
    for task in tasks:
        task.cancel()
    while any(not task.done() for task in tasks):
        with suppress(asyncio.CancelledError):  # asked to hurry: they are ending already
            await asyncio.wait(tasks)
    for task in tasks:
        _ = task.cancelled() or task.exception()  # seen, so that nobody reports it as lost
