"""Three ways to ask over the wire alone: a fact, a post, a stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from wordlist import able

from hybrid.cloud import Chunk, WriteQuestion
from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectConfig, Post
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.types import CloudUsage, Sampling

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
EVENT, DONE = b"data: {}\n\n", b"data: [DONE]\n\n"


def read_stream(url, deadlines, pause=0.0):
    """Read a stream through an endpoint, pausing after every chunk; return how many events there were."""

    class Counting(Vllm):
        def max_usage(self, question):
            return CloudUsage(1, 10**6)

        min_usage = max_usage

        def _write(self, question):
            return ContinuationRequest(Post("/v1/completions", {}, stream="to done"), lambda _: Chunk((1,), (None,)))

    async def read():
        endpoint, seen = Endpoint(Wire(url, None, deadlines)), 0
        endpoint.knowledge.dialect = able(Counting(DialectConfig()), rows=False)
        try:
            async with aclosing(endpoint.write(WriteQuestion((1,), 9, 0, Sampling()), "r")) as chunks:
                async for chunk in chunks:
                    seen += len(chunk.ids)
                    await asyncio.sleep(pause)
        finally:
            await endpoint.aclose()
        return seen

    return asyncio.run(read())


def get(url, deadlines):
    """Ask for a fact."""

    async def got():
        wire = Wire(url, None, deadlines)
        try:
            return await wire.get("/v1/models")
        finally:
            await wire.aclose()

    return asyncio.run(got())


def post(url, deadlines, times=1):
    """Post so many times for one question."""

    async def posted():
        wire = Wire(url, None, deadlines)
        waits = wire.question_deadlines()
        try:
            return [await wire.post("/", {}, deadlines=waits) for _ in range(times)]
        finally:
            await wire.aclose()

    return asyncio.run(posted())
