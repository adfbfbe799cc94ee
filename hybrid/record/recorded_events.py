"""The events of a trace file, read back; rows where they were recorded.

The laws (``tests/run/test_recorded_events.py``): what ``to_json`` wrote comes back as the events that they were, less
what no trace tells; an event that is not known is passed over; a file that was cut off in its last line is read up to
there; anything else is a sentence. Rows are read one at a time: those of a long answer are larger than a memory. Of
drafts that were turned down no rows come back: a file names a row's place by a hash of the text before it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import structs

from hybrid.errors import UsageError
from hybrid.prob import TokenBytes
from hybrid.prob.distribution import MAX_ID
from hybrid.record import events
from hybrid.record.answer import Answer
from hybrid.record.events import TRACE_VERSION, Event, event_name, key_of, unpacked
from hybrid.record.rows import row_from_json
from hybrid.store.files import open_regular
from hybrid.types import Ids

# What a plan was decided from is in no trace, and what it came to is told by the events that follow.
_READ: dict[str, type[Any]] = {event_name(kind): kind for kind in get_args(Event) if kind is not events.Planned}
_DAMAGE = ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer's trace. ``prompt``: as the model read it; None: the file has no rows, and so no vocabulary."""

    path: Path
    ids: Ids
    prompt: str | None

    @classmethod
    def read(cls, path: Path) -> RecordedAnswer:
        """Read what rows need to be placed. Raises UsageError with one sentence for anything but a trace."""
        ids: list[int] = []
        prompt: list[int] = []
        pieces: tuple[bytes, ...] = ()

        def read(line: dict[str, Any]) -> None:
            nonlocal prompt, pieces
            match line["event"]:
                case "token_emitted":
                    ids.append(_token_id(line["token"]["id"]))
                case "started":
                    prompt = list(line["prompt"])
                case "recording_started":
                    pieces = tuple(map(bytes.fromhex, line["pieces"]))

        for _ in read_lines(path, read):
            pass
        known = all(isinstance(token, int) and 0 <= token < len(pieces) for token in prompt)
        text = b"".join(pieces[token] for token in prompt).decode("utf-8", "replace") if pieces and known else None
        return cls(path, tuple(ids), text)

    def events(self) -> Iterator[Event]:
        """Yield its events. Raises UsageError at a line that is none."""
        keys = {key_of(self.ids[:end]): end for end in range(len(self.ids) + 1)}
        reader = _EventReader(self.ids, keys)
        yield from filter(None, read_lines(self.path, reader.read))


class _EventReader:
    """Makes events of lines; the noise of the local rows is told before them."""

    def __init__(self, ids: Ids, keys: Mapping[str, int]) -> None:
        """Take the answer's tokens, and how many of them stand before a place, by its key."""
        self._ids = ids
        self._keys = keys
        self._noise: tuple[float, float | None] = (0.0, None)
        self._words = TokenBytes((), frozenset())

    def read(self, line: dict[str, Any]) -> Event | None:
        """Return the event of a line; None: it is not known here."""
        match line["event"]:
            case "recording_started":
                return self._recording(line)
            case "rows":
                return self._rows(line)
            case "finished":
                return events.Finished(_answer(line))
            case str(name) if name in _READ:
                event: Event = msgspec.convert(_with_intervals(line), _READ[name])
                return event
            case str():
                return None
        raise TypeError(line["event"])

    def _recording(self, line: dict[str, Any]) -> events.RecordingStarted:
        found = read_recording(line)
        self._noise = found.noise, found.shift
        self._words = TokenBytes(found.pieces, frozenset(found.end_ids))
        return found

    def _rows(self, line: dict[str, Any]) -> events.Rows | None:
        end = self._keys.get(line["key"])
        if end is None:
            return None
        local = None if line["local"] is None else unpacked(line["local"], *self._noise)
        cloud = None if line["cloud"] is None else row_from_json(line["cloud"], self._words)
        return events.Rows(self._ids[:end], local, cloud, line["written"], tuple(line["banned"]), bool(line.get("cut")))


def read_recording(line: dict[str, Any]) -> events.RecordingStarted:
    """Read how rows were read and drawn from. Raises ValueError, KeyError or TypeError for what is none."""
    pieces = tuple(map(bytes.fromhex, line["pieces"]))
    return structs.replace(msgspec.convert({**line, "pieces": ()}, events.RecordingStarted), pieces=pieces)


def _answer(line: dict[str, Any]) -> Answer:
    return msgspec.convert({**line, "tokens": [_with_interval(token) for token in line["tokens"]]}, Answer)


def _with_intervals(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "token": _with_interval(line["token"])} if "token" in line else line


def _with_interval(token: dict[str, Any]) -> dict[str, Any]:
    """Return a token whose divergence is unbounded where JSON could not say so."""
    known = {name: token[name] for name in ("kl", "concept_kl") if token.get(name) is not None}
    return token | {
        name: {key: math.inf if value is None else value for key, value in kl.items()} for name, kl in known.items()
    }


def read_lines(path: Path, read: Callable[[dict[str, Any]], Any], *, whole: bool = False) -> Iterator[Any]:
    """Yield what ``read`` makes of each line. Raises UsageError, naming the line.

    ``whole`` False: one that was cut off in its last line is read up to there.
    """
    try:
        with open_regular(path) as file:
            _check_header(file.readline(), path)
            for number, text in enumerate(file, start=2):
                try:
                    found = read(json.loads(text))
                except (*_DAMAGE, msgspec.MsgspecError):
                    if not whole and not text.endswith("\n"):
                        return  # cut off: a disk that was full, or a process that was killed
                    msg = f"{path} is damaged: line {number} is no event of a trace"
                    raise UsageError(msg) from None
                yield found
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise UsageError(msg) from None
    except UnicodeError:
        msg = f"{path} is no trace, or a damaged one: it holds bytes that are no text"
        raise UsageError(msg) from None


def _token_id(value: object) -> int:
    """Return a token's id. Raises ValueError for what cannot be one."""
    if not isinstance(value, int) or not 0 <= value <= MAX_ID:
        msg = f"no token's id: {value}"
        raise ValueError(msg)
    return value


def _check_header(line: str, path: Path) -> None:
    """Raise UsageError for another first line than a trace's, or one of a version that is not read."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    version = header.get("trace") if isinstance(header, dict) else None
    if version == TRACE_VERSION:
        return
    if isinstance(version, int):
        found = f"{path} is a trace of version {version}, not {TRACE_VERSION}"
        msg = f"{found}: record it again with --trace FILE --trace-rows"
    else:
        msg = f"{path} is no trace: record one with --trace FILE --trace-rows"
    raise UsageError(msg)
