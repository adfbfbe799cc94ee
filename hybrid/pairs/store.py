"""What is kept of a pair of models: its calibrations, and what was learned since; one folder a pair, lines that grow.

``calibrations.jsonl``: the user's own, each a line, and a line for each that was taken back. ``outcomes.jsonl``: of
each answer the outcomes of its drafts and what was paid, under its judge. No text is in it, but hashes of each
question's words and neighbouring pairs: whoever can read the file can confirm a question that they guess, word for
word. So it is the user's alone (0600), ``--no-learn`` keeps nothing, and ``hybrid calibrate --forget`` removes it.

Laws (``tests/run/test_calibrations.py``, ``tests/defer/test_state.py``): what was kept is found again, by the pair and
the judge or by the pair alone, but over concepts by the judge only; what was fitted with a critic is found for it
alone; the user's own comes before a shipped one, however few questions it knows, and then that can be told; what a
newer one has replaced stays on disk and can be taken back. A line that cannot be read, or is of another pair or
version, is not believed, is told and is put aside; the newest 5,000 outcomes of a judge are known. Before there were
folders, each of these was a file of ``scores``: they are read in order, and moved by the next line that is added.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import msgspec

import hybrid.defer
from hybrid.defer import Calibration
from hybrid.defer.online import MOST_OUTCOMES
from hybrid.defer.outcome import DraftOutcome
from hybrid.errors import UsageError
from hybrid.settings.sources import pairs_folder, scores_folder
from hybrid.store.files import read_regular
from hybrid.store.json_store import JsonLines, locked

SHIPPED = Path(hybrid.defer.__file__).parent / "data"
STATE_VERSION = 1
# Each is some 0.3 MB, and a file is read whole.
MOST_CALIBRATIONS = 64
# A calibration's file of before: one that it had replaced, the one in force, one that was taken back.
_FORMER = re.compile(r"(.+)\.calibration\.json(?:\.(earlier|taken-back)-(\d+))?")
_PLACES = {"earlier": 0, None: 1, "taken-back": 2}


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
class Outcomes:
    """A line of what was learned of a pair under a judge, the newest outcome last. One of before is a whole file."""

    version: int
    local: str
    cloud: str
    judge: str
    outcomes: tuple[DraftOutcome, ...]
    measured: MeasuredBill = MeasuredBill()  # files of before it was measured have none


@dataclass(frozen=True)
class _TakenBack:
    """A line: the newest calibration of a judge (None: of none, all come again) and a critic was taken back."""

    taken_back: str | None
    critic: str | None


_Kept: TypeAlias = tuple[int, Calibration]  # and when it was kept, as the number of its line


@dataclass(frozen=True)
class PairStore:
    """The folder of one pair: ``local``, a model's identity; ``cloud``, the model's name there.

    Whatever is read or added raises UsageError where there is no home to keep files in.
    """

    local: str
    cloud: str

    @cached_property
    def calibrations(self) -> JsonLines[Calibration | _TakenBack]:
        """The user's own calibrations, and which were taken back, in the order in which that was done."""
        former = self._former_calibrations()
        path, read = self._folder / "calibrations.jsonl", self._read_calibration
        return JsonLines(path, read, former, self._newest, MOST_CALIBRATIONS, leaves_aside=True)

    @cached_property
    def outcomes(self) -> JsonLines[Outcomes]:
        """What was learned, under every judge."""
        former = dict.fromkeys(sorted(scores_folder().glob(f"{self._digest}-*.learned.json")), ())
        return JsonLines(self._folder / "outcomes.jsonl", self._read_outcomes, former, self._folded)

    def learned(self, judge: str) -> tuple[Outcomes, str | None]:
        """Return what was learned under a judge, and why something of it is not used, in one sentence for the user."""
        found, damaged = self.outcomes.read()
        told = "damaged, or of another pair or version"
        note = f"some of what was learned of this pair is not used, it is {told}: {damaged[0]}" if damaged else None
        return self._sum(judge, found), note

    def add(self, judge: str, outcomes: Iterable[DraftOutcome], measured: MeasuredBill | None = None) -> bool:
        """Add outcomes, and what was measured of bills; return whether that was written."""
        told = Outcomes(STATE_VERSION, self.local, self.cloud, judge, tuple(outcomes), measured or MeasuredBill())
        with contextlib.suppress(OSError):
            self.outcomes.add(msgspec.json.encode(told))
            return True
        return False

    def in_force(self) -> list[Calibration]:
        """Return the user's own calibrations that were not replaced or taken back, the newest first."""
        kept = [kept[-1] for kept, _ in self._stacks(self.calibrations.read()[0]).values() if kept]
        return [found for _, found in sorted(kept, key=lambda each: each[0], reverse=True)]

    def take_back(self, critic: str | None = None) -> bool:
        """Put in force what was before the user's newest calibration; return whether anything changed.

        That is the one that it replaced, or else the package's, or none. Where none is in force all that were taken
        back come again, as they were. Raises UsageError.
        """
        newest = next((each.judge for each in self.in_force() if each.critic == critic), None)
        if newest is None and not any(
            aside for key, (_, aside) in self._stacks(self.calibrations.read()[0]).items() if key[1] == critic
        ):
            return False
        self.add_calibration(msgspec.json.encode(_TakenBack(newest, critic)))
        return True

    def forget(self) -> tuple[int, int]:
        """Remove all of it; return how many calibrations were in force, and how many files of outcomes there were.

        Raises UsageError.
        """
        num, files = len(self.in_force()), [*self._folder.glob("*"), *scores_folder().glob(f"{self._digest}-*")]
        files = [path for path in files if path.suffix != ".lock"]  # somebody may wait for one
        try:
            for path in files:
                with locked(self.outcomes.path), locked(self.calibrations.path):
                    path.unlink(missing_ok=True)
        except OSError as error:
            msg = f"{error.filename} cannot be removed: {error.strerror}"
            raise UsageError(msg) from None
        return num, sum("outcomes" in path.name or ".learned." in path.name for path in files)

    def add_calibration(self, line: bytes) -> None:
        """Add a line to the calibrations. Raises UsageError."""
        try:
            self.calibrations.add(line)
        except OSError as error:
            msg = f"{self.calibrations.path} cannot be written: {error.strerror}"
            raise UsageError(msg) from None

    def _newest(self, lines: Sequence[Calibration | _TakenBack]) -> list[bytes]:
        """Return the calibrations in force, and the one before each, oldest first."""
        newest = sorted(
            (each for kept, _ in self._stacks(lines).values() for each in kept[-2:]), key=lambda each: each[0]
        )
        return [json.dumps(each.to_json()).encode() for _, each in newest]

    @staticmethod
    def _stacks(
        lines: Sequence[Calibration | _TakenBack],
    ) -> dict[tuple[str, str | None], tuple[list[_Kept], list[_Kept]]]:
        """Return by judge and critic what was kept, the one in force last, and what was taken back of it."""
        stacks = dict[tuple[str, str | None], tuple[list[_Kept], list[_Kept]]]()
        for number, line in enumerate(lines):
            if isinstance(line, Calibration):
                kept, _ = stacks.setdefault((line.judge, line.critic), ([], []))
                if kept and kept[-1][1].to_json() == line.to_json():
                    kept.pop()
                kept.append((number, line))
                continue
            for (judge, critic), (kept, aside) in stacks.items():
                if line.taken_back is None and critic == line.critic:
                    kept.extend(reversed(aside))
                    aside.clear()
                elif (judge, critic) == (line.taken_back, line.critic) and kept:
                    aside.append(kept.pop())
        return stacks

    def _sum(self, judge: str, lines: Sequence[Outcomes]) -> Outcomes:
        own = [line for line in lines if line.judge == judge]
        newest = tuple(each for line in own for each in line.outcomes)[-MOST_OUTCOMES:]
        measured = sum((line.measured for line in own), MeasuredBill())
        return Outcomes(STATE_VERSION, self.local, self.cloud, judge, newest, measured)

    def _folded(self, lines: Sequence[Outcomes]) -> list[bytes]:
        return [msgspec.json.encode(self._sum(judge, lines)) for judge in dict.fromkeys(line.judge for line in lines)]

    @property
    def _folder(self) -> Path:
        return pairs_folder() / self._digest

    @property
    def _digest(self) -> str:
        return blake2b(f"{self.local}\n{self.cloud}".encode(), digest_size=8).hexdigest()

    def _read_outcomes(self, line: bytes) -> Outcomes:
        found = msgspec.json.decode(line, type=Outcomes)
        if (found.version, found.local, found.cloud) != (STATE_VERSION, self.local, self.cloud):
            raise ValueError("of another pair or version")
        return found

    def _read_calibration(self, line: bytes) -> Calibration | _TakenBack:
        kept = json.loads(line.decode())
        if isinstance(kept, dict) and "taken_back" in kept:
            return msgspec.convert(kept, _TakenBack)
        found = Calibration.from_json(kept)
        if (found.local, found.cloud) != (self.local, self.cloud):
            raise ValueError("of another pair")
        return found

    def _former_calibrations(self) -> dict[Path, list[bytes]]:
        """Return the files of before in the order of their calibrations, and the lines that take the last ones back."""
        files = defaultdict[str, dict[tuple[int, int], Path]](dict)
        for path in scores_folder().glob(f"{self._digest}-*"):
            match _FORMER.fullmatch(path.name):
                case re.Match() as named:
                    number = int(named[3] or 0)
                    files[named[1]][_PLACES[named[2]], -number if named[2] == "taken-back" else number] = path
        found = dict[Path, list[bytes]]()
        for places in sorted(files.values(), key=lambda places: _changed_ns(places.get((1, 0)))):
            found |= {path: [] for _, path in sorted(places.items())}
            for path in (path for place, path in places.items() if place[0] == _PLACES["taken-back"]):
                with contextlib.suppress(OSError, UsageError, ValueError, RecursionError):
                    back = Calibration.from_json(json.loads(read_regular(path).decode()))
                    found[max(places.items())[1]].append(msgspec.json.encode(_TakenBack(back.judge, back.critic)))
        return found


