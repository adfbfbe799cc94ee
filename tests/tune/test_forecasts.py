"""Every policy priced from the labels: its ends are known, and nothing is cheaper than foresight."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from bought_texts import questions
from cases import each, each_of

from hybrid.spend import AskPrices, Price
from hybrid.tasks.statistics import Estimate
from hybrid.tune.buying import PairNames
from hybrid.tune.calibrating import calibrate_pair
from hybrid.tune.fit import fit
from hybrid.tune.forecasts import in_order, labels_bill
from hybrid.tune.report import choices

PRICES = AskPrices.of(Price.parse("1/0.1/4"))
QUESTIONS = questions(40, hard=0.4, length=6)
BASELINES = {
    "mean log-probability",
    "mean log-probability / price",
    "highest entropy / price",
    "shortest first",
    "random",
}


def calibrated(recover=0.9, judge=None):
    return calibrate_pair("small", PairNames("i", "http://e", "large"), QUESTIONS, PRICES, judge, recover=recover)


@pytest.fixture(scope="module")
def pair():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid.tune.calibrating.fit", partial(fit, trees=False))
        yield calibrated()


def rows_of(pair, name):
    return [row for row in pair.forecasts.rows if row.name == name]


def test_the_cloud_recovers_all_for_its_own_bill_and_the_local_model_nothing_for_nothing(pair):
    one, none = Estimate(1.0, 1.0, 1.0), Estimate(0.0, 0.0, 0.0)
    for name, expected in (("cloud", one), ("local", none)):
        (row,) = rows_of(pair, name)
        assert (row.share, row.bill) == (expected, expected)
    names = {row.name for row in pair.forecasts.rows}
    assert names == {"cloud", "local", "doubt", "once", "kl", "excess", "auto", "route"} | BASELINES
    assert {row.name for row in pair.forecasts.rows if not row.dial.lines} == BASELINES


def test_a_calibration_keeps_the_worth_of_auto_whichever_policy_is_the_cheapest(pair, monkeypatch):
    """The worth of another policy is another dial: it is told with the lines that set it."""
    auto, route = (pair.forecasts.chosen[name] for name in ("auto", "route"))
    assert auto.dial.worth != route.dial.worth
    assert route.dial.lines == ('policy = "route"', f"worth = {route.dial.worth:.3g}")
    monkeypatch.setattr("hybrid.tune.calibrating.fit", partial(fit, trees=False))
    for name in ("auto", "route", "once"):
        cheapest = property(lambda told, name=name: told.chosen[name])
        monkeypatch.setattr("hybrid.tune.forecasts.PolicyForecasts.cheapest", cheapest)
        assert calibrated().calibration.worth == auto.dial.worth, name


def test_a_value_lies_in_its_interval_and_the_cheapest_of_a_policy_reaches_what_is_wanted(pair):
    told = pair.forecasts
    for row in each_of(told.rows):
        for found in (row.share, row.bill):
            assert found.low <= found.value <= found.high, row.title
        assert row.share.low >= 0.0 or row.share.value < 0.0
        best = told.chosen[row.name]
        if told.reaches(row):
            assert told.reaches(best)
            assert best.bill.value <= row.bill.value
    assert told.reaches(told.cheapest)
    assert told.cheapest.dial.lines, "a baseline is no policy that could be set"


def test_more_of_a_dial_never_asks_for_less(pair):
    for name in sorted(BASELINES | {"auto", "route"}):
        for less, more in each_of(pairwise(rows_of(pair, name))):
            assert more.share.value >= less.share.value - 1e-9, more.title
            if name in BASELINES:
                assert more.bill.value >= less.bill.value
    for name in ("auto", "route"):
        assert rows_of(pair, name)[0].bill.value == 0.0, "an answer that is worth nothing"


def bill_at(tried, lost, alone, wanted):
    shares = 1.0 - tried.left.sum(axis=1) / lost.sum()
    return min(tried.paid.sum(axis=1)[shares >= wanted - 1e-9] / alone.sum())


def test_no_order_of_whole_questions_is_cheaper_than_that_of_an_oracle():
    rng = np.random.default_rng(2)
    for _ in range(20):
        lost, alone = (rng.random(30) < 0.4).astype(float), rng.uniform(1.0, 9.0, 30)
        lost[0] = 1.0
        oracle = in_order("oracle", lost / alone, lost, alone)
        for scores in (rng.random(30), -alone, lost, lost + rng.random(30)):
            order = in_order("order", scores, lost, alone)
            assert (np.diff(order.paid.sum(axis=1)) > 0.0).all()
            for wanted in (0.3, 0.5, 0.9, 1.0):
                best, other = (bill_at(each, lost, alone, wanted) for each in (oracle, order))
                assert best <= other + 1e-9


def test_an_order_sends_the_highest_scores_whole():
    lost, alone = np.array([1.0, 0.0, 2.0]), np.array([5.0, 3.0, 4.0])
    tried = in_order("order", np.array([0.1, 0.9, 0.5]), lost, alone)
    assert tried.left.tolist() == [[1, 0, 2], [1, 0, 2], [1, 0, 0], [0, 0, 0]]
    assert tried.paid.tolist() == [[0, 0, 0], [0, 3, 0], [0, 3, 4], [5, 3, 4]]


def test_a_policy_whose_worth_is_the_cheapest_sets_the_calibrations_and_what_is_set_is_told(pair):
    best = pair.forecasts.cheapest
    assert best.name == "auto", "these drafts' words say which of them are turned down"
    assert pair.calibration.worth == best.dial.worth == pair.proposed.worth
    said = choices(pair)
    assert said[0].startswith(f"{best.title} is the cheapest policy that recovers 90 %")
    assert 'hybrid.toml sets it by policy = "auto"' in said[0]
    rivals = [row for row, _ in pair.forecasts.rivals()]
    assert len(said) == 2 + len(rivals)
    for row, told in each_of(zip(rivals, said[1:], strict=False), least=0):
        assert told.startswith(row.title)
        assert ("which is no policy" in told) is (row.name in BASELINES)
    doubt = rows_of(pair, "doubt")[3]
    told = replace(pair.forecasts, rows=[*rows_of(pair, "cloud"), doubt], wanted=doubt.share.value)
    assert told.cheapest is (doubt if doubt.bill.value < 1.0 else told.rows[0])


@each("factor", [0.5, 1.0, 2.0])
def test_labels_are_repaid_where_what_is_fitted_to_them_costs_less(pair, factor):
    """Two rows that recover all: the labels' own at half the cloud's bill, and one without labels."""
    cloud, auto = rows_of(pair, "cloud")[0], rows_of(pair, "auto")[-1]
    half = replace(auto, share=cloud.share, bill=Estimate(0.5, 0.5, 0.5), bills=0.5 * cloud.bills)
    free = replace(cloud, bill=Estimate(*[0.5 * factor] * 3), bills=0.5 * factor * cloud.bills)
    told = replace(pair.forecasts, rows=[half, free], alone=10.0, labels=200.0)
    expected = math.inf if factor <= 1.0 else 200.0 / (0.5 * 10.0)
    assert told.repaid == Estimate(expected, expected, expected)
    said = choices(replace(pair, forecasts=told))[-1]
    assert ("never repaid" in said) is (factor <= 1.0)
    assert replace(told, rows=[free]).repaid.low == math.inf, "nothing is fitted that recovers as much"


def test_the_labels_took_what_they_were_charged_or_what_the_prices_say():
    assert labels_bill(QUESTIONS, PRICES) == 14 * len(QUESTIONS), "seven a text"
    tokens = AskPrices.of(None)
    asked = sum(tokens.check(3, len(each.draft), 0) + tokens.write(3, len(each.written), 0) for each in QUESTIONS)
    assert labels_bill(QUESTIONS, tokens) == pytest.approx(asked)


def test_all_rows_are_plain_data(pair):
    data = json.loads(json.dumps(pair.forecasts.to_json(), allow_nan=False))
    assert len(data["rows"]) == len(pair.forecasts.rows)
    assert data["cheapest"] in data["rows"]
    assert data["recover"] == 0.9


def test_where_nothing_is_lost_the_local_model_recovers_all_for_nothing(monkeypatch):
    monkeypatch.setattr("hybrid.tune.calibrating.fit", partial(fit, trees=False))
    found = calibrated(judge="kl:1000").forecasts
    assert (found.cheapest.name, found.cheapest.bill.value, found.cheapest.share.value) == ("local", 0.0, 1.0)
