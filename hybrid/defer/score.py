"""What a score is: a draft's signals in, the chances that the cloud would turn it down out.

A score knows no prices and decides nothing. It is a frozen value that is kept as JSON, exact to the last bit: a trace
that holds one makes every decision again (``tests/defer/test_score.py``). ``UninformedScore`` is that of a pair
of which nothing is known; ``learned.py`` has the one that was fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from hybrid.defer.logistic import SparseRows, fit_logistic, logit_of, sigmoid
from hybrid.defer.outcome import DraftOutcome
from hybrid.defer.packed import read_number, read_numbers, scatter
from hybrid.defer.signals import STATISTICS, DraftSignals, mean_surprise, statistics
from hybrid.defer.words import BUCKETS, NOTHING_FAMILIAR, NoveltyScore
from hybrid.prob import Floats


@dataclass(frozen=True, eq=False)
class Forecast:
    """What is expected of a draft of T tokens, if the cloud were asked. Shapes (T,).

    ``hazard``: the chance that the judge's first rejection falls at a token if none fell before it. ``excess``: the
    expected excess loss of each token, log P_cloud(best) - log P_cloud(token), in nats.
    """

    hazard: Floats
    excess: Floats

    @property
    def survival(self) -> Floats:
        """The chance that no rejection falls among the first i tokens, shape (T + 1,). The first is 1."""
        return np.concatenate([[1.0], np.cumprod(1.0 - self.hazard)])

    @property
    def turned_down(self) -> float:
        """The chance that the judge rejects anything in the draft. 0 of an empty one.

        >>> round(Forecast(np.array([0.5, 0.2]), np.zeros(2)).turned_down, 6)
        0.6
        """
        return float(1.0 - self.survival[-1])


@dataclass(frozen=True)
class QuestionForecast:
    """What is expected of a question before anything is drafted.

    ``turned_down``: the chance that the judge rejects anything in the draft. ``tokens``: the draft's length.
    ``excess``: the mean excess loss of its tokens, in nats.
    """

    turned_down: float
    tokens: float
    excess: float


class Score(Protocol):
    """Anything that forecasts a judge's verdict on drafts of one pair of models. A frozen value."""

    @property
    def judge(self) -> str:
        """The judge whose verdict is forecast, as ``--judge`` writes it: ``kl:0.7``."""
        ...

    @property
    def critic(self) -> str | None:
        """The identity of the critic whose numbers it reads; None: it reads none."""
        ...

    @property
    def familiarity(self) -> NoveltyScore:
        """The words of the questions that it was fitted to."""
        ...

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Forecast a draft, or a block of one: the arrays are as long as it."""
        ...

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:
        """Forecast from the question alone: its ``word_buckets`` and the prompt's length."""
        ...


# The judge of a pair of which nothing is known: kl's, at the threshold of the bundled pair's score, which turns down
# hardly any draft that is right (defer/NOTES.md).
DEFAULT_NATS = 0.7
DEFAULT_JUDGE = f"kl:{DEFAULT_NATS:g}"
# Of a pair that nobody measured most drafts count as turned down, so that they are checked. 64 tokens: an answer of a
# paragraph.
PRIOR_CHANCE, PRIOR_TOKENS = 0.8, 64


