"""What a client has measured of its two models, and the draft length that follows: ``--span auto`` and ``cheap``."""

from __future__ import annotations

from hybrid.policy.draft_length import best_length
from hybrid.run.events import Drafted, Event, Finished, Settled
from hybrid.spend import Price
from hybrid.spend.price import MILLION

# The weight of the newest measurement, and what is believed of acceptance before any: one success in two tries.
NEWEST = 0.2
KEPT, TRIED = 1.0, 2.0


class Pace:
    """Moving averages over the answers of one client."""

    def __init__(self) -> None:
        """Know nothing."""
        self._per_token: float | None = None
        self._round_trip: float | None = None
        self._kept, self._tried = KEPT, TRIED

    def hear(self, event: Event) -> None:
        """Learn from what happened."""
        match event:
            case Drafted(ids=ids, ms=ms, num_ready=ready) if len(ids) > ready:
                self._per_token = _averaged(self._per_token, ms / (len(ids) - ready))
            case Settled(kind="check", ms=ms, usage=usage) if usage is not None:
                self._round_trip = _averaged(self._round_trip, ms)
            case Finished(answer) if answer.usage.checks:
                kept = sum(token.how == "accepted" for token in answer.tokens)
                turned_down = sum(token.source == "cloud" and token.why is not None for token in answer.tokens)
                self._kept, self._tried = self._kept + kept, self._tried + kept + turned_down

    def cheap(self, price: Price | None, prefix_tokens: int, *, keeps_cache: bool) -> int | None:
        """Return the draft length with the fewest USD a token; None where no price is known, or nothing costs anything.

        Every check sends the text so far anew: at the cached price only where a check is known to read the cache.
        """
        if price is None or price.prompt <= 0:
            return None
        resent = price.cached_prompt if keeps_cache else price.prompt
        overhead = prefix_tokens * resent + price.completion + price.request * MILLION
        return best_length(self._kept / self._tried, overhead, price.prompt)

    def span(self) -> int | None:
        """Return the fastest draft length for what was measured; None before the first check."""
        if self._per_token is None or self._round_trip is None or not self._per_token > 0.0:
            return None
        return best_length(self._kept / self._tried, self._round_trip, self._per_token)


def _averaged(before: float | None, now: float) -> float:
    return now if before is None else before + NEWEST * (now - before)
