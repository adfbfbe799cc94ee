"""What is said of a question under auto before anything is drafted."""

from __future__ import annotations

import json
from dataclasses import replace

from cases import each

from hybrid.defer import CalibrationQuestion, UninformedScore
from hybrid.pairs.quote import AutoQuote
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices, Price

ASKED = CalibrationQuestion(20, 40, 50, 0.97, turned_down=True, excess_told=1.0, excess=1.2, first_rejection=12)
KEPT = replace(ASKED, chance=0.03, turned_down=False, first_rejection=None)
PLANNER = Planner(
    score=UninformedScore("kl:0.7", chance=0.5, tokens=30.0),
    prices=AskPrices.of(Price.parse("1/0.1/4")),
    worth=Worth(2.2),
    prompt_tokens=10,
)
QUOTE = AutoQuote(PLANNER, (ASKED, KEPT))


def test_half_of_such_questions_are_asked_for_half_the_price():
    """One of the two is written by the cloud from the start, the other is kept: half of 10 + 4 x 30 a thousand."""
    told, expected = QUOTE.lines()
    assert told.startswith(
        "from the question alone, nothing drafted: an answer of about 30 tokens, turned down by kl:0.7"
    )
    assert told.endswith("with chance 0.50")
    assert (
        "asks about it with chance 0.50; expected bill 0.000065 USD, 50 % of the 0.00013 USD that the cloud" in expected
    )
    assert expected.endswith("(by 2 calibration questions of this pair)")
    found = QUOTE.to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["expected_nanousd"], found["of_nanousd"], found["calibration_questions"]) == (65_000, 130_000, 2)


def test_of_a_pair_that_nobody_calibrated_nothing_is_expected():
    unknown = replace(QUOTE, questions=())
    assert unknown.lines() == [
        "nothing is known of this pair of models, so what auto will ask is not (hybrid calibrate)"
    ]
    assert [unknown.to_json()[name] for name in ("asks", "of_cloud", "expected_nanousd")] == [None] * 3
    asked = replace(unknown, planner=replace(PLANNER, keep_below=-1.0))
    assert asked.lines()[0].startswith("auto asks about every question: ")
    assert asked.to_json()["asks"] == 1.0


@each("price", [None, Price.parse("free")])
def test_where_nothing_is_charged_there_is_a_share_and_no_bill(price):
    quote = replace(QUOTE, planner=replace(PLANNER, prices=AskPrices.of(price)))
    assert "USD" not in quote.lines()[1]
    assert (quote.to_json()["expected_nanousd"], quote.to_json()["of_nanousd"]) == (None, None)
    assert quote.to_json()["of_cloud"] == QUOTE.to_json()["of_cloud"], "only ratios of prices matter"
