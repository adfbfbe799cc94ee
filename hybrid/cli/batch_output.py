"""The output of a batch: one whole line for each line of the input, in its order, on the disk before the next is asked.

    {"line":1,"input":"8d5e1f...","id":"sum","text":"133",...}
    {"line":2,"input":"07c3a9...","id":null,"error":"the line cannot be read as JSON: ..."}

``input`` is the digest of the line that was answered, so that the file itself says how far the work is and of what.

The law: wherever the process is killed, starting again with the same input ends in the lines that it would have ended
in: none twice, none missing, none out of order. Nothing is changed in a file that does not hold the beginning of this
work, and no two processes write one file (``tests/cli/test_batch_output.py`` cuts at every byte;
``tests/end_to_end/test_batch.py`` kills real ones). What a line asks, or how it is answered, is not known here.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from hybrid.cli.questions import InputLine
from hybrid.cli.whole_file import OWNERS
from hybrid.errors import UsageError


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


class OutputLine(msgspec.Struct, frozen=True):
    """What is read back of a line of the output: all but the answer itself."""

    line: int
    input: str
    error: str | None = None
    degraded: str | None = None
    usage: TokenCounts | None = None
    bill: BillRecord | None = None


class BatchOutput:
    """An output file that is locked for as long as this lives."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises UsageError where that cannot be, or another process has it."""
        self._path = path
        self._fd = _locked(path)
        self._end = 0  # what stands before it is whole lines, each compared with its line of the input
        self.last: int | None = None

    def remaining(self, lines: Iterator[InputLine], tell: Callable[[OutputLine], None]) -> Iterator[InputLine]:
        """Compare the lines that stand with the input's, and return those of the input that are still to be answered.

        What was torn off in the middle of a line is removed. Raises UsageError, with nothing changed, where the file
        holds anything else than the beginning of this work.
        """
        todo = lines
        with open(self._fd, "rb", closefd=False) as written:
            for raw in written:
                line = next(lines, None)
                if line is None:
                    msg = f"{self._path} holds more lines than the input: give another file"
                    raise UsageError(msg)
                if _is_torn(raw, line):
                    todo = chain([line], lines)
                    break
                tell(self._kept(raw, line))
        os.ftruncate(self._fd, self._end)
        return todo

    def add(self, line: InputLine, found: Mapping[str, Any]) -> OutputLine:
        """Write what a line came to. It is on the disk, or nothing of it is, when this returns or raises.

        Raises OSError, naming the file, where it cannot be written.
        """
        raw = msgspec.json.encode({"line": line.number, "input": line.digest, **found}, enc_hook=float) + b"\n"
        try:
            left = memoryview(raw)
            while left:
                left = left[os.write(self._fd, left) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._end)
            raise OSError(error.errno, f"{self._path}: {error.strerror}") from error
        except BaseException:
            os.ftruncate(self._fd, self._end)
            raise
        return self._kept(raw, line)

    def close(self) -> None:
        """Close the file and give the lock back."""
        os.close(self._fd)

    def _kept(self, raw: bytes, line: InputLine) -> OutputLine:
        try:
            entry = msgspec.json.decode(raw, type=OutputLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            msg = f"{self._path} holds something that no batch wrote: give another file"
            raise UsageError(msg) from None
        if not raw.startswith(_head(line)):
            msg = (
                f"{self._path}: line {entry.line} there does not answer line {line.number} of the input: give another "
                "file, or the input that it was begun with"
            )
            raise UsageError(msg)
        self._end += len(raw)
        self.last = line.number
        return entry


def _head(line: InputLine) -> bytes:
    """Return what the line of the output begins with that answers this one."""
    return b'{"line":%d,"input":"%s",' % (line.number, line.digest.encode())


def _is_torn(raw: bytes, line: InputLine) -> bool:
    """Whether these bytes are the beginning, and not the whole, of the line that answers this one."""
    head = _head(line)
    return not raw.endswith(b"\n") and (raw.startswith(head) or head.startswith(raw))


def _locked(path: Path) -> int:
    fd = _opened(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        busy = isinstance(error, BlockingIOError)
        msg = f"{path}: " + ("another process is writing it" if busy else f"cannot be locked: {error.strerror}")
        raise UsageError(msg) from None
    return fd


def _opened(path: Path) -> int:
    try:
        if path.exists() and not path.is_file():
            msg = f"{path}: not a file"
            raise UsageError(msg)
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, OWNERS)
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise UsageError(msg) from None
