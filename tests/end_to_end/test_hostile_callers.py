"""``hybrid serve`` beside callers and an upstream that mean no good: others are answered, memory stays, it ends.

No time is asserted: whoever is answered at all, while the attack goes on, was not made to wait for its end.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack

import pytest
from cases import each
from hostile_callers import ask, connect, local, read, relayed, request, silent_pages, silent_readers, turns
from lying_upstream import LIES, LyingUpstream
from serve_process import ServeProcess, relay_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MOST_MIB = 400
# Those that end by themselves, soon: the endless ones are bounded by bytes, and cost a core for half a minute each.
SOON = [name for name in LIES if not name.startswith(("endless", "silent", "length-too-long-and"))]
BOUNDED = ["endless-body", "endless-event", "endless-header", "endless-headers", "chunk-extension-endless"]


@pytest.fixture(scope="module")
def upstream():
    with LyingUpstream() as there:
        yield there


@pytest.fixture(scope="module")
def serve(upstream, tmp_path_factory):
    with ServeProcess(tmp_path_factory.mktemp("serve"), **relay_to(upstream.url), HYBRID_RETRIES="0") as server:
        assert ask(server.port, local()).status == ask(server.port, relayed()).status == 200
        server.rest()
        yield server
        assert server.peak_mib < MOST_MIB
        assert "failed with" not in server.stderr
        assert server.terminate()[0] == 0


def test_who_reads_nothing_takes_no_answer_from_another(serve):
    """Local questions are answered beside them; relays are refused as ours, and are back when they have left."""
    with silent_readers(serve.port, [relayed("endless-large-events", stream=True)] * 80):
        assert ask(serve.port, local()).status == 200
        told = ask(serve.port, relayed())
        assert told.status in {200, 503}
        assert b"keeps failing" not in told.body
    until = time.monotonic() + 60
    while (told := ask(serve.port, relayed())).status != 200 and time.monotonic() < until:
        assert b"keeps failing" not in told.body
        time.sleep(0.2)
    assert told.status == 200


def test_a_question_is_answered_beside_a_hundred_pages_that_nobody_reads(serve):
    with silent_pages(serve.port, 100):
        for _ in range(3):
            assert ask(serve.port, local()).status == 200


def test_a_question_is_answered_beside_long_local_answers_that_nobody_reads(serve):
    long = local("Tell me a long story.", stream=True, max_tokens=7000, logprobs=True, top_logprobs=20)
    with silent_readers(serve.port, [long] * 12):
        assert ask(serve.port, local()).status == 200


def test_comments_without_end_are_no_answer(serve):
    told = ask(serve.port, relayed("endless-comments", stream=True))
    assert told.status in {200, 502}
    assert b"comments and no events" in told.body


def test_questions_are_answered_beside_callers_with_many_turns(serve):
    with ExitStack() as clean_up:
        for _ in range(8):
            clean_up.enter_context(connect(serve.port)).sendall(request(turns(25_000)))
        for _ in range(3):
            assert ask(serve.port, local()).status == 200


@each("num", [25_000, 100_000])
def test_a_conversation_of_many_turns_is_refused(serve, num):
    told = ask(serve.port, turns(num))
    assert (told.status, json.loads(told.body)["error"]["code"]) == (400, "context_length_exceeded")


def test_sixteen_bodies_of_eight_mebibytes_at_once_are_refused_one_way_or_another(serve):
    """400: it does not fit; 503: not now. Another's question is answered beside them."""
    text = json.dumps(local("a" * (8 * 2**20 - 500))).encode()
    told: list[int] = []
    senders = [threading.Thread(target=lambda: told.append(ask(serve.port, text).status)) for _ in range(16)]
    for sender in senders:
        sender.start()
    assert ask(serve.port, local()).status == 200
    for sender in senders:
        sender.join()
    assert set(told) <= {400, 503, 0}  # 0: cut off while it was sending
    assert 400 in told


@each("name", [*SOON, *BOUNDED])
@each("streamed", [False, True])
def test_whatever_an_upstream_says_is_an_answer_or_an_error_and_never_a_fault_of_ours(serve, name, streamed):
    """0 would be a connection that ended without a response; 1xx and 6xx are no responses either."""
    told = ask(serve.port, relayed(name, stream=streamed))
    assert 200 <= told.status < 600
    assert serve.alive


def test_no_request_holds_a_cookie_whatever_the_upstream_sets(serve, upstream):
    for _ in range(3):
        ask(serve.port, relayed("cookie"))
        ask(serve.port, relayed("cookies-32", stream=True))
    assert len(upstream.requests) > 6
    assert not [asked for asked in upstream.requests if "cookie" in asked.names]


@each("lines", [["Transfer-Encoding: chunked"], ["X-A: b", "Transfer-Encoding: chunked"]])
def test_a_second_request_behind_a_length_and_chunks_is_not_answered(serve, lines):
    body = json.dumps(local()).encode()
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    hidden = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connect(serve.port) as there:
        there.sendall(request(chunks + hidden, *lines))
        told = read(there, time.monotonic())
    assert told.status == 400
    assert b"HTTP/1.1" not in told.body


def test_sigterm_ends_it_in_the_midst_of_a_hundred_thousand_turns(tmp_path):
    with ServeProcess(tmp_path) as server, connect(server.port) as there:
        there.sendall(request(turns(100_000)))
        assert server.terminate()[0] == 0
