"""Settled plus reserved never exceeds a cap, in whatever order requests reserve and settle: for every ledger alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each
from money import max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import CapStatus, Denial, MemoryLedger
from hybrid.spend.ledger import Reservation

DAY = 86_400


def reserve(ledger, nanousd, scope, min_limit=None):
    return ledger.reserve(max_cost_of(nanousd, min_limit), scope)


def status(ledger, scope, level):
    return next(found for found in ledger.cap_statuses(scope) if found.level == level)


def test_the_whole_cap_can_be_reserved_and_not_one_nano_dollar_more(make_ledger, scope):
    ledger = make_ledger(total=100)
    assert isinstance(reserve(ledger, 101, scope), Denial)
    assert reserve(ledger, 100, scope).nanousd == 100
    denial = reserve(ledger, 1, scope)
    assert (denial.level, denial.cap_nanousd, denial.left_nanousd) == ("total", 100, 0)


def test_what_is_not_used_of_a_reservation_can_be_spent_again(make_ledger, scope):
    ledger = make_ledger(total=100)
    first = reserve(ledger, 100, scope)
    ledger.settle(settled(first, 10))
    assert status(ledger, scope, "total") == CapStatus("total", 100, 10, 0)
    assert reserve(ledger, 90, scope).nanousd == 90
    assert isinstance(reserve(ledger, 1, scope), Denial)


def test_what_was_never_told_stays_reserved_sent_or_not(make_ledger, scope):
    ledger = make_ledger(total=100)
    ledger.mark_sent(reserve(ledger, 35, scope))
    reserve(ledger, 25, scope)
    assert status(ledger, scope, "total") == CapStatus("total", 100, 0, 60)
    assert isinstance(reserve(ledger, 41, scope), Denial)


def test_settling_twice_is_an_error_and_changes_nothing(make_ledger, scope):
    """Charged twice for one request, or freed twice, the books would be wrong from then on."""
    ledger = make_ledger(total=100)
    reservation = reserve(ledger, 40, scope)
    ledger.settle(settled(reservation, 30))
    for again in (settled(reservation, 30), settled(Reservation(77, 1), 0)):
        with pytest.raises((KeyError, LedgerError)):
            ledger.settle(again)
    assert status(ledger, scope, "total") == CapStatus("total", 100, 30, 0)


def test_a_charge_above_the_reservation_is_recorded_in_full_and_closes_the_endpoint(make_ledger, scope):
    ledger = make_ledger(total=1000)
    reservation = reserve(ledger, 100, scope)
    ledger.settle(settled(reservation, 130, excess="it charged 130"))
    assert status(ledger, scope, "total") == CapStatus("total", 1000, 130, 0)
    denial = reserve(ledger, 1, scope)
    assert denial.why == "http://gpu is closed (it charged 130): see hybrid budget reconcile"
    assert reserve(ledger, 1, replace(scope, endpoint="http://other")).nanousd == 1


def test_more_can_be_charged_than_the_cap_and_nothing_is_left(make_ledger, scope):
    ledger = make_ledger(total=100)
    ledger.settle(settled(reserve(ledger, 100, scope), 130, excess="it did"))
    assert status(ledger, scope, "total").left_nanousd == -30
    assert isinstance(reserve(ledger, 0, replace(scope, endpoint="http://other")), Denial)


def test_a_charge_that_nobody_could_add_up_is_still_recorded(make_ledger, scope):
    """An endpoint may claim any number; the books must survive it."""
    ledger = make_ledger(total=100)
    reservations = [reserve(ledger, 1, replace(scope, endpoint=str(i))) for i in range(8)]
    for reservation in reservations:
        ledger.settle(settled(reservation, 10**40, excess="absurd"))
    assert status(ledger, scope, "total").spent_nanousd >= 2**53
    assert isinstance(reserve(ledger, 1, scope), Denial)


@each(("level", "field"), [("request", "request"), ("conversation", "conversation"), ("client", "client")])
def test_each_question_conversation_and_client_has_its_own_cap(make_ledger, scope, level, field):
    ledger = make_ledger(**({} if level == "client" else {level: 100}))
    mine = replace(scope, cap_nanousd=100) if level == "client" else scope
    reserve(ledger, 70, mine)
    assert reserve(ledger, 31, mine).level == level
    assert reserve(ledger, 30, mine).nanousd == 30
    other = replace(mine, **{field: "another"})
    assert reserve(ledger, 100, other).nanousd == 100
    assert status(ledger, mine, level).left_nanousd == 0


def test_the_tightest_of_all_caps_decides_and_is_named(make_ledger, scope, clock):
    ledger = make_ledger(request=60, conversation=70, day=80, month=90, total=100)
    assert reserve(ledger, 61, scope).level == "request"
    reserve(ledger, 50, replace(scope, request="before"))
    assert reserve(ledger, 21, scope).level == "conversation"
    assert reserve(ledger, 31, replace(scope, conversation="other")).level == "day"
    clock.now += DAY
    assert reserve(ledger, 41, replace(scope, conversation="other")).level == "month"
    clock.now += 31 * DAY
    assert reserve(ledger, 51, replace(scope, conversation="other")).level == "total"


def test_a_new_day_has_its_own_cap_and_so_has_a_new_month(make_ledger, scope, clock):
    ledger = make_ledger(day=100, month=150)
    reserve(ledger, 100, scope)
    assert reserve(ledger, 1, scope).level == "day"
    clock.now += DAY
    assert reserve(ledger, 51, scope).level == "month"
    assert reserve(ledger, 50, scope).nanousd == 50
    clock.now += 31 * DAY
    assert reserve(ledger, 100, scope).nanousd == 100


def test_a_limit_that_does_not_fit_is_lowered_in_the_same_step(make_ledger, scope):
    ledger = make_ledger(total=100)
    reserve(ledger, 70, scope)
    lowered = reserve(ledger, 80, scope, min_limit=10)
    assert (lowered.nanousd, lowered.limit) == (30, 21)


def test_without_a_cap_everything_fits_and_is_on_record(make_ledger, scope):
    ledger = make_ledger()
    assert ledger.cap_statuses(scope) == []
    assert reserve(ledger, 10**15, scope).nanousd == 10**15
    assert status(ledger, replace(scope, cap_nanousd=1), "client").reserved_nanousd == 10**15


# ---- clocks --------------------------------------------------------------------------------------------------------


@each("level", ["day", "month"])
@each("jump", [-3650 * DAY, -40 * DAY, -DAY, -1])
def test_a_clock_that_is_set_back_frees_nothing_then_or_when_it_is_right_again(make_ledger, scope, clock, level, jump):
    ledger = make_ledger(**{level: 100})
    reserve(ledger, 60, scope)
    clock.now += jump
    assert reserve(ledger, 41, scope).level == level
    reserve(ledger, 20, scope)
    clock.now -= jump
    assert status(ledger, scope, level).reserved_nanousd == 80


@each("level", ["day", "month"])
@each("jump", [40 * DAY, 3650 * DAY])
def test_a_clock_that_is_set_forward_and_back_again_frees_nothing(make_ledger, scope, clock, level, jump):
    """Neither what was spent before nor what was spent meanwhile."""
    ledger = make_ledger(**{level: 100})
    reserve(ledger, 60, scope)
    clock.now += jump
    reserve(ledger, 30, scope)
    clock.now -= jump
    assert status(ledger, scope, level).reserved_nanousd == 90
    assert reserve(ledger, 11, scope).level == level
    reserve(ledger, 10, scope)
    clock.now += DAY
    assert status(ledger, scope, level).reserved_nanousd >= 40, "what was written under a later date still counts"


def test_the_ledger_in_memory_shows_its_state(scope):
    ledger = MemoryLedger(100)
    ledger.settle(settled(reserve(ledger, 40, scope), 30))
    reserve(ledger, 20, scope)
    assert repr(ledger) == "MemoryLedger(settled=30, reserved=20, caps={'total': 100})"
