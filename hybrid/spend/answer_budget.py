"""The money of one answer: it is reserved before each request and settled after it. Disk writes wait in a thread.

The laws (``tests/spend/test_answer_budget.py``): a request is sent only with its worst case reserved; a request
whose charge never becomes known keeps its reservation; an answer that is cancelled at any moment keeps nothing else
reserved and loses no settlement; a ledger that cannot be used lets no request be sent and says what to do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from hybrid.errors import LedgerError
from hybrid.spend.ledger import (
    CapStatus,
    Denial,
    Ledger,
    MaxCost,
    MemoryLedger,
    Reservation,
    Settlement,
    SpendScope,
    closed_denial,
)
from hybrid.spend.price import NANOUSD_PER_USD, Price, as_usd
from hybrid.types import CloudUsage

# The bill of one answer, beside the bill the cloud alone would have had for it.


@dataclass(frozen=True)
class Bill:
    """Nano-dollars; None where the price is not known, which is not zero.

    The cloud alone would have read the prompt and written the text, and what ends it, in one request: with nothing of
    its prompt cached (and all of it written to the cache, where that has a price), or, at the least, with all of it,
    where it is long enough to be cached. ``price_source`` says who stated the price.
    """

    nanousd: int | None
    cloud_only_nanousd: int | None
    cloud_only_cached_nanousd: int | None = None
    price_source: str | None = None

    @property
    def usd(self) -> float | None:
        """USD, for display and plots; None where the price is not known. Exact sums are taken of ``nanousd``."""
        return None if self.nanousd is None else self.nanousd / NANOUSD_PER_USD

    @property
    def times_cloud_only(self) -> float | None:
        """How many times the bill of the cloud alone it is; None where one is unknown, or the cloud's is nothing."""
        return self.nanousd / self.cloud_only_nanousd if self.nanousd is not None and self.cloud_only_nanousd else None

    def __str__(self) -> str:
        """Say all of them in USD."""
        if self.nanousd is None:
            return "cost unknown: no price was stated"
        alone, cached = as_usd(self.cloud_only_nanousd), as_usd(self.cloud_only_cached_nanousd)
        if self.cloud_only_cached_nanousd is None or alone == cached:
            return f"{as_usd(self.nanousd)} (the cloud alone: {alone})"
        return f"{as_usd(self.nanousd)} (the cloud alone: {alone}, with its prompt cached {cached})"


def bill(price: Price | None, requests: list[CloudUsage], prompt_tokens: int, answer_tokens: int) -> Bill:
    """Add up the requests of one answer; the cloud alone would have taken one request for the same text.

    Without a price the bill is unknown, unless nothing was asked: that costs nothing at any price.
    """
    if price is None:
        return Bill(None if requests else 0, None)
    alone = price.expected_usage(prompt_tokens, answer_tokens)
    cached = price.expected_usage(prompt_tokens, answer_tokens, prompt_tokens)
    return Bill(sum(map(price.cost, requests)), price.cost(alone), price.cost(cached), price.source)


def as_times(ratio: float | None) -> str:
    """Write a ratio as a user reads it; None is unknown.

    >>> as_times(5.139), as_times(1.0), as_times(67.4)
    ('5.1 times', '1.0 times', '67 times')
    """
    return "unknown times" if ratio is None else f"{ratio:.{1 if ratio < 10 else 0}f} times"


T = TypeVar("T")

_NO_PRICE = (
    "there is a cap but no price for this endpoint: state --price P/C/O or --price free, or enter it in the price file"
)


@dataclass(frozen=True)
class PriceAndLedger:
    """The price of a request (None: not known) and the ledger that records its charge."""

    price: Price | None
    ledger: Ledger


@dataclass(frozen=True)
class Grant:
    """Permission for one request of at most ``limit`` completion tokens, in at most ``requests`` HTTP requests."""

    prompt_tokens: int
    limit: int
    reservation: Reservation | None = None
    requests: int = 1
    charged_to: PriceAndLedger | None = field(default=None, compare=False, repr=False)


