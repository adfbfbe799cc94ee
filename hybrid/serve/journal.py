"""A list that readers follow at their own pace: each keeps its place, and gets what was put or changed since.

So nothing is queued for a reader that is slow or away: what it gets next is the newest state of each place, once. The
law (``tests/serve/test_feed.py``): whoever begins at 0 and applies every ``since`` has the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Journal:
    """Places from 0 on, each a JSON object. ``changes`` are the places in the order in which they were put."""

    items: list[dict[str, Any]] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)

    def put(self, place: int, item: dict[str, Any]) -> None:
        """Set a place: the next one, or one that there is."""
        if place == len(self.items):
            self.items.append(item)
        else:
            self.items[place] = item
        self.changes.append(place)

    def add(self, item: dict[str, Any]) -> int:
        """Set the next place and return it."""
        place = len(self.items)
        self.put(place, item)
        return place

    def since(self, seen: int) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Return what was put after ``seen`` changes, each place once and in order, and how many changes there are."""
        places = sorted(set(self.changes[seen:]))
        return [(place, self.items[place]) for place in places], len(self.changes)
