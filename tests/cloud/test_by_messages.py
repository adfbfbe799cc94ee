"""An endpoint of another vocabulary, by its chat route: connected to for nothing, and read without losing a byte."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import httpx
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import Pieces

from hybrid.cloud import WriteQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.errors import NotAnApi, VocabularyMismatch
from hybrid.types import CloudUsage, Message, Sampling

BYTES = Pieces([bytes([i]) for i in range(256)] + ["an", "é", "<end>"], ends=frozenset({258}))
MODELS = {"data": [{"id": "m", "max_model_len": 512}]}
REFUSED = 400, {"error": {"message": "messages: Field required"}}
NONE = 404, {"detail": "Not Found"}
ROUTES = {"/v1/models": MODELS, "/version": {"version": "0.33.0"}, "/tokenize": {"tokens": [1, 3]}}
ASKED = WriteQuestion((1, 2), 8, 0, Sampling(), turns=(Message("user", "q"),))
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


class InParts(httpx.AsyncByteStream):
    """A reply that arrives in the parts that somebody cut it into."""

    def __init__(self, parts):
        self.parts = parts

    async def __aiter__(self):
        for part in self.parts:
            yield part


def served(use, deltas=(), cuts=(), routes=ROUTES):
    """Use an endpoint whose chat route streams some texts, cut anywhere between two bytes."""
    asked = []

    def handle(request):
        body = json.loads(request.content or b"null")
        asked.append((request.url.path, body))
        if request.url.path == "/v1/chat/completions" and body:
            whole = b"".join(map(event, (*({"content": text} for text in deltas), None))) + b"data: [DONE]\n\n"
            bounds = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
            parts = [whole[start:stop] for start, stop in itertools.pairwise(bounds)]
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=InParts(parts))
        answer = routes.get(request.url.path, NONE)
        status, told = answer if isinstance(answer, tuple) else (200, answer)
        return httpx.Response(
            status, headers={"content-type": "application/json"}, stream=InParts([json.dumps(told).encode()])
        )

    async def run():
        wire = Wire("http://there", None, Timeouts())
        await wire._client.aclose()
        wire._client = httpx.AsyncClient(base_url="http://there", transport=httpx.MockTransport(handle))
        endpoint = Endpoint(wire, words=BYTES)
        try:
            return await use(endpoint)
        finally:
            await endpoint.aclose()

    return asyncio.run(run()), asked


def event(delta):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": None if delta else "stop"}
    told = {"choices": [choice], "usage": None if delta else USAGE}
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n".encode()


@each("chat", [True, False])
def test_where_the_words_are_others_it_is_asked_by_messages_and_that_costs_nothing(chat):
    async def use(endpoint):
        with pytest.raises(VocabularyMismatch, match=r"do not share a vocabulary: .* \(--policy route\)"):
            await endpoint.connect("a b", (1, 2))
        return await endpoint.connect_by_messages()

    routes = ROUTES | ({"/v1/chat/completions": REFUSED} if chat else {})
    if not chat:
        with pytest.raises(NotAnApi, match="takes no messages"):
            served(use, routes=routes)
        return
    can, asked = served(use, routes=routes)
    assert (can.dialect, can.model, can.abilities, can.max_context) == ("text-chat", "m", {"open"}, 512)
    assert {json.dumps(body) for path, body in asked if path == "/v1/chat/completions"} == {"{}"}


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_however_a_reply_is_cut_no_byte_of_its_text_is_lost_or_doubled(deltas, cuts):
    """Inside of characters, too. What is charged is what was told: our tokens are another count."""

    async def use(endpoint):
        await endpoint.connect_by_messages()
        return [chunk async for chunk in endpoint.write(ASKED, "id")]

    chunks, _ = served(use, deltas, cuts, ROUTES | {"/v1/chat/completions": REFUSED})
    assert b"".join(BYTES.piece(token) for chunk in chunks for token in chunk.ids) == "".join(deltas).encode()
    assert "".join(chunk.text for chunk in chunks) == "".join(deltas)
    told = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert told[-1] == CloudUsage(9, 5)


@each("told, booked", [(5, 31), (40, 40)])
def test_a_usage_below_what_came_is_raised_to_it(monkeypatch, told, booked):
    """31 tokens of text came, and three were booked."""
    monkeypatch.setitem(USAGE, "completion_tokens", told)

    async def use(endpoint):
        await endpoint.connect_by_messages()
        return [chunk async for chunk in endpoint.write(replace(ASKED, limit=50), "id")]

    chunks, _ = served(use, ["word "] * 31, (), ROUTES | {"/v1/chat/completions": REFUSED})
    assert [chunk.usage for chunk in chunks if chunk.usage is not None][-1] == CloudUsage(9, booked)
