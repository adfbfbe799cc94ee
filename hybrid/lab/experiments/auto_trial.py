"""One problem under the presets, and under ``auto`` with every score, dial and tariff: its record as plain data.

A rule is a score, the actions it may take, and the dials that are tried of it. ``auto`` decides by prices, so it
answers apart under each tariff; answers that follow from the same decisions are written once (``decisions.py``). A
sample of the others is written all the same and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybrid.defer import CriticNumbers, DraftSignals, LabelledDraft, LabelledQuestion, Score
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.decisions import AnswersByDecisions, HeardPlanner, KeptForecasts
from hybrid.lab.experiments.driver_check import is_sampled
from hybrid.lab.experiments.problem_suite import GradedQuestion, graded_record
from hybrid.lab.experiments.routed_section import signals_of_json, signals_to_json
from hybrid.lab.experiments.section import CLOUD, LOCAL, CheckAnswer, TrialQuestion, answer_arms, arms_to_json
from hybrid.lab.experiments.tariffs import PRICES, SETTINGS, PriceSetting, ask_prices
from hybrid.lab.experiments.world import World, WorldAnswer, shown_row
from hybrid.policy import PolicyOptions, preset
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner, StreamMode
from hybrid.policy.requests import PendingToken
from hybrid.prob import Dense
from hybrid.record.conversation import words_of
from hybrid.types import Ability, Ids, Sampling

# What the cloud's rows say of a whole draft: the labels that scores are fitted on, from a world, for nothing.
#
# A label is what a check of the whole draft would tell: the judge of ``once`` decides on the rows that an endpoint
# shows. The signals are those of the rows that the draft was taken from (``tests/bench/test_labels.py`` holds both
# against an answer's own).

TOP_K = 20
OF_CRITIC = ("kl", "logprob")


@dataclass(frozen=True)
class LabelSection:
    """Questions whose greedy drafts are labelled by the judge of ``once`` at a threshold in nats."""

    name: str
    pair: str
    questions: tuple[TrialQuestion, ...]
    threshold: float

    @property
    def num_arms(self) -> int:
        """Both models alone, and the cloud's rows along the draft."""
        return 2

    def content(self) -> list[Any]:
        """Return the judge."""
        return ["label", self.threshold]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Label one question; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        answers = await answer_arms(world, question, (LOCAL, CLOUD), sampling, check)
        labelled = label(world, question.text, answers[LOCAL.name], self.threshold)
        cloud = answers[CLOUD.name]
        world.forget()
        return {"text": question.text, "cloud_tokens": len(cloud.ids) + cloud.ended, "draft": label_to_json(labelled)}


def label(world: World, question: str, drafted: WorldAnswer, threshold: float) -> LabelledDraft:
    """Return a draft of the local model alone with what the cloud's rows say of it."""
    tokens = drafted.ids
    if drafted.ended:
        tokens += (world.local_row(drafted.prompt + tokens).best,)
    local, cloud = world.rows(drafted.prompt, tokens) if tokens else ([], [])
    critic = world.critic_numbers(drafted.prompt, tokens, local)
    signals = DraftSignals.of_rows(
        words_of(question), len(drafted.prompt), 0, tokens, local, ended=drafted.ended, critic=critic
    )
    excess = [
        row.top(1)[0][1] - row.logprobs_of(np.array([token]))[0] for row, token in zip(cloud, tokens, strict=True)
    ]
    return LabelledDraft(signals, first_rejection(tokens, local, cloud, threshold), np.array(excess, dtype=np.float64))


def first_rejection(tokens: Ids, local: list[Dense], cloud: list[Dense], threshold: float) -> int | None:
    """Return the offset of the first token that the judge of ``once`` rejects by both models' rows; None: none."""
    judge = preset("once", PolicyOptions(threshold=threshold)).judge
    if judge is None or not tokens:
        return None
    span = tuple(
        PendingToken(token, "local", "accepted", draft_row=row) for token, row in zip(tokens, local, strict=True)
    )
    shown = tuple(shown_row(row, TOP_K, token) for row, token in zip(cloud, tokens, strict=True))
    verdict = judge(DraftedSpan(span, shown, None, False, lambda *_: 0))
    return len(verdict.accepted) if verdict.rejected else None


def label_to_json(labelled: LabelledDraft) -> dict[str, Any]:
    """Return plain data for ``json.dumps``, exact to the last bit."""
    signals = labelled.signals
    own = {"words": list(signals.words), "prompt_tokens": signals.prompt_tokens}
    if signals.critic is not None:
        own["critic"] = {name: getattr(signals.critic, name).tolist() for name in OF_CRITIC}
    return {
        **own,
        **signals_to_json(signals),
        "first_rejection": labelled.first_rejection,
        "excess": labelled.excess.tolist(),
    }


