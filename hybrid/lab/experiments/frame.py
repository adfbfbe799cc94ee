"""What recorded answers would cost under any tariff, and what arms recover and pay beside both models alone.

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

A recovered share is a share of the gap between both models alone, in right answers (RPI) or in a loss: one functional
of two columns. Values and intervals are those of one bootstrap, all that is known of a question drawn together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from hybrid.engine import num_shared
from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.served import NEAR_TIE_NATS
from hybrid.lab.experiments.world import RecordedRequest
from hybrid.prob import Floats
from hybrid.record.events import RequestKind
from hybrid.spend import AskPrices
from hybrid.tasks.statistics import Resamples, cheapest_bill, estimate, loss_shares

Scoring: TypeAlias = Literal["uncached", "cached", "new"]


@dataclass(frozen=True)
class CacheAssumption:
    """What is cached: ``shared`` tokens in front of every question, and what is charged of a check's prompt."""

    name: str
    scoring: Scoring
    shared: int = 0


SETTINGS = (
    CacheAssumption("U", "uncached"),
    CacheAssumption("C", "cached"),
    CacheAssumption("S", "cached", 500),
    CacheAssumption("SU", "uncached", 500),
    CacheAssumption("new", "new"),
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


def ask_prices(setting: CacheAssumption, prices: TokenPrices) -> AskPrices:
    """Return what a client would decide by in a setting, in prompt tokens."""
    closing = 0.0 if setting.scoring == "new" else prices.written
    return AskPrices(
        1.0, prices.cached, prices.written, scoring=setting.scoring, closing=closing, in_front=setting.shared
    )


class CountedRequest(NamedTuple):
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


def cost(requests: Sequence[CountedRequest], setting: CacheAssumption, prices: TokenPrices) -> float:
    """Return what the requests of one answer cost, in prompt tokens.

    >>> check = CountedRequest("check", num_sent=50, num_scored=8, num_known=20, num_completion=1)
    >>> [cost([check], setting, PRICES[0]) for setting in SETTINGS]
    [54.0, 36.0, 86.0, 554.0, 30.0]
    """
    return sum(_cost(request, setting, prices) for request in requests)


def _cost(request: CountedRequest, setting: CacheAssumption, prices: TokenPrices) -> float:
    checks = request.kind == "check"
    if setting.scoring == "new":
        return request.num_sent - request.num_known + prices.written * (0 if checks else request.num_completion)
    cached = 0 if checks and setting.scoring == "uncached" else request.num_cached + setting.shared
    read = request.num_sent + setting.shared - cached
    return read + prices.cached * cached + prices.written * request.num_completion


@cache
def recorded_cost(requests: tuple[tuple[Any, ...], ...], setting: CacheAssumption, prices: TokenPrices) -> float:
    """Return what recorded requests cost: a problem has some ten outcomes, and hundreds of dials lead to them."""
    return cost([CountedRequest(*sent) for sent in requests], setting, prices)


Answers: TypeAlias = Sequence[Mapping[str, Any]]
"""One arm's answers to N questions, in their order, from the records."""


def answers_of(records: Sequence[Mapping[str, Any]], arm: str) -> Answers:
    """Return an arm's answers."""
    return [record["arms"][arm] for record in records]


def cloud_share(answers: Answers) -> float:
    """Return the share of the shown tokens that the cloud wrote."""
    shown = sum(each["tokens"] for each in answers)
    return round(float(sum(each["cloud_tokens"] for each in answers) / max(1, shown)), 4)


def column(answers: Answers, name: str) -> Floats:
    """Return a number of each answer, shape (N,)."""
    return np.array([each[name] for each in answers], dtype=np.float64)


def bills(answers: Answers, setting: CacheAssumption, prices: TokenPrices = PRICES[0]) -> Floats:
    """Return what each answer cost in prompt tokens, shape (N,)."""
    told = [recorded_cost(tuple(map(tuple, each["requests"])), setting, prices) for each in answers]
    return np.array(told, dtype=np.float64)


Ways: TypeAlias = tuple[Floats, Floats]
"""Recovered shares and bills of the dials of a rule, shape (K, 1 + R) each, the data themselves in the first column."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Both models alone on N questions: what is recovered, and paid, is told beside these. R resamples.

    ``local``, ``cloud``: what each scores, shape (N,), the higher the better: a loss has its sign turned. ``alone``:
    the cloud's bills, shape (N,).
    """

    local: Floats
    cloud: Floats
    alone: Floats

    @cached_property
    def clear(self) -> bool:
        """Whether the gap between both models is above what chance alone makes of it."""
        return bool(np.isfinite(loss_shares(self.resamples, -self.local, -self.cloud, -self.cloud)[0]))

    @cached_property
    def resamples(self) -> Resamples:
        """The questions, drawn again: the same ones for every frame of so many."""
        return resampled(len(self.alone))

    def shares(self, scores: Floats) -> Floats:
        """Return the recovered share, shape (..., N) -> (..., 1 + R)."""
        return self.resamples.shares(self.local, scores, self.cloud)

    def ratios(self, paid: Floats) -> Floats:
        """Return bills as multiples of the cloud's own, shape (..., N) -> (..., 1 + R)."""
        return paid_ratio(paid, self.alone)

    def ways(self, scores: Floats, paid: Floats) -> Ways:
        """Return shares and bills of K dials, shapes (K, N) -> (K + 2, 1 + R), both models alone as the last two."""
        every = np.vstack([scores, self.local, self.cloud])
        return self.shares(every), self.ratios(np.vstack([paid, np.zeros_like(self.alone), self.alone]))


@lru_cache(maxsize=4)
def resampled(num: int) -> Resamples:
    """Return questions drawn again."""
    return Resamples(num)


def paid_ratio(paid: Floats, alone: Floats) -> Floats:
    """Return bills as multiples of the cloud's own, shapes (..., N), (N,) -> (..., 1 + R)."""
    draws = resampled(len(alone))
    ratios: Floats = draws.sums(paid) / draws.sums(alone)
    return ratios


def told(columns: Floats) -> dict[str, float | None]:
    """Return a value with its interval for JSON."""
    return estimate_to_json(estimate(columns))


def told_bills(ways: Ways, wanted: Sequence[float]) -> dict[str, dict[str, float | None]]:
    """Return the bill at each wanted share with the dial swept, two dials mixed by a coin."""
    return {f"{share:g}": told(cheapest_bill(*ways, share)) for share in wanted}


def rounded(number: float | None) -> float | None:
    """Round for JSON."""
    return None if number is None else round(number, 4)


def agreement(checked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the answers that the client over the bundled server wrote again, and how they differ."""
    same = [each for each in checked if each["text"] and each["requests"] and each["bill"]]
    other_text = [each for each in checked if not each["text"]]
    near = [each for each in other_text if each["greedy"] and each["gap"] < NEAR_TIE_NATS]
    return {
        "answers": len(checked),
        "same": len(same),
        "other_requests": len(checked) - len(same) - len(other_text),
        "other_text": len(other_text),
        "other_text_greedy": sum(each["greedy"] for each in other_text),
        "other_text_greedy_at_a_near_tie": len(near),
        "differences": [each for each in checked if each not in same],
    }
