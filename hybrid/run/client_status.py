"""How a client stands at a moment: its contexts, its line, its endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.run.retrying import BreakerState


@dataclass(frozen=True)
class ClientStatus:
    """How a client stands at a moment.

    ``busy`` of its ``contexts`` are lent, and ``queued`` questions wait for one. ``breaker_left_s``: until the endpoint
    is asked again. ``drifts``: whether drafts of a pair that were kept are turned down far more often than expected;
    None: nothing is learned, so that nobody watches.
    """

    contexts: int
    busy: int
    queued: int
    breaker: BreakerState
    breaker_left_s: float
    drifts: bool | None
