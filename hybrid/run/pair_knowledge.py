"""What is known of a pair of models under one judge: a calibration, or the prior, and what was learned since.

Laws (``tests/run/test_learning.py``): what a client learns it knows at its next answer, and the next client when the
first is closed; a disk that fails is a note and no failure; a sentence is told once.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hybrid.defer import Calibration, PriorScore, Score
from hybrid.defer.online import OnlineLearner
from hybrid.defer.outcome import DraftOutcome
from hybrid.defer.state import PairState
from hybrid.errors import UsageError
from hybrid.run.calibrations import calibration_for
from hybrid.run.outcomes import OutcomeListener
from hybrid.sources import scores_folder

# The judge of a pair of which nothing is known: kl's, at the threshold of the bundled pair.
JUDGE = "kl:0.7"
UNCALIBRATED = (
    "nothing is known of this pair of models: about half of the bill goes to the questions whose drafts the local "
    "model was least sure of, beside their price (hybrid calibrate buys labels)"
)
UNWRITTEN = "what was learned of this pair of models could not be written: the next client does not know it"


@dataclass
class PairKnowledge:
    """One pair under one judge. ``base``: the score as it was fitted once; ``state`` None: nothing is kept on disk."""

    base: Score
    learner: OnlineLearner
    calibration: Calibration | None = None
    state: PairState | None = None
    _untold: list[str] = field(default_factory=list)
    _writes: set[asyncio.Future[bool]] = field(default_factory=set)

    @property
    def mean_excess(self) -> float | None:
        """What keeping loses is counted in: the mean excess of the pair's drafts, in nats a token; None: a verdict.

        1 of a pair that was not calibrated: its worth is that of a nat.
        """
        if self.learner.loss == "verdict":
            return None
        questions = self.calibration.questions if self.calibration else ()
        return float(np.mean([each.excess for each in questions])) if questions else 1.0

    @property
    def kept_share(self) -> float | None:
        """The share of judged tokens that were kept, where short spans are weighed by it: a calibrated pair in nats."""
        if self.calibration is None or self.learner.loss == "verdict":
            return None
        learned = self.learner.kept_share
        return self.calibration.kept_share if learned is None else learned

    def tell(self) -> tuple[str, ...]:
        """Return the sentences that came up since the last time."""
        told, self._untold = tuple(self._untold), []
        return told

    async def learn(self, listener: OutcomeListener) -> None:
        """Learn from an answer that is over, and begin to write it down."""
        outcomes = await asyncio.to_thread(listener.outcomes, self.base)
        self._untold += await asyncio.to_thread(self.learner.add, outcomes)
        if self.state is not None:
            write = asyncio.get_running_loop().run_in_executor(None, partial(self.state.add, outcomes))
            self._writes.add(write)
            write.add_done_callback(self._written)

    async def written(self) -> None:
        """Wait until everything is on disk."""
        if self._writes:
            await asyncio.wait(self._writes)

    def _written(self, done: asyncio.Future[bool]) -> None:
        self._writes.discard(done)
        if not done.result():
            self._untold.append(UNWRITTEN)


def read_knowledge(local: str | None, cloud: str, judge: str | None, *, shipped_only: bool = False) -> PairKnowledge:
    """Read what is known of a pair under a judge (None: the calibration's own). ``local`` None: nothing is, or kept.

    ``shipped_only``: what comes with the package, and nothing is kept.
    """
    if local is None or not cloud:
        prior = PriorScore(judge or JUDGE)
        return PairKnowledge(prior, OnlineLearner(prior), _untold=[UNCALIBRATED] if cloud else [])
    calibration = calibration_for(local, cloud, judge, shipped_only=shipped_only)
    base: Score = calibration.score if calibration else PriorScore(judge or JUDGE)
    untold = [] if calibration else [UNCALIBRATED]
    if calibration is None and (other := calibration_for(local, cloud, shipped_only=shipped_only)):
        untold = [f"this pair was calibrated for {other.judge}, and nothing is known of it under {judge}"]
    if shipped_only:
        return PairKnowledge(base, OnlineLearner(base, (), calibration), calibration, None, untold)
    state = None
    kept: tuple[DraftOutcome, ...] = ()
    with contextlib.suppress(UsageError):  # no home to keep files in
        state = PairState(scores_folder(), local, cloud, base.judge)
        read = state.read()
        kept = read.outcomes
        untold += [read.note] if read.note else []
    return PairKnowledge(base, OnlineLearner(base, kept, calibration), calibration, state, untold)
