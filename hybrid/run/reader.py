"""Reading what the cloud writes: one open stream, its position, and its settlement.

The law: a stream is settled by the server's usage if it came; closed by us without one, by every token of its limit (a
server charges for what it ran ahead); broken, not at all (``tests/run/test_reader.py``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hybrid.cloud import Chunk
from hybrid.run.till import Leave
from hybrid.types import CloudUsage, Ids


class Reader:
    """An open request that writes. ``at`` is the answer's prefix it has reached."""

    def __init__(self, at: Ids, leave: Leave, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Take over a stream that is about to be read."""
        self.at = at
        self.open = True
        self._leave = leave
        self._chunks = chunks
        self._usage: CloudUsage | None = None

    async def read(self) -> Chunk:
        """Return the next chunk that holds tokens, or the last one, with ``finish`` set once nothing follows it."""
        try:
            async for chunk in self._chunks:
                self._usage = chunk.usage or self._usage
                if chunk.finish:
                    await self._drain()
                if chunk.ids or chunk.finish:
                    self.at += chunk.ids
                    return chunk
        except BaseException as error:
            self.open = False
            self._leave.failed(error)
            await self._chunks.aclose()
            raise
        await self.close()
        return Chunk(finish="length")

    async def _drain(self) -> None:
        """Read what follows the last token: the usage."""
        async for chunk in self._chunks:
            self._usage = chunk.usage or self._usage
        await self.close()

    async def close(self) -> None:
        """Settle and close, early or at the end."""
        if self.open:
            self.open = False
            self._leave.settle(self._usage or self._leave.worst)
            await self._chunks.aclose()
