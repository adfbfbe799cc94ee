"""What recorded requests would cost, under any tariff, without asking anybody again.

A bill is counted in prompt tokens: one that is read costs 1, one that is cached 0.1, one that is written 4 or 8. Five
settings say what is cached:

- ``U``: a write reads the prefix cache, scoring does not (vLLM as it comes);
- ``C``: scoring reads it, too;
- ``S``: as ``C``, behind 500 tokens that every question shares and the cache holds;
- ``SU``: as ``U``, behind those;
- ``new``: only tokens that are new to the answer are paid, and the one that a check must write is not (one's own
  server, or a session).

The cache holds what earlier requests of the same answer sent and had written (a ``:new`` price counts what was sent
alone, so a rule that lets the cloud write pays a little more there: a written token is read once); the token before the
first wanted row is computed in any case. The law (``tests/bench/test_tariffs.py``): a second hand that compares every
pair of texts token by token comes to the same bill; no setting is dearer than one that caches less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.engine import num_shared
from hybrid.lab.experiments.world import RecordedRequest
from hybrid.record.events import RequestKind
from hybrid.spend import AskPrices

Scoring: TypeAlias = Literal["uncached", "cached", "new"]


@dataclass(frozen=True)
class PriceSetting:
    """What is cached: ``shared`` tokens in front of every question, and what is charged of a check's prompt."""

    name: str
    scoring: Scoring
    shared: int = 0


SETTINGS = (
    PriceSetting("U", "uncached"),
    PriceSetting("C", "cached"),
    PriceSetting("S", "cached", 500),
    PriceSetting("SU", "uncached", 500),
    PriceSetting("new", "new"),
)


@dataclass(frozen=True)
class TokenPrices:
    """What a token costs: read from the cache, or written; one that is read costs 1."""

    cached: float
    written: float

    def __str__(self) -> str:
        """Write it as ``--price`` reads it."""
        return f"1/{self.cached:g}/{self.written:g}"


PRICES = (TokenPrices(0.1, 4.0), TokenPrices(0.1, 8.0))


def ask_prices(setting: PriceSetting, prices: TokenPrices) -> AskPrices:
    """Return what a client would decide by in a setting, in prompt tokens."""
    closing = 0.0 if setting.scoring == "new" else prices.written
    return AskPrices(
        1.0, prices.cached, prices.written, scoring=setting.scoring, closing=closing, in_front=setting.shared
    )


@dataclass(frozen=True)
class CountedRequest:
    """A request in numbers: tokens sent, scored among them, known from earlier requests of the answer, and charged.

    ``num_known``: how many of the first tokens an earlier request had sent or was answered with. ``num_completion``:
    the written tokens that are charged.
    """

    kind: RequestKind
    num_sent: int
    num_scored: int
    num_known: int
    num_completion: int

    @property
    def num_cached(self) -> int:
        """The tokens that a cache can give: all before the last one whose row is wanted first."""
        return max(0, min(self.num_known, self.num_sent - self.num_scored - 1))


def counted(requests: Sequence[RecordedRequest]) -> tuple[CountedRequest, ...]:
    """Count the requests of one answer, in their order."""
    return tuple(
        CountedRequest(
            request.kind,
            len(request.sent),
            request.num_scored,
            max((num_shared(before.sent + before.written, request.sent) for before in requests[:i]), default=0),
            request.usage.completion_tokens,
        )
        for i, request in enumerate(requests)
    )


def cost(requests: Sequence[CountedRequest], setting: PriceSetting, prices: TokenPrices) -> float:
    """Return what the requests of one answer cost, in prompt tokens.

    >>> check = CountedRequest("check", num_sent=50, num_scored=8, num_known=20, num_completion=1)
    >>> [cost([check], setting, PRICES[0]) for setting in SETTINGS]
    [54.0, 36.0, 86.0, 554.0, 30.0]
    """
    return sum(_cost(request, setting, prices) for request in requests)


def _cost(request: CountedRequest, setting: PriceSetting, prices: TokenPrices) -> float:
    checks = request.kind == "check"
    if setting.scoring == "new":
        return request.num_sent - request.num_known + prices.written * (0 if checks else request.num_completion)
    cached = 0 if checks and setting.scoring == "uncached" else request.num_cached + setting.shared
    read = request.num_sent + setting.shared - cached
    return read + prices.cached * cached + prices.written * request.num_completion
