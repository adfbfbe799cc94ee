"""What a request costs, as far as it is known before the endpoint is asked."""

from __future__ import annotations

from hybrid.config import Settings
from hybrid.model_names import NAMED
from hybrid.sources import price_file
from hybrid.spend import Price, PriceFile

# The bundled server is a process of ours on this machine: nobody sends a bill for it.
OWN = Price(0, 0, 0, source="the bundled server runs on this machine")


def known_price(settings: Settings) -> tuple[Price | None, PriceFile | None]:
    """Return the price, if it is known before the endpoint is asked, and else the file that may hold it."""
    if settings.price:
        return Price.parse(settings.price), None
    if settings.cloud is None or settings.cloud in NAMED:
        return OWN, None
    path = price_file(settings)
    prices = PriceFile.read(path) if path else None
    return (prices.price(settings.cloud, settings.cloud_model) if prices and settings.cloud_model else None), prices
