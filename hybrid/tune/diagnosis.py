"""What bought labels say of a pair, before any price: how far apart the models are, where, and what can be certified.

The laws (``tests/tune/test_diagnosis.py``): lengths of runs add up to the certified tokens; the expected accepted
length is that of an enumeration; a place is known only of drafts that were turned down. Positions are those of the
drafts (where drafts cannot be scored, of the cloud's own texts). Nothing here is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import Calibration, CalibrationQuestion
from hybrid.prob import Floats
from hybrid.tasks import statistics
from hybrid.tune.fit import MOST_TURNED_DOWN
from hybrid.tune.labels import CERTIFICATES, LabelledAnswers, LabelledText, is_favourite

# How good a calibration's chances are: figures of its questions, each told by folds that it was not in.

# Groups of equally many questions. With more of them noise alone looks like an error.
BINS = 15


def auroc(questions: Sequence[CalibrationQuestion]) -> float | None:
    """Return the chance that a turned-down draft was told a higher chance than another; None where all are alike."""
    down = np.array([each.turned_down for each in questions], dtype=np.bool_)
    return statistics.auroc(np.array([each.chance for each in questions]), down)


def ece(questions: Sequence[CalibrationQuestion]) -> float:
    """Return the expected calibration error: |told - true share| over groups of equal size, by the told chance."""
    told = np.array([each.chance for each in questions])
    true = np.array([each.turned_down for each in questions], dtype=np.float64)
    groups = np.array_split(np.argsort(told, kind="stable"), min(BINS, len(questions)))
    return float(sum(abs(told[each].sum() - true[each].sum()) for each in groups) / len(questions))


def reason_of_loss(calibration: Calibration) -> str:
    """Say in a sentence why the loss is a verdict, or nats."""
    share = float(np.mean([each.turned_down for each in calibration.questions]))
    if calibration.loss == "verdict":
        return f"{share:.0%} of the drafts were turned down by {calibration.judge}: a verdict tells drafts apart"
    return (
        f"{share:.0%} of the drafts were turned down by {calibration.judge}, {MOST_TURNED_DOWN:.0%} or more: a verdict "
        "tells little of a draft, so what is kept is counted in nats of excess loss"
    )


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# Draft lengths at which the expected accepted length is told.
DRAFTS = (4, 8, 16)
# Parts of a draft in which its first rejection may fall.
TENTHS = 10


@dataclass(frozen=True)
class Quantiles:
    """The ``LEVELS`` of some numbers, their mean, and how many there are. All None where there are none."""

    values: tuple[float, ...] | None
    mean: float | None
    count: int

    @classmethod
    def of(cls, numbers: Floats) -> Quantiles:
        """Measure numbers, infinite ones among them: a quantile is one of them (the lower one)."""
        if not numbers.size:
            return cls(None, None, 0)
        found = np.quantile(numbers, LEVELS, method="lower")
        return cls(tuple(map(float, found)), float(numbers.mean()), int(numbers.size))


@dataclass(frozen=True)
class CertifiedSpanLengths:
    """What a certificate proves: the share of positions, and the lengths of runs of them within a draft."""

    share: float
    lengths: Quantiles


@dataclass(frozen=True)
class FirstRejections:
    """Where a judge turns drafts down first. ``share``: of the drafts; the places are of those alone.

    ``offset``: tokens before it; ``tenths``: how many fall in each tenth of their draft; ``kept_share``: of the tokens
    that a judge sees up to and with the first rejection, those that it keeps.
    """

    judge: str
    share: float
    offset: Quantiles
    tenths: tuple[int, ...]
    kept_share: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """A pair's labelled texts, and what follows from them."""

    questions: Sequence[LabelledAnswers]

    @cached_property
    def texts(self) -> tuple[LabelledText, ...]:
        """The texts along which the cloud's rows are known."""
        return tuple(each.judged for each in self.questions if len(each.judged))

    @cached_property
    def positions(self) -> int:
        """Tokens with rows of both models."""
        return sum(map(len, self.texts))

    def measured(self, name: str) -> Quantiles:
        """Return the quantiles of ``kl``, ``kl_upper``, ``tv``, ``tv_upper`` or ``excess`` over all positions."""
        return Quantiles.of(_joined([getattr(text, name) for text in self.texts]))

    def certificate(self, rule: str) -> Quantiles:
        """Return the quantiles of a rule's certificate, in nats."""
        return Quantiles.of(_joined([text.certificates[rule] for text in self.texts]))

    def certified(self, rule: str) -> CertifiedSpanLengths:
        """Return what a rule's certificate proves."""
        masks = [text.certified(rule) for text in self.texts]
        runs = _joined([runs_of(mask) for mask in masks])
        return CertifiedSpanLengths(
            float(sum(mask.sum() for mask in masks)) / max(1, self.positions), Quantiles.of(runs)
        )

    def accepted_length(self, drafted: int) -> tuple[float, float]:
        """Return the least and the most tokens of a draft that exact speculative sampling is expected to accept.

        Over all positions at which a draft of ``drafted`` tokens could begin; at temperature 1, the bonus token left
        out. The chance that a token is accepted is one minus the total variation there.
        """
        ends = [(1.0 - text.tv_upper, 1.0 - text.tv) for text in self.texts]
        least, most = (_joined([accepted(side, drafted) for side in sides]) for sides in zip(*ends, strict=True))
        return (float(least.mean()), float(most.mean())) if least.size else (0.0, 0.0)

    def matched(self) -> Quantiles:
        """Return the lengths of runs of tokens that are the cloud's own favourites."""
        return Quantiles.of(_joined([runs_of(text.excess <= 0.0) for text in self.texts]))

    def first_rejections(self, judge: str) -> FirstRejections:
        """Return where a judge turns drafts down first."""
        found = [(text.first_rejection(judge), len(text)) for text in self.texts]
        places = [(place, num) for place, num in found if place is not None]
        kept = sum(num if place is None else place for place, num in found)
        tenths = np.bincount([place * TENTHS // num for place, num in places], minlength=TENTHS)
        return FirstRejections(
            judge,
            len(places) / max(1, len(found)),
            Quantiles.of(np.array([place for place, _ in places], dtype=np.float64)),
            tuple(map(int, tenths)),
            kept / max(1, kept + len(places)),
        )

    def to_json(self, judges: Sequence[str]) -> dict[str, Any]:
        """Return plain data for ``json.dumps``; infinite numbers are null."""
        measures = ("kl", "kl_upper", "tv", "tv_upper", "excess")
        told: Mapping[str, Any] = {
            "questions": len(self.questions),
            "tokens": self.positions,
            "levels": list(LEVELS),
            "measures": {name: asdict(self.measured(name)) for name in measures},
            "certificates": {rule: asdict(self.certificate(rule)) for rule in CERTIFICATES},
            "certified": {rule: asdict(self.certified(rule)) for rule in CERTIFICATES},
            "accepted_length": {str(num): self.accepted_length(num) for num in DRAFTS},
            "matched": asdict(self.matched()),
            "first_rejections": [asdict(self.first_rejections(judge)) for judge in judges],
        }
        return {name: _plain(value) for name, value in told.items()}


def runs_of(mask: NDArray[np.bool_]) -> Floats:
    """Return the lengths of the runs of True.

    >>> runs_of(np.array([True, True, False, True])).tolist()
    [2.0, 1.0]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return np.asarray(edges[1::2] - edges[::2], dtype=np.float64)


def accepted(chances: Floats, drafted: int) -> Floats:
    """Return how many of the next ``drafted`` tokens are expected to be accepted, from each position that has so many.

    >>> accepted(np.array([0.5, 0.5, 1.0]), 2).tolist()
    [0.75, 1.0]
    """
    starts = len(chances) - drafted + 1
    if starts <= 0:
        return np.zeros(0)
    windows = np.lib.stride_tricks.sliding_window_view(chances, drafted)
    return np.asarray(np.cumprod(windows, axis=1).sum(axis=1), dtype=np.float64)


# How many of a drafter's tokens the cloud will accept, greedily: told before a drafter is taken.
#
# Speculative decoding at temperature 0 writes the cloud's own text, so what counts is along that text: the share of its
# tokens that are the drafter's most likely ones. A calibration has bought the cloud's text with the drafter's rows. The
# law (``tests/tune/test_acceptance.py``): the interval holds the share on as many other questions of the same kind in
# about 95 of 100 cases.

RESAMPLES = 1_000


@dataclass(frozen=True)
class ExpectedAcceptance:
    """The share of accepted tokens, and where it is expected on as many other questions: 95 %."""

    share: float
    low: float
    high: float
    num_tokens: int


def greedy_acceptance(questions: Sequence[LabelledAnswers]) -> ExpectedAcceptance:
    """Return what to expect of a drafter whose rows along the cloud's texts are known; of at least one token.

    The interval is that of the difference of two samples of as many questions (a seeded bootstrap).
    """
    signals = [each.written.signals for each in questions]
    agreed = np.array([float(is_favourite(each).sum()) for each in signals])
    tokens = np.array([float(len(each)) for each in signals])
    rng, share = np.random.default_rng(0), float(agreed.sum() / tokens.sum())
    drawn = rng.integers(len(signals), size=(2 * RESAMPLES, len(signals)))
    shares = agreed[drawn].sum(axis=1) / np.maximum(1.0, tokens[drawn].sum(axis=1))
    low, high = np.percentile(shares[:RESAMPLES] - shares[RESAMPLES:], [2.5, 97.5])
    return ExpectedAcceptance(share, max(0.0, share + float(low)), min(1.0, share + float(high)), int(tokens.sum()))


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
