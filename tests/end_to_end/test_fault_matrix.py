"""Every fault the stub knows, at every phase of an answer: it ends, says why, is paid for, and leaves nothing behind.

A fault strikes from some request on and does not go away, so whatever is asked again fails again. ``test_faults.py``
looks at single replies, ``tests/run/test_failing.py`` at what is asked again and when.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

import psutil
import pytest
from cases import each

import hybrid
from hybrid.cloud.wire import Wire
from hybrid.errors import NotAnApi
from hybrid.run import Degraded, Event, Finished, RequestRetried, RequestSent, RequestSettled
from hybrid.spend import Price
from hybrid.types import CloudUsage
from server_stub.faults import NAMES, ONLY_STREAMS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Small was never asked for downwards and sorts upwards: the two part at the first token.
QUESTION = "Sort downwards: 42 17 99 23 68."
PRICE = "1/0.1/4"
DEADLINES = {
    "connect_timeout_s": 0.5,
    "first_byte_timeout_s": 0.6,
    "read_timeout_s": 0.4,
    "request_timeout_s": 1.5,
    "retries": 1,  # one shows as much as two, and waits less
}
# kl checks, and writes after a check; doubt writes more than once; cloud writes once, from the beginning to the end.
POLICIES = ["kl", "doubt", "cloud"]
SETTINGS = {
    "kl": {"threshold": 0.001, "span": 4, "hold": 2},
    "doubt": {"threshold": 0.001, "entropy": 0.05, "hold": 2},
    "greedy-exact": {"span": 4},
}
AMOUNTS = {"slow": "slow:3", "huge": "huge:130", "429-retry-after": "429-retry-after:0.1"}
NUMBERS = {"nan-rows", "null-rows", "short-top-k", "wrong-usage", "overcharge"}
# What a client need not notice: top lists of one entry are lists; the others change what is told and not what is said.
HARMLESS = {"short-top-k", "wrong-usage", "duplicated", "missing-done"}
# What spoils rows, for which cloud does not ask: nobody looks at those of what it writes.
ROWS = {"nan-rows", "null-rows"}
REFUSED = {"page", "redirect-loop"}
BODIES = {"cut", "stalled-midway", "malformed"}


@dataclass
class Run:
    """What came of one question. ``sockets``: in use after it, or still there once the client is closed."""

    events: list[Event]
    refused: NotAnApi | None
    seconds: float
    tasks: set
    sockets: list

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def answer(self):
        return self.of(Finished)[0].answer


@pytest.fixture
def struck(stub, monkeypatch, tmp_path):
    """Ask with a fault that strikes every request of a kind from the n-th on, and look at everything afterwards.

    Each question has a ledger of its own: a server that overcharges is closed in it.
    """
    port = int(stub.url.rpartition(":")[2])

    def run(policy, fault, generating=True, first=1, last=10**9, **more):
        number, wires = 0, []

        async def strike(request):
            nonlocal number
            if request.url.path.endswith("completions") is generating:
                number += 1
                if first <= number <= last:
                    request.headers["x-fault"] = AMOUNTS.get(fault, fault)

        class Struck(Wire):
            def __init__(self, *values, **named):
                super().__init__(*values, **named)
                self._client.event_hooks = {"request": [strike]}
                wires.append(self)

        monkeypatch.setattr("hybrid.cloud.wire.Wire", Struck)

        def sockets():
            here = psutil.Process().net_connections("tcp")
            return {each.laddr for each in here if each.raddr and each.raddr.port == port and each.fd != -1}

        async def ask():
            settings = {
                "policy": policy,
                "price": PRICE,
                "max_tokens": 16,
                "ledger": tmp_path / f"{uuid.uuid4()}.sqlite",
            }
            settings |= SETTINGS.get(policy, {}) | DEADLINES | more
            before, events, refused = sockets(), [], None
            async with hybrid.open(local="small", cloud=stub.url, **settings) as client:
                began = time.monotonic()
                try:
                    async for event in client.stream(QUESTION):
                        events.append(event)  # noqa: PERF401  (what happened before a refusal counts)
                except NotAnApi as error:
                    refused = error
                seconds = time.monotonic() - began
                open_ones = [each for wire in wires for each in wire._client._transport._pool.connections]
                in_use = [each for each in open_ones if not each.is_idle() and not each.is_closed()]
            await asyncio.sleep(0.02)  # generators that nobody holds any more are closed by the loop
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            return Run(events, refused, seconds, tasks, in_use + list(sockets() - before))

        return asyncio.run(ask())

    return run


def truth(stub, run):
    """What the server says it charged for the requests of a run, in nano-dollars."""
    price, ids = Price.parse(PRICE), {event.request_id for event in run.of(RequestSent)}
    charges = [entry for entry in stub.client.get("/v1/charges").json()["data"] if entry["id"] in ids]
    return sum(
        price.cost(CloudUsage(entry["prompt_tokens"], entry["completion_tokens"], entry["cached_tokens"]))
        for entry in charges
    )


def holds_up(stub, run, fault):
    """Check what must hold whatever happened; an answer is finished unless it was refused before it began."""
    assert not run.tasks
    assert not [
        each for each in run.sockets if each.status not in {"TIME_WAIT", "CLOSE_WAIT", "FIN_WAIT1", "FIN_WAIT2"}
    ]
    assert run.seconds < DEADLINES["request_timeout_s"] + 1.0
    asked, settled = run.of(RequestSent), run.of(RequestSettled)
    assert sorted(e.request_id for e in asked) == sorted(e.request_id for e in settled)
    if run.refused:
        assert "\n" not in str(run.refused)
        return
    answer = run.answer
    assert answer.finish_reason in {"stop", "length"}
    assert answer.text == "".join(token.text for token in answer.tokens) != ""
    told = [event.why for event in run.of(Degraded)]
    assert told[:1] == ([answer.degraded] if answer.degraded else [])
    assert len(told) <= (2 if fault == "overcharge" else 1), "what was charged is told beside what follows from it"
    assert answer.degraded is None or answer.degraded.isprintable()
    assert answer.bill.nanousd >= truth(stub, run)


def expects(run, fault, *, shown=False, harmless=HARMLESS):
    """Check that it was noticed, or need not be: before any text a wrong address is the user's to mend."""
    if fault in harmless:
        assert run.answer.degraded is None
    elif fault == "overcharge":
        assert "is closed (it charged" in run.answer.degraded
    elif fault in REFUSED and not shown:
        assert run.refused
    else:
        assert run.answer.degraded
        assert run.answer.tokens[-1].source == "local"


