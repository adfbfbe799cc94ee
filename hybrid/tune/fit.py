"""Fit a score to labelled questions.

Stage 1 (will the draft be turned down?) is logistic, with numpy alone. Stage 2 (where?) is 150 small trees where
scikit-learn is installed (the extra ``calibrate``), else logistic too. What one stage tells the next, and all that a
calibration says of its own questions, comes from folds that the question was not in. Of many questions
a fifth is held out: what the score itself tells of these, unseen, is what a level of risk is taken from.

The law (``tests/tune/test_fit.py``): the same questions give the same calibration to the last bit; exported trees are
the library's; chances hold (ECE) on questions that have never been seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import (
    BUCKETS,
    Calibration,
    CalibrationQuestion,
    DraftSignals,
    Familiarity,
    LabelledDraft,
    LabelledQuestion,
    LossKind,
    RoutedQuestions,
    mean_surprise,
)
from hybrid.defer.features import draft_numbers, question_numbers, token_buckets, token_features, token_numbers
from hybrid.defer.learned import (
    BoostedTrees,
    ExcessLine,
    LearnedScore,
    draft_log_odds,
    hazard_log_odds,
    log_survival,
    read_by,
    recalibrated_chance,
)
from hybrid.defer.logistic import LinearModel, Scale, SparseRows, fit_logistic, fit_ridge
from hybrid.errors import UsageError
from hybrid.policy.plan import WORTH
from hybrid.prob import Floats
from hybrid.spend import AskPrices

FOLDS = 5
# How strongly weights are pulled to zero. On the bundled pair's calibration questions three times as much or a third
# changed AUROC by less than 0.01; a word, which is 0 or 1, is pulled harder than a number of deviation 1.
PULL_OF_WORDS, PULL_OF_NUMBERS, PULL_OF_TOKENS = 4 / 3, 1 / 3, 4.0
NO_PULL = 1e-6
# The study's trees (150 of 16 leaves), with a token's neighbours on both sides.
TREES = {"max_iter": 150, "learning_rate": 0.07, "max_leaf_nodes": 16, "l2_regularization": 2.0}
# They grow on one thread: several wait for one another in a loop at each of some thousand small steps. On two busy
# processors a fit of 60 questions took 23 s of processor time (86 s on the clock) on two threads, 1.4 s on one; of 200
# questions it takes 3 s.
# A text is also decided block by block: a question's draft is cut into blocks of one of these lengths.
BLOCKS = (8, 16, 32, 64)
# Above this share of turned-down drafts a verdict says little of a draft.
MOST_TURNED_DOWN = 0.8
# The default dial where the loss is nats: half the bill, at the common ratio of prices.
SHARE_OF_BILL = 0.5
# Fewer questions than folds cannot be told by folds.
FEWEST = 10
# Of so many questions a fifth is held out: twenty are the fewest that a risk of 5 % can be taken from.
FEWEST_HELD_OUT = 100


def fit(
    questions: Sequence[LabelledQuestion],
    *,
    local: str,
    cloud: str,
    judge: str,
    critic: str | None = None,
    seed: int = 0,
    trees: bool = True,
) -> Calibration:
    """Fit a score of ``judge`` to questions, and say what it would have told of each of them, unseen.

    Of 100 questions and more a fifth is held out, which the score never sees.

    ``critic``: the identity of the critic that has read all drafts; None: what a critic says of them is passed over.
    ``trees``: use scikit-learn if it is installed. Raises UsageError for fewer than ten questions.
    """
    questions = [
        replace(each, draft=replace(each.draft, signals=read_by(critic, each.draft.signals))) for each in questions
    ]
    if len(questions) < FEWEST:
        msg = f"{len(questions)} labelled questions: a calibration needs {FEWEST} at the least"
        raise UsageError(msg)
    turned_down = np.array([each.draft.first_rejection is not None for each in questions], dtype=np.float64)
    loss: LossKind = "verdict" if turned_down.mean() < MOST_TURNED_DOWN else "nats"
    held_out = _draw_folds(len(questions), seed) == (0 if len(questions) >= FEWEST_HELD_OUT else FOLDS)
    score, *by_folds = _fit_score(
        [each for each, out in zip(questions, held_out, strict=True) if not out], judge, seed, trees
    )
    score = replace(score, critic=critic)
    chances, told = np.zeros(len(questions)), np.zeros(len(questions))
    chances[~held_out], told[~held_out] = by_folds
    for i in np.flatnonzero(held_out):
        signals = questions[i].draft.signals
        chances[i], told[i] = score.forecast(signals).turned_down, score.excess.of(signals)
    rows = tuple(_row(each, float(p), float(nats)) for each, p, nats in zip(questions, chances, told, strict=True))
    unseen = tuple((row.chance, row.turned_down) for row, out in zip(rows, held_out, strict=True) if out)
    return Calibration(local, cloud, judge, loss, _default_worth(loss, rows), score, rows, unseen)


def _fit_score(
    questions: Sequence[LabelledQuestion], judge: str, seed: int, trees: bool
) -> tuple[LearnedScore, Floats, Floats]:
    """Fit a score, and return what it would have told of each question unseen: its chance and its mean excess."""
    turned_down = np.array([each.draft.first_rejection is not None for each in questions], dtype=np.float64)
    folds = _draw_folds(len(questions), seed)
    log_odds, told = np.zeros(len(questions)), np.zeros(len(questions))
    for fold in range(FOLDS):
        others, left_out = _part(questions, folds, fold)
        stages, line = _fit_stages(others, seed + 1 + fold, trees), _fit_line(others)
        for i, each in left_out:
            log_odds[i], told[i] = stages.log_odds(each.draft.signals), line.of(each.draft.signals)
    chances = np.zeros(len(questions))
    for fold in range(FOLDS):
        bent = _fit_recalibration(log_odds[folds != fold], turned_down[folds != fold])
        chances[folds == fold] = [recalibrated_chance(each, bent) for each in log_odds[folds == fold]]
    stages = _fit_stages(questions, seed, trees)
    signals = [each.draft.signals for each in questions]
    tokens = np.log1p(np.array([len(each) for each in signals], dtype=np.float64))
    prompts = np.concatenate([question_numbers(each.prompt_tokens) for each in signals])
    length = _fit_linear([each.words for each in signals], prompts, tokens, logistic=False)
    line, words = _fit_line(questions), Familiarity.of([each.words for each in signals])
    bent = _fit_recalibration(log_odds, turned_down)
    score = LearnedScore(judge, stages.question, length, stages.draft, stages.hazard, line, bent, words)
    return score, chances, told


@dataclass(frozen=True, eq=False)
class _Stages:
    """The models of both stages, fitted to the same questions."""

    question: LinearModel
    draft: LinearModel
    hazard: BoostedTrees | LinearModel

    def log_odds(self, signals: DraftSignals) -> float:
        """Return the log-odds that a draft is turned down, before they are bent."""
        features = token_features(signals, *_told(self.draft, self.question, signals))
        return draft_log_odds(float(log_survival(hazard_log_odds(self.hazard, features)).sum()))


def _told(draft: LinearModel, question: LinearModel, signals: DraftSignals) -> tuple[float, float]:
    """Return the log-odds of the draft and of the question alone: what stage 1 tells stage 2."""
    words = np.array([signals.words], dtype=np.int64)
    return (
        float(draft(words, draft_numbers(signals))[0]),
        float(question(words, question_numbers(signals.prompt_tokens))[0]),
    )


def _fit_stages(questions: Sequence[LabelledQuestion], seed: int, trees: bool) -> _Stages:
    """Fit stage 1, and stage 2 on what stage 1 tells of questions that it has not seen."""
    folds = _draw_folds(len(questions), seed)
    features, rejected = [], []
    for fold in range(FOLDS):
        others, left_out = _part(questions, folds, fold)
        draft, question = _fit_first(others)
        for i, unseen in left_out:
            for each in _variants(unseen, i):
                tokens = token_features(each.signals, *_told(draft, question, each.signals))
                end = len(tokens) if each.first_rejection is None else each.first_rejection + 1
                features.append(tokens[:end])
                rejected.append(np.arange(end) == each.first_rejection)
    draft, question = _fit_first(questions)
    return _Stages(question, draft, _fit_hazard(np.concatenate(features), np.concatenate(rejected), seed, trees))


def _fit_first(questions: Sequence[LabelledQuestion]) -> tuple[LinearModel, LinearModel]:
    """Fit stage 1: from the draft, and from the question alone."""
    signals = [each.draft.signals for each in questions]
    labels = np.array([each.draft.first_rejection is not None for each in questions], dtype=np.float64)
    words = [each.words for each in signals]
    of_drafts = np.concatenate([draft_numbers(each) for each in signals])
    of_questions = np.concatenate([question_numbers(each.prompt_tokens) for each in signals])
    return _fit_linear(words, of_drafts, labels), _fit_linear(words, of_questions, labels)


def _fit_linear(
    words: Sequence[tuple[int, ...]],
    numbers: Floats,
    targets: Floats,
    *,
    logistic: bool = True,
    pull_of_words: float = PULL_OF_WORDS,
) -> LinearModel:
    """Fit log-odds to labels, or values to targets."""
    scale = Scale.of(numbers)
    rows = SparseRows.of(words, np.hstack([scale(numbers), np.ones((len(numbers), 1))]))
    pull = np.full(rows.num_features, PULL_OF_NUMBERS)
    pull[:BUCKETS], pull[-1] = pull_of_words, NO_PULL
    weights = fit_logistic(rows, targets, pull) if logistic else fit_ridge(rows, targets, pull)
    return LinearModel(float(weights[-1]), weights[:BUCKETS], weights[BUCKETS:-1], scale)


def _variants(question: LabelledQuestion, number: int) -> list[LabelledDraft]:
    """Return what may have to be decided of a question: its draft, and the draft in blocks.

    Of every other question the blocks come after checked ones, where that divergence is known.
    """
    draft, length = question.draft, BLOCKS[number % len(BLOCKS)]
    end = len(draft.signals) if draft.first_rejection is None else draft.first_rejection + 1
    cut = range(0, end, length) if len(draft.signals) > length else ()
    checked = bool(number // len(BLOCKS) % 2)
    return [draft, *(_block(draft, start, length, checked=checked) for start in cut)]


def _block(draft: LabelledDraft, start: int, length: int, *, checked: bool) -> LabelledDraft:
    """Cut a block out of a draft; none of the tokens before it was rejected."""
    whole, part = draft.signals, slice(start, start + length)
    known = float(draft.divergence[start - 1]) if checked and start and draft.divergence is not None else None
    signals = replace(
        whole.part(part),
        shown=whole.shown + start,
        ended=whole.ended and start + length >= len(whole),
        last_divergence=whole.last_divergence if known is None else known,
        divergence_age=whole.divergence_age + start if known is None else 0,
    )
    place = None if draft.first_rejection is None else draft.first_rejection - start
    return LabelledDraft(signals, place if place is not None and place < len(signals) else None, draft.excess[part])


def _fit_hazard(features: Floats, rejected: NDArray[np.bool_], seed: int, trees: bool) -> BoostedTrees | LinearModel:
    """Fit the hazard to tokens that were judged: those up to the first rejection. Trees need both kinds."""
    if trees and 0 < rejected.sum() < len(rejected):
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415  (heavy, and may be missing)
            from threadpoolctl import threadpool_limits  # noqa: PLC0415  (comes with it)
        except ImportError:
            pass
        else:
            found = HistGradientBoostingClassifier(**TREES, early_stopping=False, random_state=seed)
            with threadpool_limits(1):
                return export_trees(found.fit(features, rejected))
    buckets = [tuple(row) for row in token_buckets(features).tolist()]
    return _fit_linear(buckets, token_numbers(features), rejected.astype(np.float64), pull_of_words=PULL_OF_TOKENS)


def export_trees(found: Any) -> BoostedTrees:
    """Return a fitted HistGradientBoostingClassifier of two classes, of numbers alone, as arrays."""
    grown = [stage[0].nodes for stage in found._predictors]
    first = np.concatenate([[0], np.cumsum([len(nodes) for nodes in grown])])
    nodes, own = np.concatenate(grown), np.arange(first[-1])
    base, leaf = np.repeat(first[:-1], np.diff(first)), nodes["is_leaf"].astype(bool)
    return BoostedTrees(
        float(found._baseline_prediction.item()),
        found.n_features_in_,
        first[:-1].astype(np.int64),
        np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
        np.where(leaf, nodes["value"], nodes["num_threshold"]),
        np.where(leaf, own, base + nodes["left"]),
        np.where(leaf, own, base + nodes["right"]),
    )


def _fit_recalibration(log_odds: Floats, turned_down: Floats) -> tuple[float, float]:
    """Return the bias and the slope (at least 0) of log-odds that were told unseen; a few labels bend them little."""
    rows = SparseRows.of([()] * len(log_odds), np.column_stack([np.ones_like(log_odds), log_odds]))
    pull = np.full(rows.num_features, 10.0)
    bias, more = fit_logistic(rows, turned_down, pull, offset=log_odds)[BUCKETS:]
    return float(bias), max(0.0, float(1.0 + more))


def _fit_line(questions: Sequence[LabelledQuestion]) -> ExcessLine:
    """Fit the excess to drafts' means, by least squares over their tokens; neither base nor slope below 0."""
    drafts = [each.draft for each in questions if len(each.draft.signals)]
    if not drafts:
        return ExcessLine(0.0, 1.0, 1.0)
    tokens = np.array([len(each.signals) for each in drafts], dtype=np.float64)
    surprise = np.array([mean_surprise(each.signals) for each in drafts])
    excess = np.array([each.excess.mean() for each in drafts])
    mean, middle, share = float(excess.mean()), tokens @ surprise / tokens.sum(), tokens / tokens.sum()
    spread = float(share @ (surprise - middle) ** 2)
    slope = float(share @ ((surprise - middle) * excess)) / spread if spread else 0.0
    base = float(share @ excess) - slope * float(middle)
    if slope < 0.0:
        base, slope = float(share @ excess), 0.0
    elif base < 0.0:
        base, slope = 0.0, float(share @ (surprise * excess)) / float(share @ surprise**2)
    return ExcessLine(base, slope, mean)


