"""One problem under the presets, and under ``auto`` with every score, dial and tariff: its record as plain data.

A rule is a score, the actions it may take, and the dials that are tried of it. ``auto`` decides by prices, so it
answers apart under each tariff; answers that follow from the same decisions are written once. A
sample of the others is written all the same and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import numpy as np

from hybrid.defer import DraftSignals, Forecast, KeptScore, QuestionForecast, Score, ScoreWrapper, score_to_json
from hybrid.defer.signals import OF_TOKENS
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS, CacheAssumption, ask_prices
from hybrid.lab.experiments.grid import (
    CLOUD,
    LOCAL,
    CheckAnswer,
    GradedQuestion,
    Grid,
    Record,
    arms_to_json,
    is_sampled,
)
from hybrid.lab.experiments.questions import THRESHOLD
from hybrid.lab.experiments.trials import graded_record, label
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner, StreamMode
from hybrid.record.conversation import words_of
from hybrid.tasks import MAX_TOKENS
from hybrid.types import Ability, Sampling

# Answers by decisions: one question under many planners, each sequence of decisions really carried out once.
#
# In a world an answer follows from what the planner answered to each call: nothing else of it is looked at. Most
# planners of a sweep say the same. So the calls of an answer are kept with their arguments, as a tree whose branches
# are what was answered; another planner is asked the kept questions, and only where it says what nobody said before
# does the client answer the question under it. The law (``tests/bench/test_decisions.py``): under any planner the kept
# answer is the one that the client gives.

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
class RecordingPlanner(Planner):
    """A planner whose calls are kept, in their order."""

    heard: list[PlannerCall] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def over(cls, planner: Planner) -> RecordingPlanner:
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
class CachedScore(ScoreWrapper):
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
class DecisionMemo(Generic[T]):
    """The answers of one question. ``write`` answers it by a planner: by the client, or by what stands for one."""

    write: Callable[[RecordingPlanner], Awaitable[T]]
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
        heard = RecordingPlanner.over(planner)
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


PAIR = "bundled"
SPAN = 128
PRESETS = (
    CLOUD,
    LOCAL,
    Arm("kl, hold 12", "kl", {"threshold": THRESHOLD, "span": SPAN, "hold": 12}),
    Arm("kl, hold 96", "kl", {"threshold": THRESHOLD, "span": SPAN, "hold": 96}),
    Arm("kl, the rest", "kl", {"threshold": THRESHOLD, "span": SPAN, "hold": MAX_TOKENS}),
    Arm("once", "once", {"threshold": THRESHOLD}),
    *(Arm(f"doubt {entropy:g}", "doubt", {"entropy": entropy}) for entropy in (0.03, 0.1, 0.3, 0.5, 1.0)),
)
PLANNED_SETTINGS = tuple(setting for setting in SETTINGS if setting.name != "new")
EVERY_ABILITY: frozenset[Ability] = frozenset({"score", "write", "open", "ids"})
# One planned answer in five hundred is written though an answer of the same decisions is known.
AGAIN_SHARE = 0.002


@dataclass(frozen=True)
class MeanCloudPrice:
    """What a constant worth is a multiple of: the mean price of the calibration's questions by the cloud alone.

    ``lengths``: prompt and cloud tokens of each.
    """

    lengths: tuple[tuple[int, int], ...]

    def mean(self, setting: CacheAssumption) -> float:
        """Return the mean in a setting, in prompt tokens."""
        prompt, written = np.array(self.lengths, dtype=np.float64).T
        return float(np.mean(ask_prices(setting, PRICES[0]).write(prompt, written, 0)))


@dataclass(frozen=True)
class AutoRule:
    """A score with the dials that are tried. ``score``: its name among those of the section.

    ``constant``: the dial is one worth for all questions, in multiples of their mean price, not of each one's own.
    ``whole``: an answer is kept or written whole, as under ``route``.
    """

    name: str
    score: str
    dials: tuple[float, ...]
    constant: bool = False
    abilities: frozenset[Ability] = EVERY_ABILITY
    stream: StreamMode = "whole"
    block: int | None = None
    whole: bool = False

    def worth(self, dial: float, setting: CacheAssumption, usual: MeanCloudPrice) -> Worth:
        """Return what not losing an answer is worth at a dial."""
        return Worth(amount=dial * usual.mean(setting)) if self.constant else Worth(dial)

    def planner(
        self, question: tuple[tuple[int, ...], int], score: Score, setting: CacheAssumption, worth: Worth
    ) -> Planner:
        """Bind the rule to a question: its words and the tokens of its prompt."""
        planner = Planner(
            score=score,
            prices=ask_prices(setting, PRICES[0]),
            worth=worth,
            words=question[0],
            prompt_tokens=question[1],
            abilities=self.abilities,
            stream=self.stream,
            block=self.block,
            labels=False,
        )
        return planner.of_whole_answers() if self.whole else planner

    def to_json(self) -> list[Any]:
        """Return all that decides."""
        decides = [self.name, self.score, self.dials, self.constant, sorted(self.abilities), self.stream, self.block]
        return [*decides, *(["whole"] if self.whole else [])]


@dataclass(frozen=True)
class AutoTrial:
    """Problems under presets and rules. ``scores``: by name; ``digests``: what each was fitted to, by name."""

    arms: tuple[Arm, ...]
    rules: tuple[AutoRule, ...]
    scores: Mapping[str, Score]
    digests: Mapping[str, str]
    usual: MeanCloudPrice
    threshold: float = THRESHOLD
    settings: tuple[CacheAssumption, ...] = PLANNED_SETTINGS

    def grid(self, name: str, questions: Sequence[GradedQuestion]) -> Grid:
        """Return what is run; most planners decide alike, so there are about ten more answers than presets."""
        rules = [rule.to_json() for rule in self.rules]
        settings = [setting.name for setting in self.settings]
        what = ("auto", arms_to_json(self.arms), rules, dict(sorted(self.digests.items())), settings, self.threshold)
        num = len(self.arms) + (10 if self.rules else 0)
        return Grid(name, PAIR, tuple(questions), self, (*what, _digest(self.usual.lengths)), num, self.arms)

    async def __call__(self, world: World, question: GradedQuestion, sampling: Sampling, check: CheckAnswer) -> Record:
        """Let every preset and rule answer a problem."""
        trial = _Trial(world, question, sampling, check)
        answers = {arm.name: await trial.written(arm) for arm in self.arms}
        drafted = answers[LOCAL.name]
        labelled = label(world, question.text, drafted, self.threshold)
        record: Record = {
            "text": question.text,
            "kind": question.kind,
            "seed": sampling.seed,
            "prompt_tokens": len(drafted.prompt),
            "turned_down": labelled.first_rejection is not None,
            "told": {name: score.forecast(labelled.signals).turned_down for name, score in self.scores.items()},
            "arms": {name: graded_record(each, question) for name, each in answers.items()},
        }
        kept = {name: CachedScore(score) for name, score in self.scores.items()}
        record["planned"] = {
            rule.name: await self._plan(trial, rule, kept[rule.score], len(drafted.prompt)) for rule in self.rules
        }
        record["outcomes"] = [graded_record(each, question) for each in trial.answers.outcomes]
        return record | {"again": trial.again}

    async def _plan(
        self, trial: _Trial, rule: AutoRule, score: Score, prompt_tokens: int
    ) -> dict[str, list[list[Any]]]:
        """Return for each setting and dial the number of the outcome and the first action."""
        question = (words_of(trial.question.text), prompt_tokens)
        planned: dict[str, list[list[Any]]] = {}
        for setting in self.settings:
            planners = [
                rule.planner(question, score, setting, rule.worth(dial, setting, self.usual)) for dial in rule.dials
            ]
            planned[setting.name] = [
                await trial.planned(f"{rule.name} {setting.name} {dial:g}", planner)
                for dial, planner in zip(rule.dials, planners, strict=True)
            ]
        return planned


@dataclass
class _Trial:
    """One problem in a world. ``again``: whether answers that were written a second time were the same."""

    world: World
    question: GradedQuestion
    sampling: Sampling
    check: CheckAnswer
    again: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with no answer."""
        self._arm = ""
        self.answers = DecisionMemo[WorldAnswer](self._by_planner)

    async def written(self, arm: Arm) -> WorldAnswer:
        """Answer as an arm does; a sample is checked against the client over a server."""
        answered = await self.world.answer(self.question.text, arm, self.sampling, self.question.max_tokens)
        await self.check(arm, self.sampling, answered)
        return answered

    async def planned(self, name: str, planner: Planner) -> list[Any]:
        """Return the number of the outcome under a planner, and its first action."""
        self._arm = name
        outcome, decided = await self.answers.answer(planner)
        if is_sampled(self.question.text, Arm(name, "auto"), AGAIN_SHARE):
            arm = Arm(name, "auto", planner=planner)
            again = await self.world.answer(self.question.text, arm, self.sampling, self.question.max_tokens)
            known = self.answers.outcomes[outcome]
            self.again.append((again.ids, again.requests) == (known.ids, known.requests))
        return [outcome, _first(decided)]

    async def _by_planner(self, planner: RecordingPlanner) -> WorldAnswer:
        return await self.written(Arm(self._arm, "auto", planner=planner))


def _first(decided: Sequence[DraftPlan]) -> str:
    """Return the first action; a write that leaves part of the draft standing is one of its own."""
    plan = decided[0]
    return "write on" if plan.action == "write" and plan.at else plan.action


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
