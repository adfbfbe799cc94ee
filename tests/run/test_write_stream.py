"""However a stream ends, it is settled once, and for what it may have cost."""

from __future__ import annotations

import asyncio

import pytest
from cases import each

from hybrid.cloud import Chunk
from hybrid.errors import BadReply, TlsFailure, Unreachable
from hybrid.run.open_request import OpenRequest, RequestBilling, WriteStream
from hybrid.spend import Grant
from hybrid.types import NO_USAGE, CloudUsage

WORST, CHARGED = CloudUsage(10, 8), CloudUsage(10, 3, 4)


class Books:
    """A budget and a builder: it appends what a request is settled for. No price is known."""

    price = None
    bytes_sent = failed = 0
    longest_write = (0, 0.0)

    def __init__(self, settled):
        self.settled, self.charges = settled, []

    async def mark_sent(self, _):
        pass

    def settle(self, _, usage):
        self.settled.append(usage)

    def cost(self, _):
        pass

    def publish(self, _):
        pass


def leave_to(settled):
    """Leave for a request of ten tokens that may write eight; what it is settled for is appended."""
    return OpenRequest("r", "write", Grant(10, 8), RequestBilling(Books(settled), Books(settled)))


@pytest.fixture
def reading(run):
    """Read ``num_reads`` times from a scripted stream, close, and return what was read and settled."""

    def read(items, num_reads):
        settled, closed, chunks = [], [], []
        read.settled = settled

        async def stream():
            try:
                for item in items:
                    if isinstance(item, Exception):
                        raise item
                    yield item
            finally:
                closed.append(True)

        async def go():
            leave = leave_to(settled)
            await leave.before_send()
            reader = WriteStream((5,), leave, stream())
            try:
                chunks.extend([await reader.read() for _ in range(num_reads)])
            finally:
                await reader.close()
                await reader.close()
            return reader

        reader = run(go())
        assert closed == [True]
        return reader, chunks, settled

    return read


TOKENS = [Chunk((1,)), Chunk((2,)), Chunk((3,), finish="length")]


def test_a_stream_read_to_its_end_is_settled_by_the_servers_usage(reading):
    reader, chunks, settled = reading([*TOKENS, Chunk(usage=CHARGED)], 3)
    assert [chunk.ids for chunk in chunks] == [(1,), (2,), (3,)]
    assert reader.at == (5, 1, 2, 3)
    assert settled == [CHARGED]


def test_a_stream_closed_early_is_settled_by_every_token_of_its_limit(reading):
    _, _, settled = reading([*TOKENS, Chunk(usage=CHARGED)], 1)
    assert settled == [WORST]


def test_a_usage_that_came_before_closing_early_is_a_lower_bound(reading):
    """A server that tells a usage with every token tells of one where it charges for those it ran ahead, too."""
    _, _, settled = reading([Chunk((1,), usage=CHARGED), *TOKENS], 1)
    assert settled == [WORST]
    _, _, settled = reading([Chunk((1,), usage=CloudUsage(30, 3, 9)), *TOKENS], 1)
    assert settled == [CloudUsage(30, 8)], "whatever was cached: what comes after it nobody told"


def test_a_usage_that_was_told_with_the_end_is_the_last_word_even_if_the_stream_breaks_after_it(reading):
    _, _, settled = reading([*TOKENS[:2], Chunk((3,), finish="length", usage=CHARGED), Unreachable("cut")], 3)
    assert settled == [CHARGED]


def test_a_usage_that_was_told_before_the_last_token_is_not(reading):
    _, _, settled = reading([Chunk((1,), usage=CloudUsage(10, 1)), *TOKENS[1:], Unreachable("cut")], 3)
    assert settled == [None]


def test_tokens_that_come_after_the_usage_at_the_end_take_the_last_word_from_it(reading):
    """What they cost nobody told: the reservation stands."""
    end = Chunk((3,), finish="length", usage=CHARGED)
    _, _, settled = reading([*TOKENS[:2], end, Chunk((4,)), Unreachable("cut")], 3)
    assert settled == [None]


def test_a_stream_that_breaks_is_not_settled_so_that_its_reservation_stands(reading):
    with pytest.raises(Unreachable):
        reading([TOKENS[0], Unreachable("cut")], 2)


def test_tokens_are_not_lost_when_the_stream_breaks_after_them(reading):
    """The text was whole; only its price stays unknown."""
    _, chunks, settled = reading([*TOKENS, Unreachable("cut")], 3)
    assert [chunk.ids for chunk in chunks] == [(1,), (2,), (3,)]
    assert settled == [None]


def test_a_stream_that_ends_without_saying_so_ends_by_length(reading):
    _, chunks, settled = reading([Chunk((1,)), Chunk(usage=CHARGED)], 2)
    assert chunks[-1].finish == "length"
    assert settled == [CHARGED]


