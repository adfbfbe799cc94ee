"""A score that was fitted to labels: two stages, numpy alone.

Stage 1 is a logistic regression on the question's words and the draft's statistics: will it be turned down? Stage 2 is
the hazard of the first rejection at each token, by boosted trees or by another logistic regression, with stage 1's
log-odds among its features. What it tells of a whole draft was held against drafts that it was not fitted to, and
is bent to what they showed (``recalibration``). Fitting is not done here (``tune``).

The law (``tests/defer/test_learned.py``): a forecast is a pure function of the signals, the same to the last bit after
a walk through JSON; whatever the signals, chances are chances and expected losses finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.features import draft_numbers, question_numbers, token_buckets, token_features, token_numbers
from hybrid.defer.logistic import LinearModel, sigmoid
from hybrid.defer.packed import pack_floats, pack_ints, read_number, unpack_floats, unpack_ints
from hybrid.defer.score import Forecast, QuestionForecast
from hybrid.defer.signals import DraftSignals, mean_surprise
from hybrid.defer.words import NOTHING_FAMILIAR, NoveltyScore
from hybrid.prob import Floats

# Boosted trees as arrays, read by numpy: whoever runs them needs no library that fits trees.
#
# The law (``tests/defer/test_trees.py``): the log-odds are those of the library that fitted them, and whatever a file
# holds, no index leaves its array and no walk is endless. N rows, F features, B trees, M nodes of all.

# Beyond any number of statistics.
MOST_FEATURES = 2**20


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """``start`` plus one leaf's number of each tree, in log-odds.

    ``roots``, shape (B,): the trees' first nodes. Shapes (M,): at a node whose ``feature`` is at most its ``number``
    the walk goes to ``left``, else to ``right``. Children stand after their parents; a leaf is its own child.
    """

    start: float
    num_features: int
    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    number: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Raise ValueError for arrays that are no trees."""
        num, own = len(self.feature), np.arange(len(self.feature))
        if any(len(each) != num for each in (self.number, self.left, self.right)):
            raise ValueError("trees whose arrays differ in length")
        leaf = (self.left == own) & (self.right == own)
        if not (leaf | ((self.left > own) & (self.right > own))).all():
            raise ValueError("a tree whose child stands before its parent")
        bounds = ((self.roots, num), (self.left, num), (self.right, num), (self.feature, self.num_features))
        if any(((each < 0) | (each >= most)).any() for each, most in bounds):
            raise ValueError("a tree that asks for a node or a feature that there is not")

    def log_odds(self, features: Floats) -> Floats:
        """Return the sum of the leaves' numbers that rows reach, shape (N, F) -> (N,). No feature may be NaN."""
        flat = np.ascontiguousarray(features, dtype=np.float64).ravel()
        row = np.arange(0, flat.size, self.num_features)[:, None]
        node = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        while True:
            low = flat[row + self.feature[node]] <= self.number[node]
            child = np.where(low, self.left[node], self.right[node])
            if np.array_equal(child, node):
                return np.asarray(self.start + self.number[node].sum(axis=1))
            node = child

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        ints = {name: pack_ints(getattr(self, name)) for name in ("roots", "feature", "left", "right")}
        return {"start": self.start, "num_features": self.num_features, "number": pack_floats(self.number), **ints}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> BoostedTrees:
        """Read what ``to_json`` gave. Raises ValueError or KeyError."""
        roots, feature, left, right = (unpack_ints(kept[name]) for name in ("roots", "feature", "left", "right"))
        number = unpack_floats(kept["number"])
        num_features = int(read_number(kept["num_features"], 1, MOST_FEATURES))
        return cls(read_number(kept["start"]), num_features, roots, feature, number, left, right)


# A hazard of e**-30 is none, and its logarithm still a number.
MOST_LOG_ODDS = 30.0
# exp of it: no answer is longer.
MOST_LOG_TOKENS = 12.0


@dataclass(frozen=True)
class ExcessLine:
    """The expected excess loss of a draft's tokens, in nats: a line in the local model's mean surprise.

    Mean log-probability ranks drafts by their mean excess as well as 15 statistics do; a line is at its best where
    data are few, and harmless far from them. The surprise is that at the favourite, not at the drawn token: so it
    holds at every temperature. Every token of a draft has the same: a line for each ranked drafts no better. ``mean``:
    that of the calibration's drafts.
    """

    base: float
    slope: float
    mean: float

    def of(self, signals: DraftSignals) -> float:
        """Return the expected excess of each token of a draft."""
        return self.base + self.slope * mean_surprise(signals)


