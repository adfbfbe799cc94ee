"""What is known of a pair is its JSON."""

import json

import pytest

from hybrid.defer import Calibration, CalibrationQuestion, PriorScore

QUESTIONS = (
    CalibrationQuestion(34, 59, 61, 0.1 + 0.2, True, 1 / 3, 0.25, 7),
    CalibrationQuestion(12, 5, 4, 0.0, False, 0.01, 0.0),
)
KNOWN = Calibration("small", "large", "kl:0.7", "verdict", 2.2, PriorScore("kl:0.7"), QUESTIONS)


def test_a_calibration_is_read_as_it_was_written():
    assert Calibration.from_json(json.loads(json.dumps(KNOWN.to_json()))) == KNOWN


@pytest.mark.parametrize(
    "change", [{"version": 0}, {"loss": "money"}, {"score": {}}, {"questions": [[1]]}, {"worth": None}, {"judge": ...}]
)
def test_another_version_or_a_damaged_one_is_not_believed(change):
    kept = {**KNOWN.to_json(), **change}
    if change.get("judge") is ...:
        del kept["judge"]
    with pytest.raises(ValueError, match=r"calibration|score|argument"):
        Calibration.from_json(kept)
