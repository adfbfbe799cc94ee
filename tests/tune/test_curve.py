"""The bill curve of auto: its ends are known, and more worth never leaves more wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of

from hybrid.defer import Calibration, CalibrationQuestion, UninformedScore
from hybrid.spend import AskPrices, Price
from hybrid.tune.forecasts import bill_curve

RNG = np.random.default_rng(11)
PRICES = [AskPrices.of(Price.parse(f"1/0.1/4{tariff}")) for tariff in (":uncached", ":cached", ":new")]


def question(chance):
    turned_down = bool(RNG.random() < chance)
    place = int(RNG.integers(0, 30)) if turned_down else None
    excess = float(RNG.random() * chance)
    return CalibrationQuestion(40, 30, int(RNG.integers(20, 40)), chance, turned_down, chance / 2, excess, place)


def calibration(loss="verdict"):
    told = tuple(question(float(chance)) for chance in RNG.random(40))
    return Calibration("l", "c", "kl:0.5", loss, 2.2, UninformedScore("kl:0.5"), told)


@each("prices", PRICES)
@each("loss", ["verdict", "nats"])
def test_nothing_is_asked_for_what_is_worth_nothing_and_everything_for_what_is_worth_all(prices, loss):
    known = calibration(loss)
    nothing, *between, everything = bill_curve(known, prices, (0.0, 0.5, 1.0, 2.2, 6.0, 1e6))
    assert (nothing.of_cloud, nothing.left, nothing.kept) == pytest.approx((0.0, 1.0, 1.0))
    assert everything.kept == 0.0
    # What a check accepts stands with what it loses; a verdict takes it for right.
    stands = sum(each.excess for each in known.questions if not each.turned_down)
    most = stands / sum(each.excess for each in known.questions) if loss == "nats" else 0.0
    assert everything.left <= most + 1e-9
    left = [point.left for point in (nothing, *between, everything)]
    assert np.all(np.diff(left) <= 1e-9)
    for point in each_of(between):
        assert point.kept + point.checked + point.written == pytest.approx(1.0)
    dearest = [prices.check(40, 30, 0) + prices.write(70, each.cloud_tokens, 40) for each in known.questions]
    alone = sum(prices.write(40, each.cloud_tokens, 0) for each in known.questions)
    assert everything.of_cloud <= sum(dearest) / alone


@pytest.mark.slow
@each("prices", PRICES)
@each("loss", ["verdict", "nats"])
def test_the_same_questions_twice_have_the_same_curve(prices, loss):
    """A worth is a multiple of the mean bill, and an excess is a multiple of the mean excess: of no sum."""
    once = calibration(loss)
    twice = replace(once, questions=once.questions * 2)
    curve = bill_curve(once, prices, (0.5, 1.0, 2.2))
    assert len({point.kept for point in curve}) > 1, "these worths tell the questions apart"
    for one, other in each_of(zip(curve, bill_curve(twice, prices, (0.5, 1.0, 2.2)), strict=True)):
        assert (other.of_cloud, other.left, other.kept) == pytest.approx((one.of_cloud, one.left, one.kept))


def test_only_ratios_of_prices_matter():
    known = calibration()
    thousandfold = AskPrices.of(Price.parse("1000/100/4000:uncached"))
    for one, other in each_of(zip(bill_curve(known, PRICES[0]), bill_curve(known, thousandfold), strict=True)):
        assert one.of_cloud == pytest.approx(other.of_cloud)
        assert one.left == other.left
