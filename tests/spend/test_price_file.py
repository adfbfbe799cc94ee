"""What stands in a price file is read exactly, and what is not said in it is not guessed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from cases import each

from hybrid.errors import UsageError
from hybrid.spend import LongContext, Price, PriceFile, endpoint_id

ENTRY = """
[[price]]
endpoint = "https://api.example.com/v1/"
model = "large-1"
prompt = 0.15
cached_prompt = "0.0375"
completion = 1
source = "https://example.com/pricing, 2026-11-20"
"""


@pytest.fixture
def read(tmp_path):
    """Read a price file of some text."""

    def read(text):
        path = tmp_path / "prices.toml"
        path.write_text(text, encoding="utf-8")
        return PriceFile.read(path)

    return read


def test_a_price_is_found_by_endpoint_and_model(read):
    prices = read(ENTRY)
    price = prices.price("https://api.example.com", "large-1")
    assert price == Price(150_000_000, 37_500_000, 1_000_000_000, 0)
    assert price.source == "https://example.com/pricing, 2026-11-20 (price file)"
    assert prices.price("https://api.example.com", "large-2") is None
    assert prices.price("http://api.example.com", "large-1") is None
    assert prices.price("https://api.example.com:8443/v1", "large-1") is None


def test_a_request_may_have_a_price_of_its_own(read):
    assert read(ENTRY + "request = 0.002").price("https://api.example.com", "large-1").request == 2_000_000


TERMS = """
cache_write = 0.1875
cache_min_tokens = 1024
cache_lifetime_s = 300
batch = 0.5
long_context = {above_tokens = 272000, prompt = 0.3, cached_prompt = 0.075, cache_write = 0.375, completion = 2}
"""


def test_every_term_of_todays_tariffs_is_read_exactly(read):
    price = read(ENTRY + TERMS).price("https://api.example.com", "large-1")
    assert price == Price(
        *(150_000_000, 37_500_000, 1_000_000_000, 0),
        cache_write=187_500_000,
        cache_min_tokens=1024,
        cache_lifetime_s=300,
        batch=Fraction(1, 2),
        long_context=LongContext(272_000, 300_000_000, 75_000_000, 2_000_000_000, 375_000_000),
    )
    assert price.terms == [
        "nothing is cached of a prompt below 1024 tokens",
        "the cache forgets a prompt after 300 s",
        "0.3/0.075/0.375/2 for a request with more than 272000 prompt tokens",
        "0.5 of it by the provider's batch API",
    ]
    assert read(ENTRY).price("https://api.example.com", "large-1").terms == []
    assert read(ENTRY + "cache_write = 0.15").price("https://api.example.com", "large-1").cache_write is None


@each(
    ("line", "said"),
    [
        ("cache_write = 0.1", "entry 1: cache_write is below prompt"),
        ("cache_write = 'dear'", "cache_write: 'dear' is not an amount"),
        ("cache_min_tokens = 1.5", "cache_min_tokens is not a whole number"),
        ("cache_min_tokens = -1", "cache_min_tokens is not a whole number"),
        ("cache_lifetime_s = '5 min'", "cache_lifetime_s is not a whole number"),
        ("cache_lifetime_s = true", "cache_lifetime_s is not a whole number"),
        ("batch = 0", "batch is not a factor above 0 and at most 1, as 0.5"),
        ("batch = 2", "batch is not a factor"),
        ("batch = nan", "batch is not a factor"),
        ("batch = 1e-300000", "batch is not a factor"),
        ("long_context = 272000", "entry 1, long_context: not a table"),
        ("long_context = {above_tokens = 9, prompt = 1}", "long_context: cached_prompt is missing"),
        ("long_context = {prompt = 1, cached_prompt = 1, completion = 1}", "long_context: above_tokens is missing"),
        (
            "long_context = {above_tokens = 9, writes = 1}",
            "long_context: there is no field called writes; there are ab",
        ),
        (
            "long_context = {above_tokens = 9, prompt = 1, cached_prompt = 1, completion = 0.9}",
            "long_context: completion is below that of a shorter prompt",
        ),
        (
            "cache_write = 2\nlong_context = {above_tokens = 9, prompt = 1, cached_prompt = 1, completion = 1}",
            "long_context: cache_write (left out: as its prompt) is below that of a shorter prompt",
        ),
    ],
)
def test_a_term_that_cannot_be_believed_is_refused_in_a_sentence_that_says_where(read, line, said):
    with pytest.raises(UsageError) as found:
        read(ENTRY + line)
    assert said in str(found.value)
    assert "prices.toml, entry 1" in str(found.value)


def test_an_empty_file_knows_no_price(read):
    assert read("").price("https://api.example.com", "large-1") is None


def test_two_models_of_one_endpoint_have_their_own_prices(read):
    prices = read(ENTRY + ENTRY.replace("large-1", "large-2").replace("completion = 1", "completion = 2"))
    found = [prices.price("https://api.example.com", name).completion for name in ("large-1", "large-2")]
    assert found == [1_000_000_000, 2_000_000_000]


@each(
    ("url", "name"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("https://API.Example.com/v1/", "https://api.example.com"),
        ("https://user:word@api.example.com:443/v1?a=b#c", "https://api.example.com"),
        ("http://gpu:80", "http://gpu"),
        ("http://gpu:443", "http://gpu:443"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://api.example.com/openai/v1", "https://api.example.com/openai"),
    ],
)
def test_an_endpoint_has_one_name_however_it_is_written(url, name):
    """Two names would be two prices, and a closed endpoint asked again under another spelling."""
    assert endpoint_id(url) == name


@each(
    ("text", "said"),
    [
        (ENTRY.replace("source", "# source"), "entry 1: a price needs a source"),
        (ENTRY + ENTRY.replace('source = "https://example.com/pricing, 2026-11-20"', 'source = " "'), "entry 2: a pr"),
        (ENTRY.replace("source = ", "source = 3 #"), "needs a source"),
        (ENTRY.replace("model", "# model"), "entry 1: model is missing"),
        (ENTRY.replace("cached_prompt", "# cached"), "cached_prompt is missing"),
        (ENTRY.replace("completion = 1", "completion = true"), "completion is not an amount"),
        (ENTRY.replace("completion = 1", "completion = -1"), "completion: '-1' is not an amount"),
        (ENTRY.replace("completion = 1", "completion = nan"), "is not an amount"),
        (ENTRY.replace("completion = 1", "complete = 1"), "no field called complete"),
        (ENTRY.replace(".com/v1/", ".com:port"), "is not an endpoint's address"),
        (ENTRY + ENTRY, "two prices for large-1 at https://api.example.com"),
        ("price = 3", "something else"),
        ("price = [3]", "entry 1: not a table"),
        ("prices = []", "something else than [[price]] entries: prices"),
        ("[[price", "the price file"),
    ],
)
def test_what_cannot_be_believed_is_refused_in_a_sentence_that_says_where(read, text, said):
    with pytest.raises(UsageError) as found:
        read(text)
    assert said in str(found.value)
    assert "prices.toml" in str(found.value)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        PriceFile.read(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"binary\.toml"):
        PriceFile.read(tmp_path / "binary.toml")
