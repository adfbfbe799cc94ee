"""Money around a request: leave to send it, and its settlement, both told as events.

The law: every leave is settled at most once, and until then its worst case stays reserved. What is never settled
(nobody knows what a broken request cost) counts as its worst case, in the ledger as in the bill. A charge above it is
recorded and told in the answer, whatever else went wrong. What a request cost, ``cloud.metering`` says.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

from hybrid.cloud.metering import usage_after_failure
from hybrid.errors import CloudError
from hybrid.run import events
from hybrid.run.answer_builder import AnswerBuilder
from hybrid.spend import AnswerBudget, Denial, Grant, as_usd
from hybrid.types import NO_USAGE, CloudUsage

Tell = Callable[[events.Event], None]


class RequestDenied(Exception):
    """A request may not leave."""

    def __init__(self, denial: Denial) -> None:
        """Take the denial."""
        super().__init__(denial.why)
        self.denial = denial


class RequestBilling:
    """Where every request of one answer is paid for."""

    def __init__(self, purse: AnswerBudget, record: AnswerBuilder, tell: Tell) -> None:
        """Take the answer's money, what it adds up in, and whom to tell."""
        self._purse = purse
        self._record = record
        self._tell = tell

    async def leave(
        self, kind: events.RequestKind, position: int, worst: CloudUsage, num_tokens: int | None = None
    ) -> OpenRequest | Denial:
        """Reserve the worst case of a request. A write's limit may come back lowered to what the cap allows."""
        limit = worst.completion_tokens
        least = 1 if kind == "write" else limit
        grant = await self._purse.reserve(worst.prompt_tokens, limit, least, requests=worst.requests)
        if isinstance(grant, Denial):
            return grant
        if grant.reservation is not None and grant.reservation.returned_nanousd:
            amount = as_usd(grant.reservation.returned_nanousd)
            why = f"{amount} can be spent again: a process had reserved it and died before asking"
            if self._record.note(why):
                self._tell(events.Noted(why))
        self._record.requests += 1
        leave = OpenRequest(uuid.uuid4().hex, kind, grant, self._settle, partial(self._purse.mark_sent, grant))
        num_tokens = grant.limit if num_tokens is None else num_tokens
        self._tell(events.RequestSent(leave.request_id, kind, position, num_tokens, grant.nanousd))
        return leave

    def _settle(self, leave: OpenRequest, usage: CloudUsage | None) -> None:
        excess = self._purse.settle(leave.grant, usage)
        self._record.charge(usage or leave.worst)
        cost = None if usage is None else self._purse.cost(usage)
        self._tell(events.RequestSettled(leave.request_id, leave.kind, usage, cost, leave.age_ms))
        if excess is not None:
            self._record.warn(excess)
            self._tell(events.Degraded(excess))


class OpenRequest:
    """Leave for one request, under one id, for at most ``worst``."""

    def __init__(
        self,
        request_id: str,
        kind: events.RequestKind,
        grant: Grant,
        settle: Callable[[OpenRequest, CloudUsage | None], None],
        mark_sent: Callable[[], Awaitable[Denial | None]],
    ) -> None:
        """Start its clock."""
        self.request_id = request_id
        self.kind = kind
        self.grant = grant
        self._settle = settle
        self._mark_sent = mark_sent
        self._sent = False
        self._began = time.monotonic()
        self._settled = False

    @property
    def worst(self) -> CloudUsage:
        """The most it can be charged: nothing cached, everything written."""
        return CloudUsage(self.grant.prompt_tokens, self.grant.limit, requests=self.grant.requests)

    @property
    def age_ms(self) -> float:
        """Milliseconds since it was given."""
        return round((time.monotonic() - self._began) * 1000, 3)

    async def leaving(self) -> None:
        """Record, before the first byte, that it leaves; of the requests of one question the first counts.

        Raises Denied where that cannot be recorded.
        """
        if not self._sent:
            if (denial := await self._mark_sent()) is not None:
                raise RequestDenied(denial)
            self._sent = True

    def settle(self, usage: CloudUsage | None) -> None:
        """Record the charge (None: it cannot be known). Only the first call counts."""
        if not self._settled:
            self._settled = True
            self._settle(self, usage)

    def left(self, so_far: CloudUsage | None = None) -> None:
        """Record a request we left: every token of its limit, since a server charges for what it ran ahead."""
        self.settle(self.worst if so_far is None else self.worst.at_least(so_far))

    def failed(self, error: BaseException, so_far: CloudUsage | None = None) -> None:
        """Record a request that broke: that nothing of it ever left, what is known of it, or that it was left."""
        if not self._sent:
            self.settle(error.charged if isinstance(error, CloudError) else NO_USAGE)
        elif isinstance(error, CloudError):
            self.settle(usage_after_failure(error, self.worst))
        else:
            self.left(so_far)
