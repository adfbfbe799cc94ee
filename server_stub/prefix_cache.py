"""Which prefixes a server still holds, in whole blocks, for all of its requests together.

The law: what is found is the longest prefix of whole blocks that was computed before under the same salt
(``tests/server_stub/test_prefix_cache.py`` holds it against comparing with everything that was ever added). vLLM keeps
blocks of 16 tokens, SGLang's radix cache has pages of one. Nothing is computed here: a slot holds one sequence and
computes some of what the family's server would still hold once more. What is told and charged is the family's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from server_stub.ask import Ids

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