def label_of_json(kept: Mapping[str, Any]) -> LabelledDraft:
    """Read what ``label_to_json`` gave."""
    said = kept.get("critic")
    critic = None if said is None else CriticNumbers(*(np.array(said[name], dtype=np.float64) for name in OF_CRITIC))
    signals = signals_of_json(kept, tuple(kept["words"]), kept["prompt_tokens"], critic)
    return LabelledDraft(signals, kept["first_rejection"], np.array(kept["excess"], dtype=np.float64))


def labelled_question(record: Mapping[str, Any]) -> LabelledQuestion:
    """Return the label of a question from its record."""
    return LabelledQuestion(label_of_json(record["draft"]), record["cloud_tokens"])


PLANNED_SETTINGS = tuple(setting for setting in SETTINGS if setting.name != "new")
EVERY_ABILITY: frozenset[Ability] = frozenset({"score", "write", "open", "ids"})
# One planned answer in five hundred is written though an answer of the same decisions is known.
AGAIN_SHARE = 0.002


@dataclass(frozen=True)
class CalibrationPrices:
    """What a constant worth is a multiple of: the mean price of the calibration's questions by the cloud alone.

    ``lengths``: prompt and cloud tokens of each.
    """

    lengths: tuple[tuple[int, int], ...]

    def mean(self, setting: PriceSetting) -> float:
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

    def worth(self, dial: float, setting: PriceSetting, usual: CalibrationPrices) -> Worth:
        """Return what not losing an answer is worth at a dial."""
        return Worth(amount=dial * usual.mean(setting)) if self.constant else Worth(dial)

    def planner(
        self, question: tuple[tuple[int, ...], int], score: Score, setting: PriceSetting, worth: Worth
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
class AutoSection:
    """Problems under presets and rules. ``scores``: by name; ``digests``: what each was fitted to, by name."""

    name: str
    pair: str
    questions: tuple[GradedQuestion, ...]
    arms: tuple[Arm, ...]
    rules: tuple[AutoRule, ...]
    scores: Mapping[str, Score]
    digests: Mapping[str, str]
    usual: CalibrationPrices
    threshold: float = 0.7
    settings: tuple[PriceSetting, ...] = PLANNED_SETTINGS

    @property
    def num_arms(self) -> int:
        """The presets, and about as many answers of ``auto``: most planners decide alike."""
        return len(self.arms) + (10 if self.rules else 0)

    def content(self) -> list[Any]:
        """Return presets, rules, scores and prices."""
        rules = [rule.to_json() for rule in self.rules]
        settings = [setting.name for setting in self.settings]
        scores = dict(sorted(self.digests.items()))
        return ["auto", arms_to_json(self.arms), rules, scores, settings, self.threshold, _digest(self.usual.lengths)]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Let every preset and rule answer a problem; the world forgets it afterwards."""
        trial = _Trial(world, self.questions[number], Sampling(seed=seed), check)
        record = {"text": trial.question.text, "kind": trial.question.kind, "seed": seed}
        answers = {arm.name: await trial.written(arm) for arm in self.arms}
        drafted = answers[LOCAL.name]
        labelled = label(world, trial.question.text, drafted, self.threshold)
        record |= {
            "prompt_tokens": len(drafted.prompt),
            "turned_down": labelled.first_rejection is not None,
            "told": {name: score.forecast(labelled.signals).turned_down for name, score in self.scores.items()},
            "arms": {name: graded_record(each, trial.question) for name, each in answers.items()},
        }
        kept = {name: KeptForecasts(score) for name, score in self.scores.items()}
        record["planned"] = {
            rule.name: await self._plan(trial, rule, kept[rule.score], len(drafted.prompt)) for rule in self.rules
        }
        record["outcomes"] = [graded_record(each, trial.question) for each in trial.answers.outcomes]
        record["again"] = trial.again
        world.forget()
        return record

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
        self.answers = AnswersByDecisions[WorldAnswer](self._by_planner)

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

    async def _by_planner(self, planner: HeardPlanner) -> WorldAnswer:
        return await self.written(Arm(self._arm, "auto", planner=planner))


def _first(decided: Sequence[DraftPlan]) -> str:
    """Return the first action; a write that leaves part of the draft standing is one of its own."""
    plan = decided[0]
    return "write on" if plan.action == "write" and plan.at else plan.action


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
