"""What a probe's questions are paid from: each is reserved at its worst, marked as sent, and settled.

The law (``tests/cloud/test_probe.py``): no question leaves without its reservation; what a failed one cost nobody
knows, unless it was turned away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from hybrid.cloud.port import usage_after_failure
from hybrid.errors import CloudError, UsageError
from hybrid.spend import AnswerBudget, Denial
from hybrid.types import CloudUsage

SettleCharge: TypeAlias = Callable[[CloudUsage | None], object]
ReserveCharge: TypeAlias = Callable[[CloudUsage], AbstractAsyncContextManager[SettleCharge]]
"""Reserves the most that one question may be charged, and gives a function that settles its charge."""


@asynccontextmanager
async def paid_from(purse: AnswerBudget, worst: CloudUsage) -> AsyncIterator[SettleCharge]:
    """Reserve the worst case of one question; what a failed one cost nobody knows, unless it was turned away."""
    limit = worst.completion_tokens
    grant = await purse.reserve(worst.prompt_tokens, limit, min_limit=limit, requests=worst.requests)
    if isinstance(grant, Denial):
        raise UsageError(grant.why)
    if denial := await purse.mark_sent(grant):
        raise UsageError(denial.why)
    try:
        yield lambda usage: purse.settle(grant, usage)
    except CloudError as error:
        purse.settle(grant, usage_after_failure(error, worst))
        raise
