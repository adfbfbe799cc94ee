"""Whom the endpoint answers, asked through its whole application: names, origins, keys, bodies, routes."""

from __future__ import annotations

import asyncio
import json

from asgi_caller import JSON
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from hybrid.serve import guard
from hybrid.serve.app import ELSEWHERE
from hybrid.serve.app_state import ServeOptions
from hybrid.serve.guard import MAX_BODY, Guard

KEY = "sk-canary-5f2d"
LOCKED = ServeOptions(key=SecretStr(KEY))


def headers(**named):
    told = {"host": "127.0.0.1:8088", "content_type": "application/json"} | named
    given = {name.replace("_", "-"): value for name, value in told.items() if value is not None}
    return [(name.encode(), value.encode("latin-1")) for name, value in given.items()]


@each(
    ("host", "status"),
    [
        ("127.0.0.1:8088", 200),
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("[::1]:8088", 200),
        ("laptop.lan:8088", 200),
        ("laptop.lan.:8088", 200),  # a dot ends a name that is complete (RFC 1034, 3.1)
        ("localhost.", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("evil.example:8088", 403),
        ("127.0.0.2", 403),
        ("", 403),
        (None, 403),
        ("[::1", 403),
    ],
)
def test_a_name_that_is_not_ours_is_not_answered(endpoint, run, host, status):
    served = endpoint(options=ServeOptions(hosts=frozenset({"laptop.lan"})))
    heard = run(served.ask("/v1/models", method="GET", headers=headers(host=host)))
    assert heard.status == status


def test_two_names_are_none(endpoint, run):
    both = [*headers(), (b"host", b"evil.example")]
    assert run(endpoint().ask("/v1/models", method="GET", headers=both)).status == 403


@each(
    ("origin", "method", "status"),
    [
        ("http://evil.example", "POST", 403),
        ("null", "POST", 403),
        ("http://[", "POST", 403),
        ("httpx://127.0.0.1:8088", "POST", 403),
        ("http://127.0.0.1:3000", "POST", 403),
        ("http://127.0.0.1:8088.evil.example", "POST", 403),
        ("http://127.0.0.1:8088", "POST", 200),
        ("http://localhost:3000", "POST", 200),
        (None, "POST", 200),
        ("http://evil.example", "OPTIONS", 403),
        ("http://localhost:3000", "OPTIONS", 204),
        (None, "OPTIONS", 405),
    ],
)
def test_a_page_of_another_origin_may_not_ask(endpoint, run, origin, method, status):
    """A browser sends the request before it hides the answer, so hiding is not enough."""
    served = endpoint(options=ServeOptions(origins=frozenset({"http://localhost:3000"})))
    body = {"model": "hybrid:local", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    heard = run(served.ask("/v1/chat/completions", body, method=method, headers=headers(origin=origin)))
    allowed = heard.headers.get("access-control-allow-origin")
    assert (heard.status, allowed) == (status, origin if origin == "http://localhost:3000" else None)
    varies = heard.headers.get("vary")
    assert varies == ("Origin" if allowed else None), "what one page may read is not kept for another"


@each(
    ("named", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer  {KEY} "}, 200),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"authorization": KEY}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x_api_key": KEY}, 200),
        ({"x_api_key": "no"}, 401),
        ({"authorization": "Bearer no", "x_api_key": KEY}, 200),
        ({"x_api_key": "\xff\x00"}, 401),
    ],
)
def test_a_key_is_asked_for_before_anything_is_read(endpoint, run, named, status):
    served = endpoint(options=LOCKED)
    heard = run(served.ask("/v1/models", method="GET", headers=headers(**named)))
    assert heard.status == status
    page = run(served.ask("/", method="GET", headers=headers(**named)))
    assert page.status == status, "the monitor, which may be shown a cookie in its place, reads keys alike"
    body = [b"x" * 10, None]  # a body that never ends: whoever waits for it waits for ever
    if status == 401:
        asked = served.ask("/v1/chat/completions", headers=headers(**named), parts=body)
        assert run(asyncio.wait_for(asked, 5)).error["code"] == "invalid_api_key"
    assert KEY not in heard.body.decode()


@each(
    ("path", "status"), [("/health", 200), ("/metrics", 401), ("/v1/models", 401), ("/monitor/events", 401), ("/", 401)]
)
def test_what_is_told_without_the_key(endpoint, run, path, status):
    heard = run(endpoint(options=LOCKED).ask(path, method="GET", leave=lambda heard: bool(heard.body)))
    assert heard.status == status


