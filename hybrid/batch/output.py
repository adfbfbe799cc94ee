"""The output of a batch: one whole line for each line of the input, in its order, each on the disk before it counts.

Lines are finished in any order. One that is finished before an earlier one waits beside the output, in OUT.part, and
moves when that one is out.

The law: wherever the process is killed, starting again with the same input ends in the lines that it would have ended
in: none twice, none missing, none out of order, and no line that was finished is answered again. Nothing is changed in
files that do not hold the beginning of this work, and no two processes write one output
(``tests/cli/test_batch_output.py`` kills it at every byte that it writes; ``tests/end_to_end/test_batch.py`` kills real
processes). What a line asks, or how it is answered, is not known here.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from hybrid.batch.output_lines import OutputLine, ReorderBuffer, StoredLine, check_answers, decode, is_torn, too_many
from hybrid.batch.questions import InputLine
from hybrid.errors import UsageError
from hybrid.store.line_file import LineFile

__all__ = ["OPEN_LINES_EACH", "BatchOutput", "Hear", "PrintedOutput", "WaitingLines", "beside"]


# Lines that were finished before an earlier one: they wait in a file beside the output, OUT.part, on the disk.
#
# The law: a line that was added is not lost, wherever the process is killed, until it is said to have moved; whatever
# else stands there is refused and left as it was. A line that the output holds, too, counts for nothing here: so it may
# be moved first and forgotten later (``tests/cli/test_batch_output.py`` kills it between all writes). In which order
# lines move, and when, is not known here.

# When more bytes than this have moved, and more than wait, the file is written anew: it does not grow with the output.
MOST_MOVED_BYTES = 1 << 20


class WaitingLines:
    """The file of waiting lines, locked while it is open: made when the first must wait, removed when none does."""

    def __init__(self, path: Path) -> None:
        """Read what waits there. Raises UsageError where the file is another's, or holds something else."""
        self.path = path
        self._file: LineFile | None = None
        self._entries: dict[int, tuple[OutputLine, StoredLine]] = {}
        self._whole = 0
        self._is_ours = True
        if path.exists():
            self._is_ours = False
            self._file = LineFile(path)
            try:
                self._read(self._file)
            except BaseException:
                self._file.close()
                raise

    def __len__(self) -> int:
        """Lines that wait."""
        return len(self._entries)

    @property
    def last(self) -> int:
        """The highest number of a line that waits, 0 where none does."""
        return max(self._entries, default=0)

    def check(self, line: InputLine, *, corrected: bool) -> bool:
        """Return whether the answer of a line waits. Raises UsageError where the line that does answers another."""
        if (found := self._entries.get(line.number)) is None:
            return False
        check_answers(found[0], line, self.path, corrected=corrected)
        return True

    def find(self, number: int) -> tuple[OutputLine, StoredLine] | None:
        """Return a line that waits, and where; None where it does not."""
        return self._entries.get(number)

    def after(self, number: int) -> list[tuple[OutputLine, StoredLine]]:
        """Return the lines with a higher number, in order, and where they wait."""
        return [self._entries[each] for each in sorted(self._entries) if each > number]

    def check_known(self, numbers: set[int]) -> None:
        """Raise UsageError where a line waits that is none of these."""
        if self._entries.keys() - numbers:
            raise too_many(self.path)

    def accept(self, moved_up_to: int) -> None:
        """Take the file as one's own: forget lines up to a number, which the output holds, and what was torn off."""
        self._is_ours = True
        for number in [each for each in self._entries if each <= moved_up_to]:
            del self._entries[number]
        if self._file:
            self._file.cut(self._whole)

    def add(self, entry: OutputLine, raw: bytes) -> None:
        """Keep a line. It is on the disk, or nothing of it is, when this returns or raises (OSError)."""
        if self._file is None:
            self._file = LineFile(self.path)
            self._file.cut(0)
        stored = StoredLine(self._file, self._file.end, len(raw))
        self._file.append([raw])
        self._entries[entry.line] = entry, stored

    def remove(self, numbers: set[int]) -> None:
        """Forget lines that have moved: they are on the disk elsewhere."""
        for number in self._entries.keys() & numbers:
            del self._entries[number]
        if self._file and not self._entries:
            self._file.cut(0)
        elif self._file and self._file.end > MOST_MOVED_BYTES + 2 * sum(at.size for _, at in self._entries.values()):
            self._rewrite(self._file)

    def close(self) -> None:
        """Give the file back; remove it where nothing waits in it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if self._is_ours and not self._entries:
            file.remove()
        else:
            file.close()

    def _rewrite(self, old: LineFile) -> None:
        """Write what waits into a new file and put it in the old one's place in one step."""
        new = LineFile(self.path.with_name(f"{self.path.name}.new"))
        try:
            new.cut(0)
            new.append(at.read() for _, at in self._entries.values())
            new.take_place_of(old)
        except BaseException:
            new.close()
            raise
        start = 0
        for number, (entry, at) in self._entries.items():
            self._entries[number] = entry, StoredLine(new, start, at.size)
            start += at.size
        self._file = new
        old.close()

    def _read(self, file: LineFile) -> None:
        for number, raw in enumerate(file.lines(), 1):
            if is_torn(raw):
                break
            entry = decode(raw, self.path, number)
            self._entries[entry.line] = entry, StoredLine(file, self._whole, len(raw))
            self._whole += len(raw)


