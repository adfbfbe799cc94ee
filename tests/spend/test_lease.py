"""A lease carves no more than it holds, and keeps what nobody told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from money import claim_of

from hybrid.spend.lease import Lease
from hybrid.spend.ledger import Reservation, Settlement

AMOUNTS = st.integers(0, 50)


@given(st.integers(0, 200), st.lists(st.tuples(AMOUNTS, st.none() | AMOUNTS), max_size=12), st.data())
def test_what_is_carved_charged_and_free_is_what_was_reserved(held, requests, data):
    """Whatever is told in whatever order; ``None`` is never told, and a charge is within its part."""
    lease, parts, charged = Lease(Reservation(7, held)), [], 0
    for worst, charge in requests:
        part = lease.carve(claim_of(worst))
        if part is not None:
            assert part.nanousd == worst
            parts.append((part, charge))
        if parts and data.draw(st.booleans()):
            part, told = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
            if told is None:
                parts.insert(0, (part, None))
            else:
                within = min(told, part.nanousd)
                assert lease.settle(part, within)
                charged += within
        kept = sum(part.nanousd for part, _ in parts)
        assert lease._free + kept + charged == held
    found = lease.given_back()
    assert (found.charged_nanousd, found.kept_nanousd) == (charged, sum(part.nanousd for part, _ in parts))
    assert lease.carve(claim_of(1)) is None, "what is given back is somebody else's"


def test_more_than_is_free_is_not_carved():
    lease = Lease(Reservation(7, 100))
    assert lease.carve(claim_of(101)) is None
    assert lease.carve(claim_of(60)).nanousd == 60
    assert lease.carve(claim_of(41)) is None
    assert lease.carve(claim_of(40)).nanousd == 40


def test_a_charge_above_its_part_is_recorded_in_full_and_told():
    lease = Lease(Reservation(7, 100))
    assert not lease.settle(lease.carve(claim_of(10)), 11)
    assert lease.settle(lease.carve(claim_of(10)), 10)
    assert lease.given_back() == Settlement(7, 21, 0, 2, None)


def test_a_part_is_settled_once():
    lease = Lease(Reservation(7, 100))
    part = lease.carve(claim_of(10))
    lease.settle(part, 5)
    with pytest.raises(KeyError):
        lease.settle(part, 5)
    assert repr(lease) == "Lease(7: free=95, carved=0, charged=5)"


def test_what_the_ledger_holds_already_is_not_written_again():
    lease = Lease(Reservation(7, 100))
    part = lease.carve(claim_of(10))
    first = lease.unwritten()
    lease.wrote(first)
    assert lease.unwritten() is None
    lease.settle(part, 4)
    assert lease.unwritten() == Settlement(7, 4, 0, 1, None)
