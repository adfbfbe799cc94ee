"""Slots: a few contexts over one set of weights, each with the prefix it last computed, and the cache they share.

The law: what a slot answers depends on the prompt alone; the cache changes only what is charged as cached, which rows
of the prompt there are, and what need not be computed again. llama.cpp's sums depend on what is decoded together, so a
prompt is read in blocks aligned at 0, then its last token alone, and of another text whole blocks are kept: what is
written after a prompt is the same to the last bit, whatever was asked before. Scoring reads as much of the cache as its
``Scoring`` allows: none (vLLM), the prefix up to the first wanted row (SGLang), or every row that was computed once
(``tests/server_stub/test_slots.py``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.engine import ContextPool, Engine, IsCancelled, Reuse, Worker, num_shared
from hybrid.engine.port import blocks
from hybrid.prob import Dense
from server_stub.ask import Ids, Row, Scoring

# Which prefixes a server still holds, in whole blocks, for all of its requests together.
#
# The law: what is found is the longest prefix of whole blocks that was computed before under the same salt
# (``tests/server_stub/test_prefix_cache.py`` holds it against comparing with everything that was ever added). vLLM
# keeps blocks of 16 tokens, SGLang's radix cache has pages of one. Nothing is computed here: a slot holds one sequence
# and computes some of what the family's server would still hold once more. What is told and charged is the family's.

# As the families', the cache is finite: a small model on one GPU leaves room for some hundred thousand tokens.
CAPACITY_TOKENS: Final = 2**18


class PrefixCache:
    """Blocks by what they and everything before them hold; the least recently used go first, tails before heads."""

    def __init__(self, block_size: int = 1, capacity: int = CAPACITY_TOKENS) -> None:
        """Take the tokens of a block, and how many tokens are held at most."""
        self._block_size, self._most = block_size, capacity // block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def longest(self, ids: Ids, salt: str | None) -> int:
        """Return how many tokens of a prompt are held."""
        with self._lock:
            found = []
            for key in self._keys(ids, salt):
                if key not in self._blocks:
                    break
                found.append(key)
            self._touch(found)
        return len(found) * self._block_size

    def add(self, ids: Ids, salt: str | None) -> None:
        """Hold what was computed; an unfinished block is not held."""
        with self._lock:
            self._touch(list(self._keys(ids, salt)))
            while len(self._blocks) > self._most:
                self._blocks.popitem(last=False)

    def _keys(self, ids: Ids, salt: str | None) -> Iterator[int]:
        key = hash(salt)
        for end in range(self._block_size, len(ids) + 1, self._block_size):
            key = hash((key, ids[end - self._block_size : end]))
            yield key

    def _touch(self, keys: list[int]) -> None:
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)


# Rows come in groups of what one decode may return.
GROUP = 32


@dataclass
class Slot:
    """One context, its thread, whose prefix it holds, the rows that were computed along it, and the shared cache."""

    engine: Engine
    worker: Worker
    max_logprobs: int
    salt: str | None = None
    cache: PrefixCache = field(default_factory=PrefixCache)

    def __post_init__(self) -> None:
        """Hold nothing yet. ``rows[n]`` follows the first n tokens."""
        self.rows: dict[int, Row] = {}
        self._num_in_blocks = 0

    def prefill(self, ids: tuple[int, ...], cancelled: IsCancelled) -> tuple[NDArray[np.float32], int]:
        """Stand at ``ids`` and return the scores after them and how many tokens were already there."""
        cached = self.cache.longest(ids[:-1], self.salt)
        block = self.engine.prompt_block
        self._rewind(min(cached, num_shared(self.engine.ids, ids), self._num_in_blocks) // block * block)
        self._read(ids[:-1], cancelled)
        logits = self.engine.extend(ids[-1:], 1, cancelled).ravel()
        self.remember()
        return logits, cached

    def score(
        self, ids: tuple[int, ...], scoring: Scoring, cancelled: IsCancelled
    ) -> tuple[list[Row | None], NDArray[np.float32], int]:
        """Return a row per position of the prompt (None before the wanted ones), the scores after it, the cached count.

        A wanted row that would have needed what the cache does not keep is None too.
        """
        if scoring.keeps_rows:
            cached = self._answered(ids)
        else:
            cached = self.cache.longest(ids[: min(len(ids) - 1, scoring.max_cached)], self.salt)
        self._rewind(min(cached, num_shared(self.engine.ids, ids)))
        start = max(cached, min(scoring.start, len(ids) - 1))
        self._read(ids[:start], cancelled)
        size, known = max(self.max_logprobs, scoring.num_top), scoring.start if scoring.keeps_rows else start
        logits = np.empty(0, dtype=np.float32)
        while start < len(ids):
            group = ids[start : start + GROUP]
            for n, logits in enumerate(self.engine.extend(group, len(group), cancelled), start=start + 1):
                actual, watched = (ids[n], scoring.watched_after(n)) if n < len(ids) else (None, ())
                self.rows[n] = Row.of(Dense.from_logits(logits), size, actual, watched)
            start += len(group)
        self.remember()
        return [self.rows[n] if n > known else None for n in range(len(ids))], logits, cached

    def _answered(self, ids: tuple[int, ...]) -> int:
        """How many tokens need not be computed again: every row before them is known, and the last is needed anyway."""
        shared = min(num_shared(self.engine.ids, ids), len(ids) - 1)
        for n in range(1, shared + 1):
            if n not in self.rows or not self.rows[n].knows(ids[n]):
                return n - 1
        return shared

    def reusable(self, ids: tuple[int, ...]) -> Reuse:
        """Return what the context holds of a text; one that loses no more than a rejected span goes on with it."""
        shared = num_shared(self.engine.ids, ids)
        return Reuse(shared, goes_on=shared > 0 and len(self.engine.ids) - shared <= GROUP)

    def remember(self) -> None:
        """Let all requests read what was computed here."""
        self.cache.add(self.engine.ids, self.salt)

    def forget(self) -> None:
        """Hold nothing."""
        self._rewind(0)

    def _read(self, ids: tuple[int, ...], cancelled: IsCancelled) -> None:
        """Read what the engine lacks of a text, in blocks."""
        block = self.engine.prompt_block
        for start, end in blocks(len(self.engine.ids), len(ids), block):
            follows = start == self._num_in_blocks
            self.engine.extend(ids[start:end], 0, cancelled)
            if follows and end % block == 0:
                self._num_in_blocks = end

    def _rewind(self, length: int) -> None:
        self.engine.rewind(length)
        self._num_in_blocks = min(self._num_in_blocks, length // self.engine.prompt_block * self.engine.prompt_block)
        self.rows = {n: row for n, row in self.rows.items() if n <= length}

    def extend(self, token: int, cancelled: IsCancelled) -> NDArray[np.float32]:
        """Append one token and return the scores after it."""
        return self.engine.extend((token,), 1, cancelled).ravel()


class Slots:
    """The slots of a server, in a pool; whatever a slot computed is in the cache once the slot is given back."""

    def __init__(self, slots: list[Slot]) -> None:
        """Take the slots; all are free."""
        self.pool = ContextPool(slots)

    def share(self, cache: PrefixCache) -> None:
        """Let all slots read and fill one cache."""
        for slot in self.pool.free:
            slot.cache = cache

    @asynccontextmanager
    async def borrow(self, ids: tuple[int, ...], salt: str | None) -> AsyncIterator[Slot]:
        """Lend the slot that ``ContextPool`` chooses."""
        async with self.pool.borrow(ids, salt) as slot:
            try:
                yield slot
            finally:
                slot.remember()
