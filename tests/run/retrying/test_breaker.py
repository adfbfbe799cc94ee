"""The breaker as a machine: whatever happens in whatever order, its law holds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybrid.run.retrying import LONGEST_HOLD_S, Breaker, BreakerConfig

TRIP = BreakerConfig(
    failures_in_a_row=3, failure_share=0.5, window=6, least_outcomes=4, cool_down_s=2.0, longest_cool_down_s=7.0
)


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def naively_too_much(outcomes):
    """The rule as its documentation says it, over all outcomes since it was closed. True: a failure."""
    last = outcomes[-TRIP.window :]
    return outcomes[-TRIP.failures_in_a_row :] == [True] * TRIP.failures_in_a_row or (
        len(last) >= TRIP.least_outcomes and sum(last) >= TRIP.failure_share * len(last)
    )


class Machine(RuleBasedStateMachine):
    """Requests that leave, end well, badly or not at all, in any order, while time passes."""

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(TRIP, self.clock)
        self.out = 0  # left while it was closed
        self.probe = False
        self.outcomes = []
        self.opened = None  # when, and for how long at least
        self.trips = 0

    @rule(seconds=st.floats(0.0, 10.0))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule()
    def a_request_wants_to_leave(self):
        state, passed = self.breaker.state, self.breaker.enter()
        assert passed == (state == "closed" or (state == "half-open" and not self.probe))
        self.out += passed and state == "closed"
        self.probe = self.probe or (passed and state == "half-open")

    @precondition(lambda self: self.out and self.opened is None)
    @rule()
    def one_succeeds(self):
        self.out -= 1
        self.outcomes.append(False)
        self.breaker.record_success()
        assert self.breaker.state == "closed"

    @precondition(lambda self: self.out and self.opened is None)
    @rule(hold=st.sampled_from([0.0, 5.0, 1e6]))
    def one_fails(self, hold):
        self.out -= 1
        self.outcomes.append(True)
        self.breaker.record_failure(hold)
        too_much = naively_too_much(self.outcomes)
        assert (self.breaker.state == "open") == too_much
        if too_much:
            self._opened(hold)

    @precondition(lambda self: self.out and self.opened is not None and not self.probe)
    @rule(well=st.booleans())
    def one_that_left_before_comes_back(self, well):
        self.out -= 1
        before = self.breaker.remaining_s
        self.breaker.record_success() if well else self.breaker.record_failure()
        assert self.breaker.remaining_s == before
        assert self.breaker.state != "closed"

    @precondition(lambda self: self.probe)
    @rule()
    def the_probe_succeeds(self):
        self.breaker.record_success()
        self.probe, self.opened, self.outcomes, self.trips = False, None, [False], 0
        assert self.breaker.state == "closed"

    @precondition(lambda self: self.probe)
    @rule(hold=st.sampled_from([0.0, 5.0, 1e6]))
    def the_probe_fails(self, hold):
        self.breaker.record_failure(hold)
        self.probe = False
        self._opened(hold)

    @precondition(lambda self: self.probe)
    @rule()
    def the_probe_is_given_up(self):
        self.breaker.record_abandoned()
        self.probe = False
        assert self.breaker.lets_pass

    def _opened(self, hold):
        usual = min(TRIP.longest_cool_down_s, TRIP.cool_down_s * 2**self.trips)
        self.trips += 1
        self.opened = (self.clock.now, max(usual, min(hold, LONGEST_HOLD_S)))
        assert self.breaker.remaining_s == pytest.approx(self.opened[1])

    @invariant()
    def nothing_passes_before_the_cool_down_is_over_and_something_after_it(self):
        if self.opened is None:
            assert self.breaker.lets_pass
        else:
            at, for_s = self.opened
            over = self.clock.now >= at + for_s
            assert self.breaker.state == ("half-open" if over else "open")
            assert self.breaker.lets_pass == (over and not self.probe)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)


def test_a_breaker_says_what_it_does():
    clock = Clock()
    breaker = Breaker(TRIP, clock)
    assert repr(breaker) == "Breaker(closed, 0 failures in a row)"
    for _ in range(3):
        breaker.enter()
        breaker.record_failure()
    assert repr(breaker) == "Breaker(open, 3 failures in a row)"
    assert (breaker.in_a_row, breaker.remaining_s) == (3, 2.0)
    clock.now += 2.0
    assert repr(breaker) == "Breaker(half-open, 3 failures in a row)"


def test_an_endpoint_that_fails_every_other_time_is_left_alone_too():
    """Never two in a row, but half of what is sent is lost, and paid for."""
    breaker = Breaker(TRIP, Clock())
    outcomes = 0
    while breaker.enter():
        breaker.record_failure() if outcomes % 2 else breaker.record_success()
        outcomes += 1
    assert outcomes == TRIP.least_outcomes


def test_the_cool_down_doubles_up_to_its_longest_and_begins_anew_once_closed():
    clock = Clock()
    breaker, seen = Breaker(TRIP, clock), []
    for well in (False, False, False, False, True):
        while breaker.state == "closed":
            breaker.enter()
            breaker.record_failure()
        seen.append(breaker.remaining_s)
        clock.now += breaker.remaining_s
        assert breaker.enter()
        breaker.record_success() if well else breaker.record_failure()
    while breaker.state == "closed":
        breaker.enter()
        breaker.record_failure()
    assert [*seen, breaker.remaining_s] == [2.0, 4.0, 7.0, 7.0, 7.0, 2.0]
