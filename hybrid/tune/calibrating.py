"""Calibrating one pair: its labels are bought, a threshold is chosen, a score fitted, and all that follows worked out.

The law (``tests/tune/test_calibrating.py``): whatever ended the buying, what was bought is fitted to if it is enough.
What is told of it stands in ``report.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import Calibration, DraftSignals
from hybrid.policy.choices import SPAN
from hybrid.policy.rules.divergence_threshold import KL_SPAN
from hybrid.spend import AskPrices, Spans
from hybrid.tune.buying import PairNames
from hybrid.tune.diagnosis import Diagnosis, ExpectedAcceptance, auroc, ece, greedy_acceptance, reason_of_loss
from hybrid.tune.fit import fit
from hybrid.tune.forecasts import (
    CURVE_WORTHS,
    RECOVER,
    CurvePoint,
    PolicyForecasts,
    bill_curve,
    forecast_policies,
)
from hybrid.tune.labels import LabelledAnswers, read_judge

# An initial threshold, from exploratory tests: which KL best tells drafts that are the cloud's own text from others.
#
# A draft that is word for word what the cloud writes loses nothing, so to turn it down is a false alarm; another draft
# says something else, in other words or wrongly. Between the two a threshold is chosen as in Youden (1950): the one
# with the largest difference of the two shares. What a task can bear is not known here: the table tells all thresholds,
# for whoever knows better.

CANDIDATES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
# Fewer drafts of either kind say nothing; then the preset kl's own threshold is proposed.
ENOUGH, UNKNOWN = 10, 0.5


@dataclass(frozen=True)
class ThresholdTrial:
    """A threshold in nats: the share of drafts like the cloud's own text that it turns down, and of the others."""

    nats: float
    false_alarms: float
    caught: float


@dataclass(frozen=True)
class ThresholdChoice:
    """The threshold that is proposed, and what speaks for it: drafts of either kind, and every threshold's trial."""

    nats: float
    same: int
    other: int
    trials: tuple[ThresholdTrial, ...]

    @property
    def known(self) -> bool:
        """Whether there are enough drafts of either kind to choose by."""
        return min(self.same, self.other) >= ENOUGH


def choose_threshold(questions: Sequence[LabelledAnswers]) -> ThresholdChoice:
    """Try every candidate on the drafts that were checked; of equals the largest is taken, which asks for least."""
    checked = [each for each in questions if len(each.draft)]
    same = [each for each in checked if is_clouds_own(each)]
    other = [each for each in checked if not is_clouds_own(each)]
    trials = tuple(ThresholdTrial(nats, _share(same, nats), _share(other, nats)) for nats in CANDIDATES)
    choice = ThresholdChoice(UNKNOWN, len(same), len(other), trials)
    if not choice.known:
        return choice
    best = max(trials, key=lambda trial: (trial.caught - trial.false_alarms, trial.nats))
    return ThresholdChoice(best.nats, len(same), len(other), trials)


def is_clouds_own(question: LabelledAnswers) -> bool:
    """Whether a draft is, token for token, what the cloud itself wrote, and both ended or neither did.

    By which token a text ended does not count: an endpoint seldom tells, and one of other tokens cannot.
    """
    draft, written = question.draft.signals, question.written.signals
    return draft.ended == written.ended and bool(np.array_equal(_said(draft), _said(written)))


def _said(text: DraftSignals) -> NDArray[np.int64]:
    """Return the tokens before the one that ends a text."""
    return text.tokens[:-1] if text.ended else text.tokens


def _share(questions: Sequence[LabelledAnswers], nats: float) -> float:
    turned_down = sum(each.draft.first_rejection(f"kl:{nats!r}") is not None for each in questions)
    return turned_down / max(1, len(questions))


# What is turned down where the loss is nats: three quarters of the loss on two real pairs lie above it.
EXCESS_JUDGE = "excess:0.5"


@dataclass(frozen=True)
class JudgeBreakEven:
    """The share of drafted tokens that a judge keeps, and the ``least`` at which checks of ``span`` tokens pay.

    ``least`` None: they never do.
    """

    judge: str
    span: int
    kept: float
    least: float | None


