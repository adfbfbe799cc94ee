"""Rules along labels: their bills where the sum is known by other means."""

from __future__ import annotations

import math

import pytest
from bought_texts import questions
from cases import each, each_of

from hybrid.spend import AskPrices, CheckRates, Price
from hybrid.tune.rule_bills import HANDOFF, check_rates, cloud_alone, local_alone, once, rule_bills, spans

PRICES = [AskPrices.of(Price.parse(f"1/0.1/4{tariff}")) for tariff in ("", ":cached", ":new")]
NEVER, ALWAYS = "kl:1000000", "kl:0"
QUESTIONS = questions(6)


@each("prices", PRICES)
def test_the_two_models_alone_and_a_check_that_turns_nothing_down(prices):
    for question in each_of(QUESTIONS):
        prompt, num, written = 3, len(question.draft), len(question.written.signals)
        assert cloud_alone(question, prices) == (prices.write(prompt, written, 0), 1, written, 0.0)
        lost = question.draft.excess.mean()
        assert local_alone(question, prices) == (0.0, 0, 0, lost)
        assert once(NEVER)(question, prices) == (prices.check(prompt, num, 0), 1, 0, lost)
        whole = spans(NEVER, 999)(question, prices)
        assert whole[:3] == once(NEVER)(question, prices)[:3]
        assert math.isclose(whole.left, lost)


@each("prices", PRICES)
def test_what_is_turned_down_is_paid_and_leaves_what_came_before_it(prices):
    for question in each_of(QUESTIONS):
        place = question.draft.first_rejection("kl:0.5")
        found, rest = once("kl:0.5")(question, prices), len(question.written.signals)
        if place is None:
            assert found.requests == 1
            continue
        written = max(1, rest - place - 1)
        assert found.requests == 2
        assert found.cloud_tokens == 1 + written
        assert found.price == prices.check(3, len(question.draft), 0) + prices.write(3 + place + 1, written, 3 + place)
        assert math.isclose(found.left, question.draft.excess[:place].sum() / len(question.draft))


def test_everything_turned_down_is_a_check_a_token_or_blocks_that_double():
    prices, question = PRICES[1], QUESTIONS[0]
    num = len(question.draft)
    assert question.draft.turned_down(ALWAYS).all(), "no two rows are the same"
    single = spans(ALWAYS, 4)(question, prices)
    assert single[1:] == (num, num, 0.0)
    checks = [prices.check(3 + at, min(4, num - at), 3 + at - 1 if at else 0) for at in range(num)]
    assert math.isclose(single.price, sum(checks))
    blocks, at, limit = 1, 1, HANDOFF
    while at < num:
        blocks, at, limit = blocks + 1, at + limit, 2 * limit
    over = spans(ALWAYS, 4, hands_over=True)(question, prices)
    assert over[1:] == (blocks, num, 0.0)


def test_over_all_questions_a_bill_is_the_mean_and_a_share_of_the_clouds_own():
    rules = {"cloud": cloud_alone, "local": local_alone, "once": once("kl:0.5")}
    cloud, local, checked = rule_bills(QUESTIONS, PRICES[0], rules)
    assert (cloud.of_cloud, cloud.left, cloud.requests) == (1.0, 0.0, 1.0)
    assert (local.bill, local.of_cloud, local.left) == (0.0, 0.0, 1.0)
    assert checked.bill == sum(once("kl:0.5")(each, PRICES[0]).price for each in QUESTIONS) / len(QUESTIONS)
    assert checked.of_cloud == pytest.approx(checked.bill / cloud.bill)
    assert 0.0 <= checked.left < 1.0


def test_the_rates_of_a_break_even_are_those_of_the_price():
    for tariff in ("", ":cached", ":uncached", ":new"):
        price = Price.parse(f"1/0.1/4{tariff}")
        own, found = CheckRates.of_price(price), check_rates(AskPrices.of(price))
        assert own.break_even(70) == pytest.approx(found.break_even(70), abs=1e-6)
