"""The calibration's choice, and that the demonstration's settings are among what it weighs."""

from __future__ import annotations

import json

import pytest

from hybrid.lab.demo import DOUBT, KL, SWEEP, SWEPT_ARMS, choose_arms, is_shipped, sweep_to_json
from hybrid.record.answer import Token

RIGHT = {arm.name: "0" * 10 for arm in SWEPT_ARMS} | {"large": "1" * 10}


@pytest.fixture
def swept(compared, answer):
    """A comparison of the whole sweep: right answers and bills by arm, 0 of 10 and 5 nano-dollars by default."""

    def make(right, nanousd):
        token = Token(1, "x", "local", "accepted")
        answers = {arm.name: (answer(token, nanousd=nanousd.get(arm.name, 5)),) * 10 for arm in SWEPT_ARMS}
        return compared(RIGHT | right, SWEPT_ARMS, answers, split="calibration")

    return make


def test_the_highest_rpi_is_chosen_whatever_it_costs_below_the_large_models_bill(swept):
    best = {"kl 0.7/32/48": "1" * 9 + "0", "doubt 0.1": "1" * 8 + "00"}
    bills = {"kl 0.7/32/48": 499, "doubt 0.1": 499, "large": 500}
    found = choose_arms(swept(best | {"kl 0.5/32/12": "1" * 8 + "00"}, bills))
    assert {policy: arm.name for policy, arm in found.items()} == {"kl": "kl 0.7/32/48", "doubt": "doubt 0.1"}


def test_what_costs_as_much_as_the_large_model_is_chosen_only_where_nothing_costs_less(swept):
    best = {"kl 0.7/32/48": "1" * 9 + "0", "doubt 0.1": "1" * 8 + "00"}
    bills = {"kl 0.7/32/48": 500, "large": 500} | {arm.name: 500 for arm in SWEEP if arm.policy == "doubt"}
    found = choose_arms(swept(best | {"kl 0.5/128/12": "1" + "0" * 9}, bills))
    assert {policy: arm.name for policy, arm in found.items()} == {"kl": "kl 0.5/128/12", "doubt": "doubt 0.1"}


def test_among_equals_the_cheapest_bill_is_chosen(swept):
    equal = dict.fromkeys(("kl 0.5/128/48", "kl 0.5/32/12", "kl 0.7/128/48", "doubt 0.3", "doubt 0.5"), "1" * 9 + "0")
    found = choose_arms(
        swept(equal, {"kl 0.5/32/12": 3, "kl 0.7/128/48": 4, "kl 0.5/32/48": 1, "doubt 0.5": 4, "large": 6})
    )
    assert {policy: arm.name for policy, arm in found.items()} == {"kl": "kl 0.5/32/12", "doubt": "doubt 0.5"}


def test_the_sweep_is_the_one_that_is_told():
    assert [tuple(arm.choices.values()) for arm in SWEEP if arm.policy == "kl"] == [
        (threshold, span, hold) for threshold in (0.5, 0.7) for span in (32, 128) for hold in (12, 48, 96)
    ]
    assert {tuple(arm.choices) for arm in SWEEP if arm.policy == "kl"} == {("threshold", "span", "hold")}
    assert [arm.choices["entropy"] for arm in SWEEP if arm.policy == "doubt"] == [0.03, 0.1, 0.3, 0.5]
    assert len({arm.name for arm in SWEPT_ARMS}) == len(SWEPT_ARMS) == 18


def test_what_the_demonstration_ships_is_one_of_the_sweep():
    assert [arm.policy for arm in SWEEP if is_shipped(arm)] == ["kl", "doubt"]


def test_the_json_has_a_row_for_each_arm_and_the_choice_beside_what_is_shipped(swept):
    found = sweep_to_json(swept({"kl 0.5/128/12": "1" * 10}, {"large": 6}))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [row["policy"] for row in found["arms"]] == ["local", *["kl"] * 12, *["doubt"] * 4, "cloud"]
    assert found["arms"][4] == {
        "policy": "kl",
        "settings": {"threshold": 0.5, "span": 128, "hold": 12},
        "correct": 10,
        "rpi": {"value": 1.0, "low": 1.0, "high": 1.0},
        "cloud_token_share": 0.0,
        "requests": 0,
        "bill": {"nanousd": 50, "ratio": 0.8333, "low": 0.8333, "high": 0.8333},
        "degraded": 0,
    }
    assert found["chosen"]["kl"] == {"threshold": 0.5, "span": 128, "hold": 12}
    assert found["shipped"] == {arm.name: dict(arm.choices) for arm in (KL, DOUBT)}
