"""What a planner is told beside a score: random checks, a day's pace, a bound of the risk, a share of the bill."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.calibration import Calibration, CalibrationQuestion
from hybrid.defer.outcome import DraftOutcome, OutcomeRows, rows_of
from hybrid.prob import Floats

# Conformal risk control: up to which chance drafts may be kept, so that few of all questions go wrong by it.
#
# The promise: while questions are exchangeable, the share of ALL questions that were kept and would have been turned
# down is at most the asked level, on average over what the cut-off was taken from (Angelopoulos et al. 2022,
# arXiv:2208.02814, theorem 1, for the loss 1{kept and turned down}, which rises with the cut-off). It holds of the
# chances of one function, on questions that this function was not fitted to. The sum of the chances that are kept is
# bounded as well: by the level times the number of questions. Nothing is promised of the kept ones alone, of right
# answers, or where the questions change. What was kept has a verdict only if the floor's coin asked for one, so
# verdicts count by inverse propensity, each against the mean propensity of all that was decided (the balance heuristic,
# Veach and Guibas 1995). The laws: the promise, over splits and over streams (``tests/defer/test_risk.py``), and over
# draws of labels with a score that is fitted to each draw (``tests/tune/test_risk.py``).

# Nothing is kept: no chance is that low.
KEEP_NOTHING = -1.0


@dataclass(frozen=True)
class RiskQuestion:
    """A decided question: the chance by which it was, the cut-off and the floor that were in force, and the verdict.

    ``turned_down``: whether it was or would have been; None: nobody looked.
    """

    chance: float
    turned_down: bool | None
    cutoff: float = KEEP_NOTHING
    floor: float = 1.0


def risk_cutoff(questions: Sequence[RiskQuestion], level: float) -> float:
    """Return the highest chance that may be kept; -1: none. Raises ValueError for a level that is no share.

    >>> asked = [RiskQuestion(i / 1000, turned_down=i >= 90) for i in range(100)]
    >>> risk_cutoff(asked, 0.05), risk_cutoff(asked, 0.01), risk_cutoff(asked[:10], 0.05)
    (0.093, 0.044, -1.0)
    """
    if not 0.0 < level < 1.0:
        msg = f"a risk of {level} is no share of questions"
        raise ValueError(msg)
    num = len(questions)
    if not num:
        return KEEP_NOTHING
    chances = np.array([each.chance for each in questions], dtype=np.float64)
    cutoffs = np.array([each.cutoff for each in questions], dtype=np.float64)
    floors = np.array([each.floor for each in questions], dtype=np.float64)
    bad = np.sort(chances[[each.turned_down is True for each in questions]])
    by_cutoff = np.argsort(cutoffs)
    # Of the questions from each place on, whose verdicts a coin asked for.
    floored = np.append(np.cumsum(floors[by_cutoff][::-1])[::-1], 0.0)
    # The next question may weigh as much as any can.
    least = -math.inf if (cutoffs < 0.0).all() else 0.0
    places = np.searchsorted(cutoffs[by_cutoff], np.concatenate([[least], bad]))
    # How many questions each verdict stands for, added up.
    lost = np.cumsum(num / (places + floored[places]))
    if lost[0] / (num + 1) > level:
        return KEEP_NOTHING
    in_order = np.sort(chances)
    beyond = np.append(in_order[np.cumsum(in_order) > level * num][:1], bad[lost[1:] / (num + 1) > level][:1])
    return float(chances[chances < beyond.min()].max(initial=KEEP_NOTHING)) if len(beyond) else 1.0


def unseen_questions(calibration: Calibration | None) -> Iterator[RiskQuestion]:
    """Take those of a calibration's questions that its score was not fitted to: each of them was asked about."""
    for chance, turned_down in () if calibration is None else calibration.unseen:
        yield RiskQuestion(chance, turned_down)


