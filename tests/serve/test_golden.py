"""Requests as real clients send them: each is answered, or refused as the guide says it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


def test_there_are_requests_of_every_client():
    names = {path.stem.partition("-")[0] for path in GOLDEN}
    assert names >= {"openai2", "openai3", "zed", "continue", "openwebui", "homeassistant"}
    assert len(GOLDEN) > 40


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_clients_request_is_answered_or_refused_as_the_guide_says(endpoint, run, path):
    asked = json.loads(path.read_text())
    headers = [(b"host", b"127.0.0.1:8088")]
    headers += [(name.encode(), value.encode()) for name, value in asked["headers"].items()]
    served = endpoint(num_context=3000)
    heard = run(served.ask(asked["path"], asked["body"], method=asked["method"], headers=headers))
    expect, body = asked["expect"], asked["body"] or {}
    assert heard.status == expect["status"], heard.body
    if heard.status != 200:
        assert heard.error.keys() == {"message", "type", "param", "code"}
        assert heard.error["code"] == expect["code"]
    elif body.get("stream"):
        assert heard.events[-1] == "[DONE]"
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        assert bool(heard.events[-2]["choices"]) is not bool(wants_usage)
    elif asked["method"] == "POST":
        assert heard.data["choices"]
        assert heard.data["usage"]["completion_tokens"] > 0
    if ignored := expect.get("ignored"):
        assert set(heard.headers["x-hybrid-ignored"].split(", ")) == set(ignored)