@each("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"])
def test_a_form_of_another_site_is_no_request(endpoint, run, kind):
    heard = run(endpoint().ask("/v1/chat/completions", {}, headers=headers(content_type=kind)))
    assert (heard.status, heard.error["code"]) == (415, "unsupported_media_type")


@each("length", [str(MAX_BODY + 1), "99999999999999999999", "-1", "1e3", ""])
def test_a_body_that_says_it_is_too_long_is_not_read(endpoint, run, length):
    told = headers(content_length=length)
    heard = run(asyncio.wait_for(endpoint().ask("/v1/chat/completions", headers=told, parts=[b"x", None]), 5))
    assert (heard.status, heard.error["code"]) == (413, "body_too_long")


def test_a_body_that_turns_out_too_long_is_given_up(endpoint, run):
    parts = [b" " * 2**20] * 9 + [None]
    heard = run(asyncio.wait_for(endpoint().ask("/v1/chat/completions", headers=JSON, parts=parts), 5))
    assert (heard.status, heard.error["code"]) == (413, "body_too_long")


def test_a_body_that_comes_by_drops_is_waited_for_so_long(endpoint, run, monkeypatch):
    monkeypatch.setattr(guard, "BODY_WITHIN_S", 0.05)
    heard = run(asyncio.wait_for(endpoint().ask("/v1/chat/completions", headers=JSON, parts=[b"{", None]), 5))
    assert (heard.status, heard.error["code"]) == (408, "body_timeout")


def test_a_caller_that_leaves_in_the_midst_of_its_body_is_no_fault_of_ours(endpoint, run, capsys):
    asked = endpoint().ask("/v1/chat/completions", headers=JSON, parts=[b"{", None], leave=lambda _: True)
    run(asyncio.wait_for(asked, 5))
    assert capsys.readouterr().err == ""


@each("path", [*ELSEWHERE, "/v1", "/v1/", "/v1/models/x/y", "/v1/chat", "/v1/chat/completions/"])
@each("method", ["GET", "POST"])
def test_whatever_else_is_asked_for_below_v1_is_told_where_to_go(endpoint, run, path, method):
    heard = run(endpoint().ask(path, {}, method=method))
    assert heard.status in {404, 405}
    assert heard.error.keys() == {"message", "type", "param", "code"}


def test_another_method_is_told_which_one(endpoint, run):
    heard = run(endpoint().ask("/v1/chat/completions", method="GET"))
    assert (heard.status, heard.headers["allow"]) == (405, "POST")


def test_models_are_listed_and_each_is_had_by_its_name(endpoint, run):
    served = endpoint()
    listed = run(served.ask("/v1/models", method="GET")).data
    assert listed["object"] == "list"
    for card in each_of(listed["data"]):
        one = run(served.ask(f"/v1/models/{card['id']}", method="GET"))
        assert (one.status, one.data) == (200, card)
        assert card.keys() == {"id", "object", "created", "owned_by", "max_model_len"}
    assert run(served.ask("/v1/models/hybrid:kl:0.5", method="GET")).status == 200
    assert run(served.ask("/v1/models/gpt", method="GET")).error["code"] == "model_not_found"


@each(("told", "kept"), [("abc-1", True), ("x" * 129, False), ("a b", False), ("\r\nx: y", False), ("", False)])
def test_a_request_keeps_its_callers_id_if_a_log_can_hold_it(endpoint, run, told, kept):
    heard = run(endpoint().ask("/health", method="GET", headers=headers(x_request_id=told)))
    assert (heard.headers["x-request-id"] == told) is kept
    assert heard.headers["x-request-id"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [b"host", b"origin", b"authorization", b"content-type", b"content-length", b"x-request-id"]
            ),
            st.binary(max_size=12) | st.sampled_from([b"localhost", b"Bearer x", b"application/json", b"5"]),
        ),
        max_size=6,
    ),
    st.sampled_from(["GET", "POST", "OPTIONS", "HEAD"]),
)
def test_whatever_headers_come_a_request_is_answered_and_without_the_key_never_let_in(told, method):
    async def app(scope, receive, send):
        raise AssertionError("let in")

    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": "/v1/models", "headers": told, "query_string": b""}
    asyncio.run(Guard(app, LOCKED)(scope, receive, send))
    assert sent[0]["status"] in {401, 403}
    assert json.loads(sent[1]["body"])["error"]["message"]
