"""Fitting: what is learned from questions holds on others, and is the same every time."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from hybrid.defer import Calibration, CriticNumbers, DraftSignals, LabelledDraft, LabelledQuestion, mean_surprise
from hybrid.defer.learned import BoostedTrees
from hybrid.defer.logistic import sigmoid
from hybrid.errors import UsageError
from hybrid.tune import fit as fitting
from hybrid.tune.diagnosis import auroc, ece, reason_of_loss
from hybrid.tune.fit import export_trees, fit

PAIR = {"local": "small", "cloud": "large", "judge": "kl:0.7"}


def draw_question(rng, hard=0.5):
    """A draft that is turned down at token 7 with a chance that a word tells, and now and then elsewhere."""
    num, word = int(rng.integers(4, 24)), int(rng.integers(0, 4))
    top = rng.uniform(0.3, 0.99, num)
    signals = DraftSignals(
        (word, 100 + int(rng.integers(0, 5))),
        int(rng.integers(8, 40)),
        0,
        rng.integers(0, 12, num),
        rng.exponential(0.3, num),
        top,
        (1 - top) * 0.5,
        np.log(top),
        True,
    )
    hazard = np.where(signals.tokens == 7, [0.02, 0.05, 0.6, 0.95][word], 0.002) * 2 * hard
    rejected = np.flatnonzero(rng.random(num) < hazard)
    excess = rng.exponential(1.0, num) * (0.1 + 0.8 * mean_surprise(signals))
    first = int(rejected[0]) if len(rejected) else None
    return LabelledQuestion(LabelledDraft(signals, first, excess, excess, num - len(rejected)), num + 2)


def draw_questions(num, seed=0, hard=0.5):
    rng = np.random.default_rng(seed)
    return [draw_question(rng, hard) for _ in range(num)]


@pytest.fixture
def few_trees(monkeypatch):
    monkeypatch.setattr(fitting, "TREES", {**fitting.TREES, "max_iter": 12})


def critiqued(questions, share=1.0, seed=5):
    """Have a critic read drafts that knows where the first rejection is, of a share of the questions."""
    rng = np.random.default_rng(seed)

    def read(draft):
        knows = draft.first_rejection is not None and rng.random() < share
        kl = np.where(np.arange(len(draft.signals)) == draft.first_rejection, 3.0 * knows, 0.01)
        return replace(draft, signals=replace(draft.signals, critic=CriticNumbers(kl, -kl)))

    return [replace(each, draft=read(each.draft)) for each in questions]


@pytest.mark.slow
@pytest.mark.parametrize("trees", [True, False])
def test_a_score_that_was_fitted_with_a_critic_believes_it_and_one_without_is_the_same_as_ever(few_trees, trees):
    plain = draw_questions(60, seed=1)
    read = critiqued(plain, 0.9)
    with_it, without = (fit(read, **PAIR, trees=trees, critic=critic) for critic in ("c1", None))
    assert (with_it.critic, without.critic) == ("c1", None)
    assert auroc(with_it.questions) > auroc(without.questions) + 0.02
    assert without.to_json() == fit(plain, **PAIR, trees=trees).to_json()
    with pytest.raises(ValueError, match="critic"):
        fit(plain, **PAIR, trees=trees, critic="c1")


@pytest.mark.parametrize("trees", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_is_told_of_unseen_questions_is_what_comes_of_them(few_trees, trees):
    """By the folds, and on questions drawn afterwards: chances rank the drafts, and are the shares that they say."""
    found = fit(draw_questions(300), **PAIR, trees=trees)
    assert isinstance(found.score.hazard, BoostedTrees) is trees
    fresh = draw_questions(300, seed=1)
    told = [found.score.forecast(each.draft.signals).turned_down for each in fresh]
    rows = [
        replace(found.questions[0], chance=p, turned_down=each.draft.first_rejection is not None)
        for p, each in zip(told, fresh, strict=True)
    ]
    for questions in (found.questions, rows):
        assert auroc(questions) > 0.85
        assert ece(questions) < 0.1


@pytest.mark.slow
def test_the_folds_of_a_question_have_not_seen_its_label(monkeypatch):
    """Labels by a coin cannot be told. Told by a score that was fitted to them they would be."""
    monkeypatch.setattr(fitting, "TREES", {**fitting.TREES, "max_iter": 60, "min_samples_leaf": 5})
    rng = np.random.default_rng(3)
    coin = []
    for each in draw_questions(150):
        place = int(rng.integers(len(each.draft.signals))) if rng.random() < 0.5 else None
        coin.append(replace(each, draft=replace(each.draft, first_rejection=place)))
    found = fit(coin, **PAIR)
    assert 0.35 < auroc(found.questions) < 0.65  # four deviations of a coin are 0.19
    seen = [
        replace(row, chance=found.score.forecast(each.draft.signals).turned_down)
        for row, each in zip(found.questions, coin, strict=True)
    ]
    assert auroc(seen) > 0.75


@pytest.mark.slow
def test_the_same_questions_give_the_same_calibration_to_the_last_bit(few_trees):
    questions = draw_questions(60)
    kept = fit(questions, **PAIR).to_json()
    assert kept == fit(questions, **PAIR).to_json()
    assert Calibration.from_json(kept).to_json() == kept


def test_exported_trees_are_the_librarys_own():
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=400), rng.integers(-1, 9, 400), rng.exponential(size=400)])
    labels = rng.random(400) < sigmoid(rows[:, 0] * (rows[:, 1] > 4) - rows[:, 2])
    found = HistGradientBoostingClassifier(**fitting.TREES, early_stopping=False, random_state=0).fit(rows, labels)
    trees = export_trees(found)
    assert len(trees.roots) == 150
    fresh = np.concatenate([rows, rng.normal(size=(200, 3)) * 3])
    assert trees.log_odds(fresh) == pytest.approx(found.decision_function(fresh), abs=1e-9)


def test_without_the_library_the_hazard_is_logistic(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert not isinstance(fit(draw_questions(40), **PAIR).score.hazard, BoostedTrees)


@pytest.mark.slow
def test_where_nearly_all_are_turned_down_the_loss_is_nats_and_half_the_bill_is_spent():
    questions = draw_questions(60, hard=40.0)
    found = fit(questions, **PAIR, trees=False)
    assert found.loss == "nats"
    assert "nats" in reason_of_loss(found)
    alone = np.array([each.prompt_tokens + 4.0 * each.cloud_tokens for each in found.questions])
    expected = np.array([each.prompt_tokens + 4.0 * each.draft_tokens for each in found.questions])
    told, mean = np.array([each.excess_told for each in found.questions]), np.mean([q.excess for q in found.questions])
    sent = found.worth * alone.mean() * told / mean > expected
    assert alone[sent].sum() / alone.sum() == pytest.approx(0.5, abs=0.05)
    easy = fit(draw_questions(60), **PAIR, trees=False)
    assert (easy.loss, easy.worth) == ("verdict", 2.2)
    assert "verdict" in reason_of_loss(easy)


def test_the_line_of_excess_is_found_and_is_never_negative():
    questions = draw_questions(400)
    line = fitting._fit_line(questions)
    assert line.base == pytest.approx(0.1, abs=0.08)
    assert line.slope == pytest.approx(0.8, abs=0.15)
    for power in (-1.0, 3.0):
        bent = [
            replace(q, draft=replace(q.draft, excess=0.0 * q.draft.excess + mean_surprise(q.draft.signals) ** power))
            for q in questions
        ]
        found = fitting._fit_line(bent)
        assert found.base >= 0
        assert found.slope >= 0


def test_a_block_is_its_part_of_the_draft():
    """Nothing before it was rejected, and where it was checked the last divergence is known."""
    question = next(q for q in draw_questions(90) if (q.draft.first_rejection or 0) > 9)
    draft, place = question.draft, question.draft.first_rejection
    first, second = fitting._block(draft, 0, 8, checked=True), fitting._block(draft, 8, 8, checked=True)
    assert (first.signals.shown, second.signals.shown) == (0, 8)
    assert list(second.signals.tokens) == list(draft.signals.tokens[8:16])
    assert (first.first_rejection, second.first_rejection) == (None, place - 8 if place < 16 else None)
    assert first.signals.last_divergence is None
    assert second.signals.last_divergence == draft.divergence[7]
    assert fitting._block(draft, 8, 8, checked=False).signals.last_divergence is None
    assert not first.signals.ended


def test_questions_of_one_kind_and_too_few_questions():
    up = [replace(q, draft=replace(q.draft, first_rejection=None)) for q in draw_questions(12)]
    found = fit(up, **PAIR)
    assert auroc(found.questions) is None
    assert all(0 <= each.chance < 0.5 for each in found.questions)
    with pytest.raises(UsageError, match="9 labelled questions"):
        fit(up[:9], **PAIR)


def test_trees_grow_on_one_thread(few_trees, monkeypatch):
    """On busy processors two threads wait for each other: a fit of some seconds took minutes."""
    ensemble, threadpoolctl = pytest.importorskip("sklearn.ensemble"), pytest.importorskip("threadpoolctl")
    seen, fit_trees = [], ensemble.HistGradientBoostingClassifier.fit

    def watched(found, *words):
        seen.extend(each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "openmp")
        return fit_trees(found, *words)

    monkeypatch.setattr(ensemble.HistGradientBoostingClassifier, "fit", watched)
    with threadpoolctl.threadpool_limits(2):
        fitting.fit(draw_questions(12), local="a", cloud="b", judge="kl:0.7")
    assert seen
    assert set(seen) == {1}
