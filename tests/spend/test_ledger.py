"""Settled plus reserved never exceeds a cap, in whatever order requests reserve and settle: for every ledger alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from money import claim_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import CapStatus, Denial, MemoryLedger
from hybrid.spend.caps import MOST_NANOUSD
from hybrid.spend.ledger import Reservation

DAY = 86_400


def reserve(ledger, nanousd, spender, least=None):
    return ledger.reserve(claim_of(nanousd, least), spender)


def standing(ledger, spender, level):
    return next(found for found in ledger.standings(spender) if found.level == level)


def test_the_whole_cap_can_be_reserved_and_not_one_nano_dollar_more(make_ledger, spender):
    ledger = make_ledger(total=100)
    assert isinstance(reserve(ledger, 101, spender), Denial)
    assert reserve(ledger, 100, spender).nanousd == 100
    denial = reserve(ledger, 1, spender)
    assert (denial.level, denial.cap_nanousd, denial.left_nanousd) == ("total", 100, 0)


def test_what_is_not_used_of_a_reservation_can_be_spent_again(make_ledger, spender):
    ledger = make_ledger(total=100)
    first = reserve(ledger, 100, spender)
    ledger.settle(settled(first, 10))
    assert standing(ledger, spender, "total") == CapStatus("total", 100, 10, 0)
    assert reserve(ledger, 90, spender).nanousd == 90
    assert isinstance(reserve(ledger, 1, spender), Denial)


def test_what_was_never_told_stays_reserved_sent_or_not(make_ledger, spender):
    ledger = make_ledger(total=100)
    ledger.mark_sent(reserve(ledger, 35, spender))
    reserve(ledger, 25, spender)
    assert standing(ledger, spender, "total") == CapStatus("total", 100, 0, 60)
    assert isinstance(reserve(ledger, 41, spender), Denial)


def test_settling_twice_is_an_error_and_changes_nothing(make_ledger, spender):
    """Charged twice for one request, or freed twice, the books would be wrong from then on."""
    ledger = make_ledger(total=100)
    reservation = reserve(ledger, 40, spender)
    ledger.settle(settled(reservation, 30))
    for again in (settled(reservation, 30), settled(Reservation(77, 1), 0)):
        with pytest.raises((KeyError, LedgerError)):
            ledger.settle(again)
    assert standing(ledger, spender, "total") == CapStatus("total", 100, 30, 0)


def test_a_charge_above_the_reservation_is_recorded_in_full_and_closes_the_endpoint(make_ledger, spender):
    ledger = make_ledger(total=1000)
    reservation = reserve(ledger, 100, spender)
    ledger.settle(settled(reservation, 130, excess="it charged 130"))
    assert standing(ledger, spender, "total") == CapStatus("total", 1000, 130, 0)
    denial = reserve(ledger, 1, spender)
    assert denial.why == "http://gpu is closed (it charged 130): see hybrid budget reconcile"
    assert reserve(ledger, 1, replace(spender, endpoint="http://other")).nanousd == 1


def test_more_can_be_charged_than_the_cap_and_nothing_is_left(make_ledger, spender):
    ledger = make_ledger(total=100)
    ledger.settle(settled(reserve(ledger, 100, spender), 130, excess="it did"))
    assert standing(ledger, spender, "total").left_nanousd == -30
    assert isinstance(reserve(ledger, 0, replace(spender, endpoint="http://other")), Denial)


def test_a_charge_that_nobody_could_add_up_is_still_recorded(make_ledger, spender):
    """An endpoint may claim any number; the books must survive it."""
    ledger = make_ledger(total=100)
    reservations = [reserve(ledger, 1, replace(spender, endpoint=str(i))) for i in range(8)]
    for reservation in reservations:
        ledger.settle(settled(reservation, 10**40, excess="absurd"))
    assert standing(ledger, spender, "total").spent_nanousd >= MOST_NANOUSD
    assert isinstance(reserve(ledger, 1, spender), Denial)


@pytest.mark.parametrize(
    ("level", "field"), [("request", "request"), ("conversation", "conversation"), ("client", "client")]
)
def test_each_question_conversation_and_client_has_its_own_cap(make_ledger, spender, level, field):
    ledger = make_ledger(**({} if level == "client" else {level: 100}))
    mine = replace(spender, cap_nanousd=100) if level == "client" else spender
    reserve(ledger, 70, mine)
    assert reserve(ledger, 31, mine).level == level
    assert reserve(ledger, 30, mine).nanousd == 30
    other = replace(mine, **{field: "another"})
    assert reserve(ledger, 100, other).nanousd == 100
    assert standing(ledger, mine, level).left_nanousd == 0


def test_the_tightest_of_all_caps_decides_and_is_named(make_ledger, spender, clock):
    ledger = make_ledger(request=60, conversation=70, day=80, month=90, total=100)
    assert reserve(ledger, 61, spender).level == "request"
    reserve(ledger, 50, replace(spender, request="before"))
    assert reserve(ledger, 21, spender).level == "conversation"
    assert reserve(ledger, 31, replace(spender, conversation="other")).level == "day"
    clock.now += DAY
    assert reserve(ledger, 41, replace(spender, conversation="other")).level == "month"
    clock.now += 31 * DAY
    assert reserve(ledger, 51, replace(spender, conversation="other")).level == "total"


def test_a_new_day_has_its_own_cap_and_so_has_a_new_month(make_ledger, spender, clock):
    ledger = make_ledger(day=100, month=150)
    reserve(ledger, 100, spender)
    assert reserve(ledger, 1, spender).level == "day"
    clock.now += DAY
    assert reserve(ledger, 51, spender).level == "month"
    assert reserve(ledger, 50, spender).nanousd == 50
    clock.now += 31 * DAY
    assert reserve(ledger, 100, spender).nanousd == 100


def test_a_limit_that_does_not_fit_is_lowered_in_the_same_step(make_ledger, spender):
    ledger = make_ledger(total=100)
    reserve(ledger, 70, spender)
    lowered = reserve(ledger, 80, spender, least=10)
    assert (lowered.nanousd, lowered.limit) == (30, 21)


def test_without_a_cap_everything_fits_and_is_on_record(make_ledger, spender):
    ledger = make_ledger()
    assert ledger.standings(spender) == []
    assert reserve(ledger, 10**15, spender).nanousd == 10**15
    assert standing(ledger, replace(spender, cap_nanousd=1), "client").reserved_nanousd == 10**15


# ---- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["day", "month"])
@pytest.mark.parametrize("jump", [-3650 * DAY, -40 * DAY, -DAY, -1])
def test_a_clock_that_is_set_back_frees_nothing_then_or_when_it_is_right_again(
    make_ledger, spender, clock, level, jump
):
    ledger = make_ledger(**{level: 100})
    reserve(ledger, 60, spender)
    clock.now += jump
    assert reserve(ledger, 41, spender).level == level
    reserve(ledger, 20, spender)
    clock.now -= jump
    assert standing(ledger, spender, level).reserved_nanousd == 80


@pytest.mark.parametrize("level", ["day", "month"])
@pytest.mark.parametrize("jump", [40 * DAY, 3650 * DAY])
def test_a_clock_that_is_set_forward_and_back_again_frees_nothing(make_ledger, spender, clock, level, jump):
    """Neither what was spent before nor what was spent meanwhile."""
    ledger = make_ledger(**{level: 100})
    reserve(ledger, 60, spender)
    clock.now += jump
    reserve(ledger, 30, spender)
    clock.now -= jump
    assert standing(ledger, spender, level).reserved_nanousd == 90
    assert reserve(ledger, 11, spender).level == level
    reserve(ledger, 10, spender)
    clock.now += DAY
    assert standing(ledger, spender, level).reserved_nanousd >= 40, "what was written under a later date still counts"


def test_the_ledger_in_memory_shows_its_state(spender):
    ledger = MemoryLedger(100)
    ledger.settle(settled(reserve(ledger, 40, spender), 30))
    reserve(ledger, 20, spender)
    assert repr(ledger) == "MemoryLedger(settled=30, reserved=20, caps={'total': 100})"
