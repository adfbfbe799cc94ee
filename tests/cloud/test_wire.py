"""The wire alone, against servers that do what no library would: endless lines, faults, bodies in encodings."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import socket
import ssl
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import certifi
import pytest
from cases import each
from chat_upstream import STAY, Script, upstream
from chat_upstream import WHOLE as WHOLE_REPLY
from wires import EVENT, STREAM, WHOLE, get, post, read_stream

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.network import httpx, transport_error
from hybrid.cloud.wire import Wire
from hybrid.errors import AccessDenied, BadReply, CloudError, CloudFailure, CloudRefusal, NotAnApi, Unreachable

COOKIE = {"set-cookie": "caller=one; Path=/"}


def test_a_line_that_never_ends_is_given_up_in_bounded_memory(raw_server):
    with pytest.raises(BadReply, match="end its lines"):
        read_stream(raw_server(STREAM + b"data: ", b"x" * 2**20), Timeouts(total=30))


@each(
    "body",
    [
        b"\xef\xbb\xbfdata: {}\n\ndata: [DONE]\n\n",
        b"data: {}\r\rdata: [DONE]\r\r",
        b'data: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n',
        b": ping\n\ndata\n\nid: 1\ndata:{}\n\ndata:[DONE]\n\n",
    ],
    ids=ascii,
)
def test_a_stream_is_read_as_the_standard_says(raw_server, body):
    """A byte order mark, bare carriage returns, an event on two lines, one without data: all of it is allowed."""
    for cut in (1, len(body) // 2, len(body) - 1):
        assert read_stream(raw_server(STREAM + body[:cut], then=((0.05, body[cut:]),)), Timeouts(total=5)) == 1


def status(code, *headers):
    return b"\r\n".join((f"HTTP/1.1 {code} x".encode(), *headers, b"content-length: 2", b"", b"{}"))


@each(
    ("head", "trouble", "sent", "retry_after_s"),
    [
        *[(status(code), "busy", True, None) for code in (408, 409, 425, 500, 502, 503, 504, 529)],
        (status(429), "busy", False, None),
        (status(429, b"Retry-After: 7"), "busy", False, 7.0),
        (status(503, b"retry-after-ms: 20", b"x-should-retry: false"), None, True, 0.02),
        (b"", "cut", True, None),
        (WHOLE[:20], "cut", True, None),
        (WHOLE + b"{", "cut", True, None),
        (WHOLE + b"{]", "malformed", True, None),
        (WHOLE + b"11", None, True, None),
        *[(status(code), None, False, None) for code in (400, 402, 413, 415, 422)],
        *[(status(code), None, True, None) for code in (406, 418, 499)],
    ],
    ids=str,
)
def test_a_fault_says_whether_it_may_pass_and_whether_it_may_have_been_charged(
    raw_server, head, trouble, sent, retry_after_s
):
    with pytest.raises(CloudFailure) as fault:
        post(raw_server(head), Timeouts())
    assert (fault.value.trouble, fault.value.sent, fault.value.retry_after_s) == (trouble, sent, retry_after_s)


@each("code", [301, 308, 401, 403, 404, 405])
def test_a_refusal_was_not_computed(raw_server, code):
    with pytest.raises(CloudRefusal) as fault:
        post(raw_server(status(code)), Timeouts())
    assert not fault.value.sent


@each("code", [407, 414, 422, 431])
def test_what_is_turned_away_unread_is_no_refusal_and_was_not_computed(raw_server, code):
    with pytest.raises(CloudFailure) as fault:
        post(raw_server(status(code)), Timeouts())
    assert not fault.value.sent


def test_a_server_that_does_not_implement_the_method_is_no_bad_day(raw_server):
    """It never will. A proxy's page before a service that is away (502, 503) is one."""
    with pytest.raises(NotAnApi) as fault:
        post(raw_server(status(501)), Timeouts())
    assert fault.value.sent, "a status of 500 or more never says that nothing was computed"
    for code in (500, 502, 503, 504):
        with pytest.raises(Unreachable):
            post(raw_server(status(code)), Timeouts())


