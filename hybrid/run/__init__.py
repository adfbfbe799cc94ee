"""Where questions become model calls: the driver, its events, the client."""

from hybrid.record.answer import Answer, Handoff, Timing, Token, Usage
from hybrid.record.events import (
    BranchDrawn,
    CheckAnswered,
    CloudRecovered,
    Degraded,
    Event,
    Finished,
    Flushed,
    NoteAdded,
    RequestRetried,
    RequestSent,
    RequestSettled,
    SpanDrafted,
    Started,
    TokenEmitted,
)
from hybrid.record.state import Spent
from hybrid.run.blocking import Client
from hybrid.run.client import AsyncClient
from hybrid.run.contexts import FurtherModel, LocalModel

__all__ = [
    "Answer",
    "AsyncClient",
    "BranchDrawn",
    "CheckAnswered",
    "Client",
    "CloudRecovered",
    "Degraded",
    "Event",
    "Finished",
    "Flushed",
    "FurtherModel",
    "Handoff",
    "LocalModel",
    "NoteAdded",
    "RequestRetried",
    "RequestSent",
    "RequestSettled",
    "SpanDrafted",
    "Spent",
    "Started",
    "Timing",
    "Token",
    "TokenEmitted",
    "Usage",
]
