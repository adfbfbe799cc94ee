"""Questions to an endpoint: attempts, waits and the quota, with a clock that does not make us wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

import pytest
from cases import each, each_of

from hybrid.errors import BadReply, Unreachable
from hybrid.record.events import RequestRetried
from hybrid.run.retrying import CAPACITY, COST, FIRST_WAIT_S, BreakerConfig, EndpointHealth, RetryingCaller, RetryPolicy


@pytest.fixture
def ask(run):
    """Ask a question whose attempts end as listed; return its answer, and see ``waits``, ``told``, ``left``."""

    def asked(*outcomes, health=None, **policy):
        waits, told, left = [], [], list(outcomes)

        async def sleep(seconds):
            waits.append(seconds)

        health = health or EndpointHealth(RetryPolicy(**policy))
        health.sleep = sleep

        async def attempt():
            outcome = left.pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        asked.waits, asked.told, asked.left, asked.health = waits, told, left, health
        return run(RetryingCaller(health, told.append).call(attempt))

    return asked


BUSY = Unreachable("503", trouble="busy")


def test_what_passes_is_asked_again_and_told(ask):
    assert ask(BUSY, BUSY, "rows") == "rows"
    assert [event.why for event in ask.told if isinstance(event, RequestRetried)] == ["503", "503"]
    assert [event.wait_ms for event in ask.told] == [round(1000 * wait, 3) for wait in ask.waits]


def test_the_last_failure_is_the_one_that_is_told(ask):
    with pytest.raises(Unreachable, match="again"):
        ask(BUSY, BUSY, Unreachable("again", trouble="busy"), "never asked")
    assert ask.left == ["never asked"]


@each("error", [Unreachable("fell silent"), BadReply("NaN"), asyncio.CancelledError()])
def test_what_does_not_pass_is_raised_at_once(ask, error):
    with pytest.raises(type(error)):
        ask(error, "never asked")
    assert (ask.waits, ask.left) == ([], ["never asked"])


def test_a_malformed_body_gets_a_second_chance_and_no_third(ask):
    malformed = BadReply("not JSON", trouble="malformed")
    assert ask(malformed, "rows") == "rows"
    with pytest.raises(BadReply):
        ask(malformed, malformed, "never asked")


def test_waits_are_full_jitter_in_windows_that_double(ask):
    seen = [[], []]
    for _ in range(200):
        ask(BUSY, BUSY, "rows")
        for waits, wait in zip(seen, ask.waits, strict=True):
            waits.append(wait)
    for waits, window in zip(seen, (FIRST_WAIT_S, 2 * FIRST_WAIT_S), strict=True):
        assert all(0 <= wait <= window for wait in waits)
        assert min(waits) < 0.1 * window
        assert max(waits) > 0.9 * window


def test_a_server_is_not_asked_before_it_wants_to_be(ask):
    assert ask(Unreachable("429", trouble="busy", retry_after_s=3.0), "rows") == "rows"
    assert 3.0 <= ask.waits[0] <= 3.0 + 0.5


def test_a_retry_that_would_leave_too_late_does_not(ask):
    with pytest.raises(Unreachable):
        ask(Unreachable("429", trouble="busy", retry_after_s=3.0), "never asked", within_s=2.0)
    assert ask.left == ["never asked"]


def test_the_time_that_attempts_took_counts_as_the_waits_do(ask):
    """Ten seconds pass whenever the clock is read: a retry within twenty seconds would leave too late."""
    for within_s, left in ((20.0, ["rows"]), (1e6, [])):
        health = EndpointHealth(RetryPolicy(within_s=within_s), clock=count(step=10.0).__next__)
        with suppress(Unreachable):
            ask(BUSY, "rows", health=health)
        assert ask.left == left


def test_all_questions_share_one_quota(ask):
    """An outage must not multiply the load: what fails a hundred times is then asked once."""
    health = EndpointHealth(config=BreakerConfig(failures_in_a_row=10**9, failure_share=2.0))
    for _ in each_of(range(CAPACITY // COST // 2)):
        with pytest.raises(Unreachable):
            ask(BUSY, BUSY, BUSY, health=health)
    with pytest.raises(Unreachable):
        ask(BUSY, "never asked", health=health)
    assert health.quota.remaining == 0


def test_what_succeeds_gives_back_what_its_last_retry_cost(ask):
    health = EndpointHealth()
    ask(BUSY, "rows", health=health)
    assert health.quota.remaining == CAPACITY
    with pytest.raises(Unreachable):
        ask(BUSY, BUSY, BUSY, health=health)
    ask("rows", health=health)
    assert health.quota.remaining == CAPACITY - 2 * COST + 1


def test_what_may_show_that_it_is_back_is_asked_once(run):
    """After a question has failed and the cool-down is over: a probe of a dead endpoint costs one attempt."""
    now, sent = [0.0], []
    health = EndpointHealth(RetryPolicy(retries=2), BreakerConfig(cool_down_s=5.0), lambda: now[0], _no_sleep)
    caller = RetryingCaller(health, lambda _: None)

    async def attempt():
        sent.append(now[0])
        raise BUSY

    for moment, expected in ((0.0, 3), (100.0, 1)):
        now[0] = moment
        assert caller.unavailable() is None
        with pytest.raises(Unreachable):
            run(caller.call(attempt))
        assert sent.count(moment) == expected


def test_no_retry_is_announced_or_paid_for_once_the_endpoint_is_left_alone(ask):
    health = EndpointHealth(config=BreakerConfig(failures_in_a_row=1))
    with pytest.raises(Unreachable, match=r"503$"):
        ask(BUSY, "never asked", health=health)
    assert (ask.waits, ask.told, ask.left) == ([], [], ["never asked"])
    assert health.quota.remaining == CAPACITY


def test_a_reply_that_breaks_after_it_began_counts_against_the_endpoint_too(run):
    health = EndpointHealth(config=BreakerConfig(failures_in_a_row=2))

    async def breaks():
        raise BUSY

    for failed in (1, 2):
        with pytest.raises(Unreachable):
            run(RetryingCaller(health, lambda _: None).go_on(breaks))
        assert health.breaker.in_a_row == failed
    assert "left alone" in str(RetryingCaller(health, lambda _: None).unavailable())


async def _no_sleep(_):
    pass