def test_a_refused_connection_may_pass_and_cost_nothing():
    with pytest.raises(Unreachable) as fault:
        post("http://127.0.0.1:9", Timeouts())
    assert (fault.value.trouble, fault.value.sent) == ("connect", False)


def test_silence_may_pass_before_the_first_byte_only(raw_server):
    with pytest.raises(Unreachable) as before:
        post(raw_server(b"", then=((1.0, b""),)), Timeouts(first_byte=0.1))
    with pytest.raises(Unreachable) as after:
        post(raw_server(WHOLE + b"{", then=((1.0, b"}"),)), Timeouts(read=0.1))
    assert (before.value.trouble, after.value.trouble) == ("silent", None)


def test_a_stream_that_is_cut_says_so(raw_server):
    with pytest.raises(Unreachable) as fault:
        read_stream(raw_server(STREAM + EVENT), Timeouts())
    assert fault.value.trouble == "cut"


# 64 MiB of spaces and a JSON object, packed twice: less than 300 bytes.
PACKED = gzip.compress(gzip.compress(b" " * 2**26 + b"{}", mtime=0), mtime=0)
READERS = {"get": get, "post": post, "stream": read_stream}


def packed(code, coding, body=PACKED):
    head = b"HTTP/1.1 %d x\r\ncontent-type: text/event-stream\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (code, coding, len(body)) + body


