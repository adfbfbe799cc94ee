"""``hybrid price --tariffs``: a price file that ships, readable as any other, each price with its source."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cases import each_of
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.spend import SHIPPED_TARIFFS, PriceFile
from hybrid.types import CloudUsage

SOURCE = re.compile(r"https://\S+.* 20\d\d-\d\d-\d\d")


def listed(*args):
    done = CliRunner().invoke(app, ["price", "--tariffs", *args], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_every_shipped_price_has_an_address_and_a_day_and_ships_in_the_package():
    prices = PriceFile.read(SHIPPED_TARIFFS).prices
    assert SHIPPED_TARIFFS.is_relative_to(Path(hybrid.__file__).parent)
    assert len(prices) >= 5
    for price in each_of(prices.values()):
        assert SOURCE.match(price.source)
        assert 0 < price.cached_prompt < price.prompt <= price.written_nanousd < price.completion


def test_a_price_of_cache_writes_is_reserved_for_a_prompt_that_nobody_has_cached():
    """What was too low by a quarter: an uncached prompt that the provider writes to its cache."""
    price = PriceFile.read(SHIPPED_TARIFFS).price("https://api.openai.com", "gpt-6.2-sol")
    written = price.cost(CloudUsage(2000, 0, cache_write_tokens=2000))
    assert written == price.worst_case(2000, 0) == 5_000_000
    assert price.worst_case(272_000, 0) == 272_000 * 2_500
    assert price.worst_case(272_001, 0) == 272_001 * 5_000, "above, the whole request is double"


def test_the_list_tells_bills_the_batch_api_and_from_where_on_checking_pays():
    found = json.loads(listed("--json"))
    sol = next(each for each in found["tariffs"] if each["model"] == "gpt-6.2-sol")
    assert (found["prompt_tokens"], found["answer_tokens"]) == (2000, 300)
    assert sol["cloud_only_nanousd"] == 2000 * 2500 + 300 * 10_000
    assert sol["cloud_only_cached_nanousd"] == 2000 * 100 + 300 * 10_000
    assert sol["cloud_only_batch_nanousd"] == sol["cloud_only_nanousd"] // 2
    assert 0.9 < sol["break_even"] < 1.0
    neon = next(each for each in found["tariffs"] if each["model"] == "Gemini 4 Neon")
    assert neon["cloud_only_nanousd"] == neon["cloud_only_cached_nanousd"], "2,000 tokens are below its minimum prefix"
    text = listed()
    for entry in each_of(found["tariffs"]):
        assert f"{entry['model']} at {entry['endpoint']}: {entry['price']}" in text
        assert entry["source"] in text


def test_a_question_beside_the_list_is_refused():
    done = CliRunner().invoke(app, ["price", "--tariffs", "Why?"])
    assert done.exit_code == 2
    assert "--tariffs takes no question" in done.stderr
