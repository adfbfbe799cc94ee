"""The arms of ``hybrid bench peers``: for each dial of each, which questions are sent, what is paid, who is right.

An arm is made from the calibration half alone: scores are fitted to the labels, and the dials of an order are the
cut-offs that send a share of the bill of the questions after them. It can then be tried on any questions. What an
action leads to is recorded: both models' own answers, every preset's, a check of the whole draft with the cloud's rest.
A part of a draft that is kept before the cloud writes is worked out from labels: a check shows the verdict, and what is
turned down is right where the cloud's own answer is. On the bundled pair such outcomes were within 0.01 of answers that
were really written, in RPI and bill.

The laws (``tests/bench/test_peers.py``): an order sends no question before a higher one, and a lower cut-off sends no
fewer; the price of a question that is sent is the cloud's own; no arm reads who is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hybrid.defer import (
    Calibration,
    DraftOutcome,
    DraftSignals,
    LabelledQuestion,
    OnlineLearner,
    UninformedScore,
    floor_coin,
)
from hybrid.defer.features import draft_numbers, question_numbers
from hybrid.defer.logistic import sigmoid
from hybrid.defer.signals import mean_surprise
from hybrid.lab.experiments.frame import SETTINGS, Frame, TokenPrices, ask_prices, bills, column
from hybrid.lab.experiments.grid import Record
from hybrid.lab.experiments.memo import CachedScore
from hybrid.lab.experiments.trials import labelled_question
from hybrid.policy.explanation import plan_bill
from hybrid.policy.plan import UNKNOWN_WORTH, WORTH, DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.prob import Floats
from hybrid.spend import AskPrices

# A check reads no prefix cache, as vLLM comes. Under the second tariff cached tokens cost 0.05 from 1,024 on and what
# is written to the cache 1.25; no prompt of these questions is so long, so every token that is read costs 1.
SETTING = SETTINGS[0]
TARIFFS: Mapping[str, TokenPrices] = {
    "1/0.1/4": TokenPrices(0.1, 4.0),
    "1/0.05/1.25/5, from 1,024": TokenPrices(1.0, 5.0),
}
# The dials of an order: shares of the bill; those of a planner: what an answer is worth, the default among them.
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9)
WORTHS = tuple(sorted({0.45, 0.8, 1.0, 1.3, 1.7, 3.0, 5.0, 10.0, WORTH}))
UNKNOWN_WORTHS = tuple(sorted({1.2, 1.35, 1.7, 2.2, 3.5, UNKNOWN_WORTH}))
# An uncalibrated pair is met in streams of so many questions, each begun with nothing.
STREAM = 600
# The check of a whole draft that is recorded, by the labels' own judge.
WHOLE_CHECK = "once:0.7"


class DialResults(NamedTuple):
    """What an arm did on N questions: each array has the shape (N,), or (D, N) for its D dials."""

    right: Floats
    paid: Floats
    requests: Floats
    sent: Floats


def stacked(rows: Iterable[Sequence[Any]]) -> DialResults:
    """Stack dials."""
    return DialResults(*(np.array(each) for each in zip(*rows, strict=True)))


@dataclass(frozen=True, eq=False)
class PricedQuestions:
    """Recorded questions under one tariff. N of them."""

    records: Sequence[Record]
    prices: TokenPrices

    @cached_property
    def labelled(self) -> list[LabelledQuestion]:
        """The draft of each, with the verdict on it."""
        return [labelled_question(each) for each in self.records]

    @cached_property
    def signals(self) -> list[DraftSignals]:
        """What is known of each draft."""
        return [each.draft.signals for each in self.labelled]

    @cached_property
    def ask(self) -> AskPrices:
        """What a client decides by."""
        return ask_prices(SETTING, self.prices)

    @cached_property
    def frame(self) -> Frame:
        """Who is right alone, and what the cloud alone takes for each, in prompt tokens."""
        pairs = zip(self.signals, self.labelled, strict=True)
        alone = np.array([float(self.ask.write(own.prompt_tokens, each.cloud_tokens, 0)) for own, each in pairs])
        return Frame(column(self.records, "local_right"), column(self.records, "cloud_right"), alone)

    @cached_property
    def expected(self) -> Floats:
        """What the cloud alone takes as a draft's length lets expect, shape (N,)."""
        return np.array([float(self.ask.write(own.prompt_tokens, max(1, len(own)), 0)) for own in self.signals])

    @cached_property
    def checks(self) -> DialResults:
        """What a check of each whole draft came to, with the cloud's rest."""
        return self.arm(WHOLE_CHECK)

    def arm(self, name: str) -> DialResults:
        """Return what a preset did."""
        answers = [each["arms"][name] for each in self.records]
        num = np.array([len(each["requests"]) for each in answers], dtype=np.float64)
        return DialResults(column(answers, "right"), bills(answers, SETTING, self.prices), num, np.sign(num))


