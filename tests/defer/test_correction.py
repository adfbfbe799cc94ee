"""A correction moves chances, never places; without labels and strange words it does nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from hybrid.defer import (
    BUCKETS,
    NOTHING_FAMILIAR,
    CorrectedScore,
    Correction,
    DraftOutcome,
    Forecast,
    NoveltyScore,
    UninformedScore,
    score_from_json,
    score_to_json,
    statistics,
)
from hybrid.defer.logistic import sigmoid
from hybrid.defer.score import scaled_to

ASKED = {"chance": 0.5, "keeps": False, "floor": 0.05}
ALL_KNOWN = NoveltyScore(np.full(BUCKETS, 1e6))


def labelled(make_signals, num, bad, told=0.5):
    """Outcomes of drafts, turned down where ``bad`` of their signals says so."""
    drafts = [make_signals(seed, 5 + seed % 20) for seed in range(num)]
    return [DraftOutcome.of(each, told=told, turned_down=bool(bad(each)), **ASKED) for each in drafts]


def test_without_labels_what_is_familiar_is_told_as_it_was_and_what_is_strange_as_of_an_unknown_pair(make_signals):
    signals = make_signals(1, 9)
    for told in (1e-6, 0.1, 0.5, 0.97):
        score = UninformedScore("kl:0.7", told)
        familiar = CorrectedScore(score, Correction.none(ALL_KNOWN)).forecast(signals)
        assert np.array_equal(familiar.hazard, score.forecast(signals).hazard)
        strange = CorrectedScore(score, Correction.none(NOTHING_FAMILIAR)).forecast(signals)
        assert strange.turned_down == pytest.approx(max(told, 0.8))
        assert np.array_equal(strange.excess, score.forecast(signals).excess)


def test_strangeness_never_lowers_a_chance(make_signals):
    outcomes = labelled(make_signals, 60, lambda signals: signals.entropy.max() > 0.8)
    fitted = Correction.fit(outcomes, ALL_KNOWN, 0)
    strange = Correction(NOTHING_FAMILIAR, fitted.weights, fitted.center, fitted.scale, fitted.spread)
    raised = 0
    for seed in range(100, 160):
        signals = make_signals(seed, 12)
        for told in (0.01, 0.4, 0.9):
            pair = [each.chance(told, signals.words, statistics(signals)) for each in (fitted, strange)]
            assert pair[0] <= pair[1]
            raised += pair[0] < pair[1]
    assert raised > 100


def test_the_places_of_a_rejection_keep_their_order_and_the_chance_is_what_was_asked():
    rng = np.random.default_rng(2)
    for _ in range(50):
        hazard = rng.uniform(0, 0.3, rng.integers(1, 12)) * (rng.random() < 0.9)
        chance = float(rng.uniform(0, 0.999))
        scaled = scaled_to(Forecast(hazard, np.zeros(len(hazard))), chance)
        assert scaled.turned_down == pytest.approx(chance)
        assert np.array_equal(np.argsort(scaled.hazard, kind="stable"), np.argsort(hazard, kind="stable"))
        if hazard.any():
            power = np.log1p(-chance) / np.log1p(-hazard).sum()
            assert scaled.survival == pytest.approx(Forecast(hazard, hazard).survival ** power)
    assert len(scaled_to(Forecast(np.zeros(0), np.zeros(0)), 0.5).hazard) == 0
    assert scaled_to(Forecast(np.ones(1), np.zeros(1)), 0.25).turned_down == pytest.approx(0.25)


def test_the_weights_are_the_likeliest_under_the_pull_to_zero(make_signals):
    """Against scipy's minimiser, with every number standardised by hand."""
    outcomes = labelled(make_signals, 40, lambda signals: signals.top.min() < 0.4, told=0.3)
    familiarity = NoveltyScore.of([each.words for each in outcomes[:25]])
    found = Correction.fit(outcomes, familiarity, 56)
    logs = np.log1p(np.abs([each.statistics for each in outcomes]))
    scale = logs.std(0) + 0.1 * np.abs(logs.mean(0)) + 1e-3
    numbers = np.clip((logs - logs.mean(0)) / scale, -4, 4)
    used = sorted({word for each in outcomes for word in each.words})
    words = np.array([[float(word in each.words) for word in used] for each in outcomes])
    rows = np.hstack([words, np.ones((40, 1)), numbers])
    pull = np.concatenate([1 + 0.3 * familiarity.counts[used], [0.2], np.full(15, 4.0)])
    labels = np.array([each.turned_down for each in outcomes], dtype=float)
    offset = np.log(0.3 / 0.7)

    def loss(weights):
        logits = offset + rows @ weights
        return np.logaddexp(0, logits).sum() - labels @ logits + pull @ weights**2 / 2

    def slope(weights):
        return rows.T @ (sigmoid(offset + rows @ weights) - labels) + pull * weights

    best = minimize(loss, np.zeros(len(pull)), jac=slope, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}).x
    assert found.weights[[*used, *range(BUCKETS, BUCKETS + 16)]] == pytest.approx(best, abs=1e-5)
    chances = sigmoid(offset + rows @ best)
    curvature = (rows.T * (chances * (1 - chances))) @ rows + np.diag(pull)
    assert found.spread == pytest.approx(np.linalg.inv(curvature[-16:, -16:]), rel=1e-3, abs=1e-5)


