"""The memory of recurrent layers, which cannot step back: its states are saved while decoding, and loaded again.

A state is what llama.cpp calls the partial state of a sequence: the recurrent layers' part of the memory. Attention
drops tokens by itself. So a rewind loads the last state saved at or before its place, and the tokens between are
decoded again, grouped as they were the first time.

The laws (``tests/engine/test_recurrent.py``): the scores after a rewind are, to the last bit, those that would have
come had nothing been decoded beyond it; a rejection decodes no more tokens again than a span has, and ``STEP``; the
states take no more memory than they may.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.engine.native import ll

# Tokens between two states. Measured (hybrid/lab/NOTES.md): a state costs a small part of a decode.
STEP = 4
# Twelve states, each about twice as far from the end as the next, reach back over thousands of tokens. Where states are
# large (tens of MiB for a billion parameters) there are fewer, and never fewer than the three places below and one.
MOST_STATES, FEWEST_STATES = 12, 4
MOST_BYTES = 256 * 2**20
# A text of so many tokens read at once is a prompt.
SHORTEST_PROMPT = 16

_PARTIAL = ll.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_BYTES = ctypes.POINTER(ctypes.c_uint8)


def least_useful(lengths: Sequence[int], end: int) -> int:
    """Return the index of the state whose loss costs the least: the gap it leaves, against its distance to the end.

    ``lengths``: tokens before each state, ascending, below ``end``, at least one. The states that are left lie about
    as far from one another as from the end.

    >>> least_useful([4, 8, 12, 16], end=20)
    0
    """
    around = [0, *lengths, end]
    losses = [(around[i + 2] - around[i]) / (end - length) for i, length in enumerate(lengths)]
    return losses.index(min(losses))


class RecurrentStates:
    """Saved states of one context, and how its tokens were grouped when they were decoded."""

    def __init__(self, ctx: Any) -> None:  # a pointer of llama.cpp's
        """Take llama.cpp's context; it stays the caller's."""
        self.is_stale = False
        """Whether the memory holds tokens that were forgotten; ``load`` mends that."""
        self._ctx, self._memory = ctx, ll.llama_get_memory(ctx)
        self._states: dict[int, NDArray[np.uint8]] = {}  # by the tokens before, ascending
        # Memory that a state had: fresh memory costs many times what copying a state does.
        self._spare: list[NDArray[np.uint8]] = []
        self._starts: list[int] = []  # where each decode of the tokens in the cache began
        # Places to come back to: where the last prompt and its last block began, and where the last span begins.
        self._prompt, self._settled = (0, 0), 0
        self._reading_since: int | None = None

    def __repr__(self) -> str:
        """Show after how many tokens there is a state."""
        return f"RecurrentStates(after {list(self._states)})"

    def __len__(self) -> int:
        """Count the saved states."""
        return len(self._states)

    @property
    def num_bytes(self) -> int:
        """Memory that the states take, those in wait included."""
        return sum(state.nbytes for state in (*self._states.values(), *self._spare))

    def before_decode(self, length: int, *, with_rows: bool) -> None:
        """Save the state if one is due, where a decode begins after ``length`` tokens."""
        if length - max(self._states, default=0) >= STEP:
            self.save(length)
        if not with_rows and self._reading_since is None:
            self._reading_since = length
        elif with_rows and (start := self._reading_since) is not None:
            self._prompt = (start, self._starts[-1]) if length - start >= SHORTEST_PROMPT else self._prompt
            self._reading_since = None
        if length > max(self._starts[-1:], default=-1):  # else it is decoded again
            self._starts.append(length)

    def settle(self, length: int) -> None:
        """Note that a span begins after ``length`` tokens: what is rejected of it goes back no further."""
        self._settled = length

    def save(self, length: int) -> None:
        """Save the state after ``length`` tokens, in the place of the least useful one where there is no room."""
        size = int(ll.llama_state_seq_get_size_ext(self._ctx, 0, _PARTIAL))
        self._drop(length)
        while len(self._states) >= FEWEST_STATES and not self._has_room(size):
            self._drop(self._least_useful(length))
        self._spare = [spare for spare in self._spare if spare.nbytes == size]
        state = self._spare.pop() if self._spare else np.empty(size, dtype=np.uint8)
        if ll.llama_state_seq_get_data_ext(self._ctx, state.ctypes.data_as(_BYTES), size, 0, _PARTIAL) == size:
            self._states[length] = state

    def rewind(self, length: int) -> None:
        """Forget what is saved after ``length`` tokens. The memory itself is left until it is needed."""
        for beyond in [n for n in self._states if n > length]:
            self._drop(beyond)
        del self._starts[bisect_left(self._starts, length) :]
        self._reading_since = None
        self.is_stale = True

    def load(self, length: int) -> list[tuple[int, int]]:
        """Load the last state saved at or before ``length`` tokens; return the decodes after it, each (start, end)."""
        begin = next((n for n in reversed(self._states) if self._load(n)), 0)
        if begin == 0:
            self._states.clear()
            ll.llama_memory_clear(self._memory, True)
        again = self._starts[bisect_left(self._starts, begin) :]
        return list(pairwise([*again, length]))

    def loaded(self) -> None:
        """Note that the decodes after the state are done: what is read now is another text."""
        self.is_stale = False
        self._reading_since = None

    def _load(self, length: int) -> bool:
        state = self._states[length]
        size = ll.llama_state_seq_set_data_ext(self._ctx, state.ctypes.data_as(_BYTES), state.nbytes, 0, _PARTIAL)
        dropped = size == state.nbytes and ll.llama_memory_seq_rm(self._memory, 0, length, -1)
        return bool(dropped) and ll.llama_memory_seq_pos_max(self._memory, 0) == length - 1

    def _drop(self, length: int) -> None:
        """Let go of the state after ``length`` tokens, if there is one."""
        if (state := self._states.pop(length, None)) is not None:
            self._spare.append(state)

    def _has_room(self, size: int) -> bool:
        taken = sum(state.nbytes for state in self._states.values())
        return len(self._states) < MOST_STATES and taken + size <= MOST_BYTES

    def _least_useful(self, end: int) -> int:
        """Return the length of the state to let go of: none of those nearest below a place to come back to."""
        pinned = {max((n for n in self._states if n <= place), default=0) for place in (*self._prompt, self._settled)}
        lengths = [n for n in self._states if n not in pinned]
        return lengths[least_useful(lengths, end)]
