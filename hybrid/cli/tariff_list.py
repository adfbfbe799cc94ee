"""What ``hybrid price --tariffs`` lists: the price file that ships, with what a typical question costs at each price.

The law (``tests/cli/test_tariff_list.py``): its bills are those of ``spend.Price``, its break-even is that of
``spend.CheckRates`` where checks read the cache, and every entry has an address and a day as its source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hybrid.spend import SHIPPED_TARIFFS, CheckRates, Price, PriceFile, as_percent, as_usd

# A question behind a page of context, long enough for one of today's two minimum prefixes, and a short answer.
PROMPT, ANSWER = 2000, 300


def tariffs_json() -> dict[str, Any]:
    """Return the shipped tariffs as plain data; amounts in nano-dollars."""
    entries = PriceFile.read(SHIPPED_TARIFFS).prices
    return {
        "file": str(SHIPPED_TARIFFS),
        "prompt_tokens": PROMPT,
        "answer_tokens": ANSWER,
        "tariffs": [_entry(endpoint, model, price) for (endpoint, model), price in entries.items()],
    }


def tariff_lines() -> list[str]:
    """Return the same for a person."""
    found = tariffs_json()
    lines = [
        "USD per million tokens: prompt/cached/cache writes/completion (three parts: writes cost what a prompt does).",
        f"Bills: {PROMPT} tokens and an answer of {ANSWER}. Checking: where drafts are scored, reading the cache.",
    ]
    for entry in found["tariffs"]:
        lines += ["", *_told(entry)]
    return [*lines, "", f"Copy what you need into your own price file, and check it there: {found['file']}"]


def _entry(endpoint: str, model: str, price: Price) -> dict[str, Any]:
    alone = price.cost(price.expected_usage(PROMPT, ANSWER))
    return {
        "endpoint": endpoint,
        "model": model,
        "price": str(price),
        "terms": price.terms,
        "source": price.source.removesuffix(" (price file)"),
        "cloud_only_nanousd": alone,
        "cloud_only_cached_nanousd": price.cost(price.expected_usage(PROMPT, ANSWER, PROMPT)),
        "cloud_only_batch_nanousd": None if price.batch is None else math.ceil(alone * price.batch),
        "break_even": CheckRates.of_price(price, keeps_cache=True).break_even(PROMPT + ANSWER / 2),
    }


def _told(entry: Mapping[str, Any]) -> list[str]:
    alone, cached = as_usd(entry["cloud_only_nanousd"]), as_usd(entry["cloud_only_cached_nanousd"])
    batch, least = entry["cloud_only_batch_nanousd"], entry["break_even"]
    bill = alone if alone == cached else f"{alone}, with its prompt cached {cached}"
    bill += "" if batch is None else f", by the batch API {as_usd(batch)}"
    pays = "never pays" if least is None else f"pays where {as_percent(least)} of the drafted tokens are kept"
    return [
        f"{entry['model']} at {entry['endpoint']}: {entry['price']}",
        *(f"  {term}" for term in entry["terms"]),
        f"  the cloud alone: {bill}; checking {pays}",
        f"  {entry['source']}",
    ]