def test_few_labels_leave_a_chance_higher_than_many_do(make_signals):
    """A coin decides: the truth is a half, and the same share of the labels says so."""
    signals = [make_signals(seed, 12) for seed in range(1000, 1040)]

    def mean_raise(num):
        outcomes = labelled(make_signals, num, lambda each: each.tokens.sum() % 2)
        fitted = Correction.fit(outcomes, ALL_KNOWN, 0)
        certain = Correction(ALL_KNOWN, fitted.weights, fitted.center, fitted.scale, np.zeros((16, 16)))
        pairs = [[c.chance(0.5, s.words, statistics(s)) for c in (fitted, certain)] for s in signals]
        assert all(one > other for one, other in pairs)
        return np.mean([one - other for one, other in pairs])

    few, some, many = (mean_raise(num) for num in (10, 60, 400))
    assert few > 1.5 * some > 1.5 * 1.5 * many > 0


@pytest.mark.parametrize("of_words", [True, False])
def test_what_labels_show_is_learned_of_words_and_of_numbers(make_signals, of_words):
    """Of words also before anything is drafted."""
    nothing_strange = NoveltyScore(np.zeros(BUCKETS), 10.0)

    def planted(seed):
        return replace(make_signals(seed, 5 + seed % 20), words=(7 + seed % 2, 90, 4000))

    def bad(signals):
        return 7 in signals.words if of_words else signals.entropy.mean() > 0.3

    drafts, fresh = [planted(seed) for seed in range(200)], [planted(seed) for seed in range(5000, 5100)]
    seen = [DraftOutcome.of(each, told=0.5, turned_down=bool(bad(each)), **ASKED) for each in drafts]
    fitted = Correction.fit(seen, nothing_strange, 0)

    def mean_chance(wrong, drafted):
        numbers = [(each, statistics(each) if drafted else None) for each in fresh if bad(each) == wrong]
        return np.mean([fitted.chance(0.5, each.words, known) for each, known in numbers])

    assert mean_chance(True, True) > mean_chance(False, True) + 0.3
    assert (mean_chance(True, False) > mean_chance(False, False) + 0.3) == of_words


def test_a_corrected_score_is_read_as_it_was_written_to_the_last_bit(make_signals):
    fitted = Correction.fit(
        labelled(make_signals, 30, lambda signals: signals.ended), NoveltyScore.of([(1, 2)] * 30), 9
    )
    score = CorrectedScore(UninformedScore("kl:0.5", 1 / 3), fitted)
    again = score_from_json(json.loads(json.dumps(score_to_json(score))))
    signals = make_signals(77, 13)
    assert again.judge == "kl:0.5"
    assert np.array_equal(again.forecast(signals).hazard, score.forecast(signals).hazard)
    assert again.before(signals.words, 30) == score.before(signals.words, 30)
    assert score.before(signals.words, 30).turned_down == fitted.chance(1 / 3, signals.words)


def test_a_questions_own_part_of_a_correction_says_the_same_of_it_and_nothing_of_other_questions(make_signals):
    drafts = labelled(make_signals, 60, lambda signals: signals.ended)
    fitted = Correction.fit(drafts, NoveltyScore.of([each.words for each in drafts]), 9)
    whole = CorrectedScore(UninformedScore("kl:0.5", 1 / 3), fitted)
    for seed in range(5):
        signals = make_signals(seed, 13)
        part = replace(whole, correction=fitted.only(signals.words))
        assert np.array_equal(part.forecast(signals).hazard, whole.forecast(signals).hazard)
        assert part.before(signals.words, 30) == whole.before(signals.words, 30)
        kept = score_to_json(part)["correction"]
        assert {bucket for bucket in kept["used"] if bucket < 4096} <= set(signals.words)
        assert set(kept["familiarity"]["buckets"]) <= set(signals.words)


@pytest.mark.parametrize("change", [{"center": [0.0]}, {"used": [10**6]}, {"weights": "x"}, {"familiarity": None}])
def test_what_is_no_correction_is_refused(make_signals, change):
    kept = score_to_json(CorrectedScore(UninformedScore("kl:0.5"), Correction.none(NOTHING_FAMILIAR)))
    kept["correction"] |= change
    with pytest.raises(ValueError, match="no score that can be read"):
        score_from_json(kept)
