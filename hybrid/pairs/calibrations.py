"""Calibrations on disk: those that come with the package, and those that a user has bought. One file a pair and judge.

Laws (``tests/run/test_calibrations.py``): what was kept is found again, by the pair and the judge or by the pair alone,
but over concepts by the judge only; what was fitted with a critic is found for it alone; the user's own comes before a
shipped one, however few questions it knows, and then that can be told; what a newer one has replaced stays on disk and
can be taken back; a file of the user's own that cannot be read is none, is told, and is put aside where another takes
its place.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import hybrid.defer
from hybrid.defer import Calibration
from hybrid.errors import UsageError
from hybrid.settings.sources import scores_folder
from hybrid.store.files import make_folder, replace, replace_content
from hybrid.store.json_store import put_aside
from hybrid.store.line_file import read_regular

SHIPPED = Path(hybrid.defer.__file__).parent / "data"
SUFFIX = ".calibration.json"
# Beside a calibration: what it has replaced, and what was taken back, numbered from 1.
EARLIER, TAKEN_BACK = ".earlier-", ".taken-back-"


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
    candidates = [*([] if shipped_only else _own(local, cloud)), *_shipped()]
    fitting = (each for each in candidates if (each.local, each.cloud) == (local, cloud))
    free = judge is None
    judged = [each for each in fitting if judge == each.judge or (free and not each.judge.startswith("concept:"))]
    for wanted in (critic, None):
        if found := next((each for each in judged if each.critic == wanted), None):
            return found
    return None


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


def damaged_calibrations(local: str, cloud: str) -> tuple[Path, ...]:
    """Return the user's own files of a pair that hold no calibration of it that can be read, the newest first."""
    found = ((path, _read(path)) for path in _own_files(local, cloud))
    return tuple(path for path, own in found if own is None or (own.local, own.cloud) != (local, cloud))


def keep_calibration(calibration: Calibration) -> Path:
    """Write a calibration to the user's state folder, in the place of one of the same pair, judge and critic.

    What stood there is set aside (``take_back``). Returns its file.

    Raises UsageError where there is no home or the file cannot be written.
    """
    folder = scores_folder()
    critic = "" if calibration.critic is None else f"-critic-{calibration.critic[:8]}"
    judge = calibration.judge.replace(":", "-")
    name = f"{_pair(calibration.local, calibration.cloud)}-{judge}{critic}"
    path = folder / f"{name}{SUFFIX}"
    raw = json.dumps(calibration.to_json()).encode()
    try:
        make_folder(folder)
        # What reads numbers over concepts, of before these were dropped, stands under a longer name.
        replaced = {path, *folder.glob(f"{name}-concepts-*{SUFFIX}")}
        for each in replaced.intersection(damaged_calibrations(calibration.local, calibration.cloud)):
            put_aside(each)
        if path.exists() and path.read_bytes() != raw:
            _copy(path, _next(path, EARLIER))
        replace_content(path, raw)
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror}"
        raise UsageError(msg) from None
    return path


def is_shipped(calibration: Calibration) -> bool:
    """Whether a calibration came with the package."""
    return any(each is calibration for each in _shipped())


def take_back(local: str, cloud: str, critic: str | None = None) -> bool:
    """Put in force what was before the user's newest calibration of a pair; return whether anything changed.

    That is the one that it replaced, or else the package's, or none. The one that is taken back is set aside; where
    none is in force all that were set aside come again, as they were. Raises UsageError.
    """
    try:
        for path in _own_files(local, cloud):
            found = _read(path)
            if found is not None and found.critic == critic:
                earlier = _aside(path, EARLIER)
                replace(path, _next(path, TAKEN_BACK))
                if earlier:
                    replace(earlier[-1], path)
                return True
        files = scores_folder().glob(f"{_pair(local, cloud)}-*{SUFFIX}{TAKEN_BACK}*")
        back = {each.with_name(each.name.partition(TAKEN_BACK)[0]) for each in files}
        back = {
            path for path in back if any(own.critic == critic for own in map(_read, _aside(path, TAKEN_BACK)) if own)
        }
        for path in back:
            newest, *older = _aside(path, TAKEN_BACK)
            replace(newest, path)
            for each in reversed(older):
                replace(each, _next(path, EARLIER))
    except OSError as error:
        msg = f"{error.filename} cannot be renamed: {error.strerror}"
        raise UsageError(msg) from None
    return bool(back)


def _aside(path: Path, kind: str) -> list[Path]:
    """Return what was set aside in one way of a calibration's file, in the order in which that was done."""
    found = path.parent.glob(f"{path.name}{kind}*")
    return sorted((each for each in found if each.name[len(path.name + kind) :].isdigit()), key=_number)


def _copy(path: Path, earlier: Path) -> None:
    """Copy a calibration with its time: it is in force until the next one is whole, and it may be in force again."""
    written = path.stat().st_mtime_ns
    replace_content(earlier, path.read_bytes())
    os.utime(earlier, ns=(written, written))


def _next(path: Path, kind: str) -> Path:
    before = _aside(path, kind)
    return path.with_name(f"{path.name}{kind}{_number(before[-1]) + 1 if before else 1}")


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def forget_calibrations(local: str, cloud: str) -> int:
    """Remove the user's own calibrations of a pair; return how many there were. Raises UsageError.

    What a process left that was killed while it wrote one goes with them.
    """
    paths = list(_own_files(local, cloud))
    try:
        for path in (*paths, *scores_folder().glob(f"{_pair(local, cloud)}-*{SUFFIX}.*")):
            path.unlink(missing_ok=True)
    except OSError as error:
        msg = f"{error.filename} cannot be removed: {error.strerror}"
        raise UsageError(msg) from None
    return len(paths)


def _own(local: str, cloud: str) -> list[Calibration]:
    return [found for path in _own_files(local, cloud) if (found := _read(path))]


def _own_files(local: str, cloud: str) -> Iterator[Path]:
    """Yield the files of a pair, the newest first."""
    with contextlib.suppress(OSError, UsageError):
        found = scores_folder().glob(f"{_pair(local, cloud)}-*{SUFFIX}")
        yield from sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


@lru_cache(maxsize=1)  # they are part of the package
def _shipped() -> tuple[Calibration, ...]:
    return tuple(found for path in sorted(SHIPPED.glob("*.json")) if (found := _read(path)))


def _read(path: Path) -> Calibration | None:
    with contextlib.suppress(OSError, UsageError, ValueError, RecursionError):
        return Calibration.from_json(json.loads(read_regular(path).decode()))
    return None


def _pair(local: str, cloud: str) -> str:
    return blake2b(f"{local}\n{cloud}".encode(), digest_size=8).hexdigest()