@each(("items", "settled"), [([], None), ([Chunk(), Chunk()], None), ([Chunk(usage=CHARGED)], CHARGED)])
def test_a_stream_of_no_token_that_does_not_say_why_it_ended_is_broken(reading, items, settled):
    """An empty answer must not pass for one: the local model goes on, and the user is told."""
    with pytest.raises(BadReply, match="without a token"):
        reading(items, 1)
    assert reading.settled == [settled]


def test_a_model_that_has_nothing_to_say_is_believed(reading):
    for end in ("stop", "length"):  # as text-only endpoints end where a token has no text
        _, chunks, settled = reading([Chunk(finish=end), Chunk(usage=CHARGED)], 1)
        assert ([chunk.ids for chunk in chunks], settled) == ([()], [CHARGED])


def test_a_stream_that_is_cancelled_while_its_usage_is_waited_for_is_settled_at_its_worst(reading):
    settled = []

    async def never():
        yield Chunk((1,), finish="stop", usage=None)
        await asyncio.Event().wait()

    async def go():
        reader = WriteStream((5,), leave_to(settled), never())
        await reader.read()
        closing = asyncio.create_task(reader.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(go())
    assert settled == [WORST]


def test_a_stream_that_writes_more_than_it_was_asked_for_is_not_believed_and_charged_for_all_it_wrote(reading):
    settled = []

    async def stream():
        for chunk in [Chunk((1,) * 20), Chunk((2,) * 5), Chunk(usage=CloudUsage(10, 30, 6))]:
            yield chunk

    async def go():
        leave = leave_to(settled)
        await leave.before_send()
        reader = WriteStream((5,), leave, stream())
        with pytest.raises(BadReply, match="20 tokens where 8"):
            await reader.read()

    asyncio.run(go())
    assert settled == [CloudUsage(10, 30)]


def test_tokens_that_come_after_the_last_that_was_asked_for_are_charged(reading):
    """One by one they are never looked at; the usage that follows them says all of them."""
    more = [Chunk((1,))] * 11
    _, chunks, settled = reading([*more, Chunk(usage=CloudUsage(10, 11))], 8)
    assert (len(chunks), settled) == (8, [CloudUsage(10, 11)])


def test_a_request_that_never_left_is_settled_for_nothing(run):
    settled = []
    leave = leave_to(settled)
    leave.fail(Unreachable("refused", sent=False))
    leave.fail(Unreachable("cut"))
    assert settled == [NO_USAGE]


def test_what_never_left_is_settled_for_nothing_whatever_broke_it(run):
    """A connection whose encryption failed has carried no request, though its error does not say so."""
    settled = []
    leave_to(settled).fail(TlsFailure("the certificate could not be verified"))
    leave_to(settled).fail(KeyError("it stays"))
    leave_to(settled).fail(BadReply("the second was turned away", charged=CHARGED))
    assert settled == [NO_USAGE, NO_USAGE, CHARGED]


@pytest.fixture
def endless(monkeypatch):
    """Read once and close a stream that never ends after some items, cancelled if told so; return its settlements."""
    monkeypatch.setattr("hybrid.run.open_request.GRACE_S", 0.05)

    def read(items, *, cancelled=False):
        settled = []

        async def stream():
            for item in items:
                yield item
            await asyncio.Event().wait()

        async def ask(reader):
            try:
                await reader.read()
            finally:
                await reader.close()

        async def go():
            leave = leave_to(settled)
            await leave.before_send()
            asking = asyncio.create_task(ask(WriteStream((5,), leave, stream())))
            await asyncio.sleep(0)
            if cancelled:
                asking.cancel()
            await asyncio.wait_for(asking, 5)

        try:
            asyncio.run(go())
        except (BadReply, asyncio.CancelledError) as error:
            return settled, type(error)
        return settled, None

    return read


def test_a_stream_that_broke_its_limit_is_left_soon_and_charged_for_what_came(endless):
    """It is closed for it; nobody waits as long as the endpoint likes for a usage that it may never tell."""
    assert endless([Chunk((1,) * 20), Chunk((2,) * 5)]) == ([CloudUsage(10, 25)], BadReply)


def test_an_over_long_stream_that_is_cancelled_meanwhile_is_charged_for_no_less_than_came(endless):
    settled, error = endless([Chunk((1,) * 20), Chunk((2,) * 5)], cancelled=True)
    assert (settled, error) == ([CloudUsage(10, 25)], asyncio.CancelledError)


@each("end", [[Chunk((1,), finish="stop", usage=CHARGED)], [Chunk((1,), finish="stop"), Chunk(usage=CHARGED)]])
def test_a_stream_whose_usage_is_final_is_not_waited_for(endless, end):
    assert endless(end) == ([CHARGED], None)


def test_a_usage_that_follows_the_one_at_the_end_is_the_last_word(reading):
    more = CloudUsage(10, 7)
    _, _, settled = reading([Chunk((3,), finish="length", usage=CHARGED), Chunk(usage=more)], 1)
    assert settled == [more]
