"""The arms of ``hybrid bench peers``: for each dial of each, which questions are sent, what is paid, who is right.

An arm is made from the calibration half alone: scores are fitted to the labels, and the dials of an order are the
cut-offs that send a share of the bill of the questions after them. It can then be tried on any questions. What an
action leads to is recorded: both models' own answers, every preset's, a check of the whole draft with the cloud's rest.
A part of a draft that is kept before the cloud writes is worked out from labels, as in ``learning_stream``.

The laws (``tests/bench/test_peers.py``): an order sends no question before a higher one, and a lower cut-off sends no
fewer; the price of a question that is sent is the cloud's own; no arm reads who is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.defer import Calibration, OnlineLearner
from hybrid.defer.features import draft_numbers, question_numbers
from hybrid.defer.logistic import sigmoid
from hybrid.defer.signals import mean_surprise
from hybrid.lab.experiments.decisions import KeptForecasts
from hybrid.lab.experiments.learning_stream import TaughtQuestion, decide_stream, outcome
from hybrid.lab.experiments.learning_trial import taught_question
from hybrid.lab.experiments.tariffs import SETTINGS, CountedRequest, TokenPrices, ask_prices, cost
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


@dataclass(frozen=True, eq=False)
class PricedQuestions:
    """Recorded questions under one tariff. N of them."""

    records: Sequence[Mapping[str, Any]]
    prices: TokenPrices

    @cached_property
    def taught(self) -> list[TaughtQuestion]:
        """What is known of each."""
        return [taught_question(each) for each in self.records]

    @cached_property
    def ask(self) -> AskPrices:
        """What a client decides by."""
        return ask_prices(SETTING, self.prices)

    @cached_property
    def local_right(self) -> Floats:
        """Whether the local model alone is right, shape (N,)."""
        return np.array([each.local_right for each in self.taught], dtype=np.float64)

    @cached_property
    def cloud_right(self) -> Floats:
        """Whether the cloud alone is, shape (N,)."""
        return np.array([each.cloud_right for each in self.taught], dtype=np.float64)

    @cached_property
    def alone(self) -> Floats:
        """What the cloud alone takes for each, in prompt tokens, shape (N,)."""
        return np.array(
            [float(self.ask.write(each.signals.prompt_tokens, each.labelled.cloud_tokens, 0)) for each in self.taught]
        )

    @cached_property
    def expected(self) -> Floats:
        """The same as a draft's length lets expect, shape (N,)."""
        return np.array(
            [float(self.ask.write(each.signals.prompt_tokens, max(1, len(each.signals)), 0)) for each in self.taught]
        )

    def arm(self, name: str) -> tuple[Floats, Floats, Floats, Floats]:
        """Return what a preset did: right, paid, requests, and whether any was sent; shape (N,) each."""
        told = [each["arms"][name] for each in self.records]
        requests = [[CountedRequest(*one) for one in each["requests"]] for each in told]
        paid = [cost(each, SETTING, self.prices) for each in requests]
        num = np.array([len(each) for each in requests], dtype=np.float64)
        return np.array([each["right"] for each in told], dtype=np.float64), np.array(paid), num, np.sign(num)


@dataclass(frozen=True, eq=False)
class TriedDials:
    """An arm on N questions at its D dials; each array has the shape (D, N)."""

    right: Floats
    paid: Floats
    requests: Floats
    sent: Floats

    @classmethod
    def of(cls, rows: Sequence[tuple[Floats, Floats, Floats, Floats]]) -> TriedDials:
        """Stack dials."""
        return cls(*(np.array(each) for each in zip(*rows, strict=True)))


Try = Callable[[PricedQuestions], TriedDials]


@dataclass(frozen=True, eq=False)
class PeerArm:
    """An arm with its dials. ``simple``: a baseline of a few lines, not a rule of the client."""

    name: str
    dials: tuple[float, ...]
    tried: Try
    simple: bool = False


