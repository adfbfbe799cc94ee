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

from hybrid.defer import DEFAULT_JUDGE, Calibration, DraftSignals, Score, UninformedScore
from hybrid.defer.online import OnlineLearner
from hybrid.defer.outcome import DraftOutcome, DraftPlace
from hybrid.errors import UsageError
from hybrid.pairs.store import MeasuredBill, PairStore, calibration_for, outranked
from hybrid.policy.planning import Planner
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.record.events import Event, Finished, Planned, SpanJudged, TokenEmitted
from hybrid.types import Divergence

# What came of an answer's drafts, heard from its events: records from which the next answers are decided better.
#
# A check is a verdict. So is what the cloud writes in a draft's place, where both models' rows along it are known: on
# the bundled pair the verdict on the cloud's own text agrees with that on the draft for 97 to 99 % of the questions.
# One token of it can turn a draft down. Only a write from the draft's beginning that ended by itself, or is as long as
# the draft, says that it is not: what was cut short has not shown the rest. What was kept has no verdict, nor what the
# cloud did not answer. The law (``tests/run/test_learning.py``): a record says what was judged and nothing else; no
# text is kept.


@dataclass
class _DraftRecord:
    """A planned draft, and what was heard of it so far.

    ``num_written``: tokens that the cloud wrote; ``unseen``: of one of them a row is not known.
    """

    plan: Planned
    signals: DraftSignals
    after: DraftPlace
    turned_down: bool | None = None
    kept_tokens: int = 0
    judged_tokens: int = 0
    num_written: int = 0
    unseen: bool = False

    @property
    def next_place(self) -> DraftPlace:
        """What the draft after this one is."""
        return "handback" if self.turned_down or self.plan.action == "write" else "block"


class OutcomeListener:
    """Hears one answer. Made for it, used once."""

    def __init__(self, planner: Planner) -> None:
        """Take the planner that decides about its drafts."""
        self._planner = planner
        self._drafts: list[_DraftRecord] = []
        self._judge = _divergence_judge(planner.score)
        self._is_writing = False
        self.measured = MeasuredBill()

    @property
    def heard(self) -> bool:
        """Whether any draft was planned, or a bill told."""
        return bool(self._drafts or self.measured.answers)

    def observe(self, event: Event) -> None:
        """Hear what was planned, judged and written."""
        if isinstance(event, Finished):
            bill = event.answer.bill
            self.measured = MeasuredBill.of(bill.nanousd, bill.cloud_only_nanousd)
        match event:
            case Planned(signals=None):
                self._is_writing = False  # what follows a rejection, or was decided by the question alone
            case Planned(signals=DraftSignals() as signals, action=action):
                after: DraftPlace = self._drafts[-1].next_place if self._drafts else "start"
                self._drafts.append(_DraftRecord(event, signals, after))
                self._is_writing = action == "write"
            case SpanJudged() if self._drafts:
                self._judged(self._drafts[-1], event)
            case TokenEmitted(token=token) if self._is_writing and token.how == "written":
                self._written(self._drafts[-1], token.kl)
            case Finished(by_itself=True) if self._is_writing and self._drafts[-1].num_written:
                self._written_whole(self._drafts[-1])
            case _:
                pass

    def outcomes(self, score: Score, digest: str) -> tuple[DraftOutcome, ...]:
        """Return a record a draft; ``score``: as it was fitted once, before anything was learned online; its digest."""
        return tuple(self._outcome(draft, score, digest) for draft in self._drafts)

    def _judged(self, draft: _DraftRecord, judged: SpanJudged) -> None:
        draft.kept_tokens += judged.num_accepted
        draft.judged_tokens += judged.num_accepted + judged.rejected
        if judged.rejected or judged.num_accepted == len(draft.signals):
            draft.turned_down = judged.rejected

    def _written(self, draft: _DraftRecord, kl: Divergence | None) -> None:
        """Count a written token: one can turn the draft down, and only as many as it has can say that nothing does."""
        draft.num_written += 1
        draft.unseen |= kl is None
        if kl is not None and self._judge is not None and self._judge.exceeds(kl):
            draft.turned_down = True
        elif draft.num_written >= len(draft.signals):
            self._written_whole(draft)

    def _written_whole(self, draft: _DraftRecord) -> None:
        """Take it that nothing turns a draft down which was written anew from its beginning, every row of it seen."""
        if self._judge is not None and draft.plan.at == 0 and not draft.unseen:
            draft.turned_down = bool(draft.turned_down)

    def _outcome(self, draft: _DraftRecord, score: Score, digest: str) -> DraftOutcome:
        plan, planner = draft.plan, self._planner
        return DraftOutcome.of(
            draft.signals,
            told=score.forecast(draft.signals).turned_down,
            chance=plan.costs.turned_down if plan.costs else planner.score.forecast(draft.signals).turned_down,
            keeps=plan.action == "keep" or plan.floor,
            floor=planner.floor,
            turned_down=draft.turned_down,
            after=draft.after,
            whole_cost=plan.costs.alone if plan.costs else 0.0,
            cutoff=planner.keep_below,
            kept_tokens=draft.kept_tokens,
            judged_tokens=draft.judged_tokens,
            score=digest,
        )


