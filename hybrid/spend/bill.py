"""The bill of one answer, beside the bill the cloud alone would have had for it."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.spend.price import NANOUSD_PER_USD, Price, as_usd
from hybrid.types import CloudUsage


@dataclass(frozen=True)
class Bill:
    """Nano-dollars; None where the price is not known, which is not zero.

    The cloud alone would have read the prompt and written the text, and what ends it, in one request: with nothing of
    its prompt cached (and all of it written to the cache, where that has a price), or, at the least, with all of it,
    where it is long enough to be cached. ``price_source`` says who stated the price.
    """

    nanousd: int | None
    cloud_only_nanousd: int | None
    cloud_only_cached_nanousd: int | None = None
    price_source: str | None = None

    @property
    def usd(self) -> float | None:
        """USD, for display and plots; None where the price is not known. Exact sums are taken of ``nanousd``."""
        return None if self.nanousd is None else self.nanousd / NANOUSD_PER_USD

    @property
    def times_cloud_only(self) -> float | None:
        """How many times the bill of the cloud alone it is; None where one is unknown, or the cloud's is nothing."""
        return self.nanousd / self.cloud_only_nanousd if self.nanousd is not None and self.cloud_only_nanousd else None

    def __str__(self) -> str:
        """Say all of them in USD."""
        if self.nanousd is None:
            return "cost unknown: no price was stated"
        alone, cached = as_usd(self.cloud_only_nanousd), as_usd(self.cloud_only_cached_nanousd)
        if self.cloud_only_cached_nanousd is None or alone == cached:
            return f"{as_usd(self.nanousd)} (the cloud alone: {alone})"
        return f"{as_usd(self.nanousd)} (the cloud alone: {alone}, with its prompt cached {cached})"


def bill(price: Price | None, requests: list[CloudUsage], prompt_tokens: int, answer_tokens: int) -> Bill:
    """Add up the requests of one answer; the cloud alone would have taken one request for the same text.

    Without a price the bill is unknown, unless nothing was asked: that costs nothing at any price.
    """
    if price is None:
        return Bill(None if requests else 0, None)
    alone = price.expected_usage(prompt_tokens, answer_tokens)
    cached = price.expected_usage(prompt_tokens, answer_tokens, prompt_tokens)
    return Bill(sum(map(price.cost, requests)), price.cost(alone), price.cost(cached), price.source)


def as_times(ratio: float | None) -> str:
    """Write a ratio as a user reads it; None is unknown.

    >>> as_times(5.139), as_times(1.0), as_times(67.4)
    ('5.1 times', '1.0 times', '67 times')
    """
    return "unknown times" if ratio is None else f"{ratio:.{1 if ratio < 10 else 0}f} times"
