"""What is known of a pair of models under one judge: a calibration, or the prior, and what was learned since.

Laws (``tests/run/test_learning.py``): what a client learns it knows at its next answer, and the next client when the
first is closed; answers that end together are learned from one after another; a disk that fails is a note and no
failure; a sentence is told once.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hybrid.defer import DEFAULT_JUDGE, Calibration, PriorScore, Score
from hybrid.defer.online import OnlineLearner
from hybrid.defer.state import KeptOutcomes, MeasuredBill, PairState
from hybrid.errors import UsageError
from hybrid.run.calibrations import calibration_for, damaged_calibrations, outranked
from hybrid.run.outcomes import OutcomeListener
from hybrid.sources import scores_folder

UNCALIBRATED = "nothing is known of this pair of models: {asks} (hybrid calibrate buys labels); {measured}"
ASKS_FOR_CHECKS = "drafts are checked at first, and which can be kept is learned from the verdicts"
ASKS_BY_SURPRISE = (
    "about half of the cloud's own bill is spent where the local model was least sure of its draft, beside the price"
)
FEWER = (
    "your own calibration of this pair, of {own} questions, is taken in the place of the package's, of {shipped} "
    "(hybrid calibrate buys more)"
)
DAMAGED = (
    "your own calibration of this pair is not used, it is damaged or of another version (hybrid calibrate fits it anew "
    "to the labels that were kept): {path}"
)
UNREAD = (
    "the critic changes nothing here: nothing is known of this pair of models with it (hybrid calibrate --critic fits "
    "a score to what it says)"
)
UNWRITTEN = "what was learned of this pair of models could not be written: the next client does not know it"


@dataclass
class PairKnowledge:
    """One pair under one judge. ``base``: the score as it was fitted once; ``state`` None: nothing is kept on disk.

    ``standing``: what is told with every answer. ``other``: a calibration of the pair for another judge.
    ``measured``: what answers of the pair took so far, of those that were learned from.
    """

    base: Score
    learner: OnlineLearner
    calibration: Calibration | None = None
    state: PairState | None = None
    standing: tuple[str, ...] = ()
    other: Calibration | None = None
    measured: MeasuredBill = MeasuredBill()  # noqa: RUF009  (frozen)
    _untold: list[str] = field(default_factory=list)
    _writes: set[asyncio.Future[bool]] = field(default_factory=set)
    _failed: bool = False
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def by_nats(self, *, checks: bool) -> bool:
        """Whether what keeping loses is counted in nats. ``checks``: drafts are checked, and learned from.

        A pair whose drafts are right or wrong under one judge is not told by nats under another: the prior has most of
        its drafts checked.
        """
        if self.calibration is None and not self.learner.is_measured:
            known = self.learner.loss == "nats" or not checks
            return known if self.other is None else self.other.loss == "nats"
        return self.learner.loss == "nats" and (self.other is None or self.other.loss == "nats")

    @property
    def is_measured(self) -> bool:
        """Whether its drafts' loss was measured: by a calibration, or by enough verdicts of its own."""
        return self.calibration is not None or (self.learner.is_measured and self.learner.loss == "verdict")

    def mean_excess(self, *, checks: bool) -> float | None:
        """Return what keeping loses is counted in: the mean excess of the pair's drafts, in nats; None: a verdict.

        1 of a pair that was not calibrated: its worth is that of a nat.
        """
        if not self.by_nats(checks=checks):
            return None
        questions = self.calibration.questions if self.calibration else ()
        return float(np.mean([each.excess for each in questions])) if questions else 1.0

    @property
    def kept_share(self) -> float | None:
        """The share of judged tokens that were kept, where short spans are weighed by it: a calibrated pair in nats."""
        if self.calibration is None or self.calibration.loss != "nats":
            return None
        learned = self.learner.kept_share
        return self.calibration.kept_share if learned is None else learned

    def tell(self, asks_always: str | None = None, *, checks: bool = True) -> tuple[str, ...]:
        """Return what is told with every answer, and the sentences that came up since the last time.

        ``asks_always``: the sentence on a pair that is not calibrated, where its every question is asked.
        """
        told, self._untold = tuple(self._untold), []
        asks = ASKS_BY_SURPRISE if self.by_nats(checks=checks) else ASKS_FOR_CHECKS
        unknown = asks_always or UNCALIBRATED.format(asks=asks, measured=_said_of_bill(self.measured))
        return (*(unknown if each == UNCALIBRATED else each for each in self.standing), *told)

    async def learn(self, listener: OutcomeListener) -> None:
        """Learn from an answer that is over, and begin to write it down."""
        async with self._one_at_a_time:
            outcomes = await asyncio.to_thread(lambda: listener.outcomes(self.base, self.learner.digest))
            said = await asyncio.to_thread(self.learner.add, outcomes)
            self.measured += listener.measured
        self._untold += said
        if self.state is not None:
            write = asyncio.get_running_loop().run_in_executor(
                None, partial(self.state.add, outcomes, listener.measured)
            )
            self._writes.add(write)
            write.add_done_callback(self._written)

    async def written(self) -> None:
        """Wait until everything is on disk."""
        if self._writes:
            await asyncio.wait(self._writes)

    def _written(self, done: asyncio.Future[bool]) -> None:
        self._writes.discard(done)
        if not done.result() and not self._failed:
            self._failed = True
            self._untold.append(UNWRITTEN)


