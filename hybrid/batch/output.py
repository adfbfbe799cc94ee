"""The output of a batch: a whole line for each answer, appended when it is finished and on the disk before it counts.

    {"line":2,"input":"07c3a9...","id":null,"error":"the line cannot be read as JSON: ..."}
    {"line":1,"input":"8d5e1f...","id":"sum","text":"133",...}

``line`` is the number of the input's line, ``input`` its digest and ``id`` its own name. Of several lines with one
number the last counts.

The law: wherever the process is killed, starting again with the same input answers the lines that are not whole there,
and no other. An answer gives way only to a better one: never to an error, and one that went on without the cloud never
to another such; what the other attempts of a line have cost stays with it. Nothing is changed in a file that does not
hold answers to this input, and no two processes write one output (``tests/cli/test_batch_output.py`` kills it at every
byte; ``tests/cli/test_batch_money.py``; ``tests/end_to_end/test_batch.py`` kills real processes). How a line is
answered is not known here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hybrid.batch.questions import InputLine
from hybrid.errors import UsageError, to_one_line
from hybrid.spend import CapScope
from hybrid.store.files import LineFile

__all__ = [
    "BatchOutput",
    "CloudNames",
    "LinePosition",
    "Outcome",
    "OutputLine",
    "add_known",
    "encode",
    "outcomes_of",
]

# What another try of a line does not change: what the endpoint can do, and the length of its context.
LASTING = frozenset(("capability", "context"))
# Files beside an output in which earlier versions kept lines: those that waited for an earlier one, and those of an
# ``--again`` that was not complete. They are moved into the output.
FORMER = ("part", *(f"again-{w}{p}" for w in ("degraded", "failed", "degraded-failed") for p in ("", ".part")))
# How every line begins, with its number and its digest set to zeros.
_HEAD = b'{"line":0,"input":"0000000000000000",'


class TokenCounts(msgspec.Struct, frozen=True):
    """Who wrote an answer, in tokens, and how often the cloud was asked."""

    local_tokens: int
    cloud_tokens: int
    cloud_requests: int


class BillRecord(msgspec.Struct, frozen=True):
    """An answer's bill in nano-dollars; None where no price is known."""

    nanousd: int | None
    cloud_only_nanousd: int | None
    cloud_only_cached_nanousd: int | None = None


class Outcome(IntEnum):
    """What a line came to, the worse the less."""

    FAILED = 0
    DEGRADED = 1
    ANSWERED = 2


class OutputLine(msgspec.Struct, frozen=True):
    """What is read back of a line of the output: all but the answer itself.

    ``cloud``: the endpoint that the batch named, and ``cloud_model`` the model there, if it named one.
    ``discarded_nanousd``: what other attempts of this line have cost, those that it replaced and those that were no
    better; None: not known.
    """

    line: int
    input: str
    error: str | None = None
    degraded: str | None = None
    degraded_kind: str | None = None
    degraded_cap: CapScope | None = None
    cloud: str | None = None
    cloud_model: str | None = None
    usage: TokenCounts | None = None
    bill: BillRecord | None = None
    discarded_nanousd: int | None = 0
    notes: tuple[str, ...] = ()

    @property
    def cost_nanousd(self) -> int | None:
        """What all attempts of the line have cost; None: not known."""
        return add_known(self.bill.nanousd if self.bill else 0, self.discarded_nanousd)

    @property
    def outcome(self) -> Outcome:
        """Whether it holds an error, an answer that the local model ended alone, or one as it was asked for.

        An endpoint that charged too much did its part: another try would buy the same answer again.
        """
        if self.error is not None:
            return Outcome.FAILED
        return Outcome.ANSWERED if self.degraded is None or self.degraded_kind == "charge" else Outcome.DEGRADED

    @property
    def is_repairable(self) -> bool:
        """Whether a cap, a day's pacing or an outage decided it, so that another try may come to more."""
        return self.outcome == Outcome.DEGRADED and self.degraded_kind not in LASTING


class CloudNames(NamedTuple):
    """The endpoint that a batch names, and the model there; None for what it does not name."""

    endpoint: str | None = None
    model: str | None = None


class LinePosition(NamedTuple):
    """Where a line stands: an open file, its first byte there and its length."""

    file: LineFile
    start: int
    size: int

    def read(self) -> bytes:
        """Return the line."""
        return self.file.read(self.start, self.size)


def encode(line: InputLine, found: Mapping[str, Any]) -> bytes:
    """Return the line of the output that says what a line of the input came to."""
    return msgspec.json.encode({"line": line.number, "input": line.digest, **found}, enc_hook=float) + b"\n"


def with_discarded(raw: bytes, nanousd: int | None) -> bytes:
    """Return a whole line of the output with what other attempts of it have cost; for none it stays as it is."""
    return (
        raw if nanousd == 0 else msgspec.json.encode(msgspec.json.decode(raw) | {"discarded_nanousd": nanousd}) + b"\n"
    )