def _changed_ns(path: Path | None) -> int:
    with contextlib.suppress(OSError):  # another process may be moving it
        return path.stat().st_mtime_ns if path is not None else 0
    return 0


def calibration_for(
    local: str,
    cloud: str,
    judge: str | None = None,
    *,
    critic: str | None = None,
    shipped_only: bool = False,
) -> Calibration | None:
    """Return what is known of a pair: ``local``, a model's identity, and ``cloud``, the name of the model there.

    ``judge``: as ``--judge`` writes it; None: any but one over concepts, which is asked for, and of the user's own the
    newest. None is returned for a pair, or a judge of it, of which nothing is known. ``critic``: a critic's identity;
    what was fitted with it comes first, and what was fitted with another is none. ``shipped_only``: the user's own do
    not count.
    """
    own = list[Calibration]()
    with contextlib.suppress(UsageError):  # no home to keep files in
        own = [] if shipped_only else PairStore(local, cloud).in_force()
    fitting = (each for each in (*own, *_shipped()) if (each.local, each.cloud) == (local, cloud))
    free = judge is None
    judged = [each for each in fitting if judge == each.judge or (free and not each.judge.startswith("concept:"))]
    for wanted in (critic, None):
        if found := next((each for each in judged if each.critic == wanted), None):
            return found
    return None


