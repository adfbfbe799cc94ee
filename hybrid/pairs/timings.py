"""How long a pair's requests and drafts take, as its client sees it, and the draft length that follows."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from hybrid.cloud import Capabilities
from hybrid.engine import num_shared
from hybrid.pairs.profile import JudgedTokens
from hybrid.prob import Floats
from hybrid.record.events import Event, Finished, RequestSent, RequestSettled, SpanDrafted
from hybrid.spend import AskPrices, CheckRates, Price, TokenTimes, tokens_shown
from hybrid.spend.price import MILLION
from hybrid.types import CloudUsage, Ids

# What a client has measured of its two models, and the draft length that follows: ``--span auto`` and ``cheap``; which
# chain of local models drafts goes by the same averages (``run.chain``).
#
# The law (``tests/run/test_span_tuner.py``): what is learned of a check is what that check took and was charged,
# whatever other answers did meanwhile.
#
# A round of g drafted tokens costs ``overhead + g * per_token``, in seconds or in money, and shows those accepted and
# the cloud's own after them (``spend.tokens_shown``).

# The weight of the newest measurement, and what is believed of acceptance before any: one success in two tries.
NEWEST = 0.2
KEPT, TRIED = 1.0, 2.0
# Caches keep whole blocks, of 16 tokens (vLLM on GPUs) to 128 (on CPUs): after a shorter text a check shows nothing.
BLOCK = 128
LONGEST_SPAN = 64

Average = TypeVar("Average", float, Floats)


def best_length(acceptance: float, overhead: float, per_token: float, longest: int = LONGEST_SPAN) -> int:
    """Return the draft length with the most tokens for the cost, between 1 and ``longest``.

    ``acceptance``: the chance that a drafted token is accepted, in [0, 1]. ``overhead``: what a round costs that does
    not depend on its length; ``per_token``: one drafted token's part, positive. Raises ValueError for other numbers.

    >>> best_length(0.8, overhead=0.15, per_token=0.015)
    6
    """
    if not (0.0 <= acceptance <= 1.0 and 0.0 <= overhead < np.inf and 0.0 < per_token < np.inf and longest >= 1):
        msg = f"no draft length for an acceptance of {acceptance}, {overhead} a round and {per_token} a token"
        raise ValueError(msg)
    lengths = np.arange(1, longest + 1)
    shown = tokens_shown(acceptance, longest + 1)[1:]
    return int(lengths[np.argmax(shown / (overhead + per_token * lengths))])


@dataclass(frozen=True)
class CloudCosts:
    """What the cloud takes: milliseconds and nano-dollars of a check, and of a token that it writes; None: not seen."""

    check_ms: float | None = None
    token_ms: float | None = None
    check_nanousd: float | None = None
    token_nanousd: float | None = None


class Timings:
    """Moving averages over the answers of one client."""

    def __init__(self, ms_per_token: float | None = None) -> None:
        """Know nothing of the cloud. ``ms_per_token``: what was measured of the local model, if anything was."""
        self.ms_per_token = ms_per_token
        """What a drafted token takes; None: nothing was measured."""
        self.cloud = CloudCosts()
        self._kept, self._tried = KEPT, TRIED
        # What a check is charged beside its span: of each token before the span, how often in full and how often as
        # cached; completion tokens; requests.
        self._charge: Floats | None = None
        # Of each check that is under way, in any answer: tokens before its span, and tokens of the span.
        self._under_way: dict[str, tuple[int, int]] = {}

    def observe(self, event: Event, prompt_tokens: int = 0) -> None:
        """Learn from what happened in an answer to a prompt of so many tokens; others may be written beside it."""
        match event:
            case RequestSent(request_id, kind="check", position=position, num_tokens=num_tokens):
                self._under_way[request_id] = prompt_tokens + position, num_tokens
            case SpanDrafted(ids=ids, ms=ms, num_ready=ready) if len(ids) > ready:
                self.ms_per_token = _averaged(self.ms_per_token, ms / (len(ids) - ready))
            case RequestSettled(request_id, kind="check", ms=ms, usage=usage, nanousd=nanousd):
                text_tokens, span_tokens = self._under_way.pop(request_id, (0, 0))
                if usage is not None:
                    self._learn(check_ms=ms, check_nanousd=nanousd)
                if usage is not None and text_tokens >= BLOCK:
                    cached, full = usage.cached_tokens, max(0, usage.prompt_tokens - span_tokens - usage.cached_tokens)
                    charge = [full / text_tokens, cached / text_tokens, usage.completion_tokens, usage.requests]
                    self._charge = _averaged(self._charge, np.array(charge))
            case RequestSettled(kind="write", usage=CloudUsage(completion_tokens=written), ms=ms) if written:
                self._learn(token_ms=ms / written)
            case Finished(answer):
                if answer.usage.checks:
                    seen = JudgedTokens.of(answer)
                    self._kept, self._tried = self._kept + seen.kept, self._tried + seen.judged
                if (alone := answer.bill.cloud_only_nanousd) and answer.tokens:
                    self._learn(token_nanousd=alone / len(answer.tokens))

    def _learn(self, **seen: float | None) -> None:
        moved = {
            name: _averaged(getattr(self.cloud, name), float(now)) for name, now in seen.items() if now is not None
        }
        self.cloud = replace(self.cloud, **moved)

    def cheap(self, price: Price | None, prefix_tokens: int, *, keeps_cache: bool) -> int | None:
        """Return the draft length with the fewest USD a token; None where no price is known, or nothing costs anything.

        Every check sends the text so far anew. What that is charged is what the price's tariff says, or what checks of
        this client were charged; before there was one that could show it, the cached price where ``keeps_cache``, else
        the full one.
        """
        if price is None or price.prompt <= 0:
            return None
        charge, rates = self._charge, CheckRates.of_price(price, keeps_cache=keeps_cache).at(prefix_tokens)
        if charge is None or price.repeated is not None:
            overhead = prefix_tokens * rates.reread + rates.once
        else:
            (full, cached, completion, requests), there = charge.tolist(), price.at(prefix_tokens)
            overhead = prefix_tokens * (full * rates.drafted + cached * there.cached_prompt / MILLION)
            overhead += completion * rates.written + requests * price.request
        return best_length(self._kept / self._tried, overhead, rates.drafted)

    def span(self) -> int | None:
        """Return the fastest draft length for what was measured; None before the first check."""
        per_token, round_trip = self.ms_per_token, self.cloud.check_ms
        if per_token is None or round_trip is None or not per_token > 0.0:
            return None
        return best_length(self._kept / self._tried, round_trip, per_token)


def _averaged(before: Average | None, now: Average) -> Average:
    return now if before is None else before + NEWEST * (now - before)


# What a client has seen of its endpoint that decides what asking costs: prompts that its cache may hold, and speeds.
#
# Laws (``tests/run/test_endpoint_terms.py``): of a prompt so many first tokens count as cached as an earlier question
# of this client sent, in whole blocks of a cache, and none where the endpoint was not known to have one when the client
# connected; nor where the price says that so few tokens are not cached, or that the cache has forgotten what nobody
# read for so long. No token is priced as cached where cached tokens are charged in full: where nothing is told, and no
# tariff says otherwise. No reply is heard: which of several comes first is chance, and a bill must not hang on it.

# So many prompts are compared with a new one: a client's questions share one or few beginnings.
MOST_PROMPTS = 16
# Tokens that are decided at once before the local model's speed is known: 2 s of 16 tokens a second, a model of some
# billions of parameters on a laptop's cores.
UNTIMED_BLOCK = 32


class PromptCacheTracker:
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
