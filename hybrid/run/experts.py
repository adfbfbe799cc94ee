"""Several local models that write as one: by the sum of their laws, or each where it is the nearest to the cloud.

``mix``: every model reads and decodes every token, and rows are sums by weight. ``select``: the model that writes
decodes alone; the others read a text in one batch where the cloud has scored it.

Laws (``tests/run/test_experts.py``). Weights depend on the past alone: they stand still while a span is drafted, and
nothing that was decoded ahead moves them. Each model's rows are kept by its own cursor, so that new weights need
nothing to be read again, and texts, requests and bills with overlap are those without. One model alone is itself, to
the last bit. Knows no policy, no cloud and no money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.defer import ExpertByWord
from hybrid.defer.words import is_nearest_by_word
from hybrid.engine import Cursor, Engine, IsCancelled
from hybrid.prob import Dense, MixtureRow, MixtureWeights, Reference, SelectionWeights, losses, mixture, selected
from hybrid.record.answer import Mixing, RecordedExpert
from hybrid.store.json_store import JsonStore
from hybrid.types import Ids

# Which of several local models was the nearest to the cloud, counted by the words of questions as answers end.
#
# Laws (``tests/run/test_expert_record.py``): what is kept are counts by bucket, never a text; what many processes add
# at once adds up; a file that cannot be read holds nothing and is told, and one that cannot be written is no failure;
# what is expected of a question is settled when it begins.

# The sets of models that were seen last are kept, each with 4,096 buckets at the most.
MOST_SETS = 32


class ExpertRecord:
    """The counts of some models beside one cloud model, in memory and in a file. One for a client."""

    def __init__(self, path: Path, key: str, num: int) -> None:
        """Take the file, what names the models and the cloud there, and how many models there are."""
        self.store, self._key, self._num = JsonStore(path, "experts", is_nearest_by_word, MOST_SETS), key, num
        self._known: ExpertByWord | None = None
        self._writes: set[asyncio.Future[bool]] = set()

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

    def _read(self) -> ExpertByWord:
        return ExpertByWord.from_json(self._num, self.store.read_entries().get(self._key))

    def _add(self, words: Sequence[int], nearest: int) -> bool:
        def added(entries: dict[str, Any]) -> dict[str, Any]:
            counts = ExpertByWord.from_json(self._num, entries.pop(self._key, None)).adding(words, nearest)
            return {**entries, self._key: counts.to_json()}

        return self.store.change(added)


# A model is the nearest to a text where it lost so many nats less on it than any other.
CLEARLY = 0.5


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the cloud said of the position after ``at``: its row or its token; ``row`` is the local one, where read."""

    at: Ids
    reference: Reference
    row: Dense | None = None