class AnswerBudget:
    """Reserves money before a request and settles it after. Made for one answer; closed at its end."""

    def __init__(self, charged_to: Callable[[], PriceAndLedger], scope: SpendScope) -> None:
        """Take the scope and a callable for price and ledger, since a price may become known during the answer."""
        self._charged_to = charged_to
        self._scope = scope
        # Reservations whose caller may have been cancelled meanwhile; settlements that are not yet in the ledger.
        self._unclaimed: dict[Reservation, Ledger] = {}
        self._unwritten: dict[Reservation, tuple[Ledger, Settlement]] = {}
        self._waiting: set[asyncio.Future[Any]] = set()
        self._denied: Denial | None = None
        self._uncapped = False
        # What the requests that were settled were charged; what stays reserved is not known to be charged.
        self.charged_nanousd = 0

    @property
    def price(self) -> Price | None:
        """The price of a request as far as it is known by now."""
        return self._charged_to().price

    async def reserve(self, prompt_tokens: int, limit: int, min_limit: int = 1, *, requests: int = 1) -> Grant | Denial:
        """Reserve the worst case of a request. A ``limit`` that does not fit is lowered, to ``min_limit`` at most."""
        if self._denied is not None:
            return self._denied
        charged_to = self._charged_to()
        if charged_to.price is None:
            return await self._grant_without_price(charged_to, Grant(prompt_tokens, limit, requests=requests))
        while self._waiting:  # else the answer's own unsettled last request could deny the next one
            await asyncio.wait(self._waiting)
        max_cost = MaxCost(charged_to.price, prompt_tokens, max(1, limit), max(1, min_limit), requests)
        return await self._reserve_max_cost(charged_to, max_cost)

    async def mark_sent(self, grant: Grant) -> Denial | None:
        """Record that a request is sent, before its first byte. Returns a Denial if that cannot be recorded."""
        if grant.reservation is None or grant.charged_to is None:
            return None
        ledger = grant.charged_to.ledger
        try:
            await asyncio.shield(self._run(ledger, partial(ledger.mark_sent, grant.reservation)))
        except LedgerError as error:
            self._denied = Denial(str(error))
            return self._denied
        return None

    def settle(self, grant: Grant, usage: CloudUsage | None) -> str | None:
        """Record the charge of a request. Without a usage the money stays reserved: it may have been spent.

        Returns a sentence if the charge exceeds the reservation; the endpoint is then closed.
        """
        charged_to = grant.charged_to
        if usage is None or grant.reservation is None or charged_to is None or charged_to.price is None:
            return None
        cost, excess = charged_to.price.cost(usage), None
        self.charged_nanousd += cost
        if cost > grant.reservation.nanousd:
            most = as_usd(grant.reservation.nanousd)
            excess = f"it charged {as_usd(cost)} for a request that may cost {most} at most"
            self._denied = closed_denial(self._scope.endpoint, excess)
        self._write(charged_to.ledger, Settlement(grant.reservation, cost, excess))
        return None if excess is None or self._denied is None else self._denied.why

    async def cap_statuses(self) -> tuple[CapStatus, ...]:
        """Return the status of the caps that bind this answer now; none where the ledger cannot be read."""
        ledger = self._charged_to().ledger
        try:
            return tuple(await asyncio.shield(self._run(ledger, partial(ledger.cap_statuses, self._scope))))
        except LedgerError:
            return ()

    def cost(self, usage: CloudUsage) -> int | None:
        """Nano-dollars for a usage; None where the price is not known."""
        price = self._charged_to().price
        return None if price is None else price.cost(usage)

    async def close(self) -> None:
        """Return unclaimed reservations and write pending settlements; a cancellation is raised after that."""
        again = await self._wait_for_writes()
        unclaimed = [(ledger, Settlement(reservation, 0)) for reservation, ledger in self._unclaimed.items()]
        for ledger, settlement in [*self._unwritten.values(), *unclaimed]:
            self._write(ledger, settlement)
        again = await self._wait_for_writes() or again
        if again is not None:
            raise again

    async def __aenter__(self) -> Self:
        """Start with nothing reserved."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _grant_without_price(self, charged_to: PriceAndLedger, grant: Grant) -> Grant | Denial:
        """Grant a request of unknown price, unless there is a cap that it could exceed."""
        if not self._uncapped:
            try:
                look = partial(charged_to.ledger.cap_statuses, self._scope)
                cap_statuses = await asyncio.shield(self._run(charged_to.ledger, look))
            except LedgerError as error:
                self._denied = Denial(str(error))
                return self._denied
            if cap_statuses:
                tightest = min(cap_statuses, key=lambda status: status.left_nanousd)
                return tightest.denial() if tightest.left_nanousd <= 0 else Denial(_NO_PRICE, tightest.level)
            self._uncapped = True
        return grant

    async def _reserve_max_cost(self, charged_to: PriceAndLedger, max_cost: MaxCost) -> Grant | Denial:
        """Reserve a request's maximal cost. If the caller is cancelled meanwhile, ``close`` returns the money."""

        def on_reserved(done: asyncio.Future[Reservation | Denial]) -> None:
            if isinstance(error := done.exception(), LedgerError):
                self._denied = Denial(str(error))
            elif error is None and isinstance(reserved := done.result(), Reservation):
                self._unclaimed[reserved] = charged_to.ledger

        try:
            reserve = partial(charged_to.ledger.reserve, max_cost, self._scope)
            reserved = await asyncio.shield(self._run(charged_to.ledger, reserve, on_reserved))
        except LedgerError as error:
            return Denial(str(error))
        if isinstance(reserved, Denial):
            return reserved
        del self._unclaimed[reserved]
        return Grant(max_cost.prompt_tokens, reserved.limit, reserved, max_cost.requests, charged_to)

    def _write(self, ledger: Ledger, settlement: Settlement) -> None:
        """Settle in the ledger; only the next request and ``close`` wait for it."""
        self._unwritten[settlement.reservation] = ledger, settlement

        def on_written(done: asyncio.Future[None]) -> None:
            # After a LedgerError the reservation stays: the ledger overstates what was spent. (It understates a charge
            # above the reservation if the ledger still fails at the end; the answer has reported that charge.) A
            # KeyError means that the settlement was written although an error said that it was not.
            if not isinstance(done.exception(), LedgerError | KeyError):
                done.result()
                del self._unwritten[settlement.reservation]

        self._run(ledger, partial(ledger.settle, settlement), on_written)

    def _run(
        self, ledger: Ledger, work: Callable[[], T], then: Callable[[asyncio.Future[T]], None] | None = None
    ) -> asyncio.Future[T]:
        """Run work, in a thread if the ledger waits for a disk; call ``then`` with its future in any case."""
        loop = asyncio.get_running_loop()
        if ledger.durable:
            future = loop.run_in_executor(None, work)
            self._waiting.add(future)
            future.add_done_callback(then or _consume_error)
            future.add_done_callback(self._waiting.discard)
        else:
            future = loop.create_future()
            future.set_result(work())
            if then is not None:
                then(future)
        return future

    async def _wait_for_writes(self) -> asyncio.CancelledError | None:
        """Wait for all running work; return a cancellation that arrived meanwhile."""
        again: asyncio.CancelledError | None = None
        while self._waiting:
            try:
                await asyncio.wait(self._waiting)
            except asyncio.CancelledError as error:
                again = error
        return again


