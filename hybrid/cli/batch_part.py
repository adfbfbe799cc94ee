"""Lines that were finished before an earlier one: they wait in a file beside the output, OUT.part, on the disk.

The law: a line that was added is not lost, wherever the process is killed, until it is said to have moved; whatever
else stands there is refused and left as it was. A line that the output holds, too, counts for nothing here: so it may
be moved first and forgotten later (``tests/cli/test_batch_output.py`` kills it between all writes). In which order
lines move, and when, is not known here.
"""

from __future__ import annotations

from pathlib import Path

from hybrid.cli.batch_lines import OutputLine, StoredLine, check_answers, decode, is_torn, too_many
from hybrid.cli.questions import InputLine
from hybrid.line_file import LineFile

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


__all__ = ["WaitingLines"]
