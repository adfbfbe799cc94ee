"""Arms over the real pair: settings of their own, a cache of their own, every problem answered in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_LOCAL
from hybrid.engine.identity import identify
from hybrid.lab.arms import GRADERS, LARGE, SMALL, Arm, draw_balanced, run_arms
from hybrid.lab.demo import AUTO, DOUBT, KL
from hybrid.pairs.store import calibration_for, keep_calibration

pytestmark = pytest.mark.slow

PROBLEMS = draw_balanced(14, "test", 0)[:5]


@pytest.fixture
def run():
    """Try arms on problems; what is told meanwhile goes to ``tell``."""

    def start(arms, problems=PROBLEMS, *, keep_cache=False, tell=lambda *_: None):
        return asyncio.run(run_arms(arms, problems, keep_cache=keep_cache, report_answer=tell))

    return start


def measured(trials):
    """Everything of some trials but the time they took."""
    return {
        name: [(answer.tokens, answer.usage, answer.bill, answer.degraded) for answer in trial.answers]
        for name, trial in trials.items()
    }


def test_every_arm_answers_every_problem_and_tells_after_each(run):
    told = []
    trials = run((SMALL, KL, DOUBT, LARGE), tell=lambda arm, num_done: told.append((arm.name, num_done)))
    assert told == [(name, number) for name in ("small", "kl", "doubt", "large") for number in range(1, 6)]
    for trial in each_of(trials.values()):
        graded = [GRADERS[p.family](p, a.text) for p, a in zip(PROBLEMS, trial.answers, strict=True)]
        assert list(trial.correct) == graded
        assert trial.num_degraded == 0
    assert (trials["small"].num_requests, trials["small"].nanousd, trials["small"].cloud_token_share) == (0, 0, 0.0)
    assert (trials["large"].num_requests, trials["large"].cloud_token_share) == (5, 1.0)
    assert trials["large"].num_correct == 5, "the bundled large model answers nearly all"


def test_an_arm_does_not_profit_from_anothers_prefix_cache(run):
    """Two alike, one after the other: with one cache for both, the second would be charged less."""
    twins = run((Arm("first", "cloud"), Arm("second", "cloud")), keep_cache=True)  # and tell of it
    assert twins["first"].nanousd == twins["second"].nanousd
    again = run((Arm("first", "cloud"),), PROBLEMS + PROBLEMS, keep_cache=True)["first"].nanousd
    assert again < 2 * twins["first"].nanousd, "there is a cache to profit from"


def test_scoring_from_the_prefix_cache_makes_checks_cheaper(run):
    often = Arm("often", "kl", {"span": 4})
    assert run((often,), keep_cache=True)["often"].nanousd < run((often,))["often"].nanousd


def test_neither_the_environment_nor_the_file_changes_a_measurement(run, monkeypatch, tmp_path):
    """Who runs the demonstration in their project's folder measures the same as everybody."""
    expected = measured(run((KL,)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hybrid.toml").write_text("offline = true\ncap = 0\nmax_tokens = 3\nno_such_setting = 1\n")
    for name, value in {"POLICY": "local", "TEMPERATURE": "1", "SYSTEM": "Lie.", "API_KEY": "no key\n"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    assert measured(run((KL,))) == expected


def test_what_a_user_has_bought_of_the_pair_has_no_say(run, tmp_path, monkeypatch):
    """A worth of thousands would have the cloud asked about every problem."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = run((AUTO,))
    own = calibration_for(identify(BUNDLED_LOCAL), "large")
    keep_calibration(replace(own, worth=5000.0))
    assert calibration_for(own.local, own.cloud).worth == 5000.0
    assert measured(run((AUTO,))) == measured(before)
    assert before["auto"].num_requests < len(PROBLEMS)
