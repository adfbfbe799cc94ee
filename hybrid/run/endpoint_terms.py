"""What a client has seen of its endpoint that decides what asking costs: prompts that its cache may hold, and speeds.

Laws (``tests/run/test_endpoint_terms.py``): of a prompt so many first tokens count as cached as an earlier question
of this client sent, in whole blocks of a cache, and none where the endpoint was not known to have one when the client
connected; nor where the price says that so few tokens are not cached, or that the cache has forgotten what nobody read
for so long. No token is priced as cached where cached tokens are charged in full: where nothing is told, and no tariff
says otherwise. No reply is heard: which of several comes first is chance, and a bill must not hang on it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from hybrid.cloud import Capabilities
from hybrid.engine import num_shared
from hybrid.run.span_tuner import BLOCK
from hybrid.spend import AskPrices, Price, TokenTimes
from hybrid.types import Ids

# So many prompts are compared with a new one: a client's questions share one or few beginnings.
MOST_PROMPTS = 16
# Tokens that are decided at once before the local model's speed is known: 2 s of 16 tokens a second, a model of some
# billions of parameters on a laptop's cores.
UNTIMED_BLOCK = 32


class EndpointTerms:
    """Heard from a client's events, over all of its answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was sent. ``clock``: seconds."""
        self._sent: deque[tuple[Ids, float]] = deque(maxlen=MOST_PROMPTS)
        self._clock = clock

    def add(self, prompt: Ids) -> None:
        """Count a prompt as sent. Called once its answer is over, so that what is beside it is none of its."""
        others = [each for each in self._sent if each[0] != prompt]
        self._sent = deque([*others, (prompt, self._clock())], maxlen=MOST_PROMPTS)

    def shared(self, prompt: Ids, can: Capabilities | None, price: Price | None = None) -> int:
        """Return how many first tokens of a prompt are known to be cached, by earlier questions."""
        if can is None or not (can.keeps_cache or can.tells_cache):
            return 0
        lifetime_s = None if price is None else price.cache_lifetime_s
        since = -math.inf if lifetime_s is None else self._clock() - lifetime_s
        sent = (earlier for earlier, sent_at in self._sent if sent_at > since)
        shared = max((num_shared(prompt, earlier) for earlier in sent), default=0) // BLOCK * BLOCK
        return shared if price is None or price.caches(shared) else 0

    def prices(self, prompt: Ids, price: Price | None, can: Capabilities | None, times: TokenTimes | None) -> AskPrices:
        """Return what asking costs for a prompt: in money, or by time where nothing is charged or no price is known."""
        keeps_cache, tells_cache = (None, None) if can is None else (can.keeps_cache, can.tells_cache)
        return AskPrices.of(
            price,
            keeps_cache=keeps_cache,
            in_one_request=can is None or can.scoring_method in {None, "one request"},
            tells_cache=tells_cache is True,
            times=times,
            shared=self.shared(prompt, can, price),
        )


def block_tokens(patience_s: float, ms_per_token: float | None) -> int:
    """Return how many tokens are drafted within a time: a power of two, so that a little noise decides nothing.

    ``ms_per_token`` None: nothing was measured yet.

    >>> block_tokens(2.0, 30.0), block_tokens(2.0, 33.0), block_tokens(0.001, 30.0), block_tokens(2.0, None)
    (64, 32, 1, 32)
    """
    if ms_per_token is None or not ms_per_token > 0.0:
        return UNTIMED_BLOCK
    tokens = 1000.0 * patience_s / ms_per_token
    return 2 ** min(20, int(math.log2(tokens))) if tokens >= 1.0 else 1