def sent_whole(questions: PricedQuestions, sent: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what comes of sending whole questions, those where ``sent`` is 1."""
    right = np.where(sent > 0.0, questions.cloud_right, questions.local_right)
    return right, sent * questions.alone, sent, sent


def order_arm(
    name: str, score: Callable[[PricedQuestions], Floats], dialled: PricedQuestions, *, simple: bool = True
) -> PeerArm:
    """Return an order of whole questions, the highest first. Its cut-offs send shares of the bill of ``dialled``."""
    found = score(dialled)
    order = np.argsort(-found, kind="stable")
    spent = np.cumsum(dialled.alone[order]) / dialled.alone.sum()
    cutoffs = tuple(float(found[order][min(int(np.searchsorted(spent, share)), len(order) - 1)]) for share in SHARES)

    def tried(questions: PricedQuestions) -> TriedDials:
        scores = score(questions)
        return TriedDials.of([sent_whole(questions, (scores >= cutoff).astype(np.float64)) for cutoff in cutoffs])

    return PeerArm(name, cutoffs, tried, simple=simple)


def preset_arm(name: str, recorded: Sequence[str]) -> PeerArm:
    """Return a preset at the dials that were run."""
    dials = tuple(float(each.partition(":")[2]) for each in recorded)
    return PeerArm(name, dials, lambda questions: TriedDials.of([questions.arm(each) for each in recorded]))


def planner_arm(name: str, calibration: Calibration, *, whole: bool = False, constant: bool = False) -> PeerArm:
    """Return ``auto``, or with ``whole`` ``route``, by a calibration as a client has it that learned nothing since.

    ``constant``: its dials are one worth for all questions, in multiples of their mean price.
    """
    score = KeptForecasts(OnlineLearner(calibration.score, calibration=calibration).score)

    def tried(questions: PricedQuestions) -> TriedDials:
        usual = float(np.mean([questions.ask.write(e.prompt_tokens, e.cloud_tokens, 0) for e in calibration.questions]))
        nats = calibration.loss == "nats"
        base = Planner(
            score=score,
            prices=questions.ask,
            mean_excess=max(1e-9, float(np.mean([e.excess for e in calibration.questions]))) if nats else None,
            labels=False,
        )
        base = base.of_whole_answers() if whole else base
        checks = questions.arm(WHOLE_CHECK)
        rows = [[_decided(questions, i, base, Worth(amount=w * usual) if constant or nats else Worth(w), checks)
                 for i in range(len(questions.taught))] for w in WORTHS]  # fmt: skip
        return TriedDials.of([tuple(np.array(each).T) for each in rows])

    return PeerArm(name, WORTHS, tried)


def _decided(questions: PricedQuestions, number: int, base: Planner, worth: Worth, checks: Any) -> tuple[float, ...]:
    question = questions.taught[number]
    signals = question.signals
    planner = replace(base, worth=worth, words=signals.words, prompt_tokens=signals.prompt_tokens)
    return _came_of(questions, number, planner.plan(signals, final=True), checks)


def _came_of(questions: PricedQuestions, number: int, plan: DraftPlan, checks: Any) -> tuple[float, ...]:
    """Return right, paid, requests and whether any was sent, of a question and what was decided of it."""
    question = questions.taught[number]
    if plan.action == "check" and plan.at >= len(question.signals):
        return tuple(float(each[number]) for each in checks)
    right, paid = outcome(question, plan, questions.ask)
    sent = float(plan.action != "keep")
    return float(right), paid, sent, sent


def unknown_pair_arm(name: str, judge: str) -> PeerArm:
    """Return ``auto`` of a pair that nobody measured, learning as it goes."""

    def tried(questions: PricedQuestions) -> TriedDials:
        return TriedDials.of([_streams(questions, judge, worth) for worth in UNKNOWN_WORTHS])

    return PeerArm(name, UNKNOWN_WORTHS, tried)


def _streams(questions: PricedQuestions, judge: str, worth: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Decide the questions in streams that begin with nothing; return right, paid, requests and sent."""
    checks, rows = questions.arm(WHOLE_CHECK), []
    for start in range(0, len(questions.taught), STREAM):
        plans, _ = decide_stream(questions.taught[start:][:STREAM], worth, questions.ask, judge)
        for number, plan in enumerate(plans, start):
            whole = replace(plan, at=len(questions.taught[number].signals)) if plan.action == "check" else plan
            rows.append(_came_of(questions, number, whole, checks))
    right, paid, requests, sent_any = np.array(rows).T
    return right, paid, requests, sent_any


def surprise(questions: PricedQuestions) -> Floats:
    """Return the mean surprise of each draft, in nats."""
    return np.array([mean_surprise(each.signals) for each in questions.taught])


def highest_entropy(questions: PricedQuestions) -> Floats:
    """Return the highest entropy of each draft, in nats."""
    return np.array([float(each.signals.entropy.max()) if len(each.signals) else 0.0 for each in questions.taught])


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


def over_price(score: Callable[[PricedQuestions], Floats]) -> Callable[[PricedQuestions], Floats]:
    """Return an order of what a score tells of a question per price of it."""
    return lambda questions: score(questions) / questions.expected


def logistic_order(calibration: Calibration, *, draft: bool) -> Callable[[PricedQuestions], Floats]:
    """Return the chance by a logistic regression on a question's words, with ``draft`` on the draft's numbers, too."""
    score = calibration.score

    def chances(questions: PricedQuestions) -> Floats:
        signals = [each.signals for each in questions.taught]
        model = score.draft if draft else score.question  # type: ignore[union-attr]
        numbers = [draft_numbers(each) if draft else question_numbers(each.prompt_tokens) for each in signals]
        log_odds = [
            float(model(np.array([each.words], dtype=np.int64), row)[0])
            for each, row in zip(signals, numbers, strict=True)
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