@dataclass(frozen=True, eq=False)
class CalibratedPair:
    """A pair with its labels, its calibration, and the prices that all bills are worked out at.

    ``drafter``: what the user calls the local model. ``prices``: of one token each, in their own unit. ``kl_judge``:
    of the rules that compare distributions, the calibration's or the proposed threshold; ``excess_judge``: of those
    that look at the token alone. ``forecasts``: what every policy is expected to recover and to cost.
    """

    drafter: str
    names: PairNames
    questions: Sequence[LabelledAnswers]
    calibration: Calibration
    threshold: ThresholdChoice
    prices: AskPrices
    kl_judge: str
    excess_judge: str
    forecasts: PolicyForecasts

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """How far the two models are apart, and where."""
        return Diagnosis(self.questions)

    @cached_property
    def curve(self) -> tuple[CurvePoint, ...]:
        """The bill curve of ``auto``, the proposed worth among its points."""
        worths = sorted({*CURVE_WORTHS, self.calibration.worth})
        return bill_curve(self.calibration, self.prices, worths)

    @property
    def proposed(self) -> CurvePoint:
        """The point of the proposed worth."""
        return next(point for point in self.curve if point.worth == self.calibration.worth)

    @cached_property
    def lost(self) -> float:
        """What a draft loses, on average: its mean excess loss in nats a token, or the chance of being turned down."""
        questions = self.calibration.questions
        nats = self.calibration.loss == "nats"
        return sum(each.excess if nats else each.turned_down for each in questions) / max(1, len(questions))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        calibration, questions = self.calibration, self.calibration.questions
        pair = {"local": self.drafter, "cloud": self.names.model, "endpoint": self.names.endpoint}
        proposed = {name: getattr(calibration, name) for name in ("judge", "loss", "worth", "critic")}
        told = {
            "reason": reason_of_loss(calibration),
            "auroc": auroc(questions),
            "ece": ece(questions),
            "lost": self.lost,
            "thresholds": asdict(self.threshold),
            "token_prices": asdict(self.prices),
            "curve": [asdict(point) for point in self.curve],
            "policies": self.forecasts.to_json(),
            "greedy_acceptance": asdict(self.acceptance),
            "break_even": {told.judge: told.least for told in self.break_evens},
            "diagnosis": self.diagnosis.to_json([self.kl_judge, self.excess_judge]),
        }
        return pair | proposed | told

    @cached_property
    def acceptance(self) -> ExpectedAcceptance:
        """How many of the drafter's tokens the cloud will accept greedily."""
        return greedy_acceptance(self.questions)

    @cached_property
    def break_evens(self) -> tuple[JudgeBreakEven, ...]:
        """Whether checking in drafts of the presets' lengths pays at these prices, for either judge."""
        # Tokens before a span, on average: the prompt and half of the answer.
        before = float(np.mean([each.judged.signals.prompt_tokens + len(each.judged) / 2 for each in self.questions]))
        rates = self.prices.check_rates
        judges = ((self.kl_judge, KL_SPAN), (self.excess_judge, SPAN))
        return tuple(
            JudgeBreakEven(
                judge, span, self.diagnosis.first_rejections(judge).kept_share, rates.break_even(before, Spans(span))
            )
            for judge, span in judges
        )


