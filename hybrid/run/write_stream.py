"""Reading what the cloud writes: one open stream, its position, and its settlement.

The law: a stream that ended is settled by its last usage, which comes with its end or after it. One that we close
before is settled by every token of its limit (a server charges for what it ran ahead), or by what was told until then
if that is more. One that breaks is not settled, unless more than its limit came (``tests/run/test_write_stream.py``).
Tokens are handed on before the usage that follows them is waited for. No stream is settled below the tokens that came.
A stream that ends without a token and without a reason is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from hybrid.cloud import Chunk
from hybrid.errors import BadReply, CloudError
from hybrid.run.request_billing import OpenRequest
from hybrid.types import NO_USAGE, CloudUsage, Ids

# How long the end of a stream is waited for that can tell nothing more, so that its connection can be used again.
GRACE_S = 1.0


class WriteStream:
    """An open request that writes.

    ``at`` is the answer's prefix it has reached, ``num_written`` tokens of it are the stream's own; ``open``: there may
    be more. Of what was not yet found alike (``run.vocabulary_check``), ``text`` is how the endpoint reads it and
    ``ours`` how we do.
    """

    def __init__(self, at: Ids, leave: OpenRequest, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Take over a stream that is about to be read."""
        self.at = at
        self.num_written = 0
        self.text = ""
        self.ours = b""
        self.open = True
        self._leave = leave
        self._chunks = chunks
        self._usage: CloudUsage | None = None
        self._ended = False
        self._final = False

    async def read(self) -> Chunk:
        """Return the next chunk that holds tokens, or the last one, which has ``finish`` set."""
        try:
            async for chunk in self._chunks:
                self._hear(chunk)
                if chunk.ids or chunk.finish:
                    self.at += chunk.ids
                    self.text += chunk.text
                    # Many servers say why they ended in an event of its own; what was asked for is there before it.
                    self.open = chunk.finish is None and self.num_written < self._leave.grant.limit
                    await self._hold_to_limit()
                    return chunk
            self._hold_to_something()
        except BaseException as error:
            self.open = False
            self._leave.failed(error, self._so_far)
            await self._chunks.aclose()
            raise
        self.open, self._final = False, True
        return Chunk(finish="length")

    def _hear(self, chunk: Chunk) -> None:
        self.num_written += len(chunk.ids)
        self._ended = self._ended or chunk.finish is not None
        if chunk.usage is not None:
            self._usage, self._final = chunk.usage, self._ended
        elif chunk.ids:
            self._final = False

    @property
    def _so_far(self) -> CloudUsage:
        """What was told, and no fewer tokens than came."""
        return (self._usage or NO_USAGE).at_least(CloudUsage(0, self.num_written))

    @property
    def _is_over(self) -> bool:
        return self.num_written > self._leave.grant.limit

    async def _drain(self) -> None:
        """Read the rest for its usage: whatever came was charged.

        A stream whose usage is final or that has broken its limit is given ``GRACE_S`` to end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as grace:
                while True:
                    if (self._final or self._is_over) and grace.when() is None:
                        grace.reschedule(asyncio.get_running_loop().time() + GRACE_S)
                    chunk = await anext(self._chunks, None)
                    if chunk is None:
                        self._final = True
                        return
                    self._hear(chunk)

    async def _hold_to_limit(self) -> None:
        if self._is_over:
            msg = f"the endpoint wrote {self.num_written} tokens where {self._leave.grant.limit} were asked for"
            with suppress(CloudError):
                await self._drain()
            raise BadReply(msg, charged=self._so_far)

    def _hold_to_something(self) -> None:
        if self.num_written:
            return
        if self._usage is not None:
            self._leave.settle(self._usage)
        msg = "the endpoint ended its stream without a token, and did not say why"
        raise BadReply(msg)

    async def close(self) -> None:
        """Settle and close: early, or at the end, where the usage is read first."""
        try:
            if not self.open:
                await self._drain()
        except CloudError as error:
            if not self._final:
                self._leave.failed(error)
        finally:
            if self._final:
                self._leave.settle(self._usage)
            else:
                self._leave.left(self._so_far)
            self.open = False
            await self._chunks.aclose()
