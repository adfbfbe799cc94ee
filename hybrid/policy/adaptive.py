"""``kl:adaptive``: a bandit over the settings of ``kl``, an arm chosen once an answer, before anything is drafted.

An answer is one of ``kl`` with its arm's settings, so its caps and laws hold (``tests/run/test_adaptive.py``). It
teaches, without a grader, minus its bill, in multiples of the cloud's own, minus ``WORTH`` of these times what is lost:
1 - exp(-KL), KL being the sum over the local tokens shown, a chance that the text is none of the cloud's (Bretagnolle
and Huber 1979). A local token whose row nobody saw counts as the mean of all positions whose rows were seen, rejected
ones among them: each weighs 1 / share. Where none was seen, or money ran out, the reward is the least, whatever was
saved. So whoever looks at less sees no less of the loss, and who never looks is the worst.

Safe by the floor of ``auto``: until an arm's lower bound is above the preset's upper one, others are tried in at most
``RAISED_FLOOR`` of the answers, then in ``FLOOR``. Bounds hold at all times at once, for normal sums without drift
(Waudby-Smith et al. 2021, arXiv:2103.06476, theorem 2.2). Laws: ``tests/policy/test_adaptive.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybrid.defer.dials import FLOOR, RAISED_FLOOR
from hybrid.policy.choices import HANDOFF_TOKENS
from hybrid.policy.plan import WORTH
from hybrid.policy.rules.divergence_threshold import KL_SPAN, THRESHOLD

ADAPTIVE = "kl:adaptive"
# A dearer answer counts as this dear; the range of a reward, in bills of the cloud's own.
MOST_BILL = 3.0
IN_BILLS = MOST_BILL + WORTH
# All bounds together are wrong in so many histories; they are tightest at some 50 answers, and none is told of fewer
# rewards than these.
ALPHA, RHO2, FEWEST = 0.05, 0.1, 4


class KlArm(NamedTuple):
    """Settings of ``kl``: nats, tokens of a span, and tokens of the first block that the cloud writes."""

    threshold: float
    span: int
    hold: int

    def __str__(self) -> str:
        """Name it as its counts are kept."""
        return f"threshold {self.threshold:g}, span {self.span}, handoff {self.hold}"


PRESET_ARM = KlArm(THRESHOLD.value(None, "kl"), KL_SPAN, HANDOFF_TOKENS)
# Three thresholds with short requests and with long ones, which cost less where prefixes are charged anew; and short
# spans, for a pair whose drafts are mostly turned down.
_OTHERS = ((0.1, 32, 4), (1.5, 32, 4), (0.1, 128, 96), (0.5, 128, 96), (1.5, 128, 96), (0.5, 8, 4))
ARMS = (PRESET_ARM, *(KlArm(*settings) for settings in _OTHERS))


class ArmCounts(NamedTuple):
    """What came of an arm: answers that it was chosen for, those that taught something, their rewards and squares."""

    tried: int = 0
    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, other: ArmCounts) -> ArmCounts:
        """Add up what was counted in two places."""
        sums = self.total + other.total, self.squares + other.squares
        return ArmCounts(self.tried + other.tried, self.num + other.num, *sums)

    def mean(self, errors: float = 0.0) -> float:
        """Return the mean reward and so many of its standard errors; infinite where too little is known."""
        if self.num < FEWEST:
            return math.copysign(math.inf, errors)
        mean = self.total / self.num
        return mean + errors * math.sqrt(max(0.0, self.squares - self.total * mean) / (self.num - 1) / self.num)

    def bound(self, sign: int) -> float:
        """Return the lower (-1) or upper (1) bound; what was not seen yet may be as far off as anything can."""
        num, time = max(1, self.num), self.num * RHO2 + 1.0
        errors = math.sqrt(2.0 * time / (num * RHO2) * math.log(math.sqrt(time) * len(ARMS) / ALPHA))
        return self.mean(sign * errors) + sign / num


class ArmChoice(NamedTuple):
    """An arm for one answer, why it is this one, and whether something is learned of it."""

    arm: KlArm
    why: str
    learns: bool


def reward(bill: float, lost: float | None) -> float:
    """Return what an answer was worth, in [-1, 0].

    ``bill``: in multiples of the cloud's own; ``lost``: in [0, 1]; None: nobody saw.
    """
    return -1.0 if lost is None else -(min(bill, MOST_BILL) + WORTH * lost) / IN_BILLS


def lost_share(local: Sequence[float | None], others: Sequence[float | None] = ()) -> float | None:
    """Return what is lost, in [0, 1], by the nats of each local token and of the other positions; None: not seen.

    >>> [lost and round(lost, 3) for lost in map(lost_share, ((), (0.0, 0.1), (0.1, None), (40.0,), (None,)))]
    [0.0, 0.095, 0.181, 1.0, None]
    """
    known = [each for each in (*local, *others) if each is not None]
    if None in local and not known:
        return None
    return 1.0 - math.exp(-sum(sum(known) / len(known) if each is None else each for each in local))


def choose_arm(counts: Mapping[str, ArmCounts], coin: float, *, learns: bool = True) -> ArmChoice:
    """Choose by what is known of each arm, by its name. ``coin``: in [0, 1); ``learns`` False: none is tried."""
    known = {arm: counts.get(str(arm), ArmCounts()) for arm in ARMS}
    proven = [arm for arm in ARMS if known[arm].bound(-1) > known[PRESET_ARM].bound(1)]
    best = max(proven, key=lambda arm: known[arm].bound(-1), default=PRESET_ARM)
    tried = sum(each.tried for each in known.values())
    others, share = tried - known[PRESET_ARM].tried, FLOOR if proven else RAISED_FLOOR
    # At a half of the answers at which one more may be tried: questions that come in turns must not choose the arm.
    if learns and (coin < share if proven else coin < 0.5 and others + 1 <= share * (tried + 1)):
        arm = max((arm for arm in ARMS if arm != best), key=lambda arm: (known[arm].mean(1.0), -known[arm].tried))
        return ArmChoice(arm, f"it is tried, as {share:.0%} of answers may be", learns)
    found = f"of {tried} answers, its {known[best].num} were better than the preset's own"
    return ArmChoice(best, found if proven else "none is known to be better than the preset's own", learns)
