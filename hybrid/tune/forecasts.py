"""What each policy is expected to recover and to cost, from labels alone, and which is the cheapest for a wanted share.

How. A policy has some dials. What a dial leaves of each bought question's loss, and what it pays, is played along the
labels (``play``), decided by the planner, or read off an order of whole questions. The share that is
recovered is one of the loss as the calibration has it: of the drafts that its judge turns down, or of the excess loss.
By a verdict a draft is mended where nothing is shown that the judge turns down: what is right is not known. All
intervals are of the same resamples of the questions. A dial is chosen on the questions that it is priced by, which
flatters a policy of many dials a little.

The laws (``tests/tune/test_forecasts.py``): the cloud recovers all for its own bill, the local model nothing for
nothing; sending more whole questions never costs less; no order is cheaper than an oracle's; a value lies in its
interval; labels that save nothing are never repaid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hybrid.defer import Calibration
from hybrid.policy.explanation import PlannedOutcome, planned_outcomes
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.prob import Floats
from hybrid.spend import AskPrices
from hybrid.tasks.statistics import Estimate, Resamples, estimate, ratio
from hybrid.tune.labels import LabelledAnswers
from hybrid.tune.play import Play, greedy_policy

# The bill curve of ``auto``: for each worth what a pair's calibration questions would have cost, and what stays wrong.
#
# How. The planner itself decides about each question's draft, from what a score that was fitted without that question
# told of it; the labels then tell what came of it (``policy.explanation``).
#
# The laws (``tests/tune/test_curve.py``): at worth 0 nothing is asked and all is left; what is asked is charged as the
# planner's prices have it; a question is never charged for more than a check and the rest. Any price will do: no
# request is behind it.

# Multiples of a price from "hardly ever" to "nearly always"; the proposed worth is added.
CURVE_WORTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.85, 2.2, 3.0, 4.0, 6.0, 10.0)


@dataclass(frozen=True)
class CurvePoint:
    """What a worth comes to over the questions.

    ``of_cloud``: the bill, of what the cloud alone takes. ``left``: what stays wrong, as a share: of the drafts that
    would be turned down those that are shown, or of the drafts' excess loss what is shown. ``kept``, ``checked`` and
    ``written``: shares of the questions.
    """

    worth: float
    of_cloud: float
    left: float
    kept: float
    checked: float
    written: float


def bill_curve(
    calibration: Calibration, prices: AskPrices, worths: Sequence[float] = CURVE_WORTHS
) -> tuple[CurvePoint, ...]:
    """Return a point for each worth; the questions are the calibration's, at least one."""
    questions, nats = calibration.questions, calibration.loss == "nats"
    lost = np.array([each.excess if nats else float(each.turned_down) for each in questions])
    points = []
    for worth in worths:
        outcomes = plan_all(calibration, prices, worth)
        left = np.array([one.excess_left if nats else one.left for one in outcomes])
        shares = [
            sum(one.action == action for one in outcomes) / len(outcomes) for action in ("keep", "check", "write")
        ]
        of_cloud = sum(one.paid for one in outcomes) / sum(one.alone for one in outcomes)
        points.append(CurvePoint(worth, of_cloud, float(left @ lost / (lost.sum() or 1.0)), *shares))
    return tuple(points)


def plan_all(
    calibration: Calibration, prices: AskPrices, worth: float, *, whole: bool = False
) -> tuple[PlannedOutcome, ...]:
    """Return what the planner would have done with each question at a worth; ``whole``: with whole answers alone."""
    questions, nats = calibration.questions, calibration.loss == "nats"
    alone = [float(prices.write(each.prompt_tokens, each.cloud_tokens, 0)) for each in questions]
    mean_excess = float(np.mean([each.excess for each in questions]))
    planner = Planner(
        score=calibration.score,
        prices=prices,
        worth=Worth(amount=worth * float(np.mean(alone))) if nats else Worth(worth),
        mean_excess=max(1e-9, mean_excess) if nats else None,
        kept_share=calibration.kept_share,
    )
    return planned_outcomes(questions, planner.of_whole_answers() if whole else planner)


