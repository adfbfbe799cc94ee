"""What a request was charged: the greater of what the server tells and what the client knows by itself.

The law, field by field (``tests/cloud/test_metering.py``):

- *prompt*: what is told, and never less than the tokens that were sent; told as none or not at all, the most that the
  prompt can be;
- *completion*: what is told, and never less than the tokens that came, with the one that ended them where it was not
  among them;
- *cached*: what is told, and never more than the prompt.

So a server that tells nothing, nonsense or too little is charged for what is known, and one that tells more is
believed: whether that is too much, the ledger decides. A request that was turned away with a status of ``REFUSED``
was not computed and is free; what became of any other that failed nobody knows, and its reservation stands.
Score and write, whole answers and streams are settled by this file; it knows no dialect and no price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hybrid.cloud.port import Chunk
from hybrid.errors import CloudError
from hybrid.types import NO_USAGE, CloudUsage

# Statuses that say: not computed. After 408, 409, 425, 499 and every 5xx work may have been done and charged.
REFUSED = frozenset({*range(300, 400), 400, 401, 402, 403, 404, 405, 407, 413, 414, 415, 422, 429, 431})


def final_usage(told: CloudUsage, known: CloudUsage, most_prompt: int) -> CloudUsage:
    """Return what a request that was answered in full was charged; a told prompt of 0 is not told."""
    return replace(told, prompt_tokens=told.prompt_tokens or most_prompt).at_least(known)


def usage_after_failure(error: CloudError, worst: CloudUsage) -> CloudUsage | None:
    """Return what a request that failed was charged; None: nobody knows, and it is within the worst case."""
    if not error.sent:
        return error.charged
    charged = worst.at_least(error.charged)
    return None if charged == worst else charged


def num_written(ids: Sequence[int], finish: str | None, end_ids: frozenset[int], limit: int) -> int:
    """Count what was written: the token that ended it counts where it is not among the ids.

    By that alone the limit is not exceeded: what ends a text takes one of the tokens that were asked for.
    """
    untold = finish == "stop" and bool(end_ids) and not (ids and ids[-1] in end_ids)
    return max(len(ids), min(len(ids) + untold, limit))


class UsageMeter:
    """What one request has been charged while its answer is read."""

    def __init__(self, least: CloudUsage, most: CloudUsage, end_ids: frozenset[int]) -> None:
        """Take what it costs at the least and at the most, and the tokens that end a text."""
        self._known = replace(least, completion_tokens=0)
        self._most = most
        self._end_ids = end_ids
        self._told = NO_USAGE
        self._ids: list[int] = []
        self._settled: CloudUsage | None = None
        self._came = False

    @property
    def charged(self) -> CloudUsage:
        """What was charged, if the answer is over."""
        return final_usage(self._told, self._known, self._most.prompt_tokens)

    def read(self, chunk: Chunk) -> Chunk:
        """Count what a chunk holds; if it tells a usage, return it with one that keeps the law."""
        self._came = True
        self._ids.extend(chunk.ids)
        written = num_written(self._ids, chunk.finish, self._end_ids, self._most.completion_tokens)
        self._known = self._known.at_least(CloudUsage(0, written))
        if chunk.usage is None:
            return chunk
        self._told = chunk.usage.at_least(self._told)
        self._settled = self.charged
        return replace(chunk, usage=self._settled)

    def remaining(self) -> Iterator[Chunk]:
        """Yield what was charged at the end of an answer that wrote something, unless the last usage told is that."""
        if self._known.completion_tokens and self._settled != self.charged:
            yield Chunk(usage=self.charged)

    @contextmanager
    def charge_errors(self) -> Iterator[None]:
        """Have an error say what was charged for certain; what was answered in part was computed."""
        try:
            yield
        except CloudError as error:
            error.sent = error.sent or self._came
            if error.sent:
                error.charged = self._told.at_least(self._known)
            raise
