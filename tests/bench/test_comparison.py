"""What the hybrids are worth: balanced problems, ratios over what was really run, None for what is not defined."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import pytest
from cases import each

from hybrid.errors import UsageError
from hybrid.lab.arms import MOST_PROBLEMS, Trial, bill_to_json, draw_balanced, estimate_to_json, fingerprints
from hybrid.lab.demo import KL
from hybrid.record.answer import Token
from hybrid.tasks import FAMILIES, split_of
from hybrid.tasks.statistics import Estimate

NAMES = [family.name for family in FAMILIES]
HERE, THERE = Token(1, "a", "local", "unchecked"), Token(2, "b", "cloud", "written", why="doubt")


@each("split", ["test", "calibration"])
@each("count", [14, 15, 20, 60, 61, 120])
def test_problems_are_balanced_and_the_first_families_get_what_is_left_over(count, split):
    problems = draw_balanced(count, split, 0)
    assert len(problems) == len({problem.question for problem in problems}) == count
    assert {split_of(problem) for problem in problems} == {split}
    found = Counter(problem.family for problem in problems)
    assert [found[name] for name in NAMES] == [count // 14 + (number < count % 14) for number in range(14)]


def test_the_families_take_turns():
    assert [problem.family for problem in draw_balanced(30, "calibration", 0)] == [*NAMES, *NAMES, *NAMES[:2]]


def test_the_seed_draws_the_problems():
    assert draw_balanced(20, "test", 0) == draw_balanced(20, "test", 0) != draw_balanced(20, "test", 1)


@each("count", [-60, 0, 1, 13, MOST_PROBLEMS + 1, 10**12])
def test_fewer_than_one_of_each_family_or_more_than_there_are_is_a_usage_error(count):
    """At once: looking for a million different problems would take hours to fail."""
    with pytest.raises(UsageError, match=f"{count} tasks: 14, one of each family"):
        draw_balanced(count, "test", 0)


@pytest.mark.slow
@each("split", ["test", "calibration"])
def test_either_split_has_the_most_problems_that_may_be_asked_for(split):
    assert len(draw_balanced(MOST_PROBLEMS, split, 3)) == MOST_PROBLEMS


def test_a_trial_adds_up_its_answers(answer):
    answers = (
        answer(HERE, HERE, THERE, requests=2, nanousd=5),
        answer(requests=1, nanousd=7, degraded="gone"),
        answer(THERE, requests=4, nanousd=11),
    )
    trial = Trial(KL, answers, (True, False, True))
    assert (trial.num_correct, trial.cloud_token_share, trial.num_requests) == (2, 2 / 4, 7)
    assert (trial.nanousd, trial.num_degraded) == (23, 1)
    assert Trial(KL, (answer(THERE),), (False,)).cloud_token_share == 1.0
    assert Trial(KL, (answer(),), (False,)).cloud_token_share == 0.0, "no token, no share"


def test_a_bill_is_compared_with_the_large_models_own_run(compared, answer):
    """Not with what the cloud alone would have charged for the hybrid's text: that is another number."""
    answers = {"kl": (answer(HERE, nanousd=3),) * 8, "large": (answer(THERE, nanousd=4),) * 8}
    found = compared(dict.fromkeys(("small", "kl", "doubt", "large"), "10101010"), answers=answers)
    assert [found.bill_ratio(name).value for name in ("kl", "doubt", "large")] == [0.75, 0.0, 1.0]
    assert bill_to_json(found, "kl") == {"nanousd": 24, "ratio": 0.75, "low": 0.75, "high": 0.75}


def test_a_bill_has_the_interval_of_problems_that_are_drawn_again_with_both_bills(compared, answer):
    """Where half the problems cost nothing and half as much as the large model, one half or the other may be more."""
    asked, silent, large = answer(THERE, nanousd=4), answer(HERE), answer(THERE, nanousd=4)
    found = compared(
        dict.fromkeys(("small", "kl", "doubt", "large"), "1" * 40),
        answers={"kl": (asked, silent) * 20, "large": (large,) * 40},
    )
    ratio = found.bill_ratio("kl")
    assert ratio.value == 0.5
    assert 0.3 < ratio.low < 0.4
    assert 0.6 < ratio.high < 0.7


def test_there_is_no_ratio_over_a_bill_of_nothing(compared):
    found = compared(dict.fromkeys(("small", "kl", "doubt", "large"), "10101010"))
    assert bill_to_json(found, "kl") == {"nanousd": 0, "ratio": None, "low": None, "high": None}


def test_the_rpi_is_the_arms_between_the_two_models(compared):
    """Asymmetric: any two of the three swapped give another value."""
    found = compared({"small": "0" * 9 + "1", "kl": "1" * 6 + "0" * 3 + "1", "doubt": "0" * 10, "large": "1" * 10})
    assert found.rpi("kl").value == pytest.approx(6 / 9)
    assert found.rpi("doubt").value == pytest.approx(-1 / 9)
    assert compared(dict.fromkeys(("small", "kl", "doubt", "large"), "1" * 10)).rpi("kl") is None


def test_what_is_not_defined_or_not_bounded_is_null_in_json():
    assert estimate_to_json(None) == {"value": None, "low": None, "high": None}
    assert estimate_to_json(Estimate(2 / 3, -math.inf, math.inf)) == {"value": 0.6667, "low": None, "high": None}


def test_the_models_are_told_by_their_content():
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL

    assert fingerprints() == {
        name: {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for name, path in {"small": BUNDLED_LOCAL, "large": BUNDLED_CLOUD}.items()
    }