@dataclass(frozen=True)
class UninformedScore:
    """What is believed where nothing was measured: most drafts would be turned down, anywhere in them.

    ``chance`` is that of a draft of any length. The excess of its tokens is the local model's own mean surprise: no
    measured number, but drafts are ranked by it as well as by anything that was tried on real text.
    """

    kind: ClassVar[str] = "prior"
    familiarity: ClassVar[NoveltyScore] = NOTHING_FAMILIAR
    critic: ClassVar[str | None] = None
    judge: str
    chance: float = PRIOR_CHANCE
    tokens: float = PRIOR_TOKENS

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Spread the chance evenly over the draft."""
        num = len(signals)
        hazard = np.full(num, 1.0 - (1.0 - self.chance) ** (1.0 / max(1, num)))
        return Forecast(hazard, np.full(num, mean_surprise(signals)))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:  # noqa: ARG002  (no question is better known)
        """Say the same of every question."""
        return QuestionForecast(self.chance, self.tokens, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> UninformedScore:
        """Read what ``to_json`` gave. Raises ValueError."""
        return cls(str(kept["judge"]), read_number(kept["chance"], 0.0, 1.0), read_number(kept["tokens"], 1.0))


# What is learned online on top of a score: a logistic correction of the chance that a draft is turned down.
#
# The score's own log-odds are the offset; the question's words and the draft's statistics add to them. Both are fitted
# with a pull to zero, which is stronger the more the score itself was fitted to. Two things only ever raise a chance:
# an uncertain correction is taken one half of a standard deviation up, and a strange question is believed to be turned
# down as one of an unknown pair. The laws (``tests/defer/test_correction.py``): without labels and strange words a
# chance is what the score told; strangeness never lowers it; the places of a rejection keep their order; JSON keeps
# every bit.

# Chosen on the bundled pair's calibration questions, by log-loss at 60 to 900 labels and by what streams of 600 cost
# (``bench auto``, commit d42d7f6). The pull to zero of a word, of the bias and of a statistic, and what a calibration
# adds to them: a word's by each question with it, the others' by each question.
WORD_PULL, BIAS_PULL, STATISTIC_PULL = 1.0, 0.1, 2.0
WORD_PULL_BY_QUESTION, PULL_BY_QUESTION = 0.3, 1.0 / 56.0
# Standard deviations by which a chance is raised: few labels leave many.
UPWARDS = 0.5
# A number this far from the labels' mean, in their deviations, says no more than one farther away.
FARTHEST = 4.0
WIDTH = 1 + len(STATISTICS)


@dataclass(frozen=True, eq=False)
class Correction:
    """What is added to a score's log-odds, and how familiar a question's words are.

    ``weights``, shape (BUCKETS + 16,): those of the question's buckets, the bias, those of the statistics. ``spread``,
    shape (16, 16): the covariance of the last 16. ``center``, ``scale``, shapes (15,): the logarithms of the statistics
    are measured from one by the other.
    """

    familiarity: NoveltyScore
    weights: Floats
    center: Floats
    scale: Floats
    spread: Floats

    @classmethod
    def none(cls, familiarity: NoveltyScore) -> Correction:
        """Correct nothing but strange questions: there are no labels."""
        num = WIDTH - 1
        return cls(familiarity, np.zeros(BUCKETS + WIDTH), np.zeros(num), np.ones(num), np.zeros((WIDTH, WIDTH)))

    @classmethod
    def fit(
        cls,
        labelled: Sequence[DraftOutcome],
        familiarity: NoveltyScore,
        num_questions: int,
        start: Floats | None = None,
    ) -> Correction:
        """Fit drafts with verdicts, at least one. ``familiarity``, ``num_questions``: of the score's calibration."""
        numbers = np.array([_logs(np.array(each.statistics)) for each in labelled])
        center = numbers.mean(axis=0)
        # A number that hardly varied yet must not weigh much when it does.
        scale = numbers.std(axis=0) + 0.1 * np.abs(center) + 1e-3
        dense = np.array([_dense(each, center, scale) for each in numbers])
        labels = np.array([float(each.turned_down is True) for each in labelled])
        offset = np.asarray(logit_of(np.array([each.told for each in labelled])))
        more = 1.0 + PULL_BY_QUESTION * num_questions
        of_dense = more * np.array([BIAS_PULL, *[STATISTIC_PULL] * (WIDTH - 1)])
        precision = np.concatenate([WORD_PULL + WORD_PULL_BY_QUESTION * familiarity.counts, of_dense])
        rows = SparseRows.of([each.words for each in labelled], dense)
        weights = fit_logistic(rows, labels, precision, offset=offset, start=start)
        chances = sigmoid(offset + rows.times(weights))
        curvature = dense.T @ (dense * (chances * (1.0 - chances))[:, None]) + np.diag(of_dense)
        return cls(familiarity, weights, center, scale, np.asarray(np.linalg.inv(curvature), dtype=np.float64))

    def chance(self, told: float, words: tuple[int, ...], numbers: Floats | None = None) -> float:
        """Correct a chance. ``numbers``, shape (15,): the draft's statistics; None: nothing is drafted yet."""
        dense = np.eye(1, WIDTH)[0] if numbers is None else _dense(_logs(numbers), self.center, self.scale)
        added = float(self.weights[list(words)].sum() + self.weights[BUCKETS:] @ dense)
        added += UPWARDS * float(np.sqrt(dense @ self.spread @ dense))
        chance = float(sigmoid(logit_of(told) + added)) if added else told
        unknown = self.familiarity.strangeness(words)
        return max(chance, chance + unknown * (PRIOR_CHANCE - chance))

    def only(self, words: tuple[int, ...]) -> Correction:
        """Forget what other questions' words taught: this question's chances stay the same to the last bit."""
        weights = self.weights.copy()
        weights[:BUCKETS] = 0.0
        weights[list(words)] = self.weights[list(words)]
        return replace(self, familiarity=self.familiarity.only(words), weights=weights)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        used = np.flatnonzero(self.weights)
        return {
            "familiarity": self.familiarity.to_json(),
            "used": used.tolist(),
            "weights": self.weights[used].tolist(),
            **{name: getattr(self, name).tolist() for name in ("center", "scale", "spread")},
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Correction:
        """Read what ``to_json`` gave. Raises ValueError, KeyError or TypeError."""
        weights = scatter(kept["used"], read_numbers(kept["weights"]), BUCKETS + WIDTH)
        center, scale, spread = (read_numbers(kept[name]) for name in ("center", "scale", "spread"))
        if (center.shape, scale.shape, spread.shape) != ((WIDTH - 1,), (WIDTH - 1,), (WIDTH, WIDTH)):
            raise ValueError("a correction of other statistics")
        return cls(NoveltyScore.from_json(kept["familiarity"]), weights, center, scale, spread)


class ScoreWrapper:
    """What a score answers as the one that it stands over."""

    score: Score

    @property
    def judge(self) -> str:
        """The judge whose verdict is forecast."""
        return self.score.judge

    @property
    def critic(self) -> str | None:
        """The critic whose numbers the score reads."""
        return self.score.critic

    @property
    def familiarity(self) -> NoveltyScore:
        """The words of all questions that were seen."""
        return self.score.familiarity


@dataclass(frozen=True, eq=False)
class CorrectedScore(ScoreWrapper):
    """A score with what was learned online on top."""

    kind: ClassVar[str] = "corrected"
    score: Score
    correction: Correction

    @property
    def familiarity(self) -> NoveltyScore:
        """The words of all questions that were seen."""
        return self.correction.familiarity

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Forecast a draft: the places of a rejection as the score tells them, the chance of one corrected."""
        told = self.score.forecast(signals)
        return scaled_to(told, self.correction.chance(told.turned_down, signals.words, statistics(signals)))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:
        """Forecast from the question alone."""
        told = self.score.before(words, prompt_tokens)
        return replace(told, turned_down=self.correction.chance(told.turned_down, words))


def scaled_to(forecast: Forecast, chance: float) -> Forecast:
    """Return a forecast whose ``turned_down`` is a chance below 1: all of its survival is taken to one power.

    One that tells no rejection at all is spread evenly; one of no tokens stays.
    """
    num = len(forecast.hazard)
    if not num or chance == forecast.turned_down:
        return forecast
    survived = np.log1p(-np.minimum(forecast.hazard, 1.0 - 1e-15))
    total, wanted = float(survived.sum()), float(np.log1p(-min(chance, 1.0 - 1e-15)))
    parts = survived * (wanted / total) if total < 0.0 else np.full(num, wanted / num)
    return Forecast(-np.expm1(parts), forecast.excess)


def _logs(numbers: Floats) -> Floats:
    return np.log1p(np.abs(numbers))


def _dense(logs: Floats, center: Floats, scale: Floats) -> Floats:
    """Return a one for the bias, then the standardised statistics, shape (16,)."""
    return np.concatenate([[1.0], np.clip((logs - center) / scale, -FARTHEST, FARTHEST)])
