"""The money of one answer: leave for a request, and what it cost. What waits for a disk waits in a thread.

The laws (``tests/spend/test_purse.py``): a request leaves only with its worst case reserved; one whose charge never
becomes known keeps its reservation; an answer that is cancelled at any moment leaves nothing reserved but that, and
loses no settlement; a ledger in trouble lets no request leave, and says what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from hybrid.errors import LedgerError
from hybrid.spend.caps import Denial
from hybrid.spend.claim import Claim, Spender
from hybrid.spend.lease import LEASED_REQUESTS, Lease, Part
from hybrid.spend.ledger import Ledger, Reservation, closed_denial
from hybrid.spend.price import Price, as_usd
from hybrid.types import CloudUsage

T = TypeVar("T")

_UNPRICED = (
    "there is a cap but no price for this endpoint: state --price P/C/O or --price free, or enter it in the price file"
)


@dataclass(frozen=True)
class Grant:
    """Leave to send one request with at most ``limit`` completion tokens."""

    prompt_tokens: int
    limit: int
    part: Part | None = None
    lease: Lease | None = None

    @property
    def nanousd(self) -> int | None:
        """What is set aside for it; None where no price is known."""
        return None if self.part is None else self.part.nanousd


class Purse:
    """Reserves before a request leaves and settles after it. Made for one answer; closed at its end."""

    def __init__(self, price: Price | None, ledger: Ledger, spender: Spender) -> None:
        """Take the price (None: not known), where it is written, and who spends."""
        self.price = price
        self._ledger = ledger
        self._spender = spender
        self._spare = LEASED_REQUESTS if ledger.durable else 1
        self._leases: list[Lease] = []  # the last one may be carved from
        self._waiting: set[asyncio.Future[Any]] = set()
        self._one_by_one = asyncio.Lock()
        self._shut: Denial | None = None
        self._uncapped = False

    async def ask(self, prompt_tokens: int, limit: int, least: int = 1) -> Grant | Denial:
        """Reserve the worst case of a request; a ``limit`` that does not fit is lowered, to ``least`` at most."""
        if self._shut is None and self.price is None:
            return await self._unpriced(Grant(prompt_tokens, limit))
        if self._shut is not None or self.price is None:
            return self._shut or Denial(_UNPRICED)
        claim = Claim(self.price, prompt_tokens, max(1, limit), max(1, least))
        async with self._one_by_one:
            if (grant := self._carved(claim)) is not None:
                return grant
            while self._waiting:
                await asyncio.wait(self._waiting)
            return await self._reserve(claim)

    def settle(self, grant: Grant, usage: CloudUsage | None) -> str | None:
        """Record what a request was charged. Without a usage its part stays reserved: it may have been spent.

        Returns a sentence where more was charged than was reserved; the endpoint is then closed.
        """
        if usage is None or grant.lease is None or grant.part is None or self.price is None:
            return None
        cost = self.price.cost(usage)
        if grant.lease.settle(grant.part, cost):
            return None
        excess = f"it charged {as_usd(cost)} for a request that may cost {as_usd(grant.part.nanousd)} at most"
        grant.lease.excess = excess
        self._shut = closed_denial(self._spender.endpoint, excess)
        self._write(grant.lease)  # at once, not at the end: until it is written, others go on asking
        return self._shut.why

    def cost(self, usage: CloudUsage) -> int | None:
        """Nano-dollars for a usage; None where the price is not known."""
        return None if self.price is None else self.price.cost(usage)

    async def close(self) -> None:
        """Give back what is left and write what was charged. Being cancelled meanwhile is passed on, but not before."""
        again = await self._at_rest()
        for lease in self._leases:
            self._write(lease)
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

    async def _unpriced(self, grant: Grant) -> Grant | Denial:
        """Where a request costs nobody knows what, it leaves only if no cap could be passed."""
        if not self._uncapped:
            try:
                standings = await asyncio.shield(self._begin(lambda: self._ledger.standings(self._spender), _seen))
            except LedgerError as error:
                self._shut = Denial(str(error))
                return self._shut
            if standings:
                tightest = min(standings, key=lambda standing: standing.left_nanousd)
                return tightest.denial() if tightest.left_nanousd <= 0 else Denial(_UNPRICED, tightest.level)
            self._uncapped = True
        return grant

    def _carved(self, claim: Claim) -> Grant | None:
        part = self._leases[-1].carve(claim) if self._leases else None
        return None if part is None else Grant(claim.prompt_tokens, claim.limit, part, self._leases[-1])

    async def _reserve(self, claim: Claim) -> Grant | Denial:
        """Take a new lease, giving the last one back in the same step, and carve the claim from it.

        A caller that is cancelled meanwhile leaves the lease to the purse, which gives it back when it is closed.
        """
        old = self._leases[-1] if self._leases else None
        first = old.unwritten() if old else None

        def taken(done: asyncio.Future[Reservation | Denial]) -> None:
            if isinstance(error := done.exception(), LedgerError):
                self._shut = Denial(str(error))
            elif error is None:
                if old and first:
                    old.wrote(first)
                if isinstance(reserved := done.result(), Reservation):
                    self._leases.append(Lease(reserved))

        reserve = partial(self._ledger.reserve, claim, self._spender, self._spare, first)
        try:
            reserved = await asyncio.shield(self._begin(reserve, taken))
        except LedgerError as error:
            return Denial(str(error))
        if isinstance(reserved, Denial):
            return reserved
        grant = self._carved(replace(claim, limit=reserved.limit))
        assert grant is not None
        return grant

    def _write(self, lease: Lease) -> None:
        """Bring the ledger up to date about a lease; nobody waits for it before the end."""
        if (settlement := lease.unwritten()) is None:
            return

        def written(done: asyncio.Future[None]) -> None:
            # In trouble, what was reserved stays so: too much is on record, never too little. A KeyError: it was
            # written before, although an error said that it was not.
            if not isinstance(done.exception(), LedgerError | KeyError):
                done.result()
                lease.wrote(settlement)

        self._begin(lambda: self._ledger.settle(settlement), written)

    def _begin(self, work: Callable[[], T], then: Callable[[asyncio.Future[T]], None]) -> asyncio.Future[T]:
        """Do work where it may wait, and ``then`` what follows from it, whether or not anybody still listens."""
        loop = asyncio.get_running_loop()
        if self._ledger.durable:
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
