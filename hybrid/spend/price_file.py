"""The price file: prices by endpoint and model, each with its source. Only the user writes it.

    [[price]]
    endpoint = "https://api.example.com/v1"
    model = "large-1"
    prompt = 1              # USD per million tokens
    cached_prompt = 0.1
    completion = 4
    request = 0             # USD per request; may be left out
    repeated = "cached"     # the tariff: uncached, cached or new; left out: as the server tells
    source = "https://example.com/pricing, 2026-11-20"

The law: a price without a source is refused, and so is a file with two prices of one model at one endpoint
(``tests/spend/test_price_file.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

from hybrid.endpoint_address import complete_address
from hybrid.errors import UsageError
from hybrid.spend.price import Price, read_tariff, usd_to_nanousd

AMOUNTS = ("prompt", "cached_prompt", "completion", "request")
WORDS = ("endpoint", "model", "source")
TARIFF = "repeated"


@dataclass(frozen=True)
class PriceFile:
    """Prices by endpoint and model."""

    path: Path
    prices: Mapping[tuple[str, str], Price]

    @classmethod
    def read(cls, path: Path) -> PriceFile:
        """Read a file. Raises UsageError, in one sentence, where it cannot be read or believed."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        except OSError as error:
            msg = f"the price file {path} cannot be read: {error.strerror}"
            raise UsageError(msg) from None
        except ValueError as error:  # neither TOML nor UTF-8
            msg = f"the price file {path}: {error}"
            raise UsageError(msg) from None
        entries = found.pop("price", [])
        if found or not isinstance(entries, list):
            msg = f"the price file {path} holds something else than [[price]] entries: {', '.join(found) or 'price'}"
            raise UsageError(msg)
        prices: dict[tuple[str, str], Price] = {}
        for number, entry in enumerate(entries, start=1):
            key, price = _entry(entry, f"the price file {path}, entry {number}")
            if key in prices:
                msg = f"the price file {path} has two prices for {key[1]} at {key[0]}"
                raise UsageError(msg)
            prices[key] = price
        return cls(path, prices)

    def price(self, endpoint: str, model: str) -> Price | None:
        """Return the price of a model at an endpoint (a URL as users write it); None if the file has none."""
        return self.prices.get((endpoint_id(endpoint), model))


def endpoint_id(url: str) -> str:
    """Return the name of an endpoint in price files and ledgers.

    >>> endpoint_id("https://user:word@API.example.com:443/v1/"), endpoint_id("http://gpu:8000")
    ('https://api.example.com', 'http://gpu:8000')
    >>> endpoint_id("localhost:8000")
    'http://localhost:8000'
    """
    parts = urlsplit(complete_address(url))
    default = {"https": 443, "http": 80}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = "" if parts.port in {None, default} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/').removesuffix('/v1')}"


def _entry(entry: object, where: str) -> tuple[tuple[str, str], Price]:
    if not isinstance(entry, dict):
        msg = f"{where}: not a table"
        raise UsageError(msg)
    if unknown := sorted(entry.keys() - {*AMOUNTS, *WORDS, TARIFF}):
        msg = f"{where}: there is no field called {unknown[0]}; there are {', '.join((*WORDS, *AMOUNTS, TARIFF))}"
        raise UsageError(msg)
    for word in WORDS:
        if not (isinstance(entry.get(word), str) and entry[word].strip()):
            needed = 'a price needs a source, for instance source = "https://example.com/pricing, 2026-11-20"'
            msg = f"{where}: {needed if word == 'source' else f'{word} is missing'}"
            raise UsageError(msg)
    try:
        endpoint = endpoint_id(entry["endpoint"])
    except ValueError:  # a port that is no number
        msg = f"{where}: {entry['endpoint']!r} is not an endpoint's address"
        raise UsageError(msg) from None
    amounts = {name: _amount(entry, name, where) for name in AMOUNTS}
    try:
        repeated = read_tariff(entry[TARIFF]) if TARIFF in entry else None
    except UsageError as error:
        msg = f"{where}: {TARIFF}: {error}"
        raise UsageError(msg) from None
    price = Price(**amounts, source=f"{entry['source'].strip()} (price file)", repeated=repeated)
    return (endpoint, entry["model"]), price


def _amount(entry: Mapping[str, object], name: str, where: str) -> int:
    value = entry.get(name, 0 if name == "request" else None)
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        msg = f"{where}: {name} is {'missing' if value is None else 'not an amount of USD'}"
        raise UsageError(msg)
    try:
        return usd_to_nanousd(str(value))
    except UsageError as error:
        msg = f"{where}: {name}: {error}"
        raise UsageError(msg) from None
