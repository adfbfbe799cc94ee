"""Calibrating one pair: its labels are bought, a threshold is chosen, a score fitted, and all that follows worked out.

The law (``tests/tune/test_calibrating.py``): whatever ended the buying, what was bought is fitted to if it is enough.
What is told of it stands in ``report.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from hybrid.defer import Calibration
from hybrid.spend import AskPrices
from hybrid.tune.acceptance import ExpectedAcceptance, greedy_acceptance
from hybrid.tune.bought import BoughtQuestion, read_judge
from hybrid.tune.curve import WORTHS, CurvePoint, bill_curve
from hybrid.tune.diagnosis import Diagnosis
from hybrid.tune.fit import fit
from hybrid.tune.forecasts import EXCESS_SPAN, KL_SPAN, RECOVER, PolicyForecasts, forecast_policies
from hybrid.tune.label_file import PairNames
from hybrid.tune.quality import auroc, ece, reason_of_loss
from hybrid.tune.rule_bills import check_rates, tokens_before
from hybrid.tune.threshold import ThresholdChoice, choose_threshold

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

    @property
    def pays(self) -> bool:
        """Whether checking is cheaper than the cloud alone."""
        return self.least is not None and self.kept >= self.least


@dataclass(frozen=True, eq=False)
class CalibratedPair:
    """A pair with its labels, its calibration, and the prices that all bills are worked out at.

    ``drafter``: what the user calls the local model. ``prices``: of one token each, in their own unit. ``kl_judge``:
    of the rules that compare distributions, the calibration's or the proposed threshold; ``excess_judge``: of those
    that look at the token alone. ``forecasts``: what every policy is expected to recover and to cost.
    """

    drafter: str
    names: PairNames
    questions: Sequence[BoughtQuestion]
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
        worths = sorted({*WORTHS, self.calibration.worth})
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
        rates, before = check_rates(self.prices), tokens_before(self.questions)
        judges = ((self.kl_judge, KL_SPAN), (self.excess_judge, EXCESS_SPAN))
        return tuple(
            JudgeBreakEven(
                judge, span, self.diagnosis.first_rejections(judge).kept_share, rates.break_even(before, span)
            )
            for judge, span in judges
        )


def calibrate_pair(
    drafter: str,
    names: PairNames,
    questions: Sequence[BoughtQuestion],
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


def _fitted(questions: Sequence[BoughtQuestion], names: PairNames, judge: str, critic: str | None) -> Calibration:
    labelled = [each.labelled(judge) for each in questions]
    return fit(labelled, local=names.local, cloud=names.model, judge=judge, critic=critic)
