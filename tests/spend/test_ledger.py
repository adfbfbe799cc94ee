"""Settled plus reserved never exceeds the cap, in whatever order requests reserve and settle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from hybrid.spend import MemoryLedger

AMOUNTS = st.integers(0, 40) | st.integers(0, 10**15)


class Spending(RuleBasedStateMachine):
    """Requests come, wait and go; beside the ledger stands a list of what was promised and charged.

    ``excess`` is what was charged above reservations: by so much, and no more, may the cap be exceeded.
    """

    open_reservations = Bundle("open_reservations")
    closed_reservations = Bundle("closed_reservations")

    def __init__(self):
        super().__init__()
        self.promised = {}
        self.charges = []
        self.excess = 0

    @initialize(cap=st.none() | st.integers(0, 100) | st.integers(0, 10**15))
    def open(self, cap):
        self.cap = cap
        self.ledger = MemoryLedger(cap)

    def left(self):
        return None if self.cap is None else self.cap - sum(self.charges) - sum(self.promised.values())

    @rule(target=open_reservations, amount=AMOUNTS)
    def reserve(self, amount):
        left = self.left()
        fits = left is None or (left > 0 and amount <= left)
        reservation = self.ledger.reserve(amount)
        assert (reservation is not None) == fits
        if reservation is not None:
            assert reservation.nanousd == amount
            assert reservation.id not in self.promised
            self.promised[reservation.id] = amount
        return reservation

    @rule(target=open_reservations)
    def reserve_all_that_is_left(self):
        left = self.left()
        return self.reserve(left or 0)

    def close(self, reservation, charge):
        if reservation is None:
            return
        self.ledger.settle(reservation, charge)
        del self.promised[reservation.id]
        self.charges.append(charge)

    @rule(target=closed_reservations, reservation=consumes(open_reservations), share=st.integers(0, 4))
    def settle_within_the_reservation(self, reservation, share):
        self.close(reservation, reservation.nanousd * share // 4 if reservation else 0)
        return reservation

    @rule(target=closed_reservations, reservation=consumes(open_reservations), above=st.integers(1, 50))
    def settle_above_the_reservation(self, reservation, above):
        """A server may charge more than it was allowed to; the money is gone, so it must be on record."""
        if reservation is not None:
            self.excess += above
            self.close(reservation, reservation.nanousd + above)
        return reservation

    @rule(reservation=closed_reservations, charge=AMOUNTS)
    def settle_again(self, reservation, charge):
        if reservation is not None:
            with pytest.raises(KeyError):
                self.ledger.settle(reservation, charge)

    @invariant()
    def the_cap_holds(self):
        if self.cap is not None:
            assert self.ledger.settled_nanousd + self.ledger.reserved_nanousd <= self.cap + self.excess

    @invariant()
    def the_totals_are_the_sums_of_the_entries(self):
        assert self.ledger.cap_nanousd == self.cap
        assert self.ledger.settled_nanousd == sum(self.charges)
        assert self.ledger.reserved_nanousd == sum(self.promised.values())
        assert self.ledger.remaining_nanousd == self.left()


TestTheLedgerUnderEveryInterleaving = Spending.TestCase


def test_settling_twice_is_an_error_and_changes_nothing():
    """Charged twice for one request, or freed twice, the books would be wrong from then on."""
    ledger = MemoryLedger(100)
    reservation = ledger.reserve(40)
    ledger.settle(reservation, 30)
    with pytest.raises(KeyError):
        ledger.settle(reservation, 30)
    assert (ledger.settled_nanousd, ledger.reserved_nanousd, ledger.remaining_nanousd) == (30, 0, 70)


def test_a_charge_above_the_reservation_is_recorded_in_full_and_stops_further_spending():
    ledger = MemoryLedger(100)
    ledger.settle(ledger.reserve(100), 130)
    assert ledger.settled_nanousd == 130
    assert ledger.remaining_nanousd == -30
    assert ledger.reserve(0) is None


def test_what_is_not_used_of_a_reservation_can_be_spent_again():
    ledger = MemoryLedger(100)
    first = ledger.reserve(100)
    assert ledger.reserve(1) is None
    ledger.settle(first, 10)
    assert ledger.reserve(90) is not None
    assert ledger.reserve(1) is None


def test_the_whole_cap_can_be_reserved_and_not_one_nano_dollar_more():
    assert MemoryLedger(100).reserve(100) is not None
    assert MemoryLedger(100).reserve(101) is None


def test_a_cap_with_nothing_left_admits_nothing_not_even_what_is_free():
    """A cap of zero means: send no request. A price of zero does not change what was asked for."""
    assert MemoryLedger(0).reserve(0) is None


@given(AMOUNTS)
def test_without_a_cap_everything_fits_and_nothing_is_left_to_tell(amount):
    ledger = MemoryLedger()
    assert ledger.reserve(amount).nanousd == amount
    assert ledger.cap_nanousd is None
    assert ledger.remaining_nanousd is None


def test_the_ledger_shows_its_state():
    ledger = MemoryLedger(100)
    ledger.settle(ledger.reserve(40), 30)
    ledger.reserve(20)
    assert repr(ledger) == "MemoryLedger(settled=30, reserved=20, cap=100)"
