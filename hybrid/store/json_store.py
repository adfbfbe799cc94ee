"""Kept on disk between runs, for many processes at once: entries by name, and lines that are added.

The law of entries: a change of one entry keeps all others, however many processes change entries at once
(``tests/cloud/test_probe_result.py``). Of a file that cannot be read, or not whole, what can be is used, ``damage``
says so, and the next change puts the old file aside; an entry has a checksum, and one digit that turned into another is
seen (``tests/test_kept_files.py``). One that cannot be written is no failure. Before there was one file, each section
had its own, some without checksums: it is read, and the next change of the section moves its entries over.

The law of lines (``tests/defer/test_state.py``): what several processes add at once is all there; a process that is
killed while it adds one loses that line and no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from hybrid.errors import UsageError
from hybrid.store.files import MOST_BYTES, file_lock, make_folder, owners, read_regular, replace, replace_content

VERSION = 1
# A change takes milliseconds; a process that locks the file for longer is stuck.
PATIENCE_S = 5.0
POLL_S = 0.002
# A file changed so lately may change again within the same tick of its clock (as git's index minds it).
SETTLED_NS = 2 * 10**9
_ENTRIES, _SUMS = "entries", "sums"  # each entry's, under its key
Line = TypeVar("Line")


@dataclass(frozen=True)
class JsonStore:
    """The entries of one section of a file, which need not exist.

    ``is_entry`` tells what can be an entry; what cannot is not used. The ``most`` that were kept last stay.
    """

    path: Path
    section: str
    is_entry: Callable[[Any], bool] = lambda _: True
    most: int | None = None

    def read_entries(self) -> dict[str, Any]:
        """Read them all."""
        return self._read()[0]

    def keep(self, key: str, entry: Any) -> bool:
        """Keep an entry as the newest; return whether the file was written."""
        return self.change(lambda kept: {**{name: kept[name] for name in kept if name != key}, key: entry})

    def of_files(self, files: Sequence[Path], find: Callable[[], Any]) -> Any:
        """Return what ``find`` finds out of files, kept for as long as their sizes, times and inodes stay.

        Nothing is added to a damaged file: it is told by those whose entries cost money. Raises OSError.
        """
        name, (held, whole) = str(files[0].resolve()), _entries(self.path)
        stats = [file.stat() for file in files]
        seen = [number for stat in stats for number in (stat.st_size, stat.st_mtime_ns, stat.st_ino)]
        match held.get(f"{self.section} {name}"):
            case [*before, found] as entry if before == seen and self.is_entry(entry):
                return found
        found = find()
        if whole and time.time_ns() - max(stat.st_mtime_ns for stat in stats) > SETTLED_NS:
            self.keep(name, [*seen, found])
        return found

    @property
    def damage(self) -> str | None:
        """Say in a sentence that some of the file, or all of it, is not used; None where nothing is wrong with it."""
        if not (damaged := self._read()[2]):
            return None
        lost = f"the file may be deleted, and what it held of {self.section} is then found out anew"
        return f"{damaged[0]} is damaged, or of another version: what cannot be read of it is not used; {lost}"

    @property
    def _former(self) -> Path:
        return self.path.parent / f"{self.section}.json"

    def _read(self) -> tuple[dict[str, Any], dict[str, Any], list[Path]]:
        """Return the section's entries, those of the others as the file has them, and the files that hold more."""
        former, former_whole = _entries(self._former)  # first: another process may be moving it
        (held, whole), begin = _entries(self.path), f"{self.section} "
        others = {key: entry for key, entry in held.items() if not key.startswith(begin)}
        own = {key.removeprefix(begin): entry for key, entry in held.items() if key not in others}
        entries, earlier = ({key: each for key, each in of.items() if self.is_entry(each)} for of in (own, former))
        are_whole = whole and len(entries) == len(own), former_whole and len(earlier) == len(former)
        damaged = [path for path, is_whole in zip((self.path, self._former), are_whole, strict=True) if not is_whole]
        return {**{key: earlier[key] for key in earlier if key not in entries}, **entries}, others, damaged

    def change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
        """Write the whole file beside itself and move it into place: a reader sees the old one or the new one.

        A damaged one is put aside. Returns whether the file was written.
        """
        with contextlib.suppress(OSError), locked(self.path):
            entries, others, damaged = self._read()
            former = _entries(self._former)[0]
            if self._former not in damaged and any(entries.get(key, each) != each for key, each in former.items()):
                damaged.append(self._former)  # an earlier version went on with it: nobody can tell how to add that
            newest = list(change(entries).items())[-(self.most or 0) :]
            held = json.loads(json.dumps({**others, **{f"{self.section} {key}": entry for key, entry in newest}}))
            sums = {key: _checksum(key, entry) for key, entry in held.items()}
            raw = json.dumps({"version": VERSION, _ENTRIES: held, _SUMS: sums}, indent=1).encode()
            _put_in_place(self.path, raw, damaged, [self._former])
            return True
        return False


