"""Read rows at any prefix with the least decoding.

A rejected token stays in the KV cache; the next read at another prefix rewinds to the longest common prefix. Rows are
kept as long as the cache holds their prefix, so tokens that were decoded ahead are not decoded again.

The laws (``tests/engine/test_cursor.py``): a row depends on its prefix alone, not on what the cache held before;
``follow`` gives what ``row`` would give, and its work does not grow with the text.

"Depends on its prefix alone" is meant up to what decodes of other shapes do to sums of rounded numbers. To the last bit
it holds of answers that ``begin`` begins (``tests/engine/test_prompts.py``): a prompt is read in blocks of 64 tokens
aligned at 0, then the rest, then the last token alone. So what is kept of another text is whole blocks, which that text
read in the same shapes. Where a prompt goes on past the prompt that is held, into its answer, it is the conversation's
next turn, and everything shared is kept. Rows are then a function of the prompt and of the turns that are held.
"""

from __future__ import annotations

from typing import NamedTuple

from hybrid.engine.port import Engine, IsCancelled, Logits, blocks, check_fits, never
from hybrid.prob import Dense
from hybrid.types import Ids, num_shared

# Up to two missing tokens are decoded singly. A batch sums float16 in another order, and a row must not depend on
# whether its prefix was decoded ahead. Two can be missing: the last drafted token and the cloud's one after it.
ONE_BY_ONE = 2


class Reuse(NamedTuple):
    """What a cache holds of a prompt: the tokens that need not be read, and whether it is the held conversation's."""

    num_tokens: int
    goes_on: bool


