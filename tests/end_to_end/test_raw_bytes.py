"""Whatever bytes an endpoint sends: an answer or one sentence, soon, in little memory.

The bytes are ``raw_server``'s, by another hand than the client. Each of its bodies is met three ways: as the stream of
``cloud``, as the whole replies of ``greedy-exact``, and everywhere, from the first question about the endpoint on.
The client lives in a process of its own, which says how much memory it took.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
from cases import each, each_of
from measured_child import Child
from raw_bodies import ENCODINGS, JSON, STREAMS
from raw_framing import BODIES, CONNECTIONS, HEADS, LENGTHS
from raw_server import READABLE, RawServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 2**20
DEADLINES = {
    "connect_timeout_s": 2.0,
    "first_byte_timeout_s": 2.0,
    "read_timeout_s": 1.5,
    "cool_down_s": 60.0,  # a cloud that failed is not asked again
}


def deadline_s(body):
    """What can be read must be: a chunk for each of 40,000 bytes took a busy machine twelve seconds."""
    return 60.0 if body in READABLE else 3.0


CHOICES = {"max_tokens": 3, "price": "1/0.1/4", "ledger": "none"}
FAMILIES = {
    "readable": READABLE,
    "encodings": ENCODINGS,
    "streams": STREAMS,
    "json": JSON,
    "heads": HEADS,
    "lengths": LENGTHS,
    "connections": CONNECTIONS,
}
assert {body for family in FAMILIES.values() for body in family} == set(BODIES)
POLICY = {"stream": "cloud", "whole": "greedy-exact", "everywhere": "greedy-exact"}


class Bench:
    """A server for generation and one for everything, a child that is started again where it died, and sane answers."""

    def __init__(self, clean_up):
        self._clean_up = clean_up
        self._servers = {where: clean_up.enter_context(RawServer(everywhere=where == "everywhere")) for where in POLICY}
        self._child = clean_up.enter_context(Child())
        self.ask("sane", "stream")  # loads what is loaded once
        self.sane = {where: self.ask("sane", where) for where in POLICY}

    def ask(self, body, where):
        if not self._child.alive:
            self._child = self._clean_up.enter_context(Child())
        server = self._servers[where]
        server.body, before = body, len(server.attacks)
        deadlines = DEADLINES | {"request_timeout_s": deadline_s(body)}
        told = self._child.ask(local="small", cloud=server.url, policy=POLICY[where], **CHOICES, **deadlines)
        return told | {"visits": len(server.attacks) - before}


@pytest.fixture(scope="module")
def bench(bundled):
    with ExitStack() as clean_up:
        yield Bench(clean_up)


def test_the_sane_server_is_understood(bench):
    """Else everything below would be a local answer, and nothing would be tested."""
    for told in each_of(bench.sane.values()):
        assert told["degraded"] is None
        assert set(told["sources"]) == {"cloud"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("where", POLICY)
def test_whatever_comes_there_is_an_answer_or_one_sentence_soon_and_in_little_memory(bench, family, where):
    each("body", FAMILIES[family])(partial(check_what_comes, bench, where=where))()


def check_what_comes(bench, body, where):
    told, sane = bench.ask(body, where), bench.sane[where]
    assert body not in READABLE or told.get("degraded", told.get("error")) is None
    if "error" in told:
        assert_sentence(told["error"])
    else:
        assert len(told["sources"]) == CHOICES["max_tokens"]
        if told["degraded"] is None:
            assert told["text"] == sane["text"], "what is told as the cloud's is what the cloud would have said"
        else:
            assert_sentence(told["degraded"])
    assert told["grown"] < 200 * MIB
    # One question may take its deadline: after it nothing is asked. A deadline that is kept ten times too late is lost.
    assert told["seconds"] < 10 * (deadline_s(body) + sane["seconds"])


def assert_sentence(words):
    assert words.isprintable()
    assert 10 < len(words) < 400