def _row(question: LabelledQuestion, chance: float, told: float) -> CalibrationQuestion:
    """Six digits are more than is known, and half the file."""
    draft = question.draft
    return CalibrationQuestion(
        draft.signals.prompt_tokens,
        len(draft.signals),
        question.cloud_tokens,
        round(chance, 6),
        draft.first_rejection is not None,
        round(told, 6),
        round(float(draft.excess.mean()), 6) if len(draft.excess) else 0.0,
        draft.first_rejection,
        draft.kept_tokens,
    )


def _default_worth(loss: LossKind, rows: Sequence[CalibrationQuestion]) -> float:
    if loss == "verdict":
        return WORTH
    prompt, *tokens = np.array([(each.prompt_tokens, each.draft_tokens, each.cloud_tokens) for each in rows], float).T
    try:
        routed = RoutedQuestions.of(rows, *(np.asarray(AskPrices().write(prompt, each, 0)) for each in tokens))
    except ValueError:  # no draft loses anything
        return WORTH
    return routed.worth_at_bill(SHARE_OF_BILL)


def _draw_folds(num: int, seed: int) -> NDArray[np.int64]:
    """Put each question into one of the folds, of equal sizes, by the seed alone."""
    return np.random.default_rng(seed).permutation(num) % FOLDS


def _part(
    questions: Sequence[LabelledQuestion], folds: NDArray[np.int64], fold: int
) -> tuple[list[LabelledQuestion], list[tuple[int, LabelledQuestion]]]:
    """Return the questions outside a fold, and those in it with their numbers."""
    others = [each for each, own in zip(questions, folds, strict=True) if own != fold]
    return others, [(i, each) for i, each in enumerate(questions) if folds[i] == fold]
