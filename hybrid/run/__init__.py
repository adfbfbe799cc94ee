"""Where questions become model calls: the driver, its events, the client."""

from hybrid.run.answer import Answer, Handoff, Timing, Token, Usage
from hybrid.run.client import AsyncClient, Client, Local
from hybrid.run.events import (
    Asked,
    Degraded,
    Drafted,
    Event,
    Finished,
    Flushed,
    Judged,
    Noted,
    Resumed,
    Retried,
    Settled,
    Shown,
    Started,
)

__all__ = [
    "Answer",
    "Asked",
    "AsyncClient",
    "Client",
    "Degraded",
    "Drafted",
    "Event",
    "Finished",
    "Flushed",
    "Handoff",
    "Judged",
    "Local",
    "Noted",
    "Resumed",
    "Retried",
    "Settled",
    "Shown",
    "Started",
    "Timing",
    "Token",
    "Usage",
]