@dataclass(frozen=True, eq=False)
class PeerArm:
    """An arm with its dials. ``simple``: a baseline of a few lines, not a rule of the client."""

    name: str
    dials: tuple[float, ...]
    tried: Callable[[PricedQuestions], DialResults]
    simple: bool = False


QuestionOrder = Callable[[PricedQuestions], Floats]


def sent_whole(questions: PricedQuestions, sent: Floats) -> DialResults:
    """Return what comes of sending whole questions, those where ``sent`` is 1."""
    of = questions.frame
    return DialResults(np.where(sent > 0.0, of.cloud, of.local), sent * of.alone, sent, sent)


def order_arm(name: str, score: QuestionOrder, dialled: PricedQuestions, *, simple: bool = True) -> PeerArm:
    """Return an order of whole questions, the highest first. Its cut-offs send shares of the bill of ``dialled``."""
    found, alone = score(dialled), dialled.frame.alone
    order = np.argsort(-found, kind="stable")
    spent = np.cumsum(alone[order]) / alone.sum()
    cutoffs = tuple(float(found[order][min(int(np.searchsorted(spent, share)), len(order) - 1)]) for share in SHARES)

    def tried(questions: PricedQuestions) -> DialResults:
        scores = score(questions)
        return stacked(sent_whole(questions, (scores >= cutoff).astype(np.float64)) for cutoff in cutoffs)

    return PeerArm(name, cutoffs, tried, simple=simple)


def preset_arm(name: str, recorded: Sequence[str]) -> PeerArm:
    """Return a preset at the dials that were run."""
    dials = tuple(float(each.partition(":")[2]) for each in recorded)
    return PeerArm(name, dials, lambda questions: stacked(questions.arm(each) for each in recorded))


def calibrated_planner(calibration: Calibration | None, prices: AskPrices) -> Planner:
    """Return what a client decides by that learned nothing since, at the default dial; None: nothing is known."""
    if calibration is None:
        return Planner(prices=prices, worth=Worth(UNKNOWN_WORTH), labels=False)
    score = CachedScore(OnlineLearner(calibration.score, calibration=calibration).score)
    nats = calibration.loss == "nats"
    mean_excess = max(1e-9, float(np.mean([e.excess for e in calibration.questions]))) if nats else None
    worth = worth_at(calibration, prices, calibration.worth)
    return Planner(score=score, prices=prices, worth=worth, mean_excess=mean_excess, labels=False)


def worth_at(calibration: Calibration, prices: AskPrices, dial: float, *, constant: bool = False) -> Worth:
    """Return what an answer is worth at a dial: a multiple of its own price, or of the usual one."""
    if not constant and calibration.loss != "nats":
        return Worth(dial)
    usual = float(np.mean([prices.write(e.prompt_tokens, e.cloud_tokens, 0) for e in calibration.questions]))
    return Worth(amount=dial * usual)


def planner_arm(name: str, calibration: Calibration, *, whole: bool = False, constant: bool = False) -> PeerArm:
    """Return ``auto``, or with ``whole`` ``route``, by a calibration as a client has it that learned nothing since.

    ``constant``: its dials are one worth for all questions, in multiples of their mean price.
    """
    free = calibrated_planner(calibration, AskPrices.of(None))

    def tried(questions: PricedQuestions) -> DialResults:
        base = replace(free, prices=questions.ask)
        base = base.of_whole_answers() if whole else base

        def plan(own: DraftSignals, worth: Worth) -> DraftPlan:
            return replace(base, worth=worth, words=own.words, prompt_tokens=own.prompt_tokens).plan(own, final=True)

        worths = [worth_at(calibration, questions.ask, dial, constant=constant) for dial in WORTHS]
        return stacked(came_of(questions, [plan(own, worth) for own in questions.signals]) for worth in worths)

    return PeerArm(name, WORTHS, tried)