def _divergence_judge(score: Score) -> DivergenceThreshold | None:
    """Return the judge of a score's verdicts where it judges by the divergence that every token comes with."""
    name, _, rest = score.judge.partition(":")
    number, _, strict = rest.partition(":")
    return DivergenceThreshold(float(number), "upper" if strict else "lower") if name == "kl" and number else None


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
    """One pair under one judge. ``base``: the score as it was fitted once; ``store`` None: nothing is kept on disk.

    ``judged``: the name under which it is learned. ``standing``: what is told with every answer. ``other``: a
    calibration of the pair for another judge. ``measured``: what answers of the pair took so far, of those that were
    learned from.
    """

    base: Score
    learner: OnlineLearner
    calibration: Calibration | None = None
    store: PairStore | None = None
    judged: str = ""
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
        if self.store is not None:
            add = partial(self.store.add, self.judged, outcomes, listener.measured)
            write = asyncio.get_running_loop().run_in_executor(None, add)
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
        prior = UninformedScore(judge or DEFAULT_JUDGE)
        return PairKnowledge(prior, OnlineLearner(prior), standing=(UNCALIBRATED,) if cloud else ())
    wanted = partial(calibration_for, local, cloud, critic=critic, shipped_only=shipped_only)
    calibration = wanted(judge)
    base: Score = calibration.score if calibration else UninformedScore(judge or DEFAULT_JUDGE)
    other = None if calibration else wanted()
    standing: tuple[str, ...] = () if calibration else (UNCALIBRATED,)
    if other is not None:
        standing = (f"this pair was calibrated for {other.judge}, and nothing is known of it under {judge}",)
    if calibration is not None and (shipped := outranked(calibration, judge)) is not None:
        standing = (FEWER.format(own=len(calibration.questions), shipped=len(shipped.questions)),)
    if critic is not None and base.critic is None:
        standing += (UNREAD,)
    # What one score told is nothing to learn another's correction from.
    judged = base.judge if base.critic is None else f"{base.judge} critic:{base.critic}"
    if not shipped_only:
        with contextlib.suppress(UsageError):  # no home to keep files in
            store = PairStore(local, cloud)
            standing += tuple(DAMAGED.format(path=path) for path in store.calibrations.read()[1])
            kept, note = store.learned(judged)
            learner = OnlineLearner(base, kept.outcomes, calibration)
            untold = [] if note is None else [note]
            return PairKnowledge(base, learner, calibration, store, judged, standing, other, kept.measured, untold)
    return PairKnowledge(base, OnlineLearner(base, (), calibration), calibration, standing=standing, other=other)


def _said_of_bill(measured: MeasuredBill) -> str:
    if measured.share is None:
        return "no share of the cloud's own bill was measured yet"
    answers = f"{measured.answers} answer{'' if measured.answers == 1 else 's'}"
    return f"so far that took {measured.share:.2f} of the cloud's own bill, over {answers}"
