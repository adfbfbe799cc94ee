"""What the labels forecast of a policy, beside what it then takes of the same questions over the bundled server."""

from __future__ import annotations

import asyncio

import pytest
from cases import each_of

import hybrid
from hybrid.spend import AskPrices, Price
from hybrid.tune.buying import bundled_questions
from hybrid.tune.labels import LabelledAnswers, LabelledText
from hybrid.tune.play import Play, greedy_policy

PRICE = "1/0.1/4"
POLICIES = ("doubt", "once:0.7", "kl:0.7")


async def forecast_and_run(num):
    """For each policy the forecast and the paid bill of each question, and what the cloud alone takes of all."""
    found, alone = {name: [] for name in POLICIES}, 0.0
    async with hybrid.open(price=PRICE) as client:
        can = await client.capabilities()
        prices = AskPrices.of(
            Price.parse(PRICE), keeps_cache=can.keeps_cache, tells_cache=can.tells_cache is True, in_one_request=True
        )
        for asked in bundled_questions(num):
            texts = [await client.text_rows(asked.prompt, writer, **asked.choices) for writer in ("local", "cloud")]
            question = LabelledAnswers(*(LabelledText.of_rows((), each) for each in texts))
            alone += Play(greedy_policy("cloud"), question).price(prices)
            for name in POLICIES:
                answer = await client.generate(asked.prompt, policy=name, **asked.choices)
                forecast = Play(greedy_policy(name), question).price(prices)
                found[name].append((forecast, answer.bill.nanousd))
    return found, alone


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_forecast_bill_is_the_paid_one_for_most_questions_and_near_it_over_all(bundled):
    """It is an estimate where a draft had gone its own way before the cloud took the pen."""
    found, alone = asyncio.run(forecast_and_run(20))
    for name, bills in each_of(found.items()):
        exact = sum(abs(told - paid) < 1.0 for told, paid in bills)
        told, paid = (sum(column) / alone for column in zip(*bills, strict=True))
        print(f"{name}: forecast {told:.3f} of the cloud's bill, paid {paid:.3f}; exact for {exact} of {len(bills)}")
        assert exact >= 0.6 * len(bills)
        assert abs(told - paid) < 0.25
