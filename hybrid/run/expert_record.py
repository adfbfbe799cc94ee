"""Which of several local models was the nearest to the cloud, counted by the words of questions as answers end.

Laws (``tests/run/test_expert_record.py``): what is kept are counts by bucket, never a text; what many processes add at
once adds up; a file that cannot be read holds nothing and is told, and one that cannot be written is no failure; what
is expected of a question is settled when it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hybrid.defer import NearestByWord
from hybrid.defer.nearest import is_nearest_by_word
from hybrid.json_store import JsonStore

# The sets of models that were seen last are kept, each with 4,096 buckets at the most.
MOST_SETS = 32
VERSION = 1


class ExpertRecord:
    """The counts of some models beside one cloud model, in memory and in a file. One for a client."""

    def __init__(self, path: Path, key: str, num: int) -> None:
        """Take the file, what names the models and the cloud there, and how many models there are."""
        self._store, self._key, self._num = JsonStore(path, "experts", VERSION, is_nearest_by_word), key, num
        self._known: NearestByWord | None = None
        self._writes: set[asyncio.Future[bool]] = set()

    @property
    def damage(self) -> str | None:
        """Say in a sentence that some of the file is not used; None where all of it is. It reads the file."""
        return self._store.damage

    async def weights(self, words: Sequence[int]) -> tuple[float, ...]:
        """Return what a question's words let expect, a weight a model."""
        if self._known is None:
            read = await asyncio.to_thread(self._read)
            self._known = read if self._known is None else self._known  # another answer may have read it meanwhile
        return self._known.weights(words)

    def add(self, words: Sequence[int], nearest: int) -> None:
        """Count a question, in memory at once, and on disk in a thread."""
        if self._known is not None:
            self._known = self._known.adding(words, nearest)
        write = asyncio.get_running_loop().run_in_executor(None, partial(self._add, words, nearest))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def aclose(self) -> None:
        """Wait until everything is on disk."""
        if self._writes:
            await asyncio.wait(self._writes)

    def _read(self) -> NearestByWord:
        return NearestByWord.from_json(self._num, self._store.read_entries().get(self._key))

    def _add(self, words: Sequence[int], nearest: int) -> bool:
        def added(entries: dict[str, Any]) -> dict[str, Any]:
            counts = NearestByWord.from_json(self._num, entries.pop(self._key, None)).adding(words, nearest)
            return dict(list({**entries, self._key: counts.to_json()}.items())[-MOST_SETS:])

        return self._store.change(added)