# Local entropies in nats, from "hardly ever sure" to "hardly ever unsure"; that of the preset is among them.
ENTROPIES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
# Worths as near to one another as cuts of an order are to the eye; the calibration's own is added.
WORTHS = (0.0, *(float(f"{each:.2g}") for each in np.geomspace(0.5, 10.0, 20)))
_CLOUD, _LOCAL = greedy_policy("cloud"), greedy_policy("local")
# An order is cut at no more places than this.
MOST_CUTS = 100
# The share to recover where nobody says otherwise, and what sums of floats may miss of it.
RECOVER, ROUNDING = 0.9, 1e-9


class PolicyDial(NamedTuple):
    """A dial as a user reads it; its ``lines`` of ``hybrid.toml``, none where it is no policy's; its worth, if any."""

    title: str
    lines: tuple[str, ...] = ()
    worth: float | None = None


@dataclass(frozen=True, eq=False)
class TriedPolicy:
    """A policy at K dials on N questions: the loss that each leaves, and what it pays; shapes (K, N)."""

    name: str
    dials: Sequence[PolicyDial]
    left: Floats
    paid: Floats


@dataclass(frozen=True, eq=False)
class PolicyForecast:
    """A policy at one dial: the recovered ``share`` of the loss, and its ``bill``, of what the cloud alone takes.

    ``bills``: the bill of the questions themselves and of each resample, shape (1 + R,).
    """

    name: str
    dial: PolicyDial
    share: Estimate
    bill: Estimate
    bills: Floats

    @property
    def title(self) -> str:
        """The policy and its dial."""
        return f"{self.name}, {self.dial.title}" if self.dial.title else self.name

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        ends = {name: [each.value, each.low, each.high] for name, each in (("share", self.share), ("bill", self.bill))}
        return {"policy": self.name, **self.dial._asdict(), **ends}


