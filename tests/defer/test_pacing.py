"""Money's own price: higher the more is spent, lower the later it is, and 1 in step with the day."""

import pytest

from hybrid.defer.dials import LEAST, MOST, worth_factor

SHARES = [i / 20 for i in range(20)]


def test_a_spending_in_step_with_the_day_changes_nothing():
    assert [worth_factor(share, share) for share in SHARES] == pytest.approx([1.0] * 20)


def test_the_worth_falls_as_more_is_spent_and_rises_as_the_day_goes_on():
    for passed in SHARES:
        factors = [worth_factor(spent, passed) for spent in [*SHARES, 1.0, 1.5]]
        assert factors == sorted(factors, reverse=True)
        assert factors[0] > factors[10]
        assert factors[-1] == factors[-2] == LEAST
    for spent in SHARES:
        factors = [worth_factor(spent, passed) for passed in SHARES]
        assert factors == sorted(factors)
        assert factors[0] < factors[10]
    assert worth_factor(0.0, 1 - 1e-9) == MOST


@pytest.mark.parametrize(("spent", "passed"), [(-0.1, 0.5), (0.5, 1.0), (0.5, -0.1), (float("nan"), 0.5)])
def test_what_is_no_share_is_refused(spent, passed):
    with pytest.raises(ValueError, match="a share of"):
        worth_factor(spent, passed)
