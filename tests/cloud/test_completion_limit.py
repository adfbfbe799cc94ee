"""Thoughts are charged before the first visible token: what is reserved for a limit covers them."""

from __future__ import annotations

import asyncio

from cases import each
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import WORDS, A, B
from wordlist import opened

from hybrid.cloud import WriteQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.reading import read_usage
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.relay_bounds import limit_name, worst_case
from hybrid.cloud.wire import Wire
from hybrid.types import Message, Sampling

OPENAI, OWN = "https://api.openai.com/v1", "http://127.0.0.1:8000"
NAMES = {OPENAI: "max_completion_tokens", "https://mine.openai.azure.com": "max_completion_tokens", OWN: "max_tokens"}
TURNS = (Message("user", "cab"),)


def thinking(body, thoughts, text, told):
    """A server that thinks first, within the one limit that it knows, and tells its usage in one of three ways."""
    (limit,) = (body[name] for name in set(NAMES.values()) & body.keys())
    thought = min(thoughts, limit)
    written = min(text, limit - thought)
    usage = {"prompt_tokens": 9, "completion_tokens": written, "total_tokens": 9 + thought + written}
    if told == "within":
        usage["completion_tokens"] += thought
    if told != "in the total alone":
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return {"usage": usage}, thought + written


@each("told", ["within", "beside", "in the total alone"])
@each("url", NAMES)
@given(limit=st.integers(1, 30), thoughts=st.integers(0, 60), text=st.integers(0, 60))
def test_what_is_reserved_for_a_limit_covers_the_thoughts_however_they_are_told(url, told, limit, thoughts, text):
    chat = Chat(DialectConfig("m", TextVocabulary(WORDS), limit_name=limit_name(url)))
    question = WriteQuestion((A, B), limit, 0, Sampling(), turns=TURNS)
    body = opened(chat.write(question))[0].body
    assert set(NAMES.values()) & body.keys() == {NAMES[url]}, "one name, and the one that the service takes"
    reply, computed = thinking(body, thoughts, text, told)
    usage = read_usage(reply)
    assert usage.completion_tokens == computed <= chat.max_usage(question).completion_tokens
    assert usage.reasoning_tokens <= usage.completion_tokens


@each("effort", [None, "none", "minimal", "high"])
def test_no_effort_lowers_what_is_reserved(effort):
    """``minimal`` means few thoughts, and tells no number."""
    body = {"messages": [{"role": "user", "content": "cab"}], "reasoning_effort": effort, "n": 3}
    assert worst_case(body, 40).completion_tokens == 120


@each(("url", "name"), NAMES.items())
def test_an_endpoint_sends_its_limit_by_the_name_that_its_service_takes(url, name):
    async def ask():
        endpoint = Endpoint(Wire(url, None, Timeouts()), "m", words=WORDS)
        question = WriteQuestion((A, B), 7, 0, Sampling(), turns=TURNS)
        body = opened(Chat(endpoint.knowledge.dialect.setup).write(question))[0].body
        await endpoint.aclose()
        return body

    assert asyncio.run(ask())[name] == 7
