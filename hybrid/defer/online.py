"""What is learned of a pair while it is used: everything is a function of the newest drafts' outcomes.

Nothing else is remembered, so that what two processes saw adds up, and what is read from disk leads to the same numbers
as what was just seen. The laws (``tests/defer/test_online.py``): a
pair of which nothing is known begins with high chances; what was read at once and what came one by one lead to the same
shares; a sentence is told once for what it tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from hybrid.defer.calibration import Calibration, LossKind, score_digest
from hybrid.defer.dials import (
    FLOOR,
    RAISED_FLOOR,
    RAISED_QUESTIONS,
    QuestionCosts,
    RiskQuestion,
    floor_after,
    question_after,
    raised_for,
    risk_cutoff,
    unseen_questions,
)
from hybrid.defer.outcome import DraftOutcome, OutcomeRows, rows_of
from hybrid.defer.score import CorrectedScore, Correction, Score

MOST_OUTCOMES = 5000
# A correction is fitted anew at ten labels more, and at an eighth more once there are many.
FEWEST_NEW, NEW_SHARE = 10, 8
# A question that is seen here counts so much where a score was fitted to others: it moves the correction, not the
# score, and unknown words stay strange until the correction has learned them. With 1 a family that was left out of the
# bundled pair's calibration was kept at a quarter of its RPI; with 0.2 at no less than 0.79.
OWN_WEIGHT = 0.2
# Cut-offs of a risk are taken anew at so many labels more.
RISK_LABELS = 50
# So many judged tokens tell the share that is kept.
ENOUGH_TOKENS = 50
# The loss of a pair that was not calibrated: a verdict, until so many of them show that more drafts than the second
# share are turned down (on open text nearly all are, over wording), or so many drafts brought none: then nats; below
# the first a verdict again.
LOSS_LABELS, VERDICT_BELOW, NATS_ABOVE = 20, 0.7, 0.8
# Half the bill: of the last questions, beside eight that stand for a pair nobody has seen. Their surprise in nats: the
# sixteenths (1, 3, .. 15) of 159 drafts of a real pair, a model of 135 M parameters and its requantisation to 3 bits.
LAST_QUESTIONS, PRIOR_SURPRISES = 200, (0.4, 0.51, 0.63, 0.75, 0.82, 0.94, 1.1, 1.29)
HALF = 0.5


class OnlineLearner:
    """What was learned of one pair and judge. Holds the newest 5,000 outcomes; mutable, for one thread at a time."""

    def __init__(self, score: Score, seen: Sequence[DraftOutcome] = (), calibration: Calibration | None = None) -> None:
        """Take the score as it was fitted, or the prior of an unknown pair, and the outcomes that were kept on disk."""
        self._score, self._calibration = score, calibration
        self._outcomes: list[DraftOutcome] = []
        self._rows, self._gone = rows_of(()), 0  # those outcomes as columns; so many older ones are forgotten
        # Of each draft by which a risk is told: its place, that of its question's first one, the question with it.
        self._decided, self._read = list[tuple[int, int, RiskQuestion]](), 0
        self._correction = Correction.none(score.familiarity)
        self._fitted, self._new, self._raised = 0, 0, 0
        self._own_weight = OWN_WEIGHT if score.familiarity.counts.any() else 1.0
        self._cutoffs: dict[tuple[float, int, int], float] = {}
        self.add(seen)

    @cached_property
    def digest(self) -> str:
        """The name of the score as it was fitted: outcomes that it told bear it."""
        return score_digest(self._score)

    @cached_property
    def _held_out(self) -> tuple[RiskQuestion, ...]:
        return tuple(unseen_questions(self._calibration))

    @property
    def outcomes(self) -> tuple[DraftOutcome, ...]:
        """What everything here was learned from, the newest last."""
        return tuple(self._outcomes)

    @property
    def score(self) -> CorrectedScore:
        """The score with all that was learned: a frozen value."""
        return CorrectedScore(self._score, self._correction)

    @property
    def risk_score(self) -> CorrectedScore:
        """The score by which a level of risk is kept: of a calibrated pair as it was fitted, but for strange words.

        What is learned would be fitted to the same verdicts that the cut-off is taken from; strange words only raise
        a chance. A pair that was not calibrated has no other chances than those that it learned.
        """
        if self._calibration is None:
            return self.score
        return CorrectedScore(self._score, Correction.none(self._correction.familiarity))

    @property
    def floor(self) -> float:
        """The share of what would be kept that is checked at random."""
        return floor_after(self._rows)

    @property
    def kept_share(self) -> float | None:
        """The share of the judged tokens that were kept; None: too few were judged."""
        judged = int(self._rows["judged_tokens"].sum())
        return int(self._rows["kept_tokens"].sum()) / judged if judged >= ENOUGH_TOKENS else None

    @property
    def turned_down_share(self) -> float | None:
        """The share of all first drafts that are turned down, by inverse propensity; None: no verdict is known."""
        known = self._rows[self._rows["starts"] & self._rows["known"]]
        weights = 1.0 / known["propensity"]
        return float(weights[known["turned_down"]].sum() / weights.sum()) if len(known) else None

    @property
    def loss(self) -> LossKind:
        """What keeping loses: as the pair's calibration says, else as its own verdicts do."""
        return self._calibration.loss if self._calibration else _loss(self._rows)

    @property
    def is_measured(self) -> bool:
        """Whether enough is known of the pair to say what keeping loses: a calibration, or verdicts of its own."""
        known = np.count_nonzero(self._rows["starts"] & self._rows["known"])
        return self._calibration is not None or bool(known >= LOSS_LABELS)

    def worth_at_half_bill(self, whole_cost: float) -> float:
        """Return the worth of one nat of a draft's mean excess at which half of the bill is spent.

        ``whole_cost``: what the cloud alone would take for the question at hand, above 0. A draft whose surprise times
        this worth exceeds its own cost goes to the cloud.
        """
        last = self._rows[self._rows["starts"] & (self._rows["whole_cost"] > 0.0)][-LAST_QUESTIONS:]
        costs = last["whole_cost"]
        usual = float(np.mean([*costs, whole_cost]))
        told = np.array([*PRIOR_SURPRISES, *last["surprise"]])
        alone = np.array([*[usual] * len(PRIOR_SURPRISES), *costs])
        routed = QuestionCosts(told, told, alone, alone)
        return routed.worth_at_bill(HALF) * float(alone.mean()) / routed.mean_excess

    def risk_cutoff(self, level: float) -> float:
        """Return up to which chance drafts may be kept (-1: none). It moves at every 50th label."""
        labels = np.cumsum(self._rows["known"])
        num = int(labels[-1]) // RISK_LABELS * RISK_LABELS if len(labels) else 0
        upto = self._gone + (int(np.searchsorted(labels, num)) + 1 if num else 0)
        key = (level, self._gone, upto)
        if key not in self._cutoffs:
            self._cutoffs = {key: risk_cutoff(self._risk_questions(upto), level)}
        return self._cutoffs[key]

    @property
    def num_unseen(self) -> int:
        """Of how many questions it is known what came of them, though the score was not fitted to them."""
        return len(self._risk_questions(self._gone + len(self._outcomes)))

    def _risk_questions(self, upto: int) -> list[RiskQuestion]:
        """Return what a cut-off is taken from: chances as ``risk_score`` tells them, before anything was learned.

        What another score told is of another function: it was in force before the pair was calibrated, or since.
        ``upto``: so many of all drafts count. Each draft is read once.
        """
        end = self._gone + len(self._outcomes)
        for place in range(max(self._read, self._gone), end):
            draft = self._outcomes[place - self._gone]
            _, first, before = self._decided[-1] if self._decided else (0, 0, None)
            chance = draft.chance if self._calibration is None else draft.told
            after = question_after(before, draft, chance) if draft.score == self.digest else None
            if after is not None:
                self._decided.append((place, place if draft.after == "start" else first, after))
        self._decided, self._read = [each for each in self._decided if each[1] >= self._gone], end
        questions = {first: question for place, first, question in self._decided if place < upto}
        return [*self._held_out, *questions.values()]

    def add(self, outcomes: Iterable[DraftOutcome]) -> tuple[str, ...]:
        """Learn what came of drafts, in their order; return the sentences that a user should be told now."""
        new = tuple(outcomes)
        if not new:
            return ()
        loss, raised = self.loss, self._raised
        self._gone += max(0, len(self._outcomes) + len(new) - MOST_OUTCOMES)
        self._outcomes = [*self._outcomes, *new][-MOST_OUTCOMES:]
        self._rows = np.concatenate([self._rows, rows_of(new)])[-MOST_OUTCOMES:]
        self._raised = raised_for(self._rows)
        self._correct([each for each in new if _teaches(each)])
        return (*self._said_of_floor(raised), *self._said_of_loss(loss))

    def _correct(self, new: Sequence[DraftOutcome]) -> None:
        """Count the words of labelled drafts, and fit the correction anew where enough of them are new."""
        questions = [each.words for each in new if each.after == "start"]
        familiarity = self._correction.familiarity.and_seen(questions, self._own_weight)
        self._new += len(new)
        if self._new >= max(FEWEST_NEW, self._fitted // NEW_SHARE):
            labelled = [each for each in self._outcomes if _teaches(each)]
            num = len(self._calibration.questions) if self._calibration else 0
            start = self._correction.weights
            self._correction = Correction.fit(labelled, self._score.familiarity, num, start)
            self._fitted, self._new = len(labelled), 0
        self._correction = replace(self._correction, familiarity=familiarity)

    def _said_of_floor(self, before: int) -> tuple[str, ...]:
        if self._raised <= before:
            return ()
        checked = (
            f"{RAISED_FLOOR:.0%} of them instead of {FLOOR:.0%} are checked for the next {RAISED_QUESTIONS} questions"
        )
        return (f"drafts that would be kept are turned down more often than expected: {checked}",)

    def _said_of_loss(self, before: LossKind) -> tuple[str, ...]:
        if (now := self.loss) == before or (share := self.turned_down_share) is None:
            return ()
        what = "an answer that would be turned down" if now == "verdict" else "the expected loss in nats"
        return (f"of this pair's drafts {share:.0%} are turned down: what keeping one loses is now {what}",)


def _teaches(outcome: DraftOutcome) -> bool:
    """Whether the correction is fitted to it. Drafts after a handback fail far more often."""
    return outcome.turned_down is not None and outcome.after != "handback"


def _loss(rows: OutcomeRows) -> LossKind:
    """Return what keeping loses on a pair that was not calibrated, by its own verdicts so far."""
    labelled = rows["starts"] & rows["known"]
    weights = 1.0 / rows["propensity"][labelled]
    weight, turned_down = np.cumsum(weights), np.cumsum(weights * rows["turned_down"][labelled])
    by_nats = turned_down > NATS_ABOVE * weight
    told = np.flatnonzero(by_nats | (turned_down < VERDICT_BELOW * weight))
    if len(told) and told[-1] >= LOSS_LABELS - 1:
        return "nats" if by_nats[told[-1]] else "verdict"
    unlabelled = rows["starts"][: int(np.argmax(labelled)) if labelled.any() else None]
    return "nats" if unlabelled.sum() >= LOSS_LABELS else "verdict"