@dataclass(frozen=True, eq=False)
class PolicyForecasts:
    """All policies at all their dials, and the share that is wanted.

    ``alone``: what the cloud alone takes for a question; ``labels``: what the labels took; in the prices' unit.
    """

    rows: Sequence[PolicyForecast]
    wanted: float
    alone: float
    labels: float

    def reaches(self, row: PolicyForecast) -> bool:
        """Whether a row recovers the wanted share."""
        return row.share.value >= self.wanted - ROUNDING

    @cached_property
    def chosen(self) -> Mapping[str, PolicyForecast]:
        """The cheapest dial of each policy that recovers the wanted share; where none does, that of the most."""
        found: dict[str, PolicyForecast] = {}
        for row in self.rows:
            found[row.name] = min(found.get(row.name, row), row, key=self._rank)
        return found

    def _rank(self, row: PolicyForecast) -> tuple[float, float]:
        return (0.0, row.bill.value) if self.reaches(row) else (1.0, -row.share.value)

    @cached_property
    def cheapest(self) -> PolicyForecast:
        """The cheapest policy that recovers the wanted share; the cloud alone always does."""
        return min((row for row in self.chosen.values() if row.dial.lines), key=self._rank)

    def rivals(self) -> Iterator[tuple[PolicyForecast, Estimate]]:
        """Yield what recovers as much for a bill that is not told from the cheapest's: by how much it costs more."""
        for row in self.chosen.values():
            more = _estimate(row.bills - self.cheapest.bills)
            if row is not self.cheapest and self.reaches(row) and more.low <= 0.0:
                yield row, more

    @property
    def repaid(self) -> Estimate:
        """After how many questions the labels have paid for themselves; infinite where they never do.

        They save the bill of the best way that needs none, less that of the best score that is fitted to them.
        """
        reaching = [row for row in self.chosen.values() if self.reaches(row)]
        least = {
            fitted: [row for row in reaching if (row.dial.worth is not None) is fitted] for fitted in (True, False)
        }
        if not least[True]:
            return Estimate(math.inf, math.inf, math.inf)
        fitted, free = (min(rows, key=self._rank).bills for rows in least.values())
        saved = _estimate((free - fitted) * self.alone)
        return Estimate(
            *(self.labels / each if each > 0.0 else math.inf for each in (saved.value, saved.high, saved.low))
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        told = self.repaid
        return {
            "recover": self.wanted,
            "cheapest": self.cheapest.to_json(),
            "as_good": [row.to_json() | {"more": [more.value, more.low, more.high]} for row, more in self.rivals()],
            "labels": self.labels,
            "repaid_after": [each if math.isfinite(each) else None for each in (told.value, told.low, told.high)],
            "rows": [row.to_json() for row in self.rows],
        }


def forecast_policies(
    questions: Sequence[LabelledAnswers],
    calibration: Calibration,
    prices: AskPrices,
    judges: tuple[str, str],
    wanted: float = RECOVER,
) -> PolicyForecasts:
    """Price every policy on the questions that a calibration was fitted to, in their order; ``judges``: KL's, excess's.

    ``wanted``: the share of the loss that is to be recovered, above 0 and at most 1.
    """
    lost = lost_by(questions, calibration)
    alone = np.array([Play(_CLOUD, each).price(prices) for each in questions])
    resamples = Resamples(len(questions))
    most, cloud = resamples.sums(lost), resamples.sums(alone)
    rows = []
    for tried in _tried(questions, calibration, prices, judges, lost, alone):
        shares, bills = 1.0 - ratio(resamples.sums(tried.left), most), ratio(resamples.sums(tried.paid), cloud)
        for dial, share, bill in zip(tried.dials, shares, bills, strict=True):
            rows.append(PolicyForecast(tried.name, dial, _share(share), _estimate(bill), bill))
    return PolicyForecasts(rows, wanted, float(alone.mean()), labels_bill(questions, prices))


def lost_by(questions: Sequence[LabelledAnswers], calibration: Calibration) -> Floats:
    """Return what each draft loses: 1 where it is turned down, or its mean excess in nats a token; shape (N,)."""
    return left_by(calibration, [Play(_LOCAL, each) for each in questions])


def labels_bill(questions: Sequence[LabelledAnswers], prices: AskPrices) -> float:
    """Return what the labels took, in the prices' unit; what is not known of it, as these prices have it."""
    paid = 0.0
    for each in questions:
        draft, written = each.draft.signals, each.written.signals
        asked = float(prices.check(draft.prompt_tokens, len(each.draft), 0)) if len(each.draft) else 0.0
        told = each.draft.nanousd, each.written.nanousd
        forecast = asked, float(prices.write(written.prompt_tokens, len(written), 0))
        known = told if prices.unit == "nanousd" else (None, None)
        paid += sum(other if own is None else own for own, other in zip(known, forecast, strict=True))
    return paid


def left_by(calibration: Calibration, plays: Sequence[Play]) -> Floats:
    """Return what is lost of each question where a policy was played along it, as ``lost_by`` does; shape (N,)."""
    nats, judge = calibration.loss == "nats", calibration.judge
    return np.array([each.excess if nats else float(each.shows(judge)) for each in plays])


def _tried(
    questions: Sequence[LabelledAnswers],
    calibration: Calibration,
    prices: AskPrices,
    judges: tuple[str, str],
    lost: Floats,
    alone: Floats,
) -> Iterator[TriedPolicy]:
    """Yield every policy at its dials."""
    for name, chosen in _dials(*judges).items():
        dials = [_dial(*each) for each in chosen]
        plays = [[Play(greedy_policy(text, **more), each) for each in questions] for _, text, more in chosen]
        left = np.array([left_by(calibration, each) for each in plays])
        yield TriedPolicy(name, dials, left, np.array([[one.price(prices) for one in each] for each in plays]))
    worths = sorted({*WORTHS, calibration.worth})
    for name in ("auto", "route"):
        plans = [plan_all(calibration, prices, worth, whole=name == "route") for worth in worths]
        share = np.array(
            [[one.excess_left if calibration.loss == "nats" else one.left for one in each] for each in plans]
        )
        # A calibration holds the worth of ``auto``.
        more = [{} if name == "auto" else {"worth": worth} for worth in worths]
        dials = [_dial(f"worth {each:.3g}", name, chosen, each) for each, chosen in zip(worths, more, strict=True)]
        yield TriedPolicy(name, dials, share * lost, np.array([[one.paid for one in each] for each in plans]))
    for name, scores in order_scores(questions, prices).items():
        yield in_order(name, scores, lost, alone)
    shares = np.linspace(0.0, 1.0, MOST_CUTS + 1)[:, None]
    dials = [PolicyDial(f"{100 * share:.0f} % of the questions") for share in shares[:, 0]]
    yield TriedPolicy("random", dials, (1.0 - shares) * lost, shares * alone)


def _dial(title: str, policy: str, chosen: Mapping[str, float], worth: float | None = None) -> PolicyDial:
    return PolicyDial(
        title, (f'policy = "{policy}"', *(f"{name} = {each:.3g}" for name, each in chosen.items())), worth
    )


def _dials(kl: str, excess: str) -> dict[str, list[tuple[str, str, dict[str, float]]]]:
    """Return the policies that are played along the labels: by name their dials, as title, text and choices."""
    return {
        "cloud": [("", "cloud", {})],
        "local": [("", "local", {})],
        "doubt": [(f"entropy {each:g}", "doubt", {"entropy": each}) for each in ENTROPIES],
        "once": [(kl, f"once:{kl.partition(':')[2]}", {})],
        "kl": [(kl, kl, {})],
        "excess": [(excess, excess, {})],
    }


def order_scores(questions: Sequence[LabelledAnswers], prices: AskPrices) -> dict[str, Floats]:
    """Return by which score whole questions are sent, the highest first: no label is in any of them. Shapes (N,)."""
    drafts = [each.judged.signals for each in questions]
    price = np.array([float(prices.write(each.prompt_tokens, max(1, len(each)), 0)) for each in drafts])
    surprise = np.array([-float(each.logprob.sum()) / max(1, len(each)) for each in drafts])
    return {
        "mean log-probability": surprise,
        "mean log-probability / price": surprise / price,
        "highest entropy / price": np.array([float(each.entropy.max(initial=0.0)) for each in drafts]) / price,
        "shortest first": -price,
    }


def in_order(name: str, scores: Floats, lost: Floats, alone: Floats) -> TriedPolicy:
    """Send the first of the questions in an order whole, from none to all of them; all shapes (N,)."""
    num = len(scores)
    place = np.empty(num)
    place[np.argsort(-scores, kind="stable")] = np.arange(num)
    cuts = np.unique(np.linspace(0, num, MOST_CUTS + 1).round())
    sent = place < cuts[:, None]
    return TriedPolicy(name, [PolicyDial(f"{cut:.0f} of {num} questions") for cut in cuts], ~sent * lost, sent * alone)


def _share(columns: Floats) -> Estimate:
    """Return a recovered share; of no loss all is recovered, and a resample without one bounds nothing."""
    found = estimate(columns) or Estimate(1.0, 0.0, 1.0)
    return Estimate(found.value, min(found.value, max(0.0, found.low)), max(found.value, min(1.0, found.high)))


def _estimate(columns: Floats) -> Estimate:
    """Return a part of the cloud's bill; where that is nothing, nothing."""
    return estimate(columns) or Estimate(0.0, 0.0, 0.0)