# Lines between the first that is not answered and the last that was begun, for each that is answered at once: a line
# that takes a minute holds up others that take a second each, and what waits is small beside an input of thousands.
OPEN_LINES_EACH = 64
Hear: TypeAlias = Callable[[OutputLine, StoredLine | None], None]


class BatchOutput:
    """An output file, and that of the lines that wait for it, which are locked for as long as this lives."""

    def __init__(self, path: Path, parallel: int = 1) -> None:
        """Open or make the file. ``parallel``: how many lines are answered at once.

        Raises UsageError where that cannot be, or another process has it.
        """
        part = beside(path, "part")
        if os.path.exists(part) and not os.path.exists(path):  # noqa: PTH110  (a name too long is the next line's)
            msg = f"{part} holds lines of an output that is gone: put {path} back, or remove that file, too"
            raise UsageError(msg)
        self.path = path
        self._file = LineFile(path)
        try:
            self._waiting = WaitingLines(part)
        except BaseException:
            self._file.close()
            raise
        self._order: ReorderBuffer[StoredLine | bytes | None] = ReorderBuffer(OPEN_LINES_EACH * parallel)
        self._gaps: set[int] = set()  # lines before one that waits, which an earlier run has not finished
        self._end = 0  # what stands before it is whole lines, each compared with its line of the input
        self.last: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether no further line may be begun before an earlier one is finished."""
        return self._order.is_full and not self._gaps

    @property
    def num_waiting(self) -> int:
        """Lines that wait on the disk for an earlier one."""
        return len(self._waiting)

    def remaining(self, lines: Iterator[InputLine], hear: Hear) -> Iterator[InputLine]:
        """Compare the lines that stand with the input's, and return those of the input that are still to be answered.

        ``hear`` is told every line that stands in the output, in order, and where; behind them those that have waited,
        and None. What was torn off in the middle of a line is removed. Raises UsageError, with nothing changed, where
        the files hold anything else than the beginning of this work.
        """
        todo = self.compare(lines, hear)
        self._file.cut(self._end)
        self._waiting.accept(self.last or 0)
        for entry in self._move():
            hear(entry, None)
        return todo

    def compare(self, lines: Iterator[InputLine], hear: Hear, *, corrected: bool = False) -> Iterator[InputLine]:
        """Do what ``remaining`` does, but change nothing and move no line.

        ``corrected``: where the output holds an error, the input may hold another line by now.
        """
        torn: list[InputLine] = []
        known: set[int] = set()
        for number, raw in enumerate(self._file.lines(), 1):
            if (line := next(lines, None)) is None:
                raise too_many(self.path)
            if is_torn(raw, line):
                torn = [line]
                break
            entry = decode(raw, self.path, number)
            check_answers(entry, line, self.path, corrected=corrected)
            if self._waiting.check(line, corrected=corrected):
                known.add(line.number)
            self.last = line.number
            hear(entry, StoredLine(self._file, self._end, len(raw)))
            self._end += len(raw)
        return self._compare_waiting(chain(torn, lines), known, corrected=corrected)

    def stored(self) -> Iterator[tuple[OutputLine, StoredLine]]:
        """Yield the lines that ``compare`` has found, in order, those that wait behind the others."""
        start = 0
        for raw in self._file.lines():
            if start == self._end:
                break
            yield decode(raw, self.path), StoredLine(self._file, start, len(raw))
            start += len(raw)
        yield from self._waiting.after(self.last or 0)

    def begin(self, line: InputLine) -> None:
        """Put a line behind those that are being answered; lines are begun in the order of the input."""
        self._order.begin(line.number)
        self._gaps.discard(line.number)

    def add(self, number: int, result: bytes | StoredLine) -> list[OutputLine]:
        """Keep what a line that was begun came to: a line for the output, or where it stands in a file that lasts.

        It is on the disk, or nothing of it is, when this returns or raises. Returns the lines that the output holds
        more by that, in order: none where an earlier one is not finished. Raises OSError, naming the file, where it
        cannot be written.
        """
        if self._order.is_first(number) or isinstance(result, StoredLine):
            self._order.finish(number, result)
            return self._move()
        self._waiting.add(decode(result, self.path), result)
        self._order.finish(number, None)
        return []

    def replace(self, other: BatchOutput) -> None:
        """Put this output, which is complete, in the place of another in one step."""
        shutil.copymode(other.path, self.path)
        self._file.take_place_of(other._file)
        other.discard_waiting()

    def discard_waiting(self) -> None:
        """Forget the lines that wait: another file holds them."""
        self._waiting.accept(self._waiting.last)

    def close(self) -> None:
        """Close the files and give the locks back; that of the lines that wait is removed where none does."""
        self._waiting.close()
        self._file.close()

    def _compare_waiting(self, lines: Iterator[InputLine], known: set[int], *, corrected: bool) -> Iterator[InputLine]:
        """Read the input up to the last line that waits; return the lines before it that do not, and all behind it."""
        todo: list[InputLine] = []
        number = self.last or 0
        while number < self._waiting.last and (line := next(lines, None)) is not None:
            number = line.number
            self._order.begin(number)
            if self._waiting.check(line, corrected=corrected):
                known.add(number)
                self._order.finish(number, None)
            else:
                todo.append(line)
                self._gaps.add(number)
        self._waiting.check_known(known)
        return chain(todo, lines)

    def _move(self) -> list[OutputLine]:
        """Write the lines that may go out, and only then forget those of them that waited."""
        ready = self._order.ready()
        if not ready:
            return []
        moved: list[OutputLine] = []
        durable = not all(isinstance(result, StoredLine) for _, result in ready)  # else the disk has them elsewhere
        self._file.append((self._raw(number, result, moved) for number, result in ready), durable=durable)
        self._order.release()
        self.last = moved[-1].line
        self._waiting.remove({number for number, _ in ready})
        return moved

    def _raw(self, number: int, result: StoredLine | bytes | None, moved: list[OutputLine]) -> bytes:
        if result is None and (waiting := self._waiting.find(number)):
            result = waiting[1]
        raw = result if isinstance(result, bytes) else result.read() if result else b""
        moved.append(decode(raw, self.path))
        return raw


class PrintedOutput:
    """Standard output in the place of a file: the same lines in the same order, and nothing that another run finds."""

    path = Path("-")

    def __init__(self, parallel: int = 1) -> None:
        """Print to standard output. ``parallel``: how many lines are answered at once."""
        self._order: ReorderBuffer[bytes] = ReorderBuffer(OPEN_LINES_EACH * parallel)
        self.last: int | None = None
        self.num_waiting = 0  # of an earlier run; what waits here is printed by this one
        self.has_gaps = False  # whether lines were printed behind one that was not finished

    @property
    def is_full(self) -> bool:
        """Whether no further line may be begun before an earlier one is finished."""
        return self._order.is_full

    def remaining(self, lines: Iterator[InputLine], hear: Hear) -> Iterator[InputLine]:
        """Return all lines: none is answered yet, and ``hear`` is told of none."""
        del hear
        return lines

    def begin(self, line: InputLine) -> None:
        """Put a line behind those that are being answered."""
        self._order.begin(line.number)

    def add(self, number: int, result: bytes | StoredLine) -> list[OutputLine]:
        """Print the lines that may go out by what this one came to, and return them. Raises OSError."""
        self._order.finish(number, result if isinstance(result, bytes) else result.read())
        return self._print(self._order.ready())

    def close(self) -> None:
        """Print, once, what was finished behind a line that was not: it may be paid."""
        behind, self._order = self._order.finished(), ReorderBuffer(1)
        self.has_gaps = self.has_gaps or bool(behind)
        self._print(behind)

    def _print(self, ready: list[tuple[int, bytes]]) -> list[OutputLine]:
        if not ready:
            return []
        sys.stdout.buffer.write(b"".join(raw for _, raw in ready))
        sys.stdout.buffer.flush()
        self._order.release()
        self.last = ready[-1][0]
        return [decode(raw, self.path) for _, raw in ready]


def beside(path: Path, ending: str) -> Path:
    """Return the file that goes with an output, in its folder: OUT.part for OUT; a link is followed."""
    target = Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114  (any name will do)
    return target.with_name(f"{target.name}.{ending}")
