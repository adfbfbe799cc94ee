"""An endpoint over a server that nobody here wrote, as ``hybrid.open`` makes it; the machine may be busy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from hybrid.assemble import PROBE
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.port import Capabilities
from hybrid.cloud.wire import Wire
from hybrid.types import Vocabulary

# The same for ``hybrid.open``.
PATIENT = {"first_byte_timeout_s": 300.0, "read_timeout_s": 300.0, "request_timeout_s": 900.0}


@asynccontextmanager
async def connected(
    url: str, words: Vocabulary, dialect: str | None = None, model: str | None = None, key: str | None = None
) -> AsyncIterator[tuple[Endpoint, Capabilities]]:
    """The endpoint, and what it said that it can do."""
    wire = Wire(url, SecretStr(key) if key else None, Timeouts(60, 300, 300, 900), through_proxies=False)
    endpoint = Endpoint(wire, model, words=words, dialect=dialect)
    try:
        yield endpoint, await endpoint.connect(PROBE, words.tokenize(PROBE))
    finally:
        await endpoint.aclose()