def question_after(before: RiskQuestion | None, draft: DraftOutcome, chance: float) -> RiskQuestion | None:
    """Return a question with one more draft of it, or the next question; None: the draft says nothing of any.

    A question's chance is the highest of those by which its text was decided.
    Where no risk was asked for, other chances than a draft's own may have been decided otherwise: they count as kept.
    A draft of which no coin could have asked (an endpoint that cannot score) says nothing of those that were kept.
    """
    if not draft.floor or draft.after == "handback" or (draft.after == "block" and before is None):
        return None
    cutoff = 1.0 if draft.cutoff is None else draft.cutoff
    own = max(cutoff, chance) if draft.keeps else min(cutoff, math.nextafter(chance, KEEP_NOTHING))
    if draft.after == "start" or before is None:
        return RiskQuestion(chance, draft.turned_down, own, draft.floor)
    turned_down = before.turned_down or draft.turned_down
    return RiskQuestion(
        max(before.chance, chance), turned_down, max(before.cutoff, own), min(before.floor, draft.floor)
    )


# The floor: random checks of what would be kept, so that being wrong there is seen.
#
# What is kept has no verdict. A share of it is checked by a coin of its own, and each such check stands for 1 / share
# others. One cumulative sum (CUSUM, Page 1954) of the floor's verdicts against the chances that were told raises the
# share where drafts are turned down far more often than told. Laws (``tests/defer/test_floor.py``): the sum is the
# naive one, and on chances that are true a false alarm is rare.

FLOOR, RAISED_FLOOR, RAISED_QUESTIONS = 0.05, 0.25, 100
# The alternative: the odds of being turned down are eight times those that were told. On true chances the expected
# product of the likelihood ratios is 1, so that an alarm within N verdicts has a chance of N / 50 at most.
ODDS_RATIO, ALARM = 8.0, math.log(50.0)
# A verdict against a chance below this says no more than one against it: told chances that small are not that exact.
LEAST_CHANCE = 0.02


def floor_coin(*key: object) -> float:
    """Return a number in [0, 1) that is uniform over keys and always the same for one (its ``repr`` counts)."""
    return (int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "big") >> 11) / 2**53


def floor_after(outcomes: Iterable[DraftOutcome] | OutcomeRows) -> float:
    """Return the share of what would be kept that is to be checked next."""
    return RAISED_FLOOR if raised_for(outcomes) else FLOOR


def raised_for(outcomes: Iterable[DraftOutcome] | OutcomeRows) -> int:
    """Return for how many more questions the floor is raised; 0: it is not."""
    rows, total, alarm = rows_of(outcomes), 0.0, -1
    checked = np.flatnonzero(rows["keeps"] & rows["known"])
    evidence = _evidence(rows["chance"][checked], rows["turned_down"][checked])
    for place, told in zip(checked.tolist(), evidence.tolist(), strict=True):
        total = max(0.0, total + told)
        if total >= ALARM:
            total, alarm = 0.0, place
    return 0 if alarm < 0 else max(0, RAISED_QUESTIONS - int(rows["starts"][alarm + 1 :].sum()))


def _evidence(chances: Floats, turned_down: NDArray[np.bool_]) -> Floats:
    """Return the logarithm of each verdict's likelihood ratio, shape (N,): odds eight times as high against these."""
    told = np.clip(chances, LEAST_CHANCE, 1.0 - LEAST_CHANCE)
    return np.asarray(turned_down * math.log(ODDS_RATIO) - np.log(1.0 - told + told * ODDS_RATIO))


# Pacing under a day's cap: money has a price of its own, which rises while spending runs ahead of the day.
#
# The worth of an answer is divided by that price. It is a pure function of what is left of the cap and of the day, so
# that nothing has to be remembered. It does not hold the cap: the ledger does. The laws
# (``tests/defer/test_pacing.py``): it falls as more is spent and rises as the day goes on; a spending in step with the
# day changes nothing.

# Tried on days with a burst (``bench auto --pacing`` of commit d42d7f6).
EXPONENT = 2.0
LEAST, MOST = 1e-3, 1e3