def add_known(one: int | None, other: int | None) -> int | None:
    """Add two amounts; one that is not known makes the sum unknown, never less."""
    return None if one is None or other is None else one + other


def decode(raw: bytes, path: Path, number: int | None = None) -> OutputLine:
    """Read a whole line, the ``number``-th of its file. Raises UsageError, naming both, where no batch wrote it."""
    try:
        entry = msgspec.json.decode(raw, type=OutputLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise foreign(path, number) from None
    if not raw.endswith(b"\n") or not raw.startswith(_head(entry.line, entry.input)):
        raise foreign(path, number)
    return entry


def check_answers(entry: OutputLine, line: InputLine, path: Path, *, corrected: bool) -> None:
    """Raise UsageError, naming the file and the way on, where a line of the output does not answer this of the input.

    ``corrected``: a line that failed may have been another text of the same number.
    """
    is_error = entry.line == line.number and entry.outcome == Outcome.FAILED
    if (entry.line, entry.input) == (line.number, line.digest) or (is_error and corrected):
        return
    way = "give another file, or the input that it was begun with"
    if is_error:
        way = "it holds an error, and --again failed asks such lines as the input has them now"
    msg = f"{path}: line {entry.line} there does not answer line {line.number} of the input: {way}"
    raise UsageError(msg)


def check_cloud(entry: OutputLine, cloud: CloudNames, path: Path) -> None:
    """Raise UsageError, naming the file, for a line that was answered with another endpoint or model than these.

    A line of before endpoints were named, and whoever names none, fits all.
    """
    pairs = ((entry.cloud, cloud.endpoint), (entry.cloud_model, cloud.model))
    for stood, named in pairs:
        if None not in {stood, named} and stood != named:
            msg = (
                f"{path}: line {entry.line} there was answered with {stood}, and this command names {named}: give the "
                "flags that it was begun with (--cloud, --cloud-model), or another file"
            )
            raise UsageError(msg)


def foreign(path: Path, number: int | None = None) -> UsageError:
    """Return the refusal of a file that holds something else, in its ``number``-th line where that is known."""
    where = "" if number is None else f" in line {number}"
    kept = f", or only the lines of this one before line {number}" if number and number > 1 else ""
    return UsageError(f"{path} holds something that no batch wrote{where}: give another file{kept}")


def too_many(path: Path) -> UsageError:
    """Return the refusal of a file that goes on behind the end of the input."""
    return UsageError(f"{path} holds more lines than the input: give another file")


def is_torn(raw: bytes) -> bool:
    """Whether these bytes are the beginning, and not the whole, of a line of an output."""
    if raw.endswith(b"\n"):
        return False
    raw = re.sub(rb'\A(\{"line":)[0-9]+', rb"\g<1>0", raw[:80])
    raw = re.sub(rb'\A(\{"line":0,"input":")([0-9a-f]{1,16})', lambda found: found[1] + b"0" * len(found[2]), raw)
    return raw.startswith(_HEAD) or _HEAD.startswith(raw)


def _head(number: int, digest: str) -> bytes:
    return b'{"line":%d,"input":"%s",' % (number, digest.encode())


WORDS = {"degraded": Outcome.DEGRADED, "failed": Outcome.FAILED}


def outcomes_of(words: str) -> frozenset[Outcome]:
    """Read ``degraded``, ``failed`` or both, with a comma. Raises UsageError for anything else."""
    named = [word.strip() for word in words.split(",")]
    if unknown := [word for word in named if word not in WORDS]:
        msg = f"--again {to_one_line(unknown[0])}: give degraded, failed or degraded,failed"
        raise UsageError(msg)
    return frozenset(WORDS[word] for word in named)


class BatchOutput:
    """An output file, locked for as long as this lives, or standard output (``-``), of which no other run knows.

    ``entries``: the line that counts of each number. ``answered``: the numbers that this run has answered, and
    ``attempts`` what it came to where the line that stood was better. ``asked_again`` and ``better``: how many lines
    stood there before, and how many of them came to more.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises UsageError where that cannot be, or another process has it."""
        self.path = path
        self.entries: dict[int, OutputLine] = {}
        self.answered: set[int] = set()
        self.attempts: dict[int, OutputLine] = {}
        self.asked_again = self.better = 0
        self._at: dict[int, LinePosition] = {}
        self._former: list[LineFile] = []
        self._file = None if str(path) == "-" else LineFile(path)

    def remaining(
        self, lines: Iterator[InputLine], cloud: CloudNames, asked: frozenset[Outcome] = frozenset()
    ) -> Iterator[InputLine]:
        """Compare what stands with the input, and return its lines that are missing or came to one of ``asked``.

        What was torn off in the middle of a line is removed. Raises UsageError, with nothing changed, where the file
        holds anything else than answers to this input at this cloud. Where errors are asked, the input may hold
        another line in their place by now.
        """
        end, todo = self._read(), []
        unseen = set(self.entries)
        while unseen and (line := next(lines, None)) is not None:
            if entry := self.entries.get(line.number):
                path = self._at[line.number].file.path
                check_answers(entry, line, path, corrected=Outcome.FAILED in asked)
                check_cloud(entry, cloud, path)
                unseen.remove(line.number)
            if entry is None or entry.outcome in asked:
                todo.append(line)
        if unseen:
            raise too_many(self.path)
        self._take_over(end)
        return chain(todo, lines)

    def add(self, line: InputLine, found: Mapping[str, Any]) -> None:
        """Keep what a line came to, or the line that stands there where that is the better one.

        It is on the disk, or nothing of it is, when this returns or raises OSError, naming the file.
        """
        raw, before = encode(line, found), self.entries.get(line.number)
        new = decode(raw, self.path)
        is_better = before is None or new.outcome > before.outcome
        if before is None:
            self._append(line.number, raw)
        elif is_better or before.outcome == Outcome.FAILED:
            self._append(line.number, with_discarded(raw, before.cost_nanousd))
        elif new.cost_nanousd != 0:
            # Of two that are degraded the old one may hold what the cloud wrote, and the bill of it.
            spent = add_known(before.discarded_nanousd, new.cost_nanousd)
            self._append(line.number, with_discarded(self._at[line.number].read(), spent))
        self.answered.add(line.number)
        if before is not None:
            self.asked_again += 1
            self.better += is_better
            if not is_better and before.outcome != Outcome.FAILED:
                self.attempts[line.number] = new

    def sort(self) -> None:
        """Put a file in the output's place, in one step, that has one line a number, in the order of the input."""
        if (old := self._file) is None:
            return
        old.check_there()
        place = _beside(self.path, "sorting")
        self._check_leftover(place)
        new = LineFile(place)
        try:
            new.cut(0)
            new.append(self._at[number].read() for number in sorted(self._at))
            shutil.copymode(self.path, new.path)
            new.take_place_of(old)
        except BaseException:
            new.close()
            raise
        self._file = new
        old.close()

    def _check_leftover(self, place: Path) -> None:
        """Raise UsageError for a file in the way that is not what a killed ``sort`` leaves: copies of lines of ours."""
        if not os.path.lexists(place):
            return
        own = {at.read() for at in self._at.values()}
        held = place.read_bytes().splitlines(keepends=True) if place.is_file() and not place.is_symlink() else [b"\n"]
        if not all(line in own or any(each.startswith(line) for each in own) for line in held):
            msg = f"{place}: --sort writes a file of this name, and it is another one: move it elsewhere"
            raise UsageError(msg)

    def close(self) -> None:
        """Close the files and give the locks back."""
        for file in (*self._former, self._file):
            if file:
                file.close()

    def _append(self, number: int, raw: bytes) -> None:
        if self._file is None:
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()
        else:
            start = self._file.end
            self._file.check_there()
            self._file.append([raw])
            self._at[number] = LinePosition(self._file, start, len(raw))
        self.entries[number] = decode(raw, self.path)

    def _read(self) -> int:
        """Read what stands there, and in files of earlier versions beside it; return where the whole lines end."""
        end = 0
        if self._file is None:
            return end
        for entry, at in _whole_lines(self._file):
            self.entries[entry.line], self._at[entry.line] = entry, at
            end = at.start + at.size
        for path in (_beside(self.path, ending) for ending in FORMER):
            if os.path.exists(path):  # noqa: PTH110  (a name that is too long is not there)
                self._former.append(LineFile(path))
                for entry, at in _whole_lines(self._former[-1]):
                    stood = self.entries.get(entry.line)
                    if stood is None or _rank(entry) > _rank(stood):
                        self.entries[entry.line], self._at[entry.line] = entry, at
        return end

    def _take_over(self, end: int) -> None:
        """Remove what was torn off, and move the lines of earlier versions' files in; only then do those go."""
        if self._file is None:
            return
        self._file.cut(end)
        moved = {number: at for number, at in self._at.items() if at.file is not self._file}
        if moved:
            self._file.append(at.read() for at in moved.values())
        for number, at in moved.items():
            self._at[number] = LinePosition(self._file, end, at.size)
            end += at.size
        while self._former:
            self._former.pop().remove()


def _whole_lines(file: LineFile) -> Iterator[tuple[OutputLine, LinePosition]]:
    """Yield a file's lines and where they stand, but for a torn one. Raises UsageError where no batch wrote one."""
    start = 0
    for number, raw in enumerate(file.lines(), 1):
        if is_torn(raw):
            return
        yield decode(raw, file.path, number), LinePosition(file, start, len(raw))
        start += len(raw)


def _rank(entry: OutputLine) -> tuple[Outcome, bool, int]:
    """Order the attempts of a line: a later one came to no less, and has the cost of those before it."""
    return entry.outcome, entry.cost_nanousd is None, entry.cost_nanousd or 0


def _beside(path: Path, ending: str) -> Path:
    """Return the file that goes with an output, in its folder: OUT.part for OUT; a link is followed."""
    target = Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114  (any name will do)
    return target.with_name(f"{target.name}.{ending}")
