"""Forecasts are probabilities of a first rejection, and a score is its JSON."""

import json

import numpy as np
import pytest

from hybrid.defer import Forecast, UninformedScore, score_from_json, score_to_json


def test_the_chance_of_a_rejection_is_summed_over_the_places_it_may_fall():
    """By enumeration: each token is rejected or not, by its hazard, and the first rejection counts."""
    hazard = np.array([0.1, 0.0, 0.7, 0.25])
    forecast = Forecast(hazard, np.zeros(4))
    places = [h * np.prod(1 - hazard[:i]) for i, h in enumerate(hazard)]
    assert forecast.turned_down == pytest.approx(sum(places))
    assert forecast.survival[:-1] - forecast.survival[1:] == pytest.approx(places)
    assert Forecast(np.zeros(0), np.zeros(0)).turned_down == 0.0


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
def test_the_prior_believes_the_same_of_a_draft_of_any_length(make_signals, num_tokens):
    score, signals = UninformedScore("kl:0.7", chance=0.9), make_signals(3, num_tokens)
    forecast = score.forecast(signals)
    assert forecast.turned_down == pytest.approx(0.9)
    assert forecast.excess == pytest.approx([-np.log(signals.top).mean()] * num_tokens)
    assert score.before((), 8).turned_down == 0.9


def test_a_score_is_read_as_it_was_written_to_the_last_bit():
    score = UninformedScore("kl:0.5", 0.1 + 0.2, 17.0)
    kept = json.loads(json.dumps(score_to_json(score)))
    assert score_from_json(kept) == score
    assert score_from_json(kept | {"again": 0.77}) == score, "a trace of before nothing was handed back has it"


@pytest.mark.parametrize(
    "kept", [{}, {"kind": "other"}, {"kind": "prior"}, {"kind": "prior", "judge": "kl", "chance": "x"}]
)
def test_what_is_no_score_is_refused_with_a_reason(kept):
    with pytest.raises(ValueError, match="no score that can be read"):
        score_from_json(kept)
