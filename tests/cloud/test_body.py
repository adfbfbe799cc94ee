"""JSON in bounded memory: what it becomes is known before it is parsed, and what breaks a parser is no JSON."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from cases import each

from hybrid.cloud.bounds import SMALL_BYTES, parse, parsed_bytes
from hybrid.cloud.dialects.vllm import CompletionsScoreReply
from hybrid.errors import BadReply, NotAnApi

COSTLY = ["{}", "[]", "[[]]", '{"a":0}', '{"ab":"cd"}', '{"a":{"b":[0.5]}}', "0", "0.5", "123456789012", '"ab"', "null"]


def peak_of(call, *values):
    """What a call answers or raises, and the most memory it took."""
    tracemalloc.start()
    try:
        answer = call(*values)
    except BadReply as error:
        answer = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return answer, peak


@each("value", COSTLY)
def test_what_json_becomes_is_known_before_it_is_parsed(value):
    """What is counted is never less than what is taken, but for the texts themselves and their decoding."""
    raw = f"[{','.join([value] * 50_000)}]".encode()
    whole, taken = peak_of(json.loads, raw)
    assert len(whole) == 50_000
    assert taken <= parsed_bytes(raw) + 2 * len(raw)


def test_what_is_not_counted_could_not_be_too_much():
    most = parsed_bytes(b"{" * SMALL_BYTES)
    assert 2**26 < most <= 2**27


@each("value", COSTLY)
@each("shape", [None, CompletionsScoreReply])
def test_a_reply_that_would_become_too_much_is_refused_before_it_is_parsed(monkeypatch, shape, value):
    """Whatever it is made of; the bounds are a thousandth here, that a test may take little, too."""
    for name in ("SMALL_BYTES", "MAX_PARSED_BYTES", "MAX_SHAPED_BYTES"):
        monkeypatch.setattr(f"hybrid.cloud.bounds.{name}", 2**17)
    raw = b'{"choices": [' + b",".join([value.encode()] * 70_000) + b"]}"
    answer, peak = peak_of(parse, raw, "there", shape)
    assert "there answered with more than a reply can hold" in str(answer)
    assert peak < 2**21 < parsed_bytes(raw)


def test_rows_that_stay_unread_may_be_more():
    row = b'{"7": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}}'
    raw = b'{"choices": [{"prompt_logprobs": [' + b",".join([row] * 350_000) + b"]}]}"
    assert 2**27 < parsed_bytes(raw) < 2**29
    assert len(parse(raw, "there", CompletionsScoreReply)["choices"][0]["prompt_logprobs"]) == 350_000
    with pytest.raises(BadReply, match="more than a reply can hold"):
        parse(raw, "there")


@each("shape", [None, CompletionsScoreReply])
@each(
    "raw",
    [b'{"choices": "\xff\xfe\xc0\x80"}', b'{"usage": ' + b"7" * 5000 + b"}", b"[" * 10**5, b"", b"\0" * 9, b"{}{}"],
    ids=["no utf-8", "a long number", "deep", "empty", "nul", "two"],
)
def test_what_breaks_a_parser_is_no_json(raw, shape):
    """Also where a shape is wanted, which is another parser's business."""
    with pytest.raises(BadReply, match="not JSON"):
        parse(raw, "there", shape)


@each("shape", [None, CompletionsScoreReply])
def test_a_page_is_no_api_and_a_number_no_reply(shape):
    with pytest.raises(NotAnApi, match="web page"):
        parse(b" <html>", "there", shape)
    with pytest.raises(BadReply, match="neither an object nor a list"):
        parse(b"42", "there", shape)
