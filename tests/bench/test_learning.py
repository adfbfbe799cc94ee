"""Streams over labels: what each action costs and leads to, what is learned, and caps that hold."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.defer import (
    Calibration,
    DraftSignals,
    Familiarity,
    Forecast,
    LabelledDraft,
    LabelledQuestion,
    PriorScore,
)
from hybrid.lab.experiments.learning_stream import (
    LearningStream,
    StreamChoice,
    StreamFigures,
    TaughtQuestion,
    outcome,
)
from hybrid.lab.experiments.learning_suite import (
    cold_starts,
    left_out,
    paced_day,
    risk_splits,
    shifts,
)
from hybrid.lab.experiments.learning_trial import TeachingSection, taught_question
from hybrid.lab.experiments.problem_suite import as_questions, draw_problems
from hybrid.lab.experiments.tariffs import PRICES, SETTINGS, CountedRequest, cost
from hybrid.lab.experiments.world import open_world
from hybrid.policy.plan import DraftPlan
from hybrid.prob.divergence import kl

U, SU = SETTINGS[0], SETTINGS[3]
JUDGE = "kl:0.7"
KINDS = ("easy", "hard", "mixed")


def question(number, kind, bad):
    """A question whose words tell its kind, and whose entropies tell a little of its verdict."""
    rng = np.random.default_rng(number)
    num = int(rng.integers(5, 30))
    top = rng.uniform(0.3, 0.9, num) - 0.1 * bad
    words = tuple(sorted({100 * KINDS.index(kind) + int(word) for word in rng.integers(0, 8, 6)}))
    signals = DraftSignals(
        words,
        20,
        0,
        rng.integers(0, 99, num),
        rng.exponential(0.2 + 0.3 * bad, num),
        top,
        (1 - top) / 2,
        np.log(top),
        True,
    )
    first = int(rng.integers(num)) if bad else None
    labelled = LabelledQuestion(LabelledDraft(signals, first, rng.exponential(0.1, num)), num + 2)
    return TaughtQuestion(kind, labelled, bad, not bad, cloud_right=True)


@pytest.fixture(scope="module")
def questions():
    """Easy ones are never turned down, hard ones always, mixed ones by half."""
    rng = np.random.default_rng(0)
    kinds = [KINDS[i] for i in rng.integers(0, 3, 220)]
    bad = [{"easy": False, "hard": True, "mixed": bool(rng.random() < 0.5)}[kind] for kind in kinds]
    return [question(n, kind, wrong) for n, (kind, wrong) in enumerate(zip(kinds, bad, strict=True))]


class KnowsWords(PriorScore):
    """Believes that what it has seen is kept, and has seen some kinds."""

    familiarity = Familiarity(np.zeros(4096))

    def forecast(self, signals):
        return Forecast(np.full(len(signals), 0.02 / len(signals)), np.zeros(len(signals)))


def fit(labelled):
    """A calibration that believes in everything: only unknown words make it ask."""
    score = KnowsWords(JUDGE)
    object.__setattr__(score, "familiarity", Familiarity.of([each.draft.signals.words for each in labelled]))
    return Calibration("a", "b", JUDGE, "verdict", 2.2, score)


def counted(kind, sent, scored, known, written):
    return CountedRequest(kind, sent, scored, known, written)


@pytest.mark.parametrize("setting", [U, SU], ids=lambda each: each.name)
def test_each_action_costs_what_the_tariffs_say_of_its_requests(questions, setting):
    prices = StreamChoice(setting).prices
    for each in each_of(questions[:60]):
        first, num, written = each.labelled.draft.first_rejection, len(each.signals), each.labelled.cloud_tokens
        kept = outcome(each, DraftPlan("keep", num), prices)
        assert (kept.paid, kept.right, kept.lost) == (0.0, each.local_right, first is not None)
        assert kept.alone == pytest.approx(cost([counted("write", 20, 0, 0, written)], setting, PRICES[0]))
        requests = [counted("check", 20 + num, num, 0, 1)]
        if first is not None:  # the token that corrects the first rejected one comes with the check
            at = 20 + first + 1
            requests.append(counted("write", at, 0, at, max(1, written - first - 1)))
        checked = outcome(each, DraftPlan("check", num), prices)
        assert checked.paid == pytest.approx(cost(requests, setting, PRICES[0]), rel=0.05)
        assert (checked.right, checked.lost) == (True, False)
        for at in (0, num // 2):
            wrote = outcome(each, DraftPlan("write", at), prices)
            assert wrote.paid == pytest.approx(
                cost([counted("write", 20 + at, 0, 0, written - at)], setting, PRICES[0])
            )
            assert wrote.right == (first is None or first >= at)


def test_no_worth_keeps_all_and_more_than_enough_loses_nothing(questions):
    for multiple, frozen, expected in ((0.0, True, 0.0), (1e6, False, 1.0)):
        stream = LearningStream(StreamChoice(U, multiple, frozen=frozen), JUDGE, fit([q.labelled for q in questions]))
        figures = StreamFigures.of(stream.run(questions[:80]))
        assert figures.rpi == pytest.approx(expected)
        assert (figures.bill == 0.0, figures.kept == 1.0) == (multiple == 0.0, multiple == 0.0)


def test_a_cold_start_learns_which_kinds_can_be_kept(questions):
    choice = StreamChoice(U, 1.5)
    [parts] = cold_starts(questions, choice, JUDGE, num_orders=1, num=200)
    assert [each.num for each in parts] == [100, 100]
    once = StreamFigures.of([outcome(each, DraftPlan("check", len(each.signals)), choice.prices) for each in questions])
    assert parts[1].kept > 0.35
    assert parts[1].rpi > 0.9
    assert parts[1].bill < once.bill
    assert cold_starts(questions, choice, JUDGE, num_orders=1, num=100) == [parts[:1]]


def test_what_is_kept_unchecked_teaches_nothing(questions):
    stream = LearningStream(StreamChoice(U), JUDGE, fit([each.labelled for each in questions]))
    decided = stream.run(questions[:150])
    verdicts = [each.turned_down for each in stream.learner.outcomes]
    assert [each is None for each in verdicts] == [each.action == "keep" for each in decided]
    assert len({each.action for each in decided}) > 1


def test_a_kind_that_a_score_has_not_met_is_asked_about_and_frozen_scores_keep_what_they_know(questions):
    [found] = [each for each in left_out(questions, questions[:120], StreamChoice(U), fit) if each.kinds == ("hard",)]
    assert found.parts[-1].rpi > 0.9
    known = [each for each in questions if each.kind == "hard"]
    frozen = LearningStream(StreamChoice(U, frozen=True), JUDGE, fit([each.labelled for each in questions]))
    assert StreamFigures.of(frozen.run(known)).kept == 1.0
    [half] = shifts(questions, questions[:90], StreamChoice(U), fit, num_draws=1)
    assert len(half.kinds) == 2
    assert half.parts[-1].rpi > 0.85


def test_a_level_of_risk_is_kept_over_splits(questions):
    rng = np.random.default_rng(4)
    told = [(float(chance), bool(rng.random() < chance)) for chance in rng.beta(0.5, 0.5, 300)]
    for level in (0.05, 0.1):
        found = risk_splits(told, level, num_splits=100, num_labels=150)
        assert found.lost <= level + 2 * found.standard_error
        assert found.kept > 0.1


@pytest.mark.parametrize("cap", [0.1, 0.3])
def test_a_paced_day_never_passes_its_cap_and_spends_it_where_there_is_enough_to_ask(questions, cap):
    calibration = replace(fit([each.labelled for each in questions]), score=PriorScore(JUDGE))
    day = paced_day(questions, calibration, StreamChoice(U, amount=400.0, frozen=True), cap)
    assert 0.95 < day.spent <= 1.0
    assert day.spent_by_burst < day.spent - 0.03


def test_a_day_whose_cap_no_answer_fits_under_spends_nothing(questions):
    """Pacing alone would ask for the first."""
    calibration = replace(fit([each.labelled for each in questions]), score=PriorScore(JUDGE))
    assert paced_day(questions, calibration, StreamChoice(U, amount=400.0, frozen=True), 1e-6).spent == 0.0


def test_a_taught_problem_is_what_both_models_answered_and_what_the_judge_says_of_it():
    """Bundled pair, four problems; the verdict on the cloud's own text is taken anew from both models' full rows."""

    async def taught():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            problems = as_questions(draw_problems("test", 1, 3)[:4])
            section = TeachingSection("teaching", "bundled", problems, 0.7)
            for number, problem in enumerate(problems):
                seen = []

                async def check(_arm, _sampling, answered, seen=seen):
                    seen.append(answered)

                record = json.loads(json.dumps(await section.answer(world, number, 0, check)))
                drafted, written = seen
                local, cloud = world.rows(written.prompt, written.ids)
                far = [kl(one, other) for one, other in zip(cloud, local, strict=True)]
                yield taught_question(record), problem, drafted, written, far
                world.forget()

    async def gather():
        return [each async for each in taught()]

    verdicts = []
    for found, problem, drafted, written, far in each_of(asyncio.run(gather())):
        assert found.kind == problem.kind
        assert found.signals.tokens.tolist()[: len(drafted.ids)] == list(drafted.ids)
        assert found.labelled.cloud_tokens == sum(each.usage.completion_tokens for each in written.requests)
        rights = [problem.grade(each.answer.text) for each in (drafted, written)]
        assert [found.local_right, found.cloud_right] == rights
        worst = max(float(each) for each in far)
        assert found.written_turned_down == (worst > 0.7) or abs(worst - 0.7) < 2 * tolerance().nats
        verdicts.append(found.written_turned_down)
    assert 0 < sum(verdicts) < len(verdicts)