def read_knowledge(
    local: str | None,
    cloud: str,
    judge: str | None,
    *,
    critic: str | None = None,
    shipped_only: bool = False,
) -> PairKnowledge:
    """Read what is known of a pair under a judge (None: the calibration's own). ``local`` None: nothing is, or kept.

    ``critic``: the identity of a model that reads drafts; what it says counts where a score was fitted with it.
    ``shipped_only``: what comes with the package, and nothing is kept.
    """
    if local is None or not cloud:
        prior = PriorScore(judge or DEFAULT_JUDGE)
        return PairKnowledge(prior, OnlineLearner(prior), standing=(UNCALIBRATED,) if cloud else ())
    wanted = partial(calibration_for, local, cloud, critic=critic, shipped_only=shipped_only)
    calibration = wanted(judge)
    base: Score = calibration.score if calibration else PriorScore(judge or DEFAULT_JUDGE)
    other = None if calibration else wanted()
    standing: tuple[str, ...] = () if calibration else (UNCALIBRATED,)
    if other is not None:
        standing = (f"this pair was calibrated for {other.judge}, and nothing is known of it under {judge}",)
    if calibration is not None and (shipped := outranked(calibration, judge)) is not None:
        standing = (FEWER.format(own=len(calibration.questions), shipped=len(shipped.questions)),)
    damaged = () if shipped_only else damaged_calibrations(local, cloud)
    standing += tuple(DAMAGED.format(path=path) for path in damaged)
    if critic is not None and base.critic is None:
        standing += (UNREAD,)
    state, kept = None, KeptOutcomes()
    # What one score told is nothing to learn another's correction from.
    judged = base.judge if base.critic is None else f"{base.judge} critic:{base.critic}"
    with contextlib.suppress(UsageError):  # no home to keep files in
        state = None if shipped_only else PairState(scores_folder(), local, cloud, judged)
        kept = state.read() if state else kept
    learner, untold = OnlineLearner(base, kept.outcomes, calibration), [kept.note] if kept.note else []
    return PairKnowledge(base, learner, calibration, state, standing, other, kept.measured, untold)


def _said_of_bill(measured: MeasuredBill) -> str:
    if measured.share is None:
        return "no share of the cloud's own bill was measured yet"
    answers = f"{measured.answers} answer{'' if measured.answers == 1 else 's'}"
    return f"so far that took {measured.share:.2f} of the cloud's own bill, over {answers}"