class Account:
    """A client's price for one endpoint and the ledger it is charged to; opens a budget for each answer."""

    def __init__(
        self,
        price: Price | None,
        ledger: Ledger,
        endpoint: str = "the endpoint",
        cap_nanousd: int | None = None,
        client: str | None = None,
    ) -> None:
        """Take a price (None: not known), the ledger, the endpoint's name there, and this client's own cap.

        ``client`` is its name: with one, the spending of earlier clients of that name counts against the cap too.
        """
        self.price = price
        self._ledger = ledger
        self._endpoint = endpoint
        self._cap = cap_nanousd
        self._client = client or secrets.token_hex(8)
        # Free requests change no total, so they are written to no file; a cap of zero still means: send no request.
        self._free_ledger = MemoryLedger()

    def set_price(self, price: Price) -> None:
        """Set the price, which is known only once the endpoint has named its model."""
        self.price = price

    def beside(self, price: Price | None, endpoint: str) -> Account:
        """Return the account for another endpoint of the same client: its ledger and its caps are the same."""
        return Account(price, self._ledger, endpoint, self._cap, self._client)

    def open_budget(self, conversation: str | None = None) -> AnswerBudget:
        """Open the budget of one answer. Without a name the conversation is this client's own."""
        scope = SpendScope(self._endpoint, secrets.token_hex(8), conversation or self._client, self._client, self._cap)
        return AnswerBudget(self._charged_to, scope)

    def _charged_to(self) -> PriceAndLedger:
        is_free = self._ledger.durable and self.price is not None and self.price.free
        return PriceAndLedger(self.price, self._free_ledger if is_free else self._ledger)


def _consume_error(done: asyncio.Future[Any]) -> None:
    """Read an error, so that asyncio does not report it as never retrieved after a cancellation."""
    done.exception()