def keep_calibration(calibration: Calibration) -> Path:
    """Keep a calibration in the place of one of the same pair, judge and critic; return its file. Raises UsageError."""
    kept = PairStore(calibration.local, calibration.cloud)
    kept.add_calibration(json.dumps(calibration.to_json()).encode())
    return kept.calibrations.path


def outranked(calibration: Calibration, judge: str | None = None) -> Calibration | None:
    """Return the shipped calibration in whose place a user's own stands, where that knows fewer questions; else None.

    ``judge``: as it was asked for, see ``calibration_for``.
    """
    if is_shipped(calibration):
        return None
    local, cloud, critic = calibration.local, calibration.cloud, calibration.critic
    shipped = calibration_for(local, cloud, judge, critic=critic, shipped_only=True)
    if shipped is None or shipped.critic != critic:
        return None
    return shipped if len(calibration.questions) < len(shipped.questions) else None


def is_shipped(calibration: Calibration) -> bool:
    """Whether a calibration came with the package."""
    return any(each is calibration for each in _shipped())


@lru_cache(maxsize=1)  # they are part of the package
def _shipped() -> tuple[Calibration, ...]:
    return tuple(Calibration.from_json(json.loads(path.read_bytes())) for path in sorted(SHIPPED.glob("*.json")))
