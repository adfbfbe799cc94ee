"""What is known of a pair is its JSON."""

import json
from dataclasses import replace

import pytest

from hybrid.defer import Calibration, CalibrationQuestion, UninformedScore

QUESTIONS = (
    CalibrationQuestion(34, 59, 61, 0.1 + 0.2, True, 1 / 3, 0.25, 7, 50),
    CalibrationQuestion(12, 5, 4, 0.0, False, 0.01, 0.0, None, 5),
    CalibrationQuestion(9, 30, 40, 0.5, True, 0.1, 0.1),
)
KNOWN = Calibration("small", "large", "kl:0.7", "verdict", 2.2, UninformedScore("kl:0.7"), QUESTIONS)


def test_a_calibration_is_read_as_it_was_written():
    unseen = replace(KNOWN, unseen=((0.1 + 0.2, True), (0.0, False)))
    for known in (KNOWN, unseen):
        assert Calibration.from_json(json.loads(json.dumps(known.to_json()))) == known
    assert "unseen" not in KNOWN.to_json(), "a file of an earlier version is written as it was read"


@pytest.mark.parametrize(
    "change",
    [
        {"unseen": [[0.5]]},
        {"unseen": [[1.5, True]]},
        {"unseen": [[0.5, 2]]},
        {"unseen": 5},
        {"version": 0},
        {"loss": "money"},
        {"score": {}},
        {"questions": [[1]]},
        {"worth": None},
        {"judge": ...},
    ],
)
def test_another_version_or_a_damaged_one_is_not_believed(change):
    kept = {**KNOWN.to_json(), **change}
    if change.get("judge") is ...:
        del kept["judge"]
    with pytest.raises(ValueError, match=r"calibration|score|argument|no number"):
        Calibration.from_json(kept)


def test_the_share_of_kept_tokens_is_over_the_drafts_whose_tokens_were_judged():
    assert KNOWN.kept_share == 55 / 64
    assert replace(KNOWN, questions=QUESTIONS[2:]).kept_share is None
