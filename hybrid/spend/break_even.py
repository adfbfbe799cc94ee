"""The break-even of checking: how likely a drafted token must be kept for checks to be cheaper than the cloud alone.

The law. If each drafted token is kept with the same chance p, a check of s of them brings ``E = (1 - p^s) / (1 - p)``
tokens of text: those kept, and the one that corrects the first that is not. The cloud alone takes ``written`` for each
of them. So checking pays where, for some s, ``reread * L + drafted * s + once < written * E``, with L tokens before the
span (``tests/spend/test_break_even.py``, against a published table and a naive sum). What both read once, the prompt,
is left out on either side. Knows no endpoint: rates are money or time, whatever the unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybrid.spend.price import MILLION, Price, Tariff

# The longest span that a setting allows.
LONGEST_SPAN = 256
# Halvings of the interval of p: what is left of it is beyond any display.
HALVINGS = 40


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
    def of_price(cls, price: Price, *, keeps_cache: bool | None = None) -> CheckRates:
        """Return a price's rates, in nano-dollars per million tokens, for checks in one request.

        Where the price states no tariff, what is repeated is cached if the endpoint's checks read its cache
        (``keeps_cache``), else charged in full. Under ``new`` the token that corrects is charged as the prompt token
        that it is in the next request.

        >>> CheckRates.of_price(Price.parse("1/0.1/4:cached"))
        CheckRates(reread=100000000, drafted=1000000000, once=4000000000, written=4000000000, longer=())
        """
        tariff = price.repeated or ("cached" if keeps_cache else "uncached")
        first, *longer = [(start, cls._of_band(each, tariff, caches=caches)) for start, each, caches in price.bands()]
        return replace(first[1], longer=tuple(longer))

    @classmethod
    def _of_band(cls, price: Price, tariff: Tariff, *, caches: bool) -> CheckRates:
        """Return the rates where a prompt is long enough to be cached and written, or is not."""
        fresh = price.written_nanousd if caches else price.prompt
        reread = {"uncached": fresh, "cached": price.cached_prompt if caches else fresh, "new": 0}[tariff]
        correcting = fresh if tariff == "new" else price.completion
        return cls(reread, fresh, correcting + price.request * MILLION, price.completion)

    def at(self, num_before: float) -> CheckRates:
        """Return the rates of a check after so many tokens."""
        return next((rates for start, rates in reversed(self.longer) if num_before >= start), self)

    def by_method(self, *, in_one_request: bool) -> CheckRates:
        """Return the rates of an endpoint's way to score.

        By any other than one request a draft is written or sent in parts: each of its tokens costs what a written one
        does, at least.
        """
        if in_one_request:
            return self
        longer = tuple((start, rates.by_method(in_one_request=False)) for start, rates in self.longer)
        return replace(self, drafted=max(self.drafted, self.written), longer=longer)

    def pays(self, kept: float, num_before: float, longest: int = LONGEST_SPAN) -> bool:
        """Whether checking is cheaper than the cloud alone, at the best span, if tokens are kept with chance ``kept``.

        ``num_before``: L, the tokens before a span, on average. ``longest``: no span is longer.
        """
        rates, tokens, chance = self.at(num_before), 0.0, 1.0
        for span in range(1, min(longest, LONGEST_SPAN) + 1):
            tokens, chance = tokens + chance, chance * kept
            if rates.reread * num_before + rates.drafted * span + rates.once < rates.written * tokens:
                return True
        return False

    def break_even(self, num_before: float, longest: int = LONGEST_SPAN) -> float | None:
        """Return the least chance of being kept at which checking pays, in [0, 1); None: it never does.

        >>> round(CheckRates(reread=0.1, drafted=1, once=4, written=4).break_even(70), 3)
        0.843
        """
        if not self.pays(1.0, num_before, longest):
            return None
        if self.pays(0.0, num_before, longest):
            return 0.0
        never, always = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (never + always) / 2
            if self.pays(middle, num_before, longest):
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
