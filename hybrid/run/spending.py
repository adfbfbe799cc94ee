"""A running total of what a client's answers cost, heard from their events.

The law: of answers that are over it is the sum of their bills, and an answer that was left early or failed counts what
its requests cost; a request that is under way, or whose charge never became known, counts as the most it can cost; the
total is None, never too little, from the first request of unknown price on (``tests/run/test_spending.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.run.events import Event, RequestSent, RequestSettled, Started
from hybrid.spend.price import NANOUSD_PER_USD


@dataclass(frozen=True)
class Spent:
    """Nano-dollars (None: not known, which is not zero), requests sent, and answers begun.

    ``reserved_nanousd``: what of it is not charged, but held for requests that are under way, or of unknown charge.
    ``assumed_nanousd``: what of it is charged at most, for requests that are over and whose usage nobody told.
    """

    nanousd: int | None = 0
    requests: int = 0
    answers: int = 0
    reserved_nanousd: int = 0
    assumed_nanousd: int = 0

    @property
    def usd(self) -> float | None:
        """USD, for display and plots; None where it is not known."""
        return None if self.nanousd is None else self.nanousd / NANOUSD_PER_USD


class Spending:
    """Adds up requests as they leave and are settled."""

    def __init__(self) -> None:
        """Nothing is spent yet."""
        self._costs: dict[str, int | None] = {}
        self._settled: int | None = 0
        self._unknown = 0  # what of it stays reserved
        self._assumed = 0
        self._requests = 0
        self._answers = 0

    @property
    def spent(self) -> Spent:
        """The total by now. May be read from another thread."""
        costs = [self._settled, *tuple(self._costs.values())]
        known = [cost for cost in costs if cost is not None]
        reserved = self._unknown + sum(cost for cost in costs[1:] if cost is not None)
        total = sum(known) if len(known) == len(costs) else None
        return Spent(total, self._requests, self._answers, reserved, self._assumed)

    def observe(self, event: Event) -> None:
        """Hear of an answer that begins, and of a request that leaves or is settled."""
        match event:
            case Started():
                self._answers += 1
            case RequestSent(request_id=request_id, reserved_nanousd=most):
                self._requests += 1
                self._costs[request_id] = most
            case RequestSettled(request_id=request_id, usage=usage, nanousd=cost):
                most = self._costs.pop(request_id)
                final = most if usage is None else cost
                self._settled = None if self._settled is None or final is None else self._settled + final
                self._unknown += (most or 0) if usage is None else 0
                self._assumed += (final or 0) if usage is None or usage.is_assumed else 0
            case _:
                pass
