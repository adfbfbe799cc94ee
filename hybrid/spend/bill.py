"""The bill of one answer, beside the bill the cloud alone would have had for it."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.spend.price import Price, as_usd
from hybrid.types import CloudUsage


@dataclass(frozen=True)
class Bill:
    """Nano-dollars; None where the price is not known, which is not zero."""

    nanousd: int | None
    cloud_only_nanousd: int | None

    def __str__(self) -> str:
        """Say both in USD."""
        if self.nanousd is None:
            return "cost unknown: no price was stated"
        return f"{as_usd(self.nanousd)} (the cloud alone: {as_usd(self.cloud_only_nanousd)})"


def bill(price: Price | None, requests: list[CloudUsage], prompt_tokens: int, answer_tokens: int) -> Bill:
    """Add up the requests of one answer; the cloud alone would have taken one request for the same text, uncached."""
    if price is None:
        return Bill(None, None)
    return Bill(sum(map(price.cost, requests)), price.cost(CloudUsage(prompt_tokens, answer_tokens)))