class Cursor:
    """An engine, and the known rows along the tokens in its cache."""

    def __init__(self, engine: Engine, noise: float = 0.0, shift: float | None = None) -> None:
        """Take an engine in any state, and what its rows may be off by, as ``Dense`` has it."""
        self.engine = engine
        self.noise, self.shift = noise, shift
        self._cached_ids: list[int] = []  # the engine's ids when it was last used here; others may drive it, too
        self._rows: dict[int, Dense] = {}  # by the length of the prefix, which is cached
        self._row_length = 0  # tokens before the row that was read last
        self._prompt: Ids = ()  # what ``begin`` has read last, if the cache holds it still
        self._num_in_blocks = 0  # tokens at the beginning that were read in whole blocks, after nothing but such

    @property
    def has_exact_rewind(self) -> bool:
        """Whether what was decoded ahead can be forgotten."""
        return self.engine.has_exact_rewind

    @property
    def waited_s(self) -> float:
        """Seconds that decodes have waited so far for those of other contexts."""
        return self.engine.waited_s

    def begin(self, prompt: Ids, cancelled: IsCancelled = never) -> None:
        """Read a prompt (at least one token), so that the cache holds it and nothing else; its row is then known.

        What is kept and in which shapes the rest is read depends on nothing that was there before, but for the turns of
        the prompt's own conversation. Raises ContextOverflow before anything is changed, Interrupted between blocks; to
        begin again goes on where it stopped.
        """
        check_fits(len(prompt), self.engine.num_context)
        place, goes_on = self.reusable(prompt)
        self.rewind(place)
        block, last = self.engine.prompt_block, len(prompt) - 1
        for start, end in blocks(place, last, block):
            self._extend(prompt[start:end], 0, cancelled)
            if not (goes_on or end % block):
                self._num_in_blocks = end
        self._read(prompt[last:], last, 1, cancelled)
        self._prompt = prompt

    def reusable(self, prompt: Ids) -> Reuse:
        """Return how much of a prompt ``begin`` would keep; not to be called while something runs on the engine."""
        self._sync_with_engine()
        held, num = self.engine.ids, len(self._prompt)
        shared, last = num_shared(held, prompt), len(prompt) - 1
        goes_on = 0 < num <= shared and prompt[:num] == self._prompt and (num < shared or num == len(prompt))
        block = self.engine.prompt_block
        kept = min(shared, last) if goes_on else min(shared, last, self._num_in_blocks) // block * block
        if kept < len(held) and not self.engine.has_exact_rewind:
            return Reuse(0, goes_on=False)  # to step back there is to read the prefix again, and in other shapes
        return Reuse(kept, goes_on)

    def row(self, prefix: Ids, cancelled: IsCancelled = never) -> Dense:
        """Return the distribution of the token after ``prefix`` (at least one token)."""
        self._sync_with_engine()
        shared = num_shared(self.engine.ids, prefix)
        if shared == len(prefix) and (known := self._rows.get(shared)) is not None:
            self._row_length = shared
            return known
        if 1 < len(prefix) - shared <= ONE_BY_ONE:
            self.row(prefix[:-1], cancelled)
            return self.follow(prefix[-1], cancelled)
        start = min(shared, len(prefix) - 1)
        return self._read(prefix[start:], start, 1, cancelled)[0]

    def follow(self, token: int, cancelled: IsCancelled = never) -> Dense:
        """Return the distribution after the prefix of the last row and one more token.

        To be called only where nobody else has driven the engine since that row was read.
        """
        known = self._rows.get(self._row_length + 1)
        if known is None or self._cached_ids[self._row_length] != token:
            return self._read((token,), self._row_length, 1, cancelled)[0]
        self._row_length += 1
        return known

    def rows(self, prefix: Ids, num_rows: int, cancelled: IsCancelled = never, *, keep: bool = False) -> list[Dense]:
        """Return the distributions after each of the last ``num_rows`` prefixes of ``prefix``, itself included.

        ``keep``: all of them are known from then on, and not the last alone.
        """
        self._sync_with_engine()
        start = min(num_shared(self.engine.ids, prefix), len(prefix) - num_rows)
        rows = self._read(prefix[start:], start, num_rows, cancelled)
        if keep:
            self._rows |= {len(prefix) - num_rows + i: row for i, row in enumerate(rows, start=1)}
        return rows

    def known_row(self, prefix: Ids) -> Dense | None:
        """Return the distribution of the token after ``prefix`` where nothing need be decoded for it."""
        self._sync_with_engine()
        held = num_shared(self.engine.ids, prefix) == len(prefix)
        return self._rows.get(len(prefix)) if held else None

    def rewind(self, length: int) -> None:
        """Rewind the engine to the first ``length`` tokens of its cache, and forget the rows after them."""
        self.engine.rewind(length)
        del self._cached_ids[length:]
        self._forget_after(length)

    def rewind_to(self, text: Ids) -> None:
        """Rewind the engine to what its cache shares with a text, which is over: no row is kept."""
        self.rewind(num_shared(self.engine.ids, text))
        self._rows = {}

    def forget_rows(self, before: int) -> None:
        """Forget the rows after fewer than ``before`` tokens; their tokens stay in the cache. A span begins there."""
        self.engine.settle(before)
        self._rows = {n: row for n, row in self._rows.items() if n >= before}

    def _sync_with_engine(self) -> None:
        """Forget the rows whose prefix the engine no longer holds."""
        ids = self.engine.ids
        self._forget_after(num_shared(ids, tuple(self._cached_ids)))
        self._cached_ids = list(ids)

    def _read(self, ids: Ids, start: int, num_rows: int, cancelled: IsCancelled) -> list[Dense]:
        """Decode ``ids`` after the first ``start`` cached tokens."""
        self.rewind(start)
        logits = self._extend(ids, num_rows, cancelled)
        self._row_length = start + len(ids)
        rows = [Dense.from_logits(scores, self.noise, self.shift) for scores in logits]
        self._rows[self._row_length] = rows[-1]
        return rows

    def _extend(self, ids: Ids, num_rows: int, cancelled: IsCancelled) -> Logits:
        logits = self.engine.extend(ids, num_rows, cancelled)
        self._cached_ids.extend(ids)
        return logits

    def _forget_after(self, length: int) -> None:
        """Forget what was known of more than the first ``length`` tokens."""
        self._rows = {n: row for n, row in self._rows.items() if n <= length}
        block = self.engine.prompt_block
        self._num_in_blocks = min(self._num_in_blocks, length // block * block)
        # The last token of a prompt may be read once more, together with the answer's first ones.
        if length < len(self._prompt) - 1:
            self._prompt = ()