@dataclass(frozen=True, eq=False)
class LearnedScore:
    """What calibration questions taught of one judge. ``draft``: stage 1; ``hazard``: stage 2.

    ``question``: log-odds from the question alone; ``length``: the logarithm of one more than the draft's tokens.
    ``recalibration``: the bias and the slope that bend the log-odds of a whole draft. ``critic``: the identity of the
    critic whose numbers are among the features; None: there are none such.
    """

    kind: ClassVar[str] = "learned"
    judge: str
    question: LinearModel
    length: LinearModel
    draft: LinearModel
    hazard: BoostedTrees | LinearModel
    excess: ExcessLine
    recalibration: tuple[float, float] = (0.0, 1.0)
    familiarity: NoveltyScore = NOTHING_FAMILIAR
    critic: str | None = None

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Forecast a draft, or a block of one. Raises ValueError for one without the numbers that it was fitted with.

        What a critic says of it is passed over by a score that was fitted without one.
        """
        signals = read_by(self.critic, signals)
        words = np.array([signals.words], dtype=np.int64)
        of_draft = self.draft(words, draft_numbers(signals))[0]
        of_question = self.question(words, question_numbers(signals.prompt_tokens))[0]
        features = token_features(signals, of_draft, of_question)
        hazard = recalibrated(hazard_log_odds(self.hazard, features), self.recalibration)
        return Forecast(hazard, np.full(len(signals), self.excess.of(signals)))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:
        """Forecast from the question alone."""
        buckets, numbers = np.array([words], dtype=np.int64), question_numbers(prompt_tokens)
        turned_down = float(sigmoid(self.question(buckets, numbers))[0])
        log_tokens = min(float(self.length(buckets, numbers)[0]), MOST_LOG_TOKENS)
        return QuestionForecast(turned_down, max(1.0, float(np.expm1(log_tokens))), self.excess.mean)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        models = {name: getattr(self, name).to_json() for name in ("question", "length", "draft", "hazard")}
        line = [self.excess.base, self.excess.slope, self.excess.mean]
        bent = list(self.recalibration)
        own = {"judge": self.judge, "excess": line, "recalibration": bent}
        read = {} if self.critic is None else {"critic": self.critic}
        return {**own, **models, "familiarity": self.familiarity.to_json(), **read}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LearnedScore:
        """Read what ``to_json`` gave. Raises ValueError, KeyError or TypeError."""
        if kept.get("concepts") is not None:  # of an earlier version; its columns would be taken for others
            raise ValueError("it reads numbers over concepts, which no score does any more: hybrid calibrate fits anew")
        question, length, draft = (LinearModel.from_json(kept[name]) for name in ("question", "length", "draft"))
        hazard = kept["hazard"]
        bias, slope = (read_number(each) for each in kept["recalibration"])
        return cls(
            str(kept["judge"]),
            question,
            length,
            draft,
            BoostedTrees.from_json(hazard) if "roots" in hazard else LinearModel.from_json(hazard),
            ExcessLine(*(read_number(each) for each in kept["excess"])),
            (bias, slope),
            NoveltyScore.from_json(kept["familiarity"]),
            None if kept.get("critic") is None else str(kept["critic"]),
        )


def read_by(critic: str | None, signals: DraftSignals) -> DraftSignals:
    """Return what a score reads that was fitted with a critic, or (None) without. Raises ValueError."""
    if critic is not None and signals.critic is None:
        raise ValueError("a score that was fitted with a critic forecasts what the critic has read")
    return replace(signals, critic=None if critic is None else signals.critic)


def hazard_log_odds(model: BoostedTrees | LinearModel, features: Floats) -> Floats:
    """Return the log-odds of a rejection at each token, shape (T, F) -> (T,)."""
    if isinstance(model, BoostedTrees):
        return model.log_odds(features)
    buckets: NDArray[np.int64] = token_buckets(features)
    return model(buckets, token_numbers(features))


def recalibrated(log_odds: Floats, recalibration: tuple[float, float]) -> Floats:
    """Return hazards, shape (T,), from their log-odds: the whole draft's log-odds get a bias and a slope.

    Every token's survival is taken to one power, so that the places of a rejection keep their order.
    """
    survived = log_survival(log_odds)
    total = float(survived.sum())
    if not total:  # of no tokens
        return survived
    bias, slope = recalibration
    power = -float(np.logaddexp(0.0, bias + slope * draft_log_odds(total))) / total
    return np.asarray(-np.expm1(survived * power))


def recalibrated_chance(log_odds: float, recalibration: tuple[float, float]) -> float:
    """Return the chance that a draft is turned down, from its log-odds."""
    bias, slope = recalibration
    return float(sigmoid(np.array(bias + slope * log_odds)))


def log_survival(log_odds: Floats) -> Floats:
    """Return the logarithm of each token's chance not to be rejected, shape (T,)."""
    return np.asarray(-np.logaddexp(0.0, np.clip(log_odds, -MOST_LOG_ODDS, MOST_LOG_ODDS)))


def draft_log_odds(log_survival: float) -> float:
    """Return the log-odds of a rejection anywhere, from the logarithm of the chance that there is none.

    >>> round(draft_log_odds(float(np.log(0.25))), 6) == round(float(np.log(3)), 6)
    True
    """
    return float(np.log(-np.expm1(log_survival))) - log_survival
