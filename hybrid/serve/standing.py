"""How the endpoint stands at a moment, beside its events: contexts, line, breaker, caps. Read, never waited for.

The caps come from the ledger's file, so they are read at most once in ``FRESH_S`` seconds, however many pages look.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hybrid.errors import HybridError
from hybrid.run import AsyncClient
from hybrid.serve.served import Backend

FRESH_S = 1.0


@dataclass(frozen=True)
class Standing:
    """What is known now; None: not known, as all of it is while the model is loading.

    ``caps``: nano-dollars each: ``cap``, ``spent``, ``reserved`` and ``left``, with the ``level``. ``drifts``: the
    alarm of a pair whose kept drafts are turned down far more often than expected; None: nobody watches.
    """

    loading: bool = True
    contexts: int | None = None
    busy: int | None = None
    queued: int | None = None
    breaker: str | None = None
    breaker_left_s: float | None = None
    drifts: bool | None = None
    caps: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class StandingReader:
    """Reads how a backend stands. One for a server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was read yet."""
        self._clock = clock
        self._caps: tuple[dict[str, Any], ...] = ()
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def read(self, backend: Backend) -> Standing:
        """Return how it stands now."""
        client = backend.opened
        if client is None:
            return Standing()
        async with self._reading:
            if self._read_at is None or self._clock() - self._read_at >= FRESH_S:
                self._caps, self._read_at = await _caps(client), self._clock()
        now = client.status
        left_s = round(now.breaker_left_s, 1)
        return Standing(False, now.contexts, now.busy, now.queued, now.breaker, left_s, now.drifts, self._caps)


async def _caps(client: AsyncClient) -> tuple[dict[str, Any], ...]:
    """Return the caps; none where the ledger cannot be read."""
    with contextlib.suppress(HybridError):
        return tuple(
            {
                "level": cap.level,
                "cap": cap.cap_nanousd,
                "spent": cap.spent_nanousd,
                "reserved": cap.reserved_nanousd,
                "left": cap.left_nanousd,
            }
            for cap in await client.cap_statuses()
        )
    return ()
