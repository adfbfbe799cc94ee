"""The demonstration's value: which answers are shown, and what its JSON holds."""

from __future__ import annotations

import json
from dataclasses import replace

from cases import each

from hybrid.lab.demo import ARMS, DOUBT, KL, pick_examples, to_json
from hybrid.record.answer import Token
from hybrid.tasks import FAMILIES

THERE = Token(2, "b", "cloud", "written", why="doubt")


def test_shown_is_one_of_each_family_the_first_that_most_hybrids_rescued(compared):
    """Problem n is of family n modulo 5; each column of digits below is one problem."""
    found = compared({
        "small": "01001" + "01000" + "00000",
        "kl":    "11010" + "11100" + "11100",
        "doubt": "01010" + "11100" + "11100",
        "large": "11111" + "11111" + "11111",
    })  # fmt: skip
    # In turn: rescued by both at 5, after one by only one; at 11, after two that the small model had right; at 7, the
    # first of two; at 3, the first of all; at 4, where nothing was rescued, the first.
    assert pick_examples(found) == [5, 11, 7, 3, 4]


def test_one_rescuer_is_better_than_none_and_no_better_than_two(compared):
    found = compared({"small": "0" * 15, "kl": "0" * 5 + "1" * 10, "doubt": "0" * 10 + "1" * 5, "large": "1" * 15})
    assert pick_examples(found) == [10, 11, 12, 13, 14]
    found = compared({"small": "0" * 10, "kl": "0" * 10, "doubt": "0" * 5 + "1" * 5, "large": "1" * 10})
    assert pick_examples(found) == [5, 6, 7, 8, 9]


def test_of_many_families_five_are_shown_the_most_rescued_first_then_the_shortest(compared):
    """Ten families, one problem each, the later ones shorter; small fails at all but two, doubt rescues two."""
    right = {"small": "0" * 8 + "11", "kl": "1" * 10, "doubt": "11" + "0" * 6 + "11", "large": "1" * 10}
    found = compared(right)
    lengths = [replace(p, family=FAMILIES[n].name, worked="x" * (20 - n)) for n, p in enumerate(found.problems)]
    assert pick_examples(replace(found, problems=tuple(lengths))) == [0, 1, 5, 6, 7]


def test_the_json_holds_exactly_what_is_promised(compared, answer):
    answers = {
        "auto": (answer(THERE, nanousd=2, requests=1),) * 10,
        "kl": (answer(THERE, THERE, nanousd=1, requests=3, degraded="gone"),) * 10,
        "large": (answer(THERE, nanousd=3, requests=1),) * 10,
    }
    right = {"small": "0" * 10, "auto": "1" * 10, "kl": "1" * 9 + "0", "doubt": "0" * 10, "large": "1" * 10}
    found = to_json(compared(right, answers=answers))
    models, low = found.pop("models"), found["rpi"]["kl"].pop("low")
    assert 0.5 < low < 0.9
    assert {name: sorted(model) for name, model in models.items()} == {
        "small": ["file", "sha256"],
        "large": ["file", "sha256"],
    }
    assert found == {
        "tasks": 10,
        "seed": 7,
        "correct": {"small": 0, "auto": 10, "kl": 9, "doubt": 0, "large": 10},
        "rpi": {
            "auto": {"value": 1.0, "low": 1.0, "high": 1.0},
            "kl": {"value": 0.9, "high": 1.0},
            "doubt": {"value": 0.0, "low": 0.0, "high": 0.0},
        },
        "cloud_token_share": {"small": 0.0, "auto": 1.0, "kl": 1.0, "doubt": 0.0, "large": 1.0},
        "requests": {"small": 0, "auto": 10, "kl": 30, "doubt": 0, "large": 10},
        "bill": {
            "auto": {"nanousd": 20, "ratio": 0.6667, "low": 0.6667, "high": 0.6667},
            "kl": {"nanousd": 10, "ratio": 0.3333, "low": 0.3333, "high": 0.3333},
            "doubt": {"nanousd": 0, "ratio": 0.0, "low": 0.0, "high": 0.0},
            "cloud_nanousd": 30,
        },
        "scoring_keeps_cache": False,
        "settings": {"auto": {}, "kl": dict(KL.choices), "doubt": dict(DOUBT.choices)},
        "degraded": {"small": 0, "auto": 0, "kl": 10, "doubt": 0, "large": 0},
    }


@each("right", ["1" * 10, "0" * 10, "1010101010"])
def test_the_json_has_no_number_that_json_has_not(compared, right):
    """No gap and no bill: nothing divides by them."""
    found = to_json(compared({arm.name: right for arm in ARMS}))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["rpi"]["kl"] == {"value": None, "low": None, "high": None}
    assert found["bill"]["kl"]["ratio"] is None