def came_of(questions: PricedQuestions, plans: Sequence[DraftPlan]) -> DialResults:
    """Return what comes of plans; a check of the whole draft is recorded."""
    checks, of, rows = questions.checks, questions.frame, []
    for number, (labelled, plan) in enumerate(zip(questions.labelled, plans, strict=True)):
        if plan.action == "check" and plan.at >= len(labelled.draft.signals):
            rows.append([each[number] for each in checks])
            continue
        mended, paid = outcome(labelled, plan, questions.ask)
        sent = float(plan.action != "keep")
        rows.append([of.cloud[number] if mended else of.local[number], paid, sent, sent])
    return stacked(rows)


def outcome(question: LabelledQuestion, plan: DraftPlan, prices: AskPrices) -> tuple[bool, float]:
    """Return whether a plan replaces what is turned down by the cloud's own, and its bill in prompt tokens."""
    first = question.draft.first_rejection
    written = plan.action == "write" and (first is None or first >= plan.at)
    paid = plan_bill(plan, prices, question.draft.signals.prompt_tokens, question.cloud_tokens, first)
    return written or (plan.action == "check" and first is not None), paid


def unknown_pair_arm(name: str, judge: str) -> PeerArm:
    """Return ``auto`` of a pair that nobody measured, learning as it goes, in streams that begin with nothing."""

    def plans(questions: PricedQuestions, worth: float) -> Iterable[DraftPlan]:
        turned_down = [bool(each["written_turned_down"]) for each in questions.records]
        known = list(zip(questions.labelled, turned_down, strict=True))
        for start in range(0, len(known), STREAM):
            yield from decide_stream(known[start:][:STREAM], worth, questions.ask, judge)[0]

    def tried(questions: PricedQuestions) -> DialResults:
        decided = ([_whole(plan, own) for plan, own in zip(plans(questions, worth), questions.signals, strict=True)]
                   for worth in UNKNOWN_WORTHS)  # fmt: skip
        return stacked(came_of(questions, each) for each in decided)

    return PeerArm(name, UNKNOWN_WORTHS, tried)


def _whole(plan: DraftPlan, signals: DraftSignals) -> DraftPlan:
    return replace(plan, at=len(signals)) if plan.action == "check" else plan


def decide_stream(
    questions: Iterable[tuple[LabelledQuestion, bool]], worth: float, prices: AskPrices, judge: str
) -> tuple[list[DraftPlan], OnlineLearner]:
    """Decide questions of a pair that nobody measured, in their order, and learn from what is heard of each.

    ``questions``: each with the verdict along the cloud's own text. ``worth``: of an answer, in its own price. A label
    costs nothing but the request that it came with.
    """
    base = CachedScore(UninformedScore(judge))
    learner, plans = OnlineLearner(base, ()), list[DraftPlan]()
    for question, written_turned_down in questions:
        signals = question.draft.signals
        planner = _planner(learner, signals, Worth(worth), prices)
        plan, floor = planner.plan(signals, final=True), learner.floor
        keeps, costs = plan.action == "keep", plan.costs
        if keeps and floor_coin(0, len(plans)) < floor:
            plan = replace(plan, action="check", at=len(signals))
        turned_down = question.draft.first_rejection is not None
        verdicts = {"keep": None, "check": turned_down, "write": written_turned_down}
        learned = DraftOutcome.of(
            signals,
            told=base.forecast(signals).turned_down,
            chance=costs.turned_down if costs else 0.0,
            keeps=keeps,
            floor=floor,
            turned_down=verdicts[plan.action],
            whole_cost=costs.alone if costs else 0.0,
            cutoff=planner.keep_below,
            score=learner.digest,
        )
        learner.add([learned])
        plans.append(plan)
    return plans, learner


