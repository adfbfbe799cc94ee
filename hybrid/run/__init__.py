"""Where questions become model calls: the driver, its events, the client."""

from hybrid.run.answer import Answer, Handoff, Timing, Token, Usage
from hybrid.run.client import AsyncClient, Client, LocalModel
from hybrid.run.events import (
    CheckAnswered,
    Degraded,
    Event,
    Finished,
    Flushed,
    Noted,
    RequestRetried,
    RequestSent,
    RequestSettled,
    Resumed,
    SpanDrafted,
    Started,
    TokenEmitted,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "CheckAnswered",
    "Client",
    "Degraded",
    "Event",
    "Finished",
    "Flushed",
    "Handoff",
    "LocalModel",
    "Noted",
    "RequestRetried",
    "RequestSent",
    "RequestSettled",
    "Resumed",
    "SpanDrafted",
    "Started",
    "Timing",
    "Token",
    "TokenEmitted",
    "Usage",
]
