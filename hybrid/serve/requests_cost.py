"""What requests have cost and hold back, as they are heard of. Nano-dollars; what is not known is None, never 0.

The law (``tests/serve/test_reducer.py``): ``spent`` and ``reserved`` together are ``run.Spending``'s total at every
moment, and ``spent`` never falls.
"""

from __future__ import annotations


class RequestsCost:
    """The requests of one answer, or of many."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._open: dict[str, int | None] = {}
        self.spent: int | None = 0
        """What is charged, or at worst may have been."""

    @property
    def reserved(self) -> int | None:
        """The most that the requests under way can cost."""
        known = [cost for cost in self._open.values() if cost is not None]
        return sum(known) if len(known) == len(self._open) else None

    def send(self, request_id: str, most: int | None) -> None:
        """Hear of a request that leaves."""
        self._open[request_id] = most

    def settle(self, request_id: str, cost: int | None, *, known: bool) -> None:
        """Hear what a request cost; not ``known``: nobody ever will, and it counts as the most it can have."""
        most = self._open.pop(request_id, None)
        final = cost if known else most
        self.spent = None if self.spent is None or final is None else self.spent + final

    def give_up(self, request_ids: frozenset[str] | None = None) -> frozenset[str]:
        """Count requests of which nothing more is heard as the most they can cost; None: all. Return their names."""
        left = frozenset(self._open) if request_ids is None else request_ids & self._open.keys()
        for request_id in sorted(left):
            self.settle(request_id, None, known=False)
        return left
