"""A learned score: chances are chances whatever the signals, and its JSON is the score."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hybrid.defer import BUCKETS, DraftSignals, LearnedScore, score_from_json, score_to_json
from hybrid.defer.features import NUM_IDS, TOKEN_FEATURES, token_buckets, token_features, token_numbers
from hybrid.defer.learned import BoostedTrees, ExcessLine, recalibrated, recalibrated_chance
from hybrid.defer.logistic import LinearModel, Scale, logit_of, sigmoid


def draw_linear(rng, width):
    weights = rng.normal(size=BUCKETS) * (rng.random(BUCKETS) < 0.3)
    scale = Scale(rng.normal(size=width), rng.uniform(0.0, 2.0, width) * (rng.random(width) < 0.9))
    return LinearModel(float(rng.normal()), weights, rng.normal(size=width) * 0.3, scale)


def draw_trees(rng, num=7):
    """Stumps: a root and two leaves each."""
    roots, leaves = np.arange(num) * 3, np.arange(3 * num)
    left, right = leaves.copy(), leaves.copy()
    left[roots], right[roots] = roots + 1, roots + 2
    features = rng.integers(0, len(TOKEN_FEATURES), 3 * num)
    return BoostedTrees(-2.0, len(TOKEN_FEATURES), roots, features, rng.normal(size=3 * num), left, right)


@pytest.fixture(params=["trees", "logistic"])
def score(request):
    rng = np.random.default_rng(5)
    numbers = 2 * (len(TOKEN_FEATURES) - NUM_IDS) + 2
    hazard = draw_trees(rng) if request.param == "trees" else draw_linear(rng, numbers)
    models = draw_linear(rng, 1), draw_linear(rng, 1), draw_linear(rng, 30), hazard
    return LearnedScore("kl:0.7", *models, ExcessLine(0.1, 0.7, 0.5), (0.3, 1.2))


def test_a_score_is_its_json_to_the_last_bit(score, make_signals):
    again = score_from_json(json.loads(json.dumps(score_to_json(score))))
    for seed, num in enumerate((1, 2, 50)):
        signals = make_signals(seed, num, shown=seed)
        first, second = score.forecast(signals), again.forecast(signals)
        assert list(first.hazard) == list(second.hazard)
        assert list(first.excess) == list(second.excess)
        assert score.before(signals.words, 9) == again.before(signals.words, 9)
    assert score_to_json(again) == score_to_json(score)


def test_whatever_the_signals_chances_are_chances_and_losses_are_finite(score):
    """Rows from elsewhere: a sure model, a token without a chance, ids of another vocabulary, a prompt of a million."""
    strange = DraftSignals(
        (0, 4095),
        10**6,
        10**5,
        np.array([2**31 - 1, 0, 5]),
        np.array([0.0, 30.0, 1e-300]),
        np.array([1.0, 1e-12, 1.0]),
        np.array([0.0, 1e-12, 0.0]),
        np.array([0.0, -np.inf, -1e9]),
        True,
        1e300,
        10**6,
    )
    none = replace(
        strange, **{name: np.zeros(0) for name in ("entropy", "top", "second", "logprob")}, tokens=np.zeros(0, int)
    )
    for signals in (strange, none):
        forecast, before = score.forecast(signals), score.before(signals.words, signals.prompt_tokens)
        assert len(forecast.hazard) == len(forecast.excess) == len(signals)
        assert ((forecast.hazard >= 0) & (forecast.hazard <= 1)).all()
        assert np.isfinite(forecast.excess).all()
        assert (forecast.excess >= 0).all()
        assert 0 <= before.turned_down <= 1 <= before.tokens < np.inf


def test_a_draft_is_turned_down_with_the_bent_chance(score, make_signals):
    signals = make_signals(4, 20)
    plain, bent = (
        replace(score, recalibration=each).forecast(signals).turned_down for each in ((0.0, 1.0), (0.3, 1.2))
    )
    assert bent == pytest.approx(float(sigmoid(0.3 + 1.2 * logit_of(plain, 1e-12))))
    assert recalibrated_chance(float(logit_of(plain, 1e-12)), (0.3, 1.2)) == pytest.approx(bent)


def test_recalibration_leaves_the_places_in_their_order():
    """And at bias 0 and slope 1 the hazards as they are."""
    log_odds = np.array([-3.0, 1.0, -6.0, 0.0])
    assert recalibrated(log_odds, (0.0, 1.0)) == pytest.approx(sigmoid(log_odds))
    assert list(np.argsort(recalibrated(log_odds, (-2.0, 0.5)))) == list(np.argsort(log_odds))
    assert recalibrated(log_odds[:0], (1.0, 1.0)).shape == (0,)


def test_a_token_has_the_features_that_the_names_say(make_signals):
    signals = make_signals(6, 5, shown=3)
    named = dict(zip(TOKEN_FEATURES, token_features(signals, 1.5, -0.5).T, strict=True))
    assert list(named["highest entropy so far"]) == [max(signals.entropy[: i + 1]) for i in range(5)]
    assert named["entropies so far"] == pytest.approx([sum(signals.entropy[: i + 1]) for i in range(5)])
    assert list(named["entropy before"]) == [0.0, *signals.entropy[:4]]
    assert list(named["entropy after"]) == [*signals.entropy[1:], 0.0]
    assert list(named["token before that"]) == [-1, -1, *signals.tokens[:3]]
    assert list(named["token after"]) == [*signals.tokens[1:], -1]
    assert list(named["surprise"]) == list(-signals.logprob)
    assert list(named["age of it"]) == [signals.divergence_age + i for i in range(5)]
    assert set(named["log-odds of the draft"]) == {1.5}
    assert set(named["log-odds of the question"]) == {-0.5}
    fresh = dict(zip(TOKEN_FEATURES, token_features(make_signals(6, 5), 0, 0).T, strict=True))
    assert set(fresh["last divergence"]) == set(fresh["age of it"]) == {-1.0}


def test_token_ids_are_buckets_of_a_linear_model_and_no_numbers_of_it(make_signals):
    features = token_features(make_signals(1, 300), 0.0, 0.0)
    buckets = token_buckets(features)
    assert ((buckets[:, 0] >= 0) & (buckets[:, 0] < 2048)).all()
    assert ((buckets[:, 1] >= 2048) & (buckets[:, 1] < 4096)).all()
    assert list(buckets[1:, 1] - BUCKETS // 2) == list(buckets[:-1, 0])
    assert token_numbers(features).shape == (300, 2 * (len(TOKEN_FEATURES) - NUM_IDS) + 2)
    assert len(set(buckets[:, 0])) > 0.8 * len(set(features[:, -4]))


def test_what_stage_one_tells_is_spread_over_the_tokens(make_signals):
    """So that a linear model of the hazard can be stage 1 with a place."""
    numbers = token_numbers(token_features(make_signals(1, 9), 1.5, -4.0))
    for column, told in ((-2, 1.5), (-1, -4.0)):
        assert 1 - np.prod(1 - sigmoid(numbers[:, column])) == pytest.approx(float(sigmoid(np.array(told))))


def test_a_linear_model_believes_nothing_beyond_four_deviations():
    model = LinearModel(0.5, np.zeros(BUCKETS), np.array([2.0, 3.0]), Scale(np.array([1.0, 0.0]), np.array([0.5, 0.0])))
    values = model(np.zeros((3, 0), dtype=np.int64), np.array([[1.5, 9.0], [100.0, 0.0], [-1e9, -7.0]]))
    assert values == pytest.approx([0.5 + 2.0, 0.5 + 8.0, 0.5 - 8.0])  # what never changed says nothing
