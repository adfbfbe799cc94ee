"""Lines of a batch's output: what is read back of one, where it stands, and which line of the input it answers.

    {"line":1,"input":"8d5e1f...","id":"sum","text":"133",...}
    {"line":2,"input":"07c3a9...","id":null,"error":"the line cannot be read as JSON: ..."}

``input`` is the digest of the line that was answered, so that a file itself says how far the work is and of what.

The law: a whole line that no batch wrote is refused, and so is one that answers another line of the input; a torn one
is told from any other text by its beginning (``tests/cli/test_batch_output.py``).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from hybrid.batch.questions import InputLine
from hybrid.errors import UsageError
from hybrid.spend import CapScope
from hybrid.store.line_file import LineFile

# What another try of a line does not change: what the endpoint can do, and the length of its context.
LASTING = frozenset(("capability", "context"))
# The files that lines are asked anew into.
_AGAIN = re.compile(r"\.again-[a-z-]+(\.part)?\Z")
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


class StoredLine(NamedTuple):
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
        if _AGAIN.search(path.name):
            way = "it was corrected once more since; remove that file, and the same command asks its lines anew"
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


def is_torn(raw: bytes, line: InputLine | None = None) -> bool:
    """Whether these bytes are the beginning, and not the whole, of a line of the output: of ``line``'s, or of any."""
    if raw.endswith(b"\n"):
        return False
    head = _HEAD if line is None else _head(line.number, line.digest)
    if line is None:
        raw = re.sub(rb'\A(\{"line":)[0-9]+', rb"\g<1>0", raw[:80])
        raw = re.sub(rb'\A(\{"line":0,"input":")([0-9a-f]{1,16})', lambda found: found[1] + b"0" * len(found[2]), raw)
    return raw.startswith(head) or head.startswith(raw)


def _head(number: int, digest: str) -> bytes:
    return b'{"line":%d,"input":"%s",' % (number, digest.encode())


# Lines that are answered in any order and written in theirs: a reorder buffer, without files, tasks or clocks.
#
# The law: whatever order lines are finished in, they come out in the order in which they were begun, each once and as
# soon as every earlier one is finished; so many are open at most, from the first that is not out to the last that was
# begun, however long the first takes (``tests/cli/test_batch_order.py`` goes through all orders).

Finished = TypeVar("Finished")


class ReorderBuffer(Generic[Finished]):
    """Numbers of lines, ascending, that were begun and are not out yet; what finished ones came to waits here."""

    def __init__(self, most_open: int) -> None:
        """Hold at most so many open lines: ``is_full`` says when no other may be begun."""
        self._most_open = most_open
        self._open: deque[int] = deque()
        self._finished: dict[int, Finished] = {}
        self._last = 0

    @property
    def is_full(self) -> bool:
        """Whether no further line may be begun before the first is out."""
        return len(self._open) >= self._most_open

    def begin(self, number: int) -> None:
        """Put a line behind all others. One that was put there before keeps its place."""
        if number > self._last:
            self._open.append(number)
            self._last = number

    def is_first(self, number: int) -> bool:
        """Whether all lines before an open one are out."""
        return self._open[0] == number

    def finish(self, number: int, result: Finished) -> None:
        """Keep what an open line came to. Raises ValueError for one that is not open, or is finished already."""
        if number in self._finished or number not in self._open:
            msg = f"line {number} is not being answered"
            raise ValueError(msg)
        self._finished[number] = result

    def ready(self) -> list[tuple[int, Finished]]:
        """Return the lines that may go out now, in their order; ``release`` takes them out."""
        finished = self._finished
        return [(number, finished[number]) for number in takewhile(finished.__contains__, self._open)]

    def finished(self) -> list[tuple[int, Finished]]:
        """Return all finished lines that are not out, in their order."""
        return sorted(self._finished.items(), key=lambda each: each[0])

    def release(self) -> None:
        """Take out the lines of ``ready``."""
        while self._open and self._open[0] in self._finished:
            del self._finished[self._open.popleft()]
