"""What may be asked again, how often, and who pays for it: the decisions alone."""

from __future__ import annotations

from typing import get_args

from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import AccessDenied, BadReply, FailureKind, Unreachable
from hybrid.run.retrying import (
    CAPACITY,
    COST,
    COST_OF_WAITING,
    LONGEST_RETRY_AFTER_S,
    RetryPolicy,
    RetryQuota,
    retry_cost,
)

PASSING = get_args(FailureKind)


@each("trouble", PASSING)
@given(retries=st.integers(0, 9), num_failed=st.integers(1, 20))
def test_a_question_is_never_asked_more_often_than_was_allowed(trouble, retries, num_failed):
    allowed = RetryPolicy(retries).allows(Unreachable("x", trouble=trouble), num_failed)
    assert allowed == (num_failed <= (min(retries, 1) if trouble == "malformed" else retries))


@each("error", [Unreachable("x"), BadReply("NaN"), AccessDenied("401"), RuntimeError("ours")])
def test_what_will_not_pass_is_not_asked_again(error):
    assert not RetryPolicy().allows(error, 1)


def test_a_server_that_wants_us_to_wait_long_is_not_asked_again():
    """The local model is there at once."""

    def allows(seconds):
        return RetryPolicy().allows(Unreachable("429", trouble="busy", retry_after_s=seconds), 1)

    assert allows(LONGEST_RETRY_AFTER_S)
    assert not allows(LONGEST_RETRY_AFTER_S + 0.001)


@given(since=st.floats(0, 100), wait=st.floats(0, 100), within=st.floats(0.1, 100))
def test_no_retry_leaves_after_its_patience(since, wait, within):
    assert RetryPolicy(2, within).in_time(since, wait) == (since + wait < within)


def test_after_a_deadline_was_waited_for_in_vain_there_is_no_time_left_to_retry():
    """A dead cloud costs one deadline."""
    assert not RetryPolicy(within_s=20.0).in_time(since_s=20.0, wait_s=0.0)


@given(st.lists(st.sampled_from([COST, COST_OF_WAITING, -COST, -COST_OF_WAITING, 0])), st.integers(0, 50))
def test_a_quota_never_pays_what_it_has_not_and_never_holds_more_than_it_can(moves, capacity):
    quota, taken = RetryQuota(capacity), 0
    for move in each_of(moves, least=0):
        before = quota.remaining
        if move > 0:
            assert quota.take(move) == (before >= move)
            taken += before - quota.remaining
        else:
            quota.give_back(-move)
        assert 0 <= quota.remaining <= capacity
    assert taken <= capacity + sum(max(1, -move) for move in moves if move <= 0)


def test_a_hundred_retries_that_fail_empty_the_quota_and_a_success_lets_another_one_leave():
    quota = RetryQuota()
    assert sum(quota.take(COST) for _ in range(CAPACITY)) == 100
    for _ in each_of(range(COST)):
        assert not quota.take(COST)
        quota.give_back(0)
    assert quota.take(COST)


def test_waiting_in_vain_costs_more_than_a_refusal():
    assert retry_cost(Unreachable("x", trouble="silent")) > retry_cost(Unreachable("x", trouble="busy"))
