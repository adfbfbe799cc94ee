"""What a request may cost at most, as a function of its limit; and who asks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybrid.spend.price import Price


@dataclass(frozen=True)
class MaxCost:
    """A request that would leave: its prompt, and the most completion tokens it may be charged for (at least 1).

    ``least``: what the limit may be lowered to; a check needs all its rows. ``requests``: over HTTP, at most.
    """

    price: Price
    prompt_tokens: int
    limit: int
    least: int = 1
    requests: int = 1

    @property
    def worst_nanousd(self) -> int:
        """The most it can cost."""
        return self._worst_nanousd(self.limit)

    def _worst_nanousd(self, limit: int) -> int:
        return self.price.worst_case(self.prompt_tokens, limit, self.requests)

    def fitted(self, room_nanousd: int | None) -> MaxCost | None:
        """Lower the limit to the largest that fits; None where not even the least does.

        >>> MaxCost(Price.parse("1/0.1/4"), 10, 100).fitted(18_000).limit
        2
        """
        limit, least = max(1, self.limit), max(1, min(self.least, self.limit))
        if room_nanousd is None or self._worst_nanousd(limit) <= room_nanousd:
            return replace(self, limit=limit)
        if self._worst_nanousd(least) > room_nanousd:
            return None
        low, high = least, limit  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._worst_nanousd(middle) <= room_nanousd else (low, middle)
        return replace(self, limit=low)


@dataclass(frozen=True)
class SpendScope:
    """On whose behalf money is spent: one question of one conversation of one client, put to one endpoint.

    ``cap_nanousd`` is the client's own cap (``--cap``), besides those that stand in the ledger.
    """

    endpoint: str
    request: str
    conversation: str
    client: str
    cap_nanousd: int | None = None
