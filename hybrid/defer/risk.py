"""Conformal risk control: up to which chance drafts may be kept, so that few of all questions go wrong by it.

The promise: while questions are exchangeable, the share of ALL questions that were kept and would have been turned down
is at most the asked level, on average over what the cut-off was taken from (Angelopoulos et al. 2022, arXiv:2208.02814,
theorem 1, for the loss 1{kept and turned down}, which rises with the cut-off). It holds of the chances of one function,
on questions that this function was not fitted to. The sum of the chances that are kept is bounded as well: by the level
times the number of questions. Nothing is promised of the kept ones alone, of right answers, or where the questions
change. What was kept has a verdict only if the floor's coin asked for one, so verdicts count by inverse propensity,
each against the mean propensity of all that was decided (the balance heuristic, Veach and Guibas 1995). The laws: the
promise, over splits and over streams (``tests/defer/test_risk.py``), and over draws of labels with a score that is
fitted to each draw (``tests/tune/test_risk.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.defer.calibration import Calibration
from hybrid.defer.outcome import DraftOutcome

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

    def weight(chance: float) -> float:
        """How many questions a verdict at a chance stands for."""
        return num / float(np.where(chance <= cutoffs, floors, 1.0).sum())

    # The next question may weigh as much as any can.
    lost = weight(-math.inf if (cutoffs < 0.0).all() else 0.0)
    if lost / (num + 1) > level:
        return KEEP_NOTHING
    in_order = np.sort(chances)
    beyond = in_order[np.cumsum(in_order) > level * num][:1]
    for chance in bad:
        lost += weight(float(chance))
        if lost / (num + 1) > level:
            beyond = np.append(beyond, chance)
            break
    return float(chances[chances < beyond.min()].max(initial=KEEP_NOTHING)) if len(beyond) else 1.0


def unseen_questions(calibration: Calibration | None) -> Iterator[RiskQuestion]:
    """Take those of a calibration's questions that its score was not fitted to: each of them was asked about."""
    for chance, turned_down in () if calibration is None else calibration.unseen:
        yield RiskQuestion(chance, turned_down)


def decided_questions(outcomes: Iterable[DraftOutcome]) -> Iterator[RiskQuestion]:
    """Put the drafts of each question together: its chance is the highest of those by which its text was decided.

    Where no risk was asked for, other chances than a draft's own may have been decided otherwise: they count as kept.
    A draft of which no coin could have asked (an endpoint that cannot score) says nothing of those that were kept.
    """
    now: RiskQuestion | None = None
    for each in outcomes:
        if not each.floor:
            continue
        cutoff = 1.0 if each.cutoff is None else each.cutoff
        own = max(cutoff, each.chance) if each.keeps else min(cutoff, np.nextafter(each.chance, KEEP_NOTHING))
        here = RiskQuestion(each.chance, each.turned_down, float(own), each.floor)
        if each.after == "start":
            if now is not None:
                yield now
            now = here
        elif each.after == "block" and now is not None:
            turned_down = now.turned_down or here.turned_down
            now = RiskQuestion(
                max(now.chance, here.chance), turned_down, max(now.cutoff, here.cutoff), min(now.floor, here.floor)
            )
    if now is not None:
        yield now
