"""What came of an answer's drafts, heard from its events: records from which the next answers are decided better.

A check is a verdict. So is what the cloud writes in a draft's place, where both models' rows along it are known: on
the bundled pair the verdict on the cloud's own text agrees with that on the draft for 97 to 99 % of the questions. One
token of it can turn a draft down. Only a write from the draft's beginning that ended by itself, or is as long as the
draft, says that it is not: what was cut short has not shown the rest. What was kept has no verdict, nor what the cloud
did not answer. The law (``tests/run/test_learning.py``): a record says what was judged and nothing else; no text is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.defer import DraftSignals, Score
from hybrid.defer.outcome import DraftOutcome, DraftPlace
from hybrid.defer.state import MeasuredBill
from hybrid.policy.planning import Planner
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.run.events import Event, Finished, Planned, SpanJudged, TokenEmitted
from hybrid.types import Divergence


@dataclass
class _HeardDraft:
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
        self._drafts: list[_HeardDraft] = []
        self._judge = _divergence_judge(planner.score)
        self._is_writing = False
        self.measured = MeasuredBill()

    @property
    def heard(self) -> bool:
        """Whether any draft was planned, or a bill told."""
        return bool(self._drafts or self.measured.answers)

    def hear(self, event: Event) -> None:
        """Hear what was planned, judged and written."""
        if isinstance(event, Finished):
            bill = event.answer.bill
            self.measured = MeasuredBill.of(bill.nanousd, bill.cloud_only_nanousd)
        match event:
            case Planned(signals=None):
                self._is_writing = False  # what follows a rejection, or was decided by the question alone
            case Planned(signals=DraftSignals() as signals, action=action):
                after: DraftPlace = self._drafts[-1].next_place if self._drafts else "start"
                self._drafts.append(_HeardDraft(event, signals, after))
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

    def _judged(self, draft: _HeardDraft, judged: SpanJudged) -> None:
        draft.kept_tokens += judged.num_accepted
        draft.judged_tokens += judged.num_accepted + judged.rejected
        if judged.rejected or judged.num_accepted == len(draft.signals):
            draft.turned_down = judged.rejected

    def _written(self, draft: _HeardDraft, kl: Divergence | None) -> None:
        """Count a written token: one can turn the draft down, and only as many as it has can say that nothing does."""
        draft.num_written += 1
        draft.unseen |= kl is None
        if kl is not None and self._judge is not None and self._judge.exceeds(kl):
            draft.turned_down = True
        elif draft.num_written >= len(draft.signals):
            self._written_whole(draft)

    def _written_whole(self, draft: _HeardDraft) -> None:
        """Take it that nothing turns a draft down which was written anew from its beginning, every row of it seen."""
        if self._judge is not None and draft.plan.at == 0 and not draft.unseen:
            draft.turned_down = bool(draft.turned_down)

    def _outcome(self, draft: _HeardDraft, score: Score, digest: str) -> DraftOutcome:
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
