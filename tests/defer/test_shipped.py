"""The calibrations that come with the package."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from sent_questions import is_sent

from hybrid.defer import Calibration, QuestionCosts

SHIPPED = {path.name: path for path in files("hybrid.defer").joinpath("data").iterdir() if path.name.endswith(".json")}
REAL = ("real-d2.json", "real-q3.json")


def read(name: str) -> tuple[Calibration, Any]:
    kept = json.loads(SHIPPED[name].read_text(encoding="utf-8"))
    return Calibration.from_json(kept), kept


@pytest.mark.parametrize("name", REAL)
def test_a_shipped_file_is_read_and_written_again_to_the_last_bit(name: str) -> None:
    found, kept = read(name)
    assert found.to_json() == kept


@pytest.mark.parametrize("name", REAL)
def test_a_real_pair_counts_nats_and_its_worth_spends_half_the_bill_of_its_questions(name: str) -> None:
    """At the common ratio of prices, 1 for a token that is read and 4 for one that is written."""
    found, _ = read(name)
    assert (found.loss, found.judge) == ("nats", "excess:0.5")
    assert len(found.questions) >= 150
    assert found.kept_share is not None
    assert 0.5 < found.kept_share < 0.9
    prompt, drafted, written = (
        np.array([getattr(each, column) for each in found.questions], dtype=np.float64)
        for column in ("prompt_tokens", "draft_tokens", "cloud_tokens")
    )
    routed = QuestionCosts.of(found.questions, prompt + 4 * drafted, prompt + 4 * written)
    sent = is_sent(routed, found.worth)
    assert routed.paid[sent].sum() / routed.paid.sum() == pytest.approx(0.5, abs=0.02)
    assert routed.excess[sent].sum() / routed.excess.sum() > 0.7
