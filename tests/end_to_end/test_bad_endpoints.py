"""What stands behind a mistyped address, and a key that must not be told: one sentence, soon, in little memory.

``hybrid ask`` ends with 4 where the address, the key or the model is wrong, and with 0 where it has a bad day.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import tracemalloc

import psutil
import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.wire import Wire
from hybrid.errors import BadReply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "What is 47 + 86?"
KEY = "canary-0123456789"


def ask(*args, **env):
    return CliRunner().invoke(app, ["ask", QUESTION, "--local", "small", "--max-tokens", "16", *args], env=env)


def answered(status, body, *headers):
    lines = (f"HTTP/1.1 {status} x", *headers, f"content-length: {len(body)}", "connection: close", "", "")
    return "\r\n".join(lines).encode() + body


OTHER_MODEL = answered(200, json.dumps({"data": [{"id": "other"}]}).encode())
ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
WRONG = {
    "page": (answered(200, b"<html>welcome</html>", "content-type: text/html"), "a web page"),
    "401": (answered(401, b'{"error": {"message": "no key"}}'), "answered 401: no key"),
    "404": (answered(404, b"<html>nothing here</html>", "content-type: text/html"), "answered 404"),
    "another model": (OTHER_MODEL, "does not serve 'gpt-9'; it serves other"),
    "redirect loop": (answered(307, b"", "location: /v1/models"), "a redirect: give the final address"),
}
BAD_DAY = {
    "nothing": (b"", b"", "broke off"),
    "after the headers": (ENDLESS.replace(b"\r\n\r\n", b"\r\ncontent-length: 9\r\n\r\n"), b"", "broke off"),
    "a body of gigabytes": (ENDLESS, b" " * 2**20, "larger than 4 MiB"),
    "a header bomb": (b"HTTP/1.1 200 OK\r\n", b"x-filler: " + b"x" * 1000 + b"\r\n", "more than 100 KiB of headers"),
}


@each("what", WRONG)
def test_a_wrong_address_key_or_model_is_one_sentence_and_exit_4(raw_server, bundled, what):
    reply, words = WRONG[what]
    began = time.monotonic()
    done = ask("--cloud", raw_server(reply), "--cloud-model", "gpt-9")
    assert (done.exit_code, done.stdout) == (4, "")
    assert words in done.stderr
    assert done.stderr.startswith("hybrid: ")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - began < 5


@each(
    ("env", "flags", "said"),
    [
        ({}, (), "HYBRID_API_KEY is not set: --api-key-env names the variable that holds the key"),
        ({"HYBRID_API_KEY": ""}, (), "HYBRID_API_KEY is empty: --api-key-env names the variable that holds the key"),
        ({"MY_KEY": KEY}, ("--api-key-env", "MY_KEY"), "the key in MY_KEY was sent and turned down"),
        ({"HYBRID_API_KEY": KEY}, (), "the key in HYBRID_API_KEY was sent and turned down"),
    ],
)
@each("status", [401, 403])
def test_where_access_is_denied_it_is_said_whether_a_key_was_sent(raw_server, bundled, status, env, flags, said):
    url = raw_server(answered(status, b'{"error": {"message": "no key"}}'))
    done = ask("--cloud", url, "--cloud-model", "gpt-9", *flags, **env)
    assert done.exit_code == 4
    assert done.stderr == f"hybrid: {url} answered {status}: no key; {said}\n"


def test_a_server_that_speaks_no_tls_is_one_sentence_and_exit_4(raw_server, bundled):
    done = ask("--cloud", raw_server(OTHER_MODEL).replace("http:", "https:"))
    assert done.exit_code == 4
    assert "does not speak TLS" in done.stderr
    assert done.stderr.count("\n") == 1


@each("what", BAD_DAY)
def test_a_bad_day_is_one_sentence_and_the_local_answer(raw_server, bundled, what):
    head, forever, words = BAD_DAY[what]
    before, began = psutil.Process().memory_info().rss, time.monotonic()
    done = ask("--cloud", raw_server(head, forever))
    assert done.exit_code == 0
    assert done.stdout.strip()
    assert words in done.stderr
    assert done.stderr.startswith("hybrid: the local model goes on alone: ")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - began < 10
    assert psutil.Process().memory_info().rss - before < 200 * 2**20, "the models, and little else"


@each("streams", [False, True], ids=["whole", "stream"])
def test_a_body_of_a_gigabyte_is_given_up_in_bounded_memory(raw_server, streams):
    kind = b"text/event-stream" if streams else b"application/json"
    url = raw_server(ENDLESS.replace(b"application/json", kind), b" " * 2**20)

    async def read():
        wire = Wire(url, None, Timeouts())
        try:
            if streams:
                return [event async for event in wire.stream("/", {}, "r")]
            return await wire.post("/", {})
        finally:
            await wire.aclose()

    tracemalloc.start()
    try:
        with pytest.raises(BadReply):
            asyncio.run(read())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * 2**27


def echo(status, **choice):
    """A reply that repeats the key where servers do: in an error, inside a stream, as a type, as an address."""

    def spoil(reply, _, n):
        if not n:
            return
        reply.status = status
        reply.body = json.dumps({"error": {"message": f"bad key {KEY}"}} | choice).encode()

    return spoil


def echo_in_a_stream(reply, _, n):
    if n:
        first = reply.body.split(b"\n\n")[0]
        reply.body = first + b'\n\ndata: {"error": {"message": "broke on %s"}}\n\n' % KEY.encode()


def echo_as_a_type(reply, _, n):
    if n:
        reply.content_type, reply.body = f"x/{KEY}", b"{}"


def echo_as_a_model(reply, path, _):
    if path == "/v1/models":
        reply.replace({"data": [{"id": KEY}]})


CANARIES = {
    "well": (lambda *_: None, "kl", 0),
    "401": (echo(401), "kl", 4),
    "404": (echo(404), "kl", 4),
    "500": (echo(500), "kl", 0),
    "400": (echo(400), "kl", 0),
    "200": (echo(200), "kl", 0),
    "stream": (echo_in_a_stream, "cloud", 0),
    "type": (echo_as_a_type, "cloud", 4),
    "model": (echo_as_a_model, "kl", 4),
}


@pytest.mark.parametrize("what", CANARIES)
def test_the_key_is_told_nowhere(proxy, tmp_path, caplog, what):
    """Neither on the screen nor in the trace nor in anybody's log, whatever the server does with it."""
    spoil, policy, code = CANARIES[what]
    # At its most talkative httpcore logs the headers that came, as they came, and never those that left.
    caplog.set_level(logging.INFO if what == "type" else logging.DEBUG)
    trace = tmp_path / "trace.jsonl"
    args = ("--cloud", proxy(spoil).url, "--policy", policy, "--trace", str(trace), "--cloud-model", "large")
    done = ask(*args, HYBRID_API_KEY=KEY, HYBRID_RETRIES="0")
    assert done.exit_code == code
    told = f"{done.stdout}{done.stderr}{done.exception!r}{caplog.text}{trace.read_text()}"
    assert KEY not in told
    assert ("[the key]" in told) == (what != "well")
    assert len(told) > 200


def test_the_key_stands_in_no_repr(monkeypatch):
    import hybrid
    from hybrid.assemble.reaching import endpoint_key
    from hybrid.cloud.endpoint import Endpoint
    from hybrid.settings.sources import load

    monkeypatch.setenv("HYBRID_API_KEY", KEY)
    key = endpoint_key(load(cloud="http://127.0.0.1:9"))
    wire = Wire("http://127.0.0.1:9", key, Timeouts())
    values = (
        key,
        wire,
        Endpoint(wire),
        load(),
        hybrid.open(),
        wire._client.headers,
        wire._client.build_request("GET", "/"),
    )
    assert KEY not in repr(values) + str(values)
    assert os.environ["HYBRID_API_KEY"] == KEY
    asyncio.run(wire.aclose())
