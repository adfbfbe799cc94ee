"""The price file: prices by endpoint and model, each with its source. Only the user writes it.

    [[price]]
    endpoint = "https://api.example.com/v1"
    model = "large-1"
    prompt = 1              # USD per million tokens
    cached_prompt = 0.1
    completion = 4
    source = "https://example.com/pricing, 2026-11-20"
    # what may be left out
    request = 0             # USD per request
    repeated = "cached"     # the tariff: uncached, cached or new; left out: as the server tells
    cache_write = 1.25      # a prompt token that is written to the cache; left out: as any other
    cache_min_tokens = 1024 # nothing is cached of a shorter prompt
    cache_lifetime_s = 300  # seconds after which the cache forgets what nobody read
    batch = 0.5             # of the price, by the provider's batch API, which hybrid does not use
    long_context = {above_tokens = 200000, prompt = 2, cached_prompt = 0.2, cache_write = 2.5, completion = 8}

The law: a price without a source is refused, and so is a file with two prices of one model at one endpoint, a cache
write below the prompt's price, and a long context that is cheaper (``tests/spend/test_price_file.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from urllib.parse import urlsplit

from hybrid.errors import UsageError
from hybrid.settings.names import complete_address
from hybrid.spend.price import NANOUSD_PER_USD, LongContext, Price, read_tariff, surcharge, usd_to_nanousd
from hybrid.store.files import read_regular

# Today's tariffs of some providers, as an example; nothing reads it by itself.
SHIPPED_TARIFFS = Path(__file__).with_name("tariffs.toml")
AMOUNTS = ("prompt", "cached_prompt", "completion")
WORDS = ("endpoint", "model", "source")
TARIFF = "repeated"
COUNTS = ("cache_min_tokens", "cache_lifetime_s")
FIELDS = (*WORDS, *AMOUNTS, "request", TARIFF, "cache_write", *COUNTS, "batch", "long_context")
# Beyond any context and any cache.
MOST_COUNT = 2**40
LONG = ("above_tokens", *AMOUNTS, "cache_write")


@dataclass(frozen=True)
class PriceFile:
    """Prices by endpoint and model."""

    path: Path
    prices: Mapping[tuple[str, str], Price]

    @classmethod
    def read(cls, path: Path) -> PriceFile:
        """Read a file. Raises UsageError, in one sentence, where it cannot be read or believed."""
        try:
            found = tomllib.loads(read_regular(path).decode(), parse_float=Decimal)
        except OSError as error:
            msg = f"the price file {path} cannot be read: {error.strerror}"
            raise UsageError(msg) from None
        except ValueError as error:  # neither TOML nor UTF-8
            msg = f"the price file {path}: {error}"
            raise UsageError(msg) from None
        except RecursionError:
            msg = f"the price file {path} is nested too deeply"
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
    _mind_names(entry, FIELDS, where)
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
    try:
        repeated = read_tariff(entry[TARIFF]) if TARIFF in entry else None
    except UsageError as error:
        msg = f"{where}: {TARIFF}: {error}"
        raise UsageError(msg) from None
    prompt, cached, completion = (_amount(entry, name, where) for name in AMOUNTS)
    price = Price(
        *(prompt, cached, completion, _amount(entry, "request", where, 0)),
        source=f"{entry['source'].strip()} (price file)",
        repeated=repeated,
        cache_write=_cache_write(entry, prompt, where),
        cache_min_tokens=_count(entry, "cache_min_tokens", where) or 0,
        cache_lifetime_s=_count(entry, "cache_lifetime_s", where),
        batch=_factor(entry, where),
        long_context=_long_context(entry, where),
    )
    _mind_long_context(price, where)
    return (endpoint, entry["model"]), price


def _mind_names(entry: Mapping[str, object], known: Sequence[str], where: str) -> None:
    if unknown := sorted(entry.keys() - set(known)):
        msg = f"{where}: there is no field called {unknown[0]}; there are {', '.join(known)}"
        raise UsageError(msg)


def _amount(entry: Mapping[str, object], name: str, where: str, left_out: int | None = None) -> int:
    value = entry.get(name, left_out)
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        msg = f"{where}: {name} is {'missing' if value is None else 'not an amount of USD'}"
        raise UsageError(msg)
    try:
        return usd_to_nanousd(str(value))
    except UsageError as error:
        msg = f"{where}: {name}: {error}"
        raise UsageError(msg) from None


def _cache_write(entry: Mapping[str, object], prompt: int, where: str) -> int | None:
    if "cache_write" not in entry:
        return None
    write = _amount(entry, "cache_write", where)
    if write < prompt:
        msg = f"{where}: cache_write is below prompt: a token that is written to the cache costs no less than another"
        raise UsageError(msg)
    return surcharge(write, prompt)


def _count(entry: Mapping[str, object], name: str, where: str) -> int | None:
    value = entry.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_COUNT):
        msg = f"{where}: {name} is not a whole number"
        raise UsageError(msg)
    return value


def _factor(entry: Mapping[str, object], where: str) -> Fraction | None:
    if "batch" not in entry:
        return None
    try:
        factor = Fraction(_amount(entry, "batch", where), NANOUSD_PER_USD)
    except UsageError:
        factor = Fraction(0)
    if not 0 < factor <= 1:
        msg = f"{where}: batch is not a factor above 0 and at most 1, as 0.5"
        raise UsageError(msg)
    return factor


def _long_context(entry: Mapping[str, object], where: str) -> LongContext | None:
    beyond = entry.get("long_context")
    if beyond is None:
        return None
    where = f"{where}, long_context"
    if not isinstance(beyond, Mapping):
        msg = f"{where}: not a table"
        raise UsageError(msg)
    _mind_names(beyond, LONG, where)
    above = _count(beyond, "above_tokens", where)
    if above is None:
        msg = f"{where}: above_tokens is missing"
        raise UsageError(msg)
    prompt, cached, completion = (_amount(beyond, name, where) for name in AMOUNTS)
    return LongContext(above, prompt, cached, completion, _cache_write(beyond, prompt, where))


def _mind_long_context(price: Price, where: str) -> None:
    """Refuse a long context that is cheaper: its worst case would not be that of every shorter prompt."""
    beyond = price.long_context
    if beyond is None:
        return
    here, there = price.at(beyond.above_tokens), price.at(beyond.above_tokens + 1)
    for name in (*AMOUNTS, "cache_write"):
        if _nanousd(there, name) < _nanousd(here, name):
            left_out = " (left out: as its prompt)" if name == "cache_write" and there.cache_write is None else ""
            msg = f"{where}, long_context: {name}{left_out} is below that of a shorter prompt"
            raise UsageError(msg)


def _nanousd(price: Price, name: str) -> int:
    return {
        "prompt": price.prompt,
        "cached_prompt": price.cached_prompt,
        "completion": price.completion,
        "cache_write": price.written_nanousd,
    }[name]
