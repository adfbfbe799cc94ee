"""Answers by decisions: one question under many planners, each sequence of decisions really carried out once.

Theory of operation. In a world an answer follows from what the planner answered to each call: nothing else of it is
looked at. Most planners of a sweep say the same. So the calls of an answer are kept with their arguments, as a tree
whose branches are what was answered; another planner is asked the kept questions, and only where it says what nobody
said before does the client answer the question under it.

The law (``tests/bench/test_decisions.py``): under any planner the kept answer is the one that the client gives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from hybrid.defer import DraftSignals, Forecast, KeptScore, QuestionForecast, Score, ScoreOver, score_to_json
from hybrid.defer.signals import OF_TOKENS
from hybrid.policy.plan import DraftPlan
from hybrid.policy.planning import Planner

T = TypeVar("T")
Decision: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class PlannerCall:
    """One call of a planner's method, and what it answered."""

    method: str
    args: tuple[Any, ...]
    more: dict[str, Any]
    answered: Any

    def again(self, planner: Planner) -> Any:
        """Ask another planner the same."""
        return getattr(planner, self.method)(*self.args, **self.more)


@dataclass(frozen=True, kw_only=True)
class HeardPlanner(Planner):
    """A planner whose calls are kept, in their order."""

    heard: list[PlannerCall] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def over(cls, planner: Planner) -> HeardPlanner:
        """Take what another planner decides by."""
        return cls(**{each.name: getattr(planner, each.name) for each in fields(Planner)})

    def plan(self, signals: DraftSignals, **more: Any) -> DraftPlan:
        """Decide about a draft."""
        return self._keep("plan", (signals,), more, super().plan(signals, **more))

    def opening(self) -> DraftPlan:
        """Decide by the question alone."""
        return self._keep("opening", (), {}, super().opening())

    def _keep(self, method: str, args: tuple[Any, ...], more: dict[str, Any], answered: DraftPlan) -> DraftPlan:
        self.heard.append(PlannerCall(method, args, more, answered))
        return answered


@dataclass
class KeptForecasts(ScoreOver):
    """A score that forecasts each draft of a question once, however often its signals are read."""

    kind: ClassVar[str] = "kept"
    score: Score
    _drafts: dict[Decision, Forecast] = field(default_factory=dict)
    _questions: dict[tuple[tuple[int, ...], int], QuestionForecast] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the score's own plain data, its kind among it."""
        return score_to_json(cast(KeptScore, self.score))

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Forecast a draft."""
        numbers = [getattr(signals, name) for name in ("tokens", *OF_TOKENS)]
        if (said := signals.critic) is not None:
            numbers += (said.kl, said.logprob)
        own = (signals.words, signals.prompt_tokens, signals.shown, signals.ended)
        key = (*own, signals.last_divergence, signals.divergence_age, *(each.tobytes() for each in numbers))
        if key not in self._drafts:
            self._drafts[key] = self.score.forecast(signals)
        return self._drafts[key]

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:
        """Forecast from the question alone."""
        key = words, prompt_tokens
        if key not in self._questions:
            self._questions[key] = self.score.before(words, prompt_tokens)
        return self._questions[key]


@dataclass
class _Branch:
    """Where an answer stands: what the planner is asked next, or the answer that is over."""

    call: PlannerCall | None = None
    outcome: int | None = None
    after: dict[Decision, _Branch] = field(default_factory=dict)


@dataclass
class AnswersByDecisions(Generic[T]):
    """The answers of one question. ``write`` answers it by a planner: by the client, or by what stands for one."""

    write: Callable[[HeardPlanner], Awaitable[T]]
    outcomes: list[T] = field(default_factory=list)
    """What was really written, once for each sequence of decisions."""
    _roots: dict[Decision, _Branch] = field(default_factory=dict)

    async def answer(self, planner: Planner) -> tuple[int, tuple[DraftPlan, ...]]:
        """Return the number of the outcome, and what the planner decided on the way."""
        root = self._roots.setdefault(_style(planner), _Branch())
        branch, decided = root, []
        while branch.call is not None:
            decided.append(branch.call.again(planner))
            branch = branch.after.setdefault(_decision(decided[-1]), _Branch())
        if branch.outcome is not None:
            return branch.outcome, tuple(decided)
        heard = HeardPlanner.over(planner)
        self.outcomes.append(await self.write(heard))
        return self._keep(root, heard.heard), tuple(call.answered for call in heard.heard)

    def _keep(self, branch: _Branch, calls: list[PlannerCall]) -> int:
        for call in calls:
            branch.call = branch.call or call
            branch = branch.after.setdefault(_decision(call.answered), _Branch())
        branch.outcome = len(self.outcomes) - 1
        return branch.outcome


def _decision(plan: DraftPlan) -> Decision:
    """Return what of a plan decides how an answer goes on; not why it was made."""
    return plan.action, plan.at, plan.limit, plan.floor


def _style(planner: Planner) -> Decision:
    """Return what else of a planner an answer depends on: how a draft is cut, who judges it, and who reads it."""
    return planner.stream, planner.block, planner.score.judge, planner.labels, planner.score.critic