def _entries(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the entries of a file, whatever name they have there, and whether that is all that is in it.

    No file is an empty one.
    """
    try:
        raw = read_regular(path).decode()
        kept = json.loads(raw)
        if "\\ud" in raw.lower():
            json.dumps(kept, ensure_ascii=False).encode()  # half of a pair is no text, and has no bytes
    except FileNotFoundError:
        return {}, True
    except (OSError, UsageError, ValueError, RecursionError):
        return {}, False
    if not isinstance(kept, dict) or kept.get("version") != VERSION:
        return {}, False
    whole, sums = next((each for key, each in kept.items() if key not in {"version", _SUMS}), None), kept.get(_SUMS)
    if not isinstance(whole, dict):
        return {}, False
    found = whole if sums is None else {key: each for key, each in whole.items() if _has_sum(sums, key, each)}
    return found, len(found) == len(whole)


def _has_sum(sums: Any, key: str, entry: Any) -> bool:
    return isinstance(sums, dict) and sums.get(key) == _checksum(key, entry)


def _checksum(key: str, entry: Any) -> int:
    return zlib.crc32(json.dumps([key, entry], sort_keys=True).encode())


@dataclass(frozen=True)
class JsonLines(Generic[Line]):
    """A file that grows by a line, and the files of earlier versions whose lines stand before its own.

    ``read_line`` raises ValueError for what is no line of it. ``former``: each earlier file with the lines that follow
    its own; the next line that is added moves them. ``folded`` makes fewer of ``most`` lines, or of half the bytes that
    a file may have; with ``leaves_aside`` the files that were folded stay beside it.
    """

    path: Path
    read_line: Callable[[bytes], Line]
    former: Mapping[Path, Sequence[bytes]] = field(default_factory=dict)
    folded: Callable[[Sequence[Line]], Sequence[bytes]] | None = None
    most: int = 1000
    leaves_aside: bool = False
    # The file as it was seen last, where all of it could be read: how many lines and bytes of them it then had.
    _whole: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict, init=False, compare=False)

    def read(self) -> tuple[list[Line], list[Path]]:
        """Return what can be read, the newest last, and the files that hold more than that."""
        lines, damaged = self._read()
        return [line for _, line in lines], damaged

    def _read(self) -> tuple[list[tuple[bytes, Line]], list[Path]]:
        held = dict[Path, list[bytes]]()
        damaged, seen = dict[Path, None](), _signature(self.path)
        for path in (*self.former, self.path):  # in this order: another process may be moving them
            try:
                held[path] = read_regular(path).splitlines()
            except FileNotFoundError:
                pass
            except (OSError, UsageError):
                damaged[path] = None
        own, lines = held.pop(self.path, []), []
        moved = set(own)  # by a process that has not removed the earlier files, or was killed before
        earlier = [(path, line) for path, raw in held.items() for line in (*raw, *self.former[path])]
        for path, line in (*(each for each in earlier if each[1] not in moved), *((self.path, line) for line in own)):
            try:
                lines.append((line, self.read_line(line)))
            except (ValueError, RecursionError):
                damaged[path] = None
        self._whole.clear()
        if not damaged and not held and seen == _signature(self.path):
            self._whole[seen] = len(lines), sum(len(raw) for raw, _ in lines)
        return lines, list(damaged)

    def add(self, line: bytes) -> None:
        """Add a line; what cannot be read is put aside, and the rest of it stays. Raises OSError.

        A file that nobody changed since it was seen whole is not read again.
        """
        with locked(self.path):
            former = [path for path in self.former if path.exists()]
            whole = self._whole.get(_signature(self.path)) if not former else None
            lines, damaged = ([], []) if whole else self._read()
            num, size = whole or (len(lines), sum(len(raw) for raw, _ in lines))
            is_long = num >= self.most or size + len(line) > MOST_BYTES // 2
            if not damaged and not former and not is_long:
                with open(self.path, "ab+", opener=owners) as file:
                    file.seek(max(0, file.tell() - 1))
                    cut = file.read(1) not in {b"", b"\n"}  # by a disk that was full: the last line lacks its end
                    file.write(b"\n" * cut + line + b"\n")
                self._whole.clear()
                self._whole[_signature(self.path)] = num + 1, size + len(line)
                return
            if whole:
                lines, damaged = self._read()
            kept = [raw for raw, _ in lines]
            if self.folded is not None and is_long:
                kept = [*self.folded([each for _, each in lines])]
                if self.leaves_aside:
                    own = [self.path] if self.path.exists() else []
                    damaged = [*dict.fromkeys([*damaged, *former, *own])]
            _put_in_place(self.path, b"".join(each + b"\n" for each in (*kept, line)), damaged, self.former)


def _signature(path: Path) -> tuple[object, ...]:
    """Return by what a file is known to be as it was; where that cannot be seen, what nothing is equal to."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_size, found.st_mtime_ns, found.st_ino
    return (object(),)


def _put_in_place(path: Path, raw: bytes, damaged: Iterable[Path], former: Iterable[Path]) -> None:
    """Write a file anew, with what is damaged put aside before, and the files removed whose content is in it."""
    for each in damaged:
        if not each.is_dir():
            _put_aside(each)
    replace_content(path, raw)
    for each in former:
        with contextlib.suppress(OSError):
            each.unlink(missing_ok=True)


def _put_aside(path: Path) -> None:
    """Give a file that is about to go a name that nothing has: until then it is there for all. Raises OSError."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{number}.aside")):
        number += 1
    try:
        os.link(path, aside, follow_symlinks=os.link not in os.supports_follow_symlinks)
    except OSError:  # there are no two names of one file here
        replace(path, aside)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make a file's folder, and lock it against other processes. Raises OSError if one holds the lock for too long."""
    make_folder(path.parent)
    with contextlib.ExitStack() as held:
        with contextlib.suppress(RuntimeError):  # filelock: this file system has no locks; the last one wins there
            held.enter_context(file_lock(path).acquire(PATIENCE_S, POLL_S))
        yield
