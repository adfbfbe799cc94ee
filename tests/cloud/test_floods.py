"""Floods: streams that bring much work rest for it, in turn, and others do not notice; on clocks of the test's own."""

from __future__ import annotations

import asyncio

import pytest
from cases import each
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.network import Floods, PacedStream
from hybrid.cloud.wire import Wire

MOST = 2**16
# What all streams have of the time, and after a pause at once; what one read can have brought. In seconds.
SHARE, BURST_S, MOST_S = 0.35, 0.25, 0.05


class Machine:
    """Clocks that only the test moves, and streams over them. ``rests``: how long each was, and how many rested."""

    def __init__(self):
        self.wall = self.work = 0.0
        self.rests, self.resting = [], 0
        self.floods = Floods(self.sleep, lambda: self.work, lambda: self.wall)

    async def sleep(self, seconds):
        self.wall += seconds
        self.resting += 1
        self.rests.append((seconds, self.resting))
        await asyncio.sleep(0)
        self.resting -= 1

    def does(self, seconds):
        self.work += seconds
        self.wall += seconds

    async def read(self, max_bytes, _timeout=None):
        """Be a server that always has more to give."""
        return b"x" * max_bytes

    async def write(self, _buffer, _timeout=None):
        """Be a server that takes anything."""

    async def start_tls(self, *_args, **_kwargs):
        """Be a server that speaks TLS."""
        return self

    def stream(self):
        return PacedStream(self, self.floods)


@given(st.lists(st.floats(0.0, MOST_S), min_size=1, max_size=200), st.integers(1, 4))
@example([MOST_S] * 200, 4)
@example([0.001] * 2_000, 12)
def test_all_floods_together_have_a_third_of_the_loop(works, num):
    machine = Machine()

    async def flood():
        stream = machine.stream()
        for work in works:
            await stream.read(MOST)
            machine.does(work)
        await stream.read(MOST)

    async def floods():
        await asyncio.gather(*(flood() for _ in range(num)))

    asyncio.run(floods())
    assert machine.work == pytest.approx(num * sum(works))
    assert machine.work <= BURST_S + SHARE * machine.wall + 1e-9
    assert all(resting == 1 for _, resting in machine.rests), "one at a time"


@each("tls", [False, True])
@each(("rate", "took"), [(100, 0.001), (400, 0.0005), (1000, 0.0003)])
def test_an_honest_stream_never_rests(tls, rate, took):
    """A relayed event was measured to take 0.5 to 1 ms; a first version took it to be 0.1 and slowed 400 a second."""
    machine = Machine()

    async def honest():
        stream = machine.stream()
        stream = await stream.start_tls() if tls else stream
        for _ in range(5_000):
            machine.wall += 1 / rate - took
            await stream.read(MOST)
            machine.does(took)

    asyncio.run(honest())
    assert machine.rests == []


def test_twelve_honest_streams_beside_one_another_never_rest():
    """Each has 2.5 % of the loop. What the loop did for the others was once laid to each of them, and all but stood."""
    machine = Machine()

    async def honest():
        streams = [machine.stream() for _ in range(12)]
        for _ in range(200):
            for stream in streams:
                await stream.read(MOST)
                machine.does(0.001)
            machine.wall += 1 / 25 - 12 * 0.001

    asyncio.run(honest())
    assert machine.rests == []


def test_what_the_loop_does_while_a_stream_waits_is_not_laid_to_it():
    machine = Machine()

    class Slow(Machine):
        async def read(self, max_bytes, _timeout=None):
            machine.does(0.04)
            return b"x" * max_bytes

    async def reads():
        stream = PacedStream(Slow(), machine.floods)
        for _ in range(100):
            await stream.read(MOST)

    asyncio.run(reads())
    assert machine.work == pytest.approx(4.0)
    assert machine.rests == []


@each("tls", [False, True])
def test_a_read_brings_little_where_what_came_took_long_and_all_there_is_where_it_did_not(tls):
    """64 KiB of interim replies are parsed in one go, for 130 ms."""
    machine = Machine()

    async def sizes(work):
        stream = machine.stream()
        stream = await stream.start_tls() if tls else stream
        found = []
        for _ in range(12):
            found.append(len(await stream.read(MOST)))
            machine.does(work)
        return found

    assert asyncio.run(sizes(0.0001))[-1] == MOST
    slow = asyncio.run(sizes(0.01))
    assert max(slow) <= MOST // 8
    assert slow[-1] == 1024


def test_a_request_owes_nothing_of_what_passed_since_the_last_reply():
    machine = Machine()

    async def requests():
        stream = machine.stream()
        for _ in range(100):
            await stream.write(b"x")
            await stream.read(MOST)
            machine.does(1.0)

    asyncio.run(requests())
    assert machine.rests == []


def test_what_is_relayed_is_paced_and_a_model_of_ones_own_is_not():
    """Nobody waits beside ``hybrid ask``, and a fast server of one's own may well take half of its loop."""
    for paced in (True, False):
        pools = Wire("http://there", None, Timeouts(), paced=paced)._pools
        assert pools
        assert all((pool._network_backend._floods is not None) == paced for pool in pools)