class ExpertCursor:
    """The cursors of several models, read as one during one answer. Where it reads, it does what ``Cursor`` does."""

    def __init__(self, cursors: Mapping[str, Cursor], mixing: Mixing, start: Sequence[float] | None = None) -> None:
        """Take the models' cursors by name, how they write together, and their weights at first; None: even ones."""
        self.names = tuple(cursors)
        self.mixing = mixing
        self.noise = max(cursor.noise for cursor in cursors.values())
        shifts = [cursor.shift for cursor in cursors.values() if cursor.shift is not None]
        self.shift = max(shifts) if len(shifts) == len(cursors) else None
        self._cursors = tuple(cursors.values())
        self._writer = 0
        self._start = tuple(start or (1.0 / len(self.names),) * len(self.names))
        self._weights: MixtureWeights | SelectionWeights = (
            MixtureWeights.start(self._start) if mixing == "mix" else SelectionWeights.start(self._start)
        )
        self._lost = np.zeros(len(self.names))  # by now, in nats
        self.choose()

    @property
    def weights(self) -> dict[str, float]:
        """Each model's weight by now."""
        return dict(zip(self.names, self._weights.weights, strict=True))

    @property
    def recorded(self) -> tuple[RecordedExpert, ...]:
        """What a recording says of them."""
        each = zip(self.names, self._cursors, self._start, strict=True)
        return tuple(RecordedExpert(name, cursor.noise, cursor.shift, weight) for name, cursor, weight in each)

    @property
    def nearest(self) -> int | None:
        """Which model was the nearest to all that the cloud said; None: no one was, clearly."""
        first, second = np.sort(self._lost)[:2] if len(self.names) > 1 else (0.0, 0.0)
        return int(np.argmin(self._lost)) if second - first > CLEARLY else None

    @property
    def writers(self) -> tuple[str, ...]:
        """Who may write a token, by the number of its row's ``chosen``; all at once have one name."""
        return ("+".join(self.names),) if self.mixing == "mix" else self.names

    @property
    def engine(self) -> Engine:
        """The writing model's. All have one vocabulary and one length of context."""
        return self._cursors[self._writer].engine

    @property
    def has_exact_rewind(self) -> bool:
        """Whether every model's cache has."""
        return all(cursor.has_exact_rewind for cursor in self._cursors)

    @property
    def waited_s(self) -> float:
        """Seconds that their decodes have waited for other contexts."""
        return sum(cursor.waited_s for cursor in self._cursors)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def begin(self, prompt: Ids, cancelled: IsCancelled) -> None:
        """Read a prompt with every model."""
        for cursor in self._cursors:
            cursor.begin(prompt, cancelled)

    def row(self, prefix: Ids, cancelled: IsCancelled) -> MixtureRow:
        """Return the distribution of the token after ``prefix``, of those that decode."""
        return self._joined([cursor.row(prefix, cancelled) for cursor in self._decoding])

    def follow(self, token: int, cancelled: IsCancelled) -> MixtureRow:
        """Return the distribution after the prefix of the last row and one more token."""
        return self._joined([cursor.follow(token, cancelled) for cursor in self._decoding])

    def rows(self, prefix: Ids, num_rows: int, cancelled: IsCancelled) -> list[Dense]:
        """Return the distributions after each of the last ``num_rows`` prefixes, itself included; every model reads."""
        read = [cursor.rows(prefix, num_rows, cancelled) for cursor in self._cursors]
        return [self._row(parts) for parts in zip(*read, strict=True)]

    def rewind(self, length: int) -> None:
        """Leave at most ``length`` tokens in each cache."""
        for cursor in self._cursors:
            cursor.rewind(min(length, len(cursor.engine.ids)))

    def rewind_to(self, text: Ids) -> None:
        """Leave no token in a cache that is not in ``text``."""
        for cursor in self._cursors:
            cursor.rewind_to(text)

    def forget_rows(self, before: int) -> None:
        """Forget the rows after fewer than ``before`` tokens."""
        for cursor in self._cursors:
            cursor.forget_rows(min(before, len(cursor.engine.ids)))

    # ---- weights -----------------------------------------------------------------------------------------------------

    def completed(self, text: Ids, rows: Mapping[int, Dense | None], cancelled: IsCancelled) -> dict[int, MixtureRow]:
        """Return rows with a part of every model; ``rows``: the known ones, by the length of their prefix of ``text``.

        Each model reads what it has not read of them, in one batch.
        """
        parts = {length: list(self._parts(row)) for length, row in rows.items()}
        for number, cursor in enumerate(self._cursors):
            missing = [length for length in rows if parts[length][number] is None]
            if missing:
                first, last = min(missing), max(missing)
                read = cursor.rows(text[:last], last - first + 1, cancelled)
                for length in missing:
                    parts[length][number] = read[length - first]
        return {length: self._row(each) for length, each in parts.items()}

    def is_complete(self, row: Dense | None) -> bool:
        """Whether every model's part of a row is known."""
        return None not in self._parts(row)

    def learn(self, reference: Reference, row: MixtureRow) -> None:
        """Let the weights follow one more reference, to which ``row`` has a part of every model."""
        parts = [part for part in row.parts if part is not None]
        self._weights = self._weights.after(reference, parts)
        self._lost += losses(reference, parts)

    def choose(self, named: int | None = None) -> bool:
        """Let the nearest model write from here on, or the one that is named; return whether it is another one.

        A mixture is written by all.
        """
        before = self._writer
        if isinstance(self._weights, SelectionWeights):
            self._writer = self._weights.chosen if named is None else named
        return self._writer != before

    @property
    def _decoding(self) -> Sequence[Cursor]:
        return self._cursors if self.mixing == "mix" else (self._cursors[self._writer],)

    def _joined(self, read: Sequence[Dense]) -> MixtureRow:
        if self.mixing == "mix":
            return self._row(read)
        parts: list[Dense | None] = [None] * len(self.names)
        parts[self._writer] = read[0]
        return self._row(parts)

    def _row(self, parts: Sequence[Dense | None]) -> MixtureRow:
        if self.mixing == "select":
            return selected(parts, self._writer, self._weights.weights)
        return mixture([part for part in parts if part is not None], self._weights.weights)

    def _parts(self, row: Dense | None) -> tuple[Dense | None, ...]:
        return row.parts if isinstance(row, MixtureRow) else (None,) * len(self.names)
