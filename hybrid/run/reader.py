"""Reading what the cloud writes: one open stream, its position, and its settlement.

The law: a stream is settled by the server's usage if it came; ended by itself without one, by our own count; closed by
us, by every token of its limit (a server charges for what it ran ahead); broken, not at all
(``tests/run/test_reader.py``). Tokens are handed on before the usage that follows them is waited for. A stream that
ends without a token and without a reason is broken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hybrid.cloud import Chunk
from hybrid.errors import BadReply, CloudError
from hybrid.run.till import Leave
from hybrid.types import CloudUsage, Ids


class Reader:
    """An open request that writes.

    ``at`` is the answer's prefix it has reached, ``written`` what of it is the stream's own, ``text`` how the endpoint
    reads that and ``ours`` how we do; ``open``: there may be more.
    """

    def __init__(self, at: Ids, leave: Leave, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Take over a stream that is about to be read."""
        self.at = at
        self.written: Ids = ()
        self.text = ""
        self.ours = b""
        self.open = True
        self._leave = leave
        self._chunks = chunks
        self._usage: CloudUsage | None = None

    async def read(self) -> Chunk:
        """Return the next chunk that holds tokens, or the last one, which has ``finish`` set."""
        try:
            async for chunk in self._chunks:
                self._usage = chunk.usage or self._usage
                if chunk.ids or chunk.finish:
                    self.at += chunk.ids
                    self.written += chunk.ids
                    self.text += chunk.text
                    # Many servers say why they ended in an event of its own; what was asked for is there before it.
                    self.open = chunk.finish is None and len(self.written) < self._leave.grant.limit
                    self._hold_to_limit()
                    return chunk
            self._hold_to_something()
        except BaseException as error:
            self.open = False
            self._leave.failed(error)
            await self._chunks.aclose()
            raise
        self.open = False
        return Chunk(finish="length")

    def _hold_to_limit(self) -> None:
        limit = self._leave.grant.limit
        if len(self.written) > limit:
            msg = f"the endpoint wrote {len(self.written)} tokens where {limit} were asked for"
            raise BadReply(msg)

    def _hold_to_something(self) -> None:
        if self.written:
            return
        if self._usage is not None:
            self._leave.settle(self._usage)
        msg = "the endpoint ended its stream without a token, and did not say why"
        raise BadReply(msg)

    async def close(self) -> None:
        """Settle and close: early, or at the end, where the usage is read first."""
        try:
            if not self.open:
                async for chunk in self._chunks:
                    self._usage = chunk.usage or self._usage
        except CloudError as error:
            if self._usage is None:
                self._leave.failed(error)
        finally:
            whole = CloudUsage(self._leave.grant.prompt_tokens, len(self.written))
            self._leave.settle(self._usage or (self._leave.worst if self.open else whole))
            self.open = False
            await self._chunks.aclose()