def _planner(learner: OnlineLearner, signals: DraftSignals, worth: Worth, prices: AskPrices) -> Planner:
    words, prompt, mean_excess = signals.words, signals.prompt_tokens, None
    if learner.loss == "nats":  # half the bill
        alone = float(prices.write(prompt, learner.score.before(words, prompt).tokens, 0))
        worth, mean_excess = Worth(amount=learner.worth_at_half_bill(alone)), 1.0
    return Planner(
        score=learner.score,
        prices=prices,
        worth=worth,
        words=words,
        prompt_tokens=prompt,
        mean_excess=mean_excess,
        labels=False,
    )


def surprise(questions: PricedQuestions) -> Floats:
    """Return the mean surprise of each draft, in nats."""
    return np.array([mean_surprise(own) for own in questions.signals])


def highest_entropy(questions: PricedQuestions) -> Floats:
    """Return the highest entropy of each draft, in nats."""
    return np.array([float(own.entropy.max()) if len(own) else 0.0 for own in questions.signals])


def shortest_first(questions: PricedQuestions) -> Floats:
    """Put what is expected to be cheapest first."""
    return -questions.expected


def random_order(questions: PricedQuestions) -> Floats:
    """Draw an order, always the same one."""
    return np.random.default_rng(0).random(len(questions.records))


def disagreement(questions: PricedQuestions) -> Floats:
    """Return how far drawn answers part from the greedy one: shares of them, ties by surprise.

    Answers agree where their last words do.
    """
    shares = [
        np.mean([_last_word(drawn) != _last_word(each["text_drafted"]) for drawn in each["texts_drawn"]])
        for each in questions.records
    ]
    return np.array(shares) + 1e-3 * np.minimum(surprise(questions), 100.0)


def _last_word(text: str) -> str:
    return (text.strip().removesuffix(".").split() or [""])[-1]


def over_price(score: QuestionOrder) -> QuestionOrder:
    """Return an order of what a score tells of a question per price of it."""
    return lambda questions: score(questions) / questions.expected


def logistic_order(calibration: Calibration, *, draft: bool) -> QuestionOrder:
    """Return the chance by a logistic regression on a question's words, with ``draft`` on the draft's numbers, too."""
    score = calibration.score

    def chances(questions: PricedQuestions) -> Floats:
        model = score.draft if draft else score.question  # type: ignore[union-attr]
        numbers = [draft_numbers(own) if draft else question_numbers(own.prompt_tokens) for own in questions.signals]
        log_odds = [
            float(model(np.array([own.words], dtype=np.int64), row)[0])
            for own, row in zip(questions.signals, numbers, strict=True)
        ]
        return sigmoid(np.array(log_odds))

    return chances


def peer_arms(
    fitted: Mapping[int, Calibration], dialled: PricedQuestions, judge: str, shipped: Calibration | None = None
) -> tuple[PeerArm, ...]:
    """Return all arms, from the calibration half.

    ``fitted``: what was fitted to so many labels. ``shipped``: a calibration that comes with the pair.
    """
    orders = {
        "mean log-probability": surprise,
        "mean log-probability / price": over_price(surprise),
        "highest entropy": highest_entropy,
        "highest entropy / price": over_price(highest_entropy),
        "self-consistency of 3": disagreement,
        "shortest first": shortest_first,
        "random": random_order,
    }
    for num, calibration in fitted.items():
        orders[f"words, {num} labels"] = over_price(logistic_order(calibration, draft=False))
        orders[f"draft and words, {num} labels"] = over_price(logistic_order(calibration, draft=True))
    planned = {f"{num} labels": calibration for num, calibration in fitted.items()}
    planned |= {} if shipped is None else {"shipped": shipped}
    return (
        *(order_arm(name, score, dialled) for name, score in orders.items()),
        *(
            preset_arm(name, [each for each in dialled.records[0]["arms"] if each.startswith(f"{name}:")])
            for name in ("once", "kl", "excess", "doubt")
        ),
        unknown_pair_arm("auto, nothing known", judge),
        *(planner_arm(f"auto, {name}", each) for name, each in planned.items()),
        *(planner_arm(f"auto, one worth, {name}", each, constant=True) for name, each in planned.items()),
        *(planner_arm(f"route, {name}", each, whole=True) for name, each in planned.items()),
    )
