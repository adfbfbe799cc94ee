"""Names become addresses without keeping anybody waiting, and the first address that lets us in is taken."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import anyio
import httpcore
import pytest
from cases import each

from hybrid.cloud import network
from hybrid.cloud import network as names
from hybrid.cloud.network import connect_first, resolve

FOUR, SIX = socket.AF_INET, socket.AF_INET6


def look_up(host):
    return asyncio.run(resolve(host, 80))


@each("host", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_address_is_its_own_and_nothing_is_looked_up(monkeypatch, host):
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert look_up(host) == [host]


def test_the_families_take_turns_in_the_resolvers_order(monkeypatch):
    """Where one of them leads nowhere, the other is tried a quarter of a second later, not after all of the first."""
    found = [(SIX, "::2"), (SIX, "::1"), (SIX, "::3"), (FOUR, "127.0.0.9"), (FOUR, "127.0.0.8")]
    answer = [(family, socket.SOCK_STREAM, 6, "", (address, 80)) for family, address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert look_up("there") == ["::2", "127.0.0.9", "::1", "127.0.0.8", "::3"]


@each("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_leads_nowhere_is_an_error_of_the_system(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match=r"not known|no host name"):
        look_up("there")


HANGS = """
import asyncio, socket, time
from hybrid.cloud.network import resolve
socket.getaddrinfo = lambda *_, **__: time.sleep(60)
async def ask():
    async with asyncio.timeout(0.1):
        await resolve("there", 80)
try:
    asyncio.run(ask())
except TimeoutError:
    print("given up")
"""


def test_a_resolver_that_hangs_does_not_keep_the_process_alive():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("given up\n", "")


def test_an_answer_that_comes_when_nobody_waits_any_more_is_dropped(monkeypatch):
    late, told = threading.Event(), []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: late.wait(10) and [])
    monkeypatch.setattr(threading, "excepthook", told.append)

    async def give_up():
        async with asyncio.timeout(0.01):
            await resolve("there", 80)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    late.set()
    for thread in threading.enumerate():
        if thread.name == "hybrid-resolver":
            thread.join(10)
    assert told == []


# ---- several addresses ---------------------------------------------------------------------------------------------


class Dialled:
    """Addresses that behave as their names say; what was tried, opened, closed and given up."""

    def __init__(self):
        self.tried, self.closed, self.given_up = [], [], []

    async def connect(self, address):
        self.tried.append(address)
        try:
            await asyncio.sleep(60 if "silent" in address else 0.05 if "slow" in address else 0)
        except asyncio.CancelledError:
            self.given_up.append(address)
            raise
        if "refused" in address:
            raise OSError(address)
        return address

    async def close(self, connection):
        self.closed.append(connection)

    def connect_first(self, *addresses):
        return asyncio.run(connect_first(self.connect, addresses, self.close))


def test_the_first_address_that_lets_us_in_is_taken_and_no_other_tried():
    dialled = Dialled()
    assert dialled.connect_first("slow", "good") == "slow"
    assert dialled.tried == ["slow"]


def test_a_refusal_leads_to_the_next_address_at_once(monkeypatch):
    monkeypatch.setattr(names, "HEAD_START_S", 60)
    dialled = Dialled()
    assert dialled.connect_first("refused 1", "refused 2", "good", "never") == "good"
    assert dialled.tried == ["refused 1", "refused 2", "good"]


def test_a_silent_address_is_given_up_when_another_lets_us_in(monkeypatch):
    monkeypatch.setattr(names, "HEAD_START_S", 0.01)
    dialled = Dialled()
    assert dialled.connect_first("silent", "refused", "good") == "good"
    assert (dialled.given_up, dialled.closed) == (["silent"], [])


def test_where_nobody_lets_us_in_the_first_addresss_error_is_raised():
    with pytest.raises(OSError, match="refused 1"):
        Dialled().connect_first("refused 1", "refused 2")


def test_attempts_that_are_all_cancelled_are_a_cancellation_and_no_error_of_ours():
    """On a busy machine a deadline that passes with an address's head start ends them so."""

    async def cancelled(_):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(connect_first(cancelled, ["one", "another"], cancelled))


@each("cancelled", [False, True])
def test_no_connection_is_left_open_but_the_one_that_is_taken(monkeypatch, cancelled):
    """A handshake that is nearly over cannot be stopped any more; nor is anything taken by who has given up."""
    monkeypatch.setattr(names, "HEAD_START_S", 0.0)
    dialled, both = Dialled(), asyncio.Event()

    async def stubborn(address):
        if dialled.tried:
            both.set()
        with anyio.CancelScope(shield=True):
            return await dialled.connect(address)

    async def dial():
        dialling = asyncio.create_task(connect_first(stubborn, ["slow 1", "slow 2"], dialled.close))
        await both.wait()
        if cancelled:
            dialling.cancel()
        return await dialling

    if cancelled:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(dial())
        assert sorted(dialled.closed) == ["slow 1", "slow 2"]
    else:
        assert {asyncio.run(dial()), *dialled.closed} == {"slow 1", "slow 2"}


def test_a_real_connection_that_comes_second_is_closed(monkeypatch):
    """What closes a connection of the library's is that connection's own method, not the one of its abstract class."""
    dial, open_ = httpcore.AnyIOBackend.connect_tcp, []

    async def stubborn(self, host, **how):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
            open_.append(await dial(self, host, **how))
        return open_[-1]

    async def both(*_):
        return ["127.0.0.1", "127.0.0.1"]

    async def connect():
        async with await asyncio.start_server(lambda _, incoming: incoming.close(), "127.0.0.1", 0) as server:
            taken = await network.Network().connect_tcp("there", server.sockets[0].getsockname()[1])
            still_open = [each for each in open_ if each.get_extra_info("socket").fileno() >= 0]
            same = [each.get_extra_info("socket") is taken.get_extra_info("socket") for each in still_open]
            await taken.aclose()
            await anyio.sleep(0.05)  # until the server has closed its own ends
            return len(open_), same

    monkeypatch.setattr(names, "HEAD_START_S", 0.0)
    monkeypatch.setattr(network, "resolve", both)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", stubborn)
    assert asyncio.run(connect()) == (2, [True])


def test_who_gives_up_gives_up_every_address(monkeypatch):
    monkeypatch.setattr(names, "HEAD_START_S", 0.01)
    dialled = Dialled()

    async def give_up():
        async with asyncio.timeout(0.1):
            await connect_first(dialled.connect, ["silent 1", "silent 2"], dialled.close)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert sorted(dialled.given_up) == ["silent 1", "silent 2"]
