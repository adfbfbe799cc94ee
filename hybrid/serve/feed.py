"""What a page is told: first everything, then what changed, each page at its own pace.

A page keeps its place in the state and is sent what is new since, so that nothing piles up for a slow one. The laws
(``tests/serve/test_feed.py``): whoever applies all changes from the beginning has the state, however many events lie
between two looks; and gets no place of it twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybrid.serve.answer_log import AnswerLog
from hybrid.serve.reducer import MonitorState

_LISTS = ("tokens", "requests", "spans")


@dataclass
class _Seen:
    """How far a page has seen one answer."""

    log: AnswerLog
    version: int = 0
    changes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LISTS, 0))


class Follower:
    """One page's place in the state."""

    def __init__(self, state: MonitorState) -> None:
        """Begin with nothing seen."""
        self._state = state
        self._seen: dict[str, _Seen] = {}
        self._totals = -1

    def news(self) -> dict[str, Any]:
        """Return what is new since the last call: ``answers`` in parts, those that are ``gone``, and ``totals``."""
        answers = self._state.answers
        gone = [name for name, seen in self._seen.items() if answers.get(name) is not seen.log]
        for name in gone:
            del self._seen[name]
        found: dict[str, Any] = {"gone": gone} if gone else {}
        parts = [part for log in answers.values() if (part := self._part(log))]
        found |= {"answers": parts} if parts else {}
        if self._totals != self._state.totals.version:
            self._totals = self._state.totals.version
            found["totals"] = self._state.totals.to_json()
        return found

    def _part(self, log: AnswerLog) -> dict[str, Any]:
        seen = self._seen.setdefault(log.id, _Seen(log))
        part: dict[str, Any] = {}
        if seen.version != log.version:
            seen.version, part["head"] = log.version, log.head
        for name in _LISTS:
            new, seen.changes[name] = getattr(log, name).since(seen.changes[name])
            part |= {name: new} if new else {}
        return {"id": log.id, **part} if part else {}
