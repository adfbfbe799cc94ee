"""Rows tell how far their numbers may be off: as a probe has measured it, and a guess before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.probe_result import ProbeResult
from hybrid.cloud.wire import Wire
from hybrid.prob import UNMEASURED
from hybrid.types import Sampling

REPLY = {
    "choices": [
        {
            "text": "a",
            "token_ids": [2],
            "logprobs": {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:2": -0.5, "token_id:3": -1.5}]},
            "prompt_logprobs": [None, {"2": {"rank": 1, "logprob": -0.5}, "3": {"rank": 2, "logprob": -1.5}}],
            "finish_reason": "length",
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1},
}


async def rows_told(noise_nats):
    """Score a token and have one written, whole; return the rows of both."""

    async def reply():
        yield httpx.Response(200, json=REPLY).content

    wire = Wire("http://there", None, Timeouts())
    await wire._client.aclose()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=reply()))
    wire._client = httpx.AsyncClient(base_url="http://there", transport=transport)
    endpoint = Endpoint(wire, "m")
    endpoint.knowledge.dialect = Vllm(DialectConfig("m"))
    found = ProbeResult("http://there", "m", "vllm", rows=True, scoring_method="one request", streams=False)
    endpoint.knowledge.apply(replace(found, noise_nats=noise_nats))
    try:
        scores = await endpoint.score(ScoreQuestion((1,), (2,), after=False, top_k=2), "r")
        chunks = [chunk async for chunk in endpoint.write(WriteQuestion((1,), 1, 2, Sampling()), "r")]
        return [*scores.rows, *(row for chunk in chunks for row in chunk.rows)]
    finally:
        await endpoint.aclose()


def test_every_row_tells_the_noise_that_a_probe_has_measured_and_a_guess_before():
    """Without it what two computations of one row differ by would be a divergence of the models."""
    for measured, told in ((None, UNMEASURED), (0.0, 0.0), (0.25, 0.25)):
        assert [row.noise for row in asyncio.run(rows_told(measured))] == [told] * 2