def worth_factor(spent: float, passed: float) -> float:
    """Return what to multiply the worth by: (share of the cap left / share of the day left) squared.

    ``spent``: the share of the cap that is spent; ``passed``: the share of the day that has passed. Between 0.001 and
    1,000. Raises ValueError for a negative share or a day that is over.

    >>> worth_factor(0.5, 0.5), worth_factor(0.75, 0.5), worth_factor(0.5, 0.75)
    (1.0, 0.25, 4.0)
    """
    if not spent >= 0.0 or not 0.0 <= passed < 1.0:
        msg = f"a share of {spent} of a cap, at {passed} of a day"
        raise ValueError(msg)
    left = max(0.0, 1.0 - spent) / (1.0 - passed)
    return float(min(max(left**EXPONENT, LEAST), MOST))


# Which worth spends a share of the bill, or recovers a share of the loss, where whole questions are kept or written.
#
# Under the loss "nats" a draft is kept while ``V x told / mean excess <= its cloud-only price``, so questions go to the
# cloud in the order of what keeping is expected to lose, per price; V is ``worth`` times the mean cloud-only price of
# the calibration's questions. Both dials are read off those questions: no other worth comes nearer to what was asked
# there (``tests/defer/test_routing_dial.py``). It knows numbers alone: no tariff, no model, no text.

# Beyond the first and the last question nothing says where a dial should stand: a factor of two leaves them out of it.
BEYOND = 4.0


@dataclass(frozen=True, eq=False)
class QuestionCosts:
    """Calibration questions and what the cloud alone takes for each, in any one unit. Shapes (N,), N at least 1.

    ``told`` and ``excess``: the mean excess loss of a draft's tokens in nats, as forecast and as it was. ``expected``:
    the cloud-only price as it is expected when the draft is known; ``paid``: as it was. Raises ValueError for arrays of
    several lengths, of length 0, of which none is told to lose anything or loses anything, or without prices.
    """

    told: Floats
    excess: Floats
    expected: Floats
    paid: Floats

    def __post_init__(self) -> None:
        """Raise ValueError where nothing can be told."""
        sizes = {len(each) for each in (self.told, self.excess, self.expected, self.paid)}
        if len(sizes) > 1 or not self.told.size:
            raise ValueError("a dial needs the same questions, at least one, in each of its columns")
        if not (
            self.told.max() > 0.0
            and self.excess.sum() > 0.0
            and (self.expected > 0.0).all()
            and (self.paid > 0.0).all()
        ):
            raise ValueError("a dial needs drafts that lose something, and prices above 0")

    @classmethod
    def of(cls, questions: Sequence[CalibrationQuestion], expected: Floats, paid: Floats) -> QuestionCosts:
        """Take a calibration's questions with their prices."""
        told = np.array([each.excess_told for each in questions], dtype=np.float64)
        return cls(told, np.array([each.excess for each in questions], dtype=np.float64), expected, paid)

    @property
    def mean_excess(self) -> float:
        """The mean excess of the questions' drafts, in nats a token: what V is the worth of."""
        return float(self.excess.mean())

    def worth_at_bill(self, share: float) -> float:
        """Return the worth at which a share of the questions' bill is spent, as nearly as whole questions allow."""
        # The highest loss per price is sent first.
        ratios = self.told / self.expected
        order = np.argsort(-ratios, kind="stable")
        falling = ratios[order]
        reached = np.concatenate([[0.0], np.cumsum(self.paid[order])]) / self.paid.sum()
        # No cut-off stands between two questions of one ratio, and none sends what is expected to lose nothing.
        after = np.concatenate([falling[1:], [0.0]])
        parts = np.concatenate([[True], (falling > after) & (falling > 0.0)])
        num_sent = int(np.flatnonzero(parts)[np.argmin(np.abs(reached[parts] - share))])
        above = falling[num_sent - 1] if num_sent else BEYOND * falling[0]
        below = after[num_sent - 1] if num_sent else falling[0]
        cutoff = np.sqrt(above * below) if below > 0.0 else above / 2.0
        return float(self.mean_excess / (cutoff * self.paid.mean()))