@each("coding", [b"gzip, gzip", b"GZIP", b"br", b"zstd", b"nobody-knows"], ids=bytes.decode)
@each("reader", READERS)
def test_a_body_in_an_encoding_is_refused_before_a_byte_of_it_is_decoded(raw_server, reader, coding):
    """A few hundred bytes can stand for gigabytes; it was asked for as it is."""
    url = raw_server(packed(200, coding))
    tracemalloc.start()
    try:
        with pytest.raises(NotAnApi, match=rf"in the encoding {coding.decode().lower()}"):
            READERS[reader](url, Timeouts(total=5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


@each("reader", READERS)
def test_the_status_of_a_packed_error_page_still_says_what_is_wrong(raw_server, reader):
    with pytest.raises(AccessDenied, match="answered 401"):
        READERS[reader](raw_server(packed(401, b"gzip, gzip")), Timeouts(total=5))


@each("reader", READERS)
def test_the_status_of_an_endless_error_page_still_says_what_is_wrong(raw_server, reader):
    with pytest.raises(AccessDenied, match="answered 401"):
        READERS[reader](raw_server(b"HTTP/1.1 401 x\r\n\r\n", b" " * 2**20), Timeouts(total=5))


def test_an_encoding_that_is_none_is_read(raw_server):
    assert post(raw_server(packed(200, b"identity", b"{}")), Timeouts(total=5)) == [{}]


@each("reader", READERS)
def test_every_request_asks_for_no_encoding(reader):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url, heard = f"http://127.0.0.1:{listener.getsockname()[1]}", []

        def hear():
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(65536))

        thread = threading.Thread(target=hear)
        thread.start()
        with pytest.raises(Unreachable):
            READERS[reader](url, Timeouts(total=5))
        thread.join()
    assert b"\r\naccept-encoding: identity\r\n" in heard[0].lower()


async def requests_of(body, *request_ids):
    """Post a body under some ids; return what left."""
    left, wire = [], Wire("http://127.0.0.1:9", None, Timeouts())
    await wire._client.aclose()

    async def nothing():
        yield b"{}"

    def refuse(request):
        left.append(request)
        return httpx.Response(400, content=nothing())

    wire._client = httpx.AsyncClient(base_url="http://127.0.0.1:9", transport=httpx.MockTransport(refuse))
    for request_id in request_ids:
        with suppress(BadReply):
            await wire.post("/v1/completions", body, request_id)
    await wire.aclose()
    return left


def test_a_body_is_the_json_of_what_is_asked_and_says_so():
    body = {
        "prompt": [0, 151935, 7],
        "logit_bias": {"5": -100.0},
        "text": 'ß "中"\n',
        "seed": 2**31 - 1,
        "stream": True,
    }
    request, bare = asyncio.run(requests_of(body, "r", None))
    assert json.loads(request.content) == body
    assert len(request.content) < len(json.dumps(body))  # no byte is spent on blanks
    headers = {name: request.headers[name] for name in ("content-type", "x-request-id", "content-length")}
    assert headers == {
        "content-type": "application/json",
        "x-request-id": "r",
        "content-length": str(len(request.content)),
    }
    assert "x-request-id" not in bare.headers


def test_certificates_are_read_once_and_again_where_others_are_named(tmp_path, monkeypatch):
    """They are the environment's, as httpx reads them; reading them for every client took longer than most answers."""

    def verified_with(*, through_proxies=True):
        wire = Wire("https://there", None, Timeouts(), through_proxies=through_proxies)
        return wire._pools[0]._ssl_context

    usual = verified_with()
    assert verified_with(through_proxies=False) is verified_with() is usual
    assert usual.verify_mode is ssl.CERT_REQUIRED
    assert usual.check_hostname
    own, end = tmp_path / "own.pem", "-----END CERTIFICATE-----\n"
    own.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert len(verified_with().get_ca_certs()) == 1 < len(usual.get_ca_certs())


def test_a_fault_of_the_connection_is_said_in_the_systems_words_and_without_its_number():
    """It had read: cannot reach http://127.0.0.1:9: [Errno 111] Connect call failed ('127.0.0.1', 9)."""
    url = "http://127.0.0.1:9"
    for number in (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT):
        fault = httpx.ConnectError("All connection attempts failed")
        fault.__cause__ = OSError(number, "Connect call failed ('127.0.0.1', 9)")
        assert str(transport_error(fault, url)) == f"cannot reach {url}: {os.strerror(number)}"
    fault = httpx.ConnectError("x")
    fault.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert str(transport_error(fault, url)) == f"cannot reach {url}: Name or service not known"
    fault.__cause__ = OSError("a..b is no host name")
    assert str(transport_error(fault, url)) == f"cannot reach {url}: a..b is no host name"
    with pytest.raises(Unreachable, match=f"cannot reach {url}: {os.strerror(errno.ECONNREFUSED)}$"):
        post(url, Timeouts())


@each(
    "first",
    [
        Script.whole(WHOLE_REPLY, **COOKIE),
        Script.stream(**COOKIE),
        *(Script.whole({}, code, **COOKIE) for code in (302, 404, 500)),
    ],
)
def test_no_request_ever_holds_a_cookie(first):
    """One caller's relay sent another's; 28 replies made a header of 2 MB."""

    async def ask():
        async with upstream(first, Script.whole(**COOKIE)) as there:
            wire = Wire(there.url, None, Timeouts(), through_proxies=False)
            try:
                for _ in range(2):
                    with suppress(CloudError):
                        raw = await wire.open_raw("/v1/chat/completions", b"{}", "id", wire.question_deadlines())
                        await raw.whole()
                        await raw.aclose()
                    with suppress(CloudError):
                        await wire.get("/v1/models")
                    with suppress(CloudError):
                        await wire.post("/v1/completions", {})
                    with suppress(CloudError):
                        _ = [each async for each in wire.stream("/v1/completions", {}, "id")]
                    with suppress(CloudError):
                        await Endpoint(wire, "m").discover("a", (1,))
            finally:
                await wire.aclose()
            assert len(there.requests) > 12
            assert not [headers for _, headers, _ in there.requests if "cookie" in headers]

    asyncio.run(ask())


def test_many_requests_under_way_keep_none_waiting_that_is_an_endpoint_away():
    """The pool has no bound of its own: 105 held connections made the 106th request look like a dead endpoint."""

    async def ask():
        async with upstream(*[Script(parts=[STAY])] * 105, Script.whole()) as there:
            wire = Wire(there.url, None, Timeouts(connect=60), through_proxies=False)
            try:
                held = [
                    await wire.open_raw("/v1/chat/completions", b"{}", "id", wire.question_deadlines())
                    for _ in range(105)
                ]
                assert await wire.get("/v1/models")
                for reply in held:
                    await reply.aclose()
                while len(there.left) < len(held):  # noqa: ASYNC110  (nobody is told)
                    await asyncio.sleep(0.01)
            finally:
                await wire.aclose()

    asyncio.run(ask())
