"""The calibration's choice, and that the demonstration's settings are among what it weighs."""

from __future__ import annotations

import json

import pytest

from hybrid.bench.calibration import ARMS, SWEEP, chosen, is_shipped, to_json
from hybrid.bench.demo import HYBRIDS
from hybrid.run.answer import Token

RIGHT = {arm.name: "0" * 10 for arm in ARMS} | {"large": "1" * 10}


@pytest.fixture
def swept(compared, answer):
    """A comparison of the whole sweep: right answers and bills by arm, 0 of 10 and 5 nano-dollars by default."""

    def make(right, nanousd):
        token = Token(1, "x", "local", "accepted")
        answers = {arm.name: (answer(token, nanousd=nanousd.get(arm.name, 5)),) * 10 for arm in ARMS}
        return compared(RIGHT | right, ARMS, answers, split="calibration")

    return make


def test_the_highest_rpi_is_chosen_whatever_it_costs(swept):
    best = {"kl 1/16": "1" * 9 + "0", "doubt 0.7": "1" * 8 + "00"}
    found = chosen(swept(best | {"kl 0.2/16": "1" * 8 + "00"}, {"kl 1/16": 500, "doubt 0.7": 500}))
    assert {policy: arm.name for policy, arm in found.items()} == {"kl": "kl 1/16", "doubt": "doubt 0.7"}


def test_among_equals_the_cheapest_bill_is_chosen(swept):
    equal = dict.fromkeys(("kl 0.2/32", "kl 0.5/16", "kl 1/64", "doubt 0.3", "doubt 1"), "1" * 9 + "0")
    found = chosen(swept(equal, {"kl 0.5/16": 3, "kl 1/64": 4, "kl 0.2/16": 1, "doubt 1": 4}))
    assert {policy: arm.name for policy, arm in found.items()} == {"kl": "kl 0.5/16", "doubt": "doubt 1"}


def test_the_sweep_is_the_one_that_is_told():
    assert sorted((arm.choices["threshold"], arm.choices["span"]) for arm in SWEEP if arm.policy == "kl") == [
        (threshold, span) for threshold in (0.2, 0.5, 1.0) for span in (16, 32, 64)
    ]
    assert [arm.choices["entropy"] for arm in SWEEP if arm.policy == "doubt"] == [0.3, 0.5, 0.7, 1.0]
    assert len({arm.name for arm in ARMS}) == len(ARMS) == 15


def test_what_the_demonstration_ships_is_one_of_the_sweep():
    assert [arm.policy for arm in SWEEP if is_shipped(arm)] == [arm.policy for arm in HYBRIDS]


def test_the_json_has_a_row_for_each_arm_and_the_choice_beside_what_is_shipped(swept):
    found = to_json(swept({"kl 0.5/64": "1" * 10}, {}))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [row["policy"] for row in found["arms"]] == ["local", *["kl"] * 9, *["doubt"] * 4, "cloud"]
    assert found["arms"][6] == {
        "policy": "kl",
        "settings": {"threshold": 0.5, "span": 64},
        "correct": 10,
        "rpi": {"value": 1.0, "low": 1.0, "high": 1.0},
        "cloud_token_share": 0.0,
        "requests": 0,
        "bill": {"nanousd": 50, "ratio": 1.0},
        "degraded": 0,
    }
    assert found["chosen"]["kl"] == {"threshold": 0.5, "span": 64}
    assert found["shipped"] == {arm.name: dict(arm.choices) for arm in HYBRIDS}
