"""What was learned of a pair, on disk: the newest outcomes of drafts, and what was paid; one file a pair and judge.

It holds no text, but hashes of each question's words and neighbouring pairs: whoever can read the file can confirm a
question that they guess, word for word. So it is the user's alone (0600), ``--no-learn`` keeps nothing, and
``hybrid calibrate --forget`` removes it.

Laws (``tests/defer/test_state.py``): what several processes add at once is all there, up to the newest 5,000; a process
that is killed while it writes loses what it was adding and nothing else; a file of another pair, judge or version, or
one that cannot be read, is not believed, not changed and not lost: the next that is added begins a new file and leaves
the old one beside it; nobody else may read it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from hybrid.defer.online import MOST_OUTCOMES
from hybrid.defer.outcome import DraftOutcome
from hybrid.errors import UsageError, to_one_line
from hybrid.store.json_store import locked, put_aside, rewrite
from hybrid.store.line_file import read_regular

STATE_VERSION = 1
SUFFIX = ".learned.json"


@dataclass(frozen=True)
class MeasuredBill:
    """What answers took, and what the cloud alone would have taken for them, in nano-dollars; of answers with both."""

    nanousd: int = 0
    alone_nanousd: int = 0
    answers: int = 0

    @classmethod
    def of(cls, nanousd: int | None, alone_nanousd: int | None) -> MeasuredBill:
        """Count one answer; none where a price is not known, or nothing is charged."""
        return cls(nanousd, alone_nanousd, 1) if nanousd is not None and alone_nanousd else cls()

    def __add__(self, other: MeasuredBill) -> MeasuredBill:
        """Add up what was measured."""
        return MeasuredBill(
            self.nanousd + other.nanousd, self.alone_nanousd + other.alone_nanousd, self.answers + other.answers
        )

    @property
    def share(self) -> float | None:
        """The bill as a share of the cloud's own; None: nothing was measured."""
        return self.nanousd / self.alone_nanousd if self.alone_nanousd else None


@dataclass(frozen=True)
class KeptOutcomes:
    """What a file holds, the newest last. ``note``: why it is not used, in one sentence for the user."""

    outcomes: tuple[DraftOutcome, ...] = ()
    note: str | None = None
    measured: MeasuredBill = MeasuredBill()


@dataclass(frozen=True)
class _StateFile:
    version: int
    local: str
    cloud: str
    judge: str
    outcomes: tuple[DraftOutcome, ...]
    measured: MeasuredBill = MeasuredBill()  # files of before it was measured have none


@dataclass(frozen=True)
class _Header:
    """What a file of any version says of itself."""

    version: int
    local: str
    cloud: str
    judge: str


@dataclass(frozen=True)
class PairState:
    """The file of one pair and judge in a folder: ``local``, a model's identity; ``cloud``, the model's name there."""

    folder: Path
    local: str
    cloud: str
    judge: str

    @property
    def path(self) -> Path:
        """The file, which need not exist."""
        judge = "".join(char if char.isalnum() else "-" for char in self.judge)
        named = blake2b(self.judge.encode(), digest_size=4).hexdigest()
        return self.folder / f"{pair_digest(self.local, self.cloud)}-{judge}-{named}{SUFFIX}"

    def read(self) -> KeptOutcomes:
        """Read what was kept. A pair of which nothing was kept has no note."""
        try:
            raw = read_regular(self.path)
        except FileNotFoundError:
            return KeptOutcomes()
        except UsageError as error:
            return KeptOutcomes(note=f"what was learned of this pair is not used: {error}")
        except OSError as error:
            return KeptOutcomes(note=f"what was learned of this pair cannot be read ({error.strerror}): {self.path}")
        return self._believed(raw)

    def add(self, outcomes: Iterable[DraftOutcome], measured: MeasuredBill | None = None) -> bool:
        """Add outcomes, and what was measured of bills, to what is on disk now; return whether that was written."""
        new = tuple(outcomes)

        def added() -> bytes:
            kept = self.read()
            if kept.note is not None:
                put_aside(self.path)
            newest = (*kept.outcomes, *new)[-MOST_OUTCOMES:]
            total = kept.measured + (measured or MeasuredBill())
            return msgspec.json.encode(_StateFile(STATE_VERSION, self.local, self.cloud, self.judge, newest, total))

        return rewrite(self.path, added)

    def _believed(self, raw: bytes) -> KeptOutcomes:
        try:
            header = msgspec.json.decode(raw, type=_Header)
            refused = self._refusal(header)
            if refused is None:
                found = msgspec.json.decode(raw, type=_StateFile)
                return KeptOutcomes(found.outcomes, measured=found.measured)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            refused = "it is damaged or no such file"
        return KeptOutcomes(note=f"what was learned of this pair is not used, {refused}: {self.path}")

    def _refusal(self, header: _Header) -> str | None:
        if header.version != STATE_VERSION:
            return f"it was written by another version of this program ({header.version}, not {STATE_VERSION})"
        if header.local != self.local:
            return "it was learned of another local model"
        if header.cloud != self.cloud:
            return "it was learned of another model in the cloud"
        if header.judge != self.judge:
            return f"it was learned of the judge {to_one_line(header.judge)}"
        return None


def forget_outcomes(folder: Path, local: str, cloud: str) -> int:
    """Remove what was learned of a pair, under every judge; return how many files there were. Raises OSError."""
    num = 0
    for path in list(_files(folder, local, cloud)):
        with locked(path), contextlib.suppress(FileNotFoundError):
            path.unlink()  # its lock stays: somebody may wait for it
            num += 1
    return num


def pair_digest(local: str, cloud: str) -> str:
    """Name a pair in files' names."""
    return blake2b(f"{local}\n{cloud}".encode(), digest_size=8).hexdigest()


def _files(folder: Path, local: str, cloud: str) -> Iterator[Path]:
    """Yield the files of a pair: those that were put aside, and what a process left that was killed, among them."""
    found = folder.glob(f"{pair_digest(local, cloud)}-*{SUFFIX}*")
    yield from (path for path in found if path.suffix != ".lock")
