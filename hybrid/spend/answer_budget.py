"""The money of one answer: leave for a request, and what it cost. What waits for a disk waits in a thread.

The laws (``tests/spend/test_answer_budget.py``): a request leaves only with its worst case reserved; one whose charge
never becomes known keeps its reservation; an answer that is cancelled at any moment leaves nothing reserved but that,
and loses no settlement; a ledger in trouble lets no request leave, and says what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from hybrid.errors import LedgerError
from hybrid.spend.caps import Denial
from hybrid.spend.ledger import Ledger, Reservation, Settlement, closed_denial
from hybrid.spend.max_cost import MaxCost, SpendScope
from hybrid.spend.price import Price, as_usd
from hybrid.types import CloudUsage

T = TypeVar("T")

_UNPRICED = (
    "there is a cap but no price for this endpoint: state --price P/C/O or --price free, or enter it in the price file"
)


@dataclass(frozen=True)
class ChargeTerms:
    """What a request costs (None: not known), and where that is written."""

    price: Price | None
    ledger: Ledger


@dataclass(frozen=True)
class Grant:
    """Leave to put one question with at most ``limit`` completion tokens, in at most so many ``requests`` over HTTP."""

    prompt_tokens: int
    limit: int
    reservation: Reservation | None = None
    requests: int = 1
    terms: ChargeTerms | None = field(default=None, compare=False, repr=False)

    @property
    def nanousd(self) -> int | None:
        """What is set aside for it; None where no price is known."""
        return None if self.reservation is None else self.reservation.nanousd


class AnswerBudget:
    """Reserves before a request leaves and settles after it. Made for one answer; closed at its end."""

    def __init__(self, terms: Callable[[], ChargeTerms], spender: SpendScope) -> None:
        """Take the terms, which may become known while the answer is written, and who spends."""
        self._terms = terms
        self._spender = spender
        # Reserved for a caller that may have been cancelled meanwhile; settled, and not yet written.
        self._unclaimed: dict[Reservation, Ledger] = {}
        self._unwritten: dict[Reservation, tuple[Ledger, Settlement]] = {}
        self._waiting: set[asyncio.Future[Any]] = set()
        self._shut: Denial | None = None
        self._uncapped = False

    @property
    def price(self) -> Price | None:
        """What is known by now of what a request costs."""
        return self._terms().price

    async def ask(self, prompt_tokens: int, limit: int, least: int = 1, *, requests: int = 1) -> Grant | Denial:
        """Reserve the worst case of a request; a ``limit`` that does not fit is lowered, to ``least`` at most."""
        if self._shut is not None:
            return self._shut
        terms = self._terms()
        if terms.price is None:
            return await self._unpriced(terms, Grant(prompt_tokens, limit, requests=requests))
        while self._waiting:  # else an answer could be denied by what its own last request has left
            await asyncio.wait(self._waiting)
        claim = MaxCost(terms.price, prompt_tokens, max(1, limit), max(1, least), requests)
        return await self._reserve(terms, claim)

    async def mark_sent(self, grant: Grant) -> Denial | None:
        """Record, before its first byte, that a request leaves. A Denial: that could not be recorded."""
        if grant.reservation is None or grant.terms is None:
            return None
        ledger = grant.terms.ledger
        try:
            await asyncio.shield(self._begin(ledger, partial(ledger.mark_sent, grant.reservation), _seen))
        except LedgerError as error:
            self._shut = Denial(str(error))
            return self._shut
        return None

    def settle(self, grant: Grant, usage: CloudUsage | None) -> str | None:
        """Record what a request was charged. Without a usage it stays reserved: it may have been spent.

        Returns a sentence where more was charged than was reserved; the endpoint is then closed.
        """
        terms = grant.terms
        if usage is None or grant.reservation is None or terms is None or terms.price is None:
            return None
        cost, excess = terms.price.cost(usage), None
        if cost > grant.reservation.nanousd:
            most = as_usd(grant.reservation.nanousd)
            excess = f"it charged {as_usd(cost)} for a request that may cost {most} at most"
            self._shut = closed_denial(self._spender.endpoint, excess)
        self._write(terms.ledger, Settlement(grant.reservation, cost, excess))
        return None if excess is None or self._shut is None else self._shut.why

    def cost(self, usage: CloudUsage) -> int | None:
        """Nano-dollars for a usage; None where the price is not known."""
        return None if self.price is None else self.price.cost(usage)

    async def close(self) -> None:
        """Give back what nobody took and write what was charged. Being cancelled is passed on, but not before."""
        again = await self._at_rest()
        unclaimed = [(ledger, Settlement(reservation, 0)) for reservation, ledger in self._unclaimed.items()]
        for ledger, settlement in [*self._unwritten.values(), *unclaimed]:
            self._write(ledger, settlement)
        again = await self._at_rest() or again
        if again is not None:
            raise again

    async def __aenter__(self) -> Self:
        """Nothing is reserved before a request asks."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _unpriced(self, terms: ChargeTerms, grant: Grant) -> Grant | Denial:
        """Where a request costs nobody knows what, it leaves only if no cap could be passed."""
        if not self._uncapped:
            try:
                look = partial(terms.ledger.standings, self._spender)
                standings = await asyncio.shield(self._begin(terms.ledger, look, _seen))
            except LedgerError as error:
                self._shut = Denial(str(error))
                return self._shut
            if standings:
                tightest = min(standings, key=lambda standing: standing.left_nanousd)
                return tightest.denial() if tightest.left_nanousd <= 0 else Denial(_UNPRICED, tightest.level)
            self._uncapped = True
        return grant

    async def _reserve(self, terms: ChargeTerms, claim: MaxCost) -> Grant | Denial:
        """Reserve a claim. A caller that is cancelled meanwhile leaves it to ``close``, which gives it back."""

        def taken(done: asyncio.Future[Reservation | Denial]) -> None:
            if isinstance(error := done.exception(), LedgerError):
                self._shut = Denial(str(error))
            elif error is None and isinstance(reserved := done.result(), Reservation):
                self._unclaimed[reserved] = terms.ledger

        try:
            reserve = partial(terms.ledger.reserve, claim, self._spender)
            reserved = await asyncio.shield(self._begin(terms.ledger, reserve, taken))
        except LedgerError as error:
            return Denial(str(error))
        if isinstance(reserved, Denial):
            return reserved
        del self._unclaimed[reserved]
        return Grant(claim.prompt_tokens, reserved.limit, reserved, claim.requests, terms)

    def _write(self, ledger: Ledger, settlement: Settlement) -> None:
        """Settle in the ledger; nobody waits for it before the next request or the end."""
        self._unwritten[settlement.reservation] = ledger, settlement

        def written(done: asyncio.Future[None]) -> None:
            # In trouble, what was reserved stays so: too much is on record. (Of a charge above it too little is, if the
            # ledger is still in trouble at the end; the answer has told it.) A KeyError: it was written before, though
            # an error said that it was not.
            if not isinstance(done.exception(), LedgerError | KeyError):
                done.result()
                del self._unwritten[settlement.reservation]

        self._begin(ledger, partial(ledger.settle, settlement), written)

    def _begin(
        self, ledger: Ledger, work: Callable[[], T], then: Callable[[asyncio.Future[T]], None]
    ) -> asyncio.Future[T]:
        """Do work where it may wait, and ``then`` what follows from it, whether or not anybody still listens."""
        loop = asyncio.get_running_loop()
        if ledger.durable:
            future = loop.run_in_executor(None, work)
            self._waiting.add(future)
            future.add_done_callback(then)
            future.add_done_callback(self._waiting.discard)
        else:
            future = loop.create_future()
            future.set_result(work())
            then(future)
        return future

    async def _at_rest(self) -> asyncio.CancelledError | None:
        """Wait for all that was begun; return the cancellation that came meanwhile."""
        again: asyncio.CancelledError | None = None
        while self._waiting:
            try:
                await asyncio.wait(self._waiting)
            except asyncio.CancelledError as error:
                again = error
        return again


def _seen(done: asyncio.Future[Any]) -> None:
    """Look at an error, so that nobody reports it as lost where whoever waited has left."""
    done.exception()