@each("fault", [name for name in NAMES if name not in NUMBERS | ONLY_STREAMS])
def test_while_connecting(struck, stub, fault):
    run = struck("kl", fault, generating=False)
    holds_up(stub, run, fault)
    expects(run, fault)
    assert not run.of(RequestSent)


@each("policy", POLICIES)
@each("fault", NAMES)
def test_at_the_first_request(struck, stub, fault, policy):
    run = struck(policy, fault)
    holds_up(stub, run, fault)
    expects(run, fault, harmless=HARMLESS | ROWS if policy == "cloud" else HARMLESS)


@each("policy", ["kl", "doubt"])
@each("fault", NAMES)
def test_at_a_later_request_the_text_that_stands_is_kept(struck, stub, fault, policy):
    """Of kl it is a write that follows a check, of doubt another write."""
    run = struck(policy, fault, first=2)
    holds_up(stub, run, fault)
    expects(run, fault, shown=True)
    assert run.answer.tokens[0].source == "cloud"


@each("fault", sorted(BODIES | {"slow", "500", "nan-rows"}))
def test_in_the_middle_of_a_later_check(struck, stub, fault):
    run = struck("greedy-exact", fault, first=2)
    holds_up(stub, run, fault)
    expects(run, fault, shown=True)
    assert {event.kind for event in run.of(RequestSent)} == {"check"}
    assert run.answer.usage.checks == 1


@each("fault", sorted(BODIES))
def test_in_the_middle_of_a_write_nothing_is_asked_again(struck, stub, fault):
    run = struck("cloud", fault)
    holds_up(stub, run, fault)
    assert [token.source for token in run.answer.tokens[:2]] == ["cloud", "local"]
    assert len(run.of(RequestSent)) == 1


@each("policy", POLICIES)
@each("fault", ["429-retry-after", "503", "after-headers"])
def test_what_passes_leaves_no_trace_in_the_text(struck, stub, fault, policy):
    """It costs time, and at most a reservation."""
    whole, run = struck(policy, "short-top-k", last=0), struck(policy, fault, last=1, first_byte_timeout_s=5.0)
    holds_up(stub, run, fault)
    assert (run.answer.text, run.answer.degraded) == (whole.answer.text, None)
    assert len(run.of(RequestRetried)) == 1
    assert len(run.of(RequestSent)) == len(whole.of(RequestSent)) + 1
