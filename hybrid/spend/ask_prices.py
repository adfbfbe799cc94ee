"""What a check and a write would cost now, at one endpoint: a forecast in floats, for whoever chooses between them.

The law (``tests/spend/test_ask_prices.py``): for a request whose cached tokens are as forecast, the forecast is
``Price.cost`` up to its rounding, under every tariff; for the requests of the experiments it is their bill
(``lab/experiments/frame.py``). Only ratios matter to whoever compares: all prices times a number are the same
choice. The token before the first row that a request wants is computed in any case, whatever a cache holds; a session
(``new``) charges what it has not seen, nothing else. Knows no endpoint and no ledger: it takes plain numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.spend.price import MILLION, Price, Tariff

# The break-even of checking: how likely a drafted token must be kept for checks to be cheaper than the cloud alone.
#
# The law. If each drafted token is kept with the same chance p, a check of s of them brings ``E = (1 - p^s) / (1 - p)``
# tokens of text: those kept, and the one that corrects the first that is not; ``E`` of s + 1, where the cloud adds one
# after s that are kept. The cloud alone takes ``written`` for each. So checking pays where, for s (or for some s),
# ``reread * L + drafted * s + once < written * E``, with L tokens before the span (``tests/spend/test_break_even.py``,
# against a published table and a naive sum). What both read once, the prompt, is left out on either side. Knows no
# endpoint: rates are money or time, whatever the unit.

# The longest span that a setting allows.
LONGEST_SPAN = 256
# Halvings of the interval of p: what is left of it is beyond any display.
HALVINGS = 40


def tokens_shown(kept: float, num: int) -> NDArray[np.float64]:
    """Return how many tokens 1 to ``num`` are expected to show, each after the first if all before it were kept.

    ``kept``: the chance that a token is, in [0, 1]. Shape (num,): 1, 1 + kept, ... (Leviathan et al. 2023,
    arXiv:2211.17192, section 3.3).

    >>> tokens_shown(0.5, 3).tolist(), tokens_shown(1.0, 2).tolist(), tokens_shown(0.0, 2).tolist()
    ([1.0, 1.5, 1.75], [1.0, 2.0], [1.0, 1.0])
    """
    return np.cumsum(kept ** np.arange(num, dtype=np.float64))


class NextSpan(Protocol):
    """How many tokens are drafted after a span of ``num``, by whether a check has kept all of it."""

    def __call__(self, num: int, *, kept: bool) -> int:
        """Return the next span."""
        ...


@dataclass(frozen=True)
class Spans:
    """How many tokens are drafted before each check: ``first``, then as ``following`` says.

    ``bonus``: a check that keeps all of its span shows one token more.
    """

    first: int
    following: NextSpan = lambda num, *, kept: num  # noqa: ARG005
    bonus: bool = False

    def shares(self, kept: float) -> dict[int, float]:
        """Return lengths and how large a share of a long text's checks has each; tokens are kept with chance ``kept``.

        >>> Spans(8, lambda num, *, kept: 8 if kept else 4).shares(1.0)
        {8: 1.0, 4: 0.0}
        """
        shares: dict[int, float] = {self.first: 1.0}
        for _ in range(HALVINGS):
            after = defaultdict[int, float](float)
            for num, share in shares.items():
                for whole, chance in ((True, kept**num), (False, 1.0 - kept**num)):
                    after[self.following(num, kept=whole)] += share * chance
            shares = after
        return dict(shares)


@dataclass(frozen=True)
class CheckRates:
    """What a check takes beside a written token, all four in one unit of money or time, none negative.

    ``reread``: for each token before its span. ``drafted``: for each of its span. ``once``: for the check itself, the
    token that corrects it included. ``written``: for each token that the cloud writes by itself. ``longer``: from how
    many tokens before the span on other rates hold, shortest first: a cache that takes no shorter prompt, or a price of
    long contexts.
    """

    reread: float
    drafted: float
    once: float
    written: float
    longer: tuple[tuple[int, CheckRates], ...] = ()

    @classmethod
    def of_price(cls, price: Price, *, keeps_cache: bool | None = None, in_one_request: bool = True) -> CheckRates:
        """Return a price's rates, in nano-dollars a token.

        Where the price states no tariff, what is repeated is cached if the endpoint's checks read its cache
        (``keeps_cache``), else charged in full.

        >>> CheckRates.of_price(Price.parse("1/0.1/4:cached"))
        CheckRates(reread=100.0, drafted=1000.0, once=4000.0, written=4000.0, longer=())
        """
        if price.free:
            return cls(0.0, 0.0, 0.0, 0.0)
        return AskPrices.of(price, keeps_cache=keeps_cache, in_one_request=in_one_request).check_rates

    def at(self, num_before: float) -> CheckRates:
        """Return the rates of a check after so many tokens."""
        return next((rates for start, rates in reversed(self.longer) if num_before >= start), self)

    def pays(self, kept: float, num_before: float, spans: Spans | None = None) -> bool:
        """Whether checking is cheaper than the cloud alone over a long text, if tokens are kept with chance ``kept``.

        ``num_before``: L, the tokens before a span, on average. ``spans`` None: all of one length, the best.
        """
        rates, bonus = self.at(num_before), spans is not None and spans.bonus
        shares = dict.fromkeys(range(1, LONGEST_SPAN + 1), 1.0) if spans is None else spans.shares(kept)
        lengths = np.array(list(shares))
        checked = rates.reread * num_before + rates.drafted * lengths + rates.once
        saved = (rates.written * tokens_shown(kept, max(shares) + 1)[lengths - 1 + bonus] - checked) * [
            *shares.values()
        ]
        return bool((saved.max() if spans is None else saved.sum()) > 0.0)

    def break_even(self, num_before: float, spans: Spans | None = None) -> float | None:
        """Return the least chance of being kept at which checking pays, in [0, 1); None: it never does.

        >>> round(CheckRates(reread=0.1, drafted=1, once=4, written=4).break_even(70), 3)
        0.843
        """
        pays = partial(self.pays, num_before=num_before, spans=spans)
        if not pays(1.0):
            return None
        if pays(0.0):
            return 0.0
        never, always = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (never + always) / 2
            if pays(middle):
                always = middle
            else:
                never = middle
        return always


def as_percent(share: float) -> str:
    """Write a share as a user reads it; one that is less than all is never written as all.

    >>> as_percent(0.8434), as_percent(0.99999), as_percent(1.0)
    ('84.3 %', '99.9 %', '100 %')
    """
    return f"{share * 100 if share == 1.0 else min(99.9, share * 100):.3g} %"


Count: TypeAlias = float | NDArray[np.float64]
"""A number of tokens, or an array of them: what is priced has its shape."""
AskUnit: TypeAlias = Literal["nanousd", "ms", "tokens"]
"""What the prices count: money, time, or prompt tokens where neither is known."""

# What a token costs beside one that is read, where nobody knows better: the ratio of most price lists.
READ, CACHED, WRITTEN = 1.0, 0.1, 4.0


class TokenTimes(NamedTuple):
    """What was measured of an endpoint, in milliseconds a token: written, scored, and before a check's span.

    ``check_ms``: a check beside all of these. ``reread_ms`` None: not measured.
    """

    written_ms: float
    scored_ms: float
    reread_ms: float | None
    check_ms: float


@dataclass(frozen=True)
class AskPrices:
    """Prices of one endpoint, a token each, in ``unit``.

    ``fresh``, ``cached``, ``written``: a prompt token that is computed, one that the cache gives, one that is
    written. ``request``: each request. ``scoring``: what is charged of a check's prompt, as a tariff. ``closing``: the
    token that a check must write. ``in_one_request``: how a draft is scored; by any other method each of its tokens
    costs what a written one does, at least. ``shared``: so many first tokens of the prompt are known to be cached, by
    earlier questions. ``in_front``: cached tokens in front of the prompt that its count leaves out. ``note``: what a
    user is told where these are no prices of money. ``cache_min_tokens``: no fewer first tokens are cached.
    ``longer``: from which length of a request's prompt on other prices hold, shortest first; what is not cached is
    taken as written to the cache, where that has a price.
    """

    fresh: float = READ
    cached: float = CACHED
    written: float = WRITTEN
    request: float = 0.0
    scoring: Tariff = "uncached"
    closing: float = WRITTEN
    in_one_request: bool = True
    shared: int = 0
    in_front: int = 0
    unit: AskUnit = "tokens"
    note: str | None = field(default=None, compare=False)
    cache_min_tokens: int = 0
    longer: tuple[tuple[int, AskPrices], ...] = ()

    @classmethod
    def of(
        cls,
        price: Price | None,
        *,
        keeps_cache: bool | None = None,
        in_one_request: bool = True,
        tells_cache: bool = True,
        times: TokenTimes | None = None,
        shared: int = 0,
    ) -> AskPrices:
        """Return what asking costs at a price; where that is free or unknown, by measured times, else as 1 : 0.1 : 4.

        ``keeps_cache``: checks read the prefix cache. ``tells_cache``: cached tokens are told. Money is charged less
        for what is told, or for what a tariff says is repeated; time is saved by a cache whether it is told or not.

        >>> float(AskPrices.of(Price.parse("1/0.1/4:cached")).check(50, 8, 20))
        44000.0
        >>> AskPrices.of(None).note
        'the price is not known: choices are made as if tokens read, cached and written cost 1 : 0.1 : 4'
        """
        scoring = (price.repeated if price else None) or ("cached" if keeps_cache else "uncached")
        more: dict[str, Any] = {"scoring": scoring, "in_one_request": in_one_request, "shared": shared}
        if price is not None and not price.free:
            more["shared"] = shared if tells_cache else 0  # a tariff speaks of what the same answer repeats
            told = tells_cache or price.repeated in {"cached", "new"}
            first, *longer = [
                (start, cls._of_band(each, more, caches=caches, told=told)) for start, each, caches in price.bands()
            ]
            return replace(first[1], longer=tuple(longer))
        unpriced = "the price is not known" if price is None else "nothing is charged"
        if times is None:
            ratio = f"{READ:g} : {CACHED:g} : {WRITTEN:g}"
            note = f"{unpriced}: choices are made as if tokens read, cached and written cost {ratio}"
            return cls(closing=0.0 if scoring == "new" else WRITTEN, note=note, **more)
        return cls._of_times(times, unpriced, more)

    @classmethod
    def _of_band(cls, price: Price, more: dict[str, Any], *, caches: bool, told: bool) -> AskPrices:
        """Return the prices where a prompt is long enough to be cached and written, or is not (``caches``)."""
        fresh, written = (price.written_nanousd if caches else price.prompt) / MILLION, price.completion / MILLION
        cached = price.cached_prompt / MILLION if told and caches else fresh
        closing, scoring = 0.0 if more["scoring"] == "new" else written, more["scoring"]
        more = more | {"scoring": "uncached" if scoring == "cached" and not caches else scoring}
        least = price.cache_min_tokens
        return cls(
            fresh,
            cached,
            written,
            float(price.request),
            closing=closing,
            unit="nanousd",
            cache_min_tokens=least,
            **more,
        )

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> AskPrices:
        """Read what ``dataclasses.asdict`` and JSON made of prices. Raises TypeError or ValueError for other shapes."""
        longer = tuple((int(start), cls.from_json(each)) for start, each in kept.get("longer", ()))
        return cls(**{**kept, "longer": longer})

    @classmethod
    def _of_times(cls, times: TokenTimes, unpriced: str, more: dict[str, Any]) -> AskPrices:
        """Take a check's own time, which holds the token that it writes, as that of any request."""
        written, scored, reread, request = times
        if more["scoring"] != "new" and reread is not None:
            more["scoring"] = "cached" if reread < scored / 2 else "uncached"
        cached = reread if more["scoring"] == "cached" and reread is not None else CACHED * scored
        note = (
            f"{unpriced}: choices are made by the time that was measured, {scored:.3g} ms a scored token and "
            f"{written:.3g} ms a written one"
        )
        return cls(scored, cached, written, request, closing=0.0, unit="ms", note=note, **more)

    def check(self, prefix: Count, span: Count, known: Count) -> Count:
        """Return the price of scoring ``span`` tokens after ``prefix`` tokens of prompt and answer.

        ``known``: so many first ones of the prefix this answer has sent or had written; 0: it has asked nothing.
        """
        price = self._check(prefix, span, known)
        for start, prices in self.longer:
            price = np.where(np.asarray(prefix + span) >= start, prices._check(prefix, span, known), price)
        return price

    def write(self, prompt: Count, limit: Count, known: Count) -> Count:
        """Return the price of ``limit`` tokens written after ``prompt`` tokens of prompt and answer."""
        price = self._write(prompt, limit, known)
        for start, prices in self.longer:
            price = np.where(np.asarray(prompt) >= start, prices._write(prompt, limit, known), price)
        return price

    @property
    def check_rates(self) -> CheckRates:
        """What checking takes beside writing; in a session the token that corrects is the next request's to read."""
        reread = {"uncached": self.fresh, "cached": self.cached, "new": 0.0}[self.scoring]
        correcting = self.fresh if self.scoring == "new" else self.closing
        longer = tuple((start, prices.check_rates) for start, prices in self.longer)
        return CheckRates(reread, self._drafted, correcting + self.request, self.written, longer)

    @property
    def _drafted(self) -> float:
        return self.fresh if self.in_one_request else max(self.fresh, self.written)

    def _check(self, prefix: Count, span: Count, known: Count) -> Count:
        read = self.fresh * (self.in_front + prefix) if self.scoring == "uncached" else self._read(prefix, known)
        return read + self._drafted * span + self.closing + self.request

    def _write(self, prompt: Count, limit: Count, known: Count) -> Count:
        return self._read(prompt, known) + self.written * limit + self.request

    def _read(self, tokens: Count, known: Count) -> Count:
        """Return the price of a prompt whose cache is read."""
        most = tokens if self.scoring == "new" else tokens - 1
        if self.scoring == "new":  # a session gives all that it has seen; the rest is a cache's
            kept: Count = np.maximum(np.minimum(known, most), self._if_cached(np.minimum(self.shared, most)))
        else:
            kept = self._if_cached(np.minimum(np.maximum(known, self.shared), most))
        cached: Count = self.in_front + np.maximum(kept, 0)
        if self.scoring == "new":  # what this answer has sent costs nothing again
            cached = np.where(np.asarray(known) > 0, kept - np.minimum(known, tokens), cached)
        return self.cached * cached + self.fresh * (tokens - np.maximum(kept, 0))

    def _if_cached(self, tokens: Count) -> Count:
        """Return so many first tokens where a cache takes so few, else 0."""
        return np.where(np.asarray(tokens) >= self.cache_min_tokens, tokens, 0) if self.cache_min_tokens else tokens