def calibrate_pair(
    drafter: str,
    names: PairNames,
    questions: Sequence[LabelledAnswers],
    prices: AskPrices,
    judge: str | None = None,
    critic: str | None = None,
    recover: float = RECOVER,
) -> CalibratedPair:
    """Fit a score to what was bought, and set its worth. Raises UsageError where that is too little.

    ``judge``: whose verdicts are forecast; None: KL with the proposed threshold, and where the pair's loss turns out to
    be nats the excess loss, by which text is checked then. ``critic``: the identity of the critic that has
    read them all; None: none has. ``recover``: the cheapest worth with which ``auto`` recovers this share becomes the
    calibration's.
    """
    if judge is not None:
        read_judge(judge)
    threshold = choose_threshold(questions)
    chosen = judge or f"kl:{threshold.nats:g}"
    calibration = _fitted(questions, names, chosen, critic)
    if judge is None and calibration.loss == "nats":
        calibration = _fitted(questions, names, EXCESS_JUDGE, critic)
    own = calibration.judge
    kl = own if own.startswith("kl:") else f"kl:{threshold.nats:g}"
    excess = own if own.startswith("excess:") else EXCESS_JUDGE
    forecasts = forecast_policies(questions, calibration, prices, (kl, excess), recover)
    auto = forecasts.chosen["auto"]
    if auto.dial.worth is not None and forecasts.reaches(auto):
        calibration = replace(calibration, worth=auto.dial.worth)
    return CalibratedPair(drafter, names, questions, calibration, threshold, prices, kl, excess, forecasts)


def _fitted(questions: Sequence[LabelledAnswers], names: PairNames, judge: str, critic: str | None) -> Calibration:
    labelled = [each.labelled(judge) for each in questions]
    return fit(labelled, local=names.local, cloud=names.model, judge=judge, critic=critic)


# Which of several local models to take beside one cloud: the one whose drafts leave the least loss for the same money.
#
# Whole questions go to the cloud, in the order of what their drafts are expected to lose per price, until a share of
# its bill is spent; what is left is the excess loss of the drafts that are kept, in nats a token. It is averaged over
# all shares of the bill. All drafters stand beside one cloud, so both mean the same for each of them.
#
# The law (``tests/tune/test_calibrating.py``): what is left is the area under the curve that a sum over every prefix of
# that order makes; a choice between drafters that the questions do not tell apart is not called sure.

RESAMPLES, SURE = 1_000, 0.95


@dataclass(frozen=True)
class DrafterChoice:
    """The pair to take, and the share of resamples of the questions in which it leaves less than any other."""

    best: CalibratedPair
    share: float

    @property
    def sure(self) -> bool:
        """Whether these questions tell it from all the others."""
        return self.share >= SURE


def nats_left(pair: CalibratedPair, drawn: NDArray[np.int64] | None = None) -> float:
    """Return the nats a token that a drafter leaves, over all shares of the bill. ``drawn``: of these questions."""
    questions, prices = pair.calibration.questions, pair.prices
    numbers = np.arange(len(questions)) if drawn is None else drawn
    counts = np.array([(each.prompt_tokens, each.draft_tokens, each.cloud_tokens) for each in questions], dtype=float)
    prompt, draft, written = counts[numbers].T
    told, excess = np.array([(each.excess_told, each.excess) for each in questions])[numbers].T
    alone = np.asarray(prices.write(prompt, written, 0))
    order = np.argsort(-told / np.asarray(prices.write(prompt, draft, 0)), kind="stable")
    spent = np.concatenate([[0.0], np.cumsum(alone[order])]) / alone.sum()
    kept = np.concatenate([[0.0], np.cumsum(excess[order])])
    left = (kept[-1] - kept) / len(numbers)
    return float(np.diff(spent) @ (left[1:] + left[:-1]) / 2.0)


def choose_drafter(pairs: Sequence[CalibratedPair]) -> DrafterChoice:
    """Return the pair that leaves least, and how often it does when the questions are drawn anew (seeded)."""
    best = min(range(len(pairs)), key=lambda number: nats_left(pairs[number]))
    rng = np.random.default_rng(0)
    sizes = [len(pair.calibration.questions) for pair in pairs]
    wins = 0
    for _ in range(RESAMPLES):
        # The same questions for all, where all were asked the same ones.
        shared = rng.integers(sizes[0], size=sizes[0])
        draws = [shared if size == sizes[0] else rng.integers(size, size=size) for size in sizes]
        left = [nats_left(pair, drawn) for pair, drawn in zip(pairs, draws, strict=True)]
        wins += left.pop(best) < min(left, default=np.inf)
    return DrafterChoice(pairs[best], wins / RESAMPLES)
