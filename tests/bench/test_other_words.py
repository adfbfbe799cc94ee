"""What is told of a local model of another vocabulary: the counts of a few answers, and the command itself."""

from __future__ import annotations

import json

import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.lab.experiments.other_words import TriedAnswer, words_report

LARGE = [TriedAnswer(right=True, text="a", nanousd=10, shown=4, in_vain=0)] * 9 + [TriedAnswer(False, "b", 10, 2, 0)]
ALONE = [TriedAnswer(right=False, text="c", nanousd=0, shown=5, in_vain=0)] * 10
MIXED = [*LARGE[:6], *[TriedAnswer(right=False, text="c", nanousd=5, shown=5, in_vain=3)] * 4]


def test_what_is_recovered_and_paid_is_told_beside_both_models_alone():
    told = words_report({"m": {"local": ALONE, "cloud": LARGE, "kl": MIXED}})["m"]
    assert (told["local"]["recovered"], told["cloud"]["recovered"]) == (None, None)
    assert told["kl"]["recovered"]["value"] == pytest.approx(6 / 9)
    assert told["kl"]["bill"] == pytest.approx(80 / 100)
    assert (told["kl"]["same"], told["kl"]["num"], told["cloud"]["same"]) == (6, 10, 10)
    assert told["kl"]["in_vain"] == pytest.approx(12 / 44)
    assert told["kl"]["right"]["low"] < 0.6 < told["kl"]["right"]["high"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_tells_both_models():
    done = CliRunner().invoke(app, ["bench", "vocabulary", "--num", "1", "--policy", "greedy-exact", "--json"])
    report = json.loads(done.stdout)
    assert report.keys() == {"small", "alien"}
    for told in each_of(report.values()):
        assert told["greedy-exact"]["same"] >= 13
        assert told["local"]["bill"] == 0.0
