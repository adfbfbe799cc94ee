"""``hybrid batch --again``: the money of all attempts adds up, and the reason that is told is the one of this run."""

from __future__ import annotations

import json
import signal

import pytest
from given_answers import answers, batch

__all__ = ["answers", "batch"]


class Ledger:
    """Bills that tell attempts apart, and their sum over all runs."""

    def __init__(self, answers):
        self.total, self._answers = 0, answers

    def run(self, batch, cost, *flags):
        self._answers.more = {"bill": {"nanousd": cost, "cloud_only_nanousd": 9_000}}
        done = batch(*flags)
        self.total += cost * len(self._answers.asked)
        return done


def test_bill_and_discarded_money_add_up_to_what_all_runs_have_cost(batch, answers, tmp_path):
    """A line stands for all attempts of it: those that it replaced, and those that were no better."""
    ledger, again = Ledger(answers), ("--again", "degraded", "--json")
    answers.degraded = {2, 5, 7}
    summaries = [json.loads(ledger.run(batch, 1_000_000, "--json").stdout)]
    for cost, answers.degraded in ((200_000, {5, 7}), (30_000, {5, 7}), (4_000, {7})):
        summaries.append(json.loads(ledger.run(batch, cost, *again).stdout))
        assert summaries[-1]["bill"]["nanousd"] + summaries[-1]["discarded_nanousd"] == ledger.total
    # Line 5 lies in 1 replaced attempt and 2 that were not better, line 2 in 1 replaced one, line 7 in 3 not better.
    assert summaries[-1]["discarded_nanousd"] == 1_230_000 + 1_000_000 + 234_000
    done = ledger.run(batch, 0)
    assert answers.asked == [], "whoever reads the output says the same"
    assert "hybrid: 0.002464 USD more went into attempts that were replaced or not better" in done.stderr
    assert batch("--sort").exit_code == 6
    found = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert [each.get("discarded_nanousd") for each in found] == [
        None,
        1_000_000,
        None,
        None,
        1_230_000,
        None,
        234_000,
        None,
    ]


@pytest.mark.parametrize("parallel", ["1", "4"])
def test_interrupted_attempts_that_were_kept_count_in_the_money_as_well(batch, answers, parallel):
    ledger, again = Ledger(answers), ("--again", "degraded", "--parallel", parallel)
    answers.degraded = {2, 5, 7}
    ledger.run(batch, 1_000_000)
    answers.faults = {7: signal.SIGINT}
    assert ledger.run(batch, 200_000, *again).exit_code == 130
    ledger.total -= 200_000  # nothing came of line 7
    answers.faults, answers.degraded = {}, set()
    summary = json.loads(ledger.run(batch, 30_000, *again, "--json").stdout)
    assert summary["bill"]["nanousd"] + summary["discarded_nanousd"] == ledger.total


def test_an_attempt_of_unknown_price_makes_the_discarded_money_unknown(batch, answers):
    answers.degraded = {2}
    answers.more = {"bill": {"nanousd": None, "cloud_only_nanousd": None}}
    batch()
    answers.more = {"bill": {"nanousd": 5, "cloud_only_nanousd": 9}}
    answers.degraded = set()
    assert "hybrid: an unknown amount more went into attempts that were replaced" in batch("--again", "degraded").stderr
    assert json.loads(batch("--json").stdout)["discarded_nanousd"] is None


def test_the_reason_that_is_told_is_this_runs_or_said_to_be_an_earlier_runs(batch, answers):
    """A higher --cap seemed to be ignored: the line that stood kept the text of its own time."""
    answers.degraded, answers.whys = {2, 5}, dict.fromkeys((2, 5), "the cap of 2")
    assert batch().stderr.splitlines()[-2].endswith("; the first is line 3: the cap of 2")
    answers.whys = dict.fromkeys((2, 5), "the cap of 3")
    again = batch("--again", "degraded")
    assert again.stderr.splitlines()[-2].endswith("; the first is line 3: the cap of 3")
    assert json.loads(batch("--json").stdout)["first_reason"] == "line 3, from an earlier run: the cap of 2"
    answers.degraded, answers.failing = set(), {2}
    summary = json.loads(batch("--again", "degraded", "--json").stdout)
    assert summary["first_reason"] == "line 3, from an earlier run: the cap of 2", (
        "the attempt failed for no such reason"
    )


def test_what_must_come_first_is_what_this_runs_attempt_lacked(batch, answers):
    answers.degraded, answers.kinds, answers.whys = {2}, {2: "unreachable"}, {2: "nobody is there"}
    assert "once the endpoint answers: " in batch("--cap", "2").stderr.splitlines()[-1]
    answers.kinds, answers.whys = {2: "budget"}, {2: "the cap of 2 USD does not allow another request (0 USD left)"}
    last = batch("--again", "degraded", "--cap", "2").stderr.splitlines()[-1]
    assert "with more money (give an amount above 2 for HIGHER): " in last
