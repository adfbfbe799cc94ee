"""Streams over labels: what each action costs and leads to, and what is learned."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.defer import DraftSignals, LabelledDraft, LabelledQuestion
from hybrid.lab.experiments.frame import PRICES, SETTINGS, CountedRequest, ask_prices, cost
from hybrid.lab.experiments.peers import decide_stream, outcome
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.trials import labelled_question, teaching_grid
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
    return LabelledQuestion(LabelledDraft(signals, first, rng.exponential(0.1, num)), num + 2)


@pytest.fixture(scope="module")
def questions():
    """Easy ones are never turned down, hard ones always, mixed ones by half."""
    rng = np.random.default_rng(0)
    kinds = [KINDS[i] for i in rng.integers(0, 3, 220)]
    bad = [{"easy": False, "hard": True, "mixed": bool(rng.random() < 0.5)}[kind] for kind in kinds]
    return [question(n, kind, wrong) for n, (kind, wrong) in enumerate(zip(kinds, bad, strict=True))]


def counted(kind, sent, scored, known, written):
    return CountedRequest(kind, sent, scored, known, written)


@pytest.mark.parametrize("setting", [U, SU], ids=lambda each: each.name)
def test_each_action_costs_what_the_tariffs_say_of_its_requests(questions, setting):
    prices = ask_prices(setting, PRICES[0])
    for each in each_of(questions[:60]):
        first, num, written = each.draft.first_rejection, len(each.draft.signals), each.cloud_tokens
        assert outcome(each, DraftPlan("keep", num), prices) == (False, 0.0)
        requests = [counted("check", 20 + num, num, 0, 1)]
        if first is not None:  # the token that corrects the first rejected one comes with the check
            at = 20 + first + 1
            requests.append(counted("write", at, 0, at, max(1, written - first - 1)))
        mended, paid = outcome(each, DraftPlan("check", num), prices)
        assert paid == pytest.approx(cost(requests, setting, PRICES[0]), rel=0.05)
        assert mended == (first is not None)
        for at in (0, num // 2):
            mended, paid = outcome(each, DraftPlan("write", at), prices)
            assert paid == pytest.approx(cost([counted("write", 20 + at, 0, 0, written - at)], setting, PRICES[0]))
            assert mended == (first is None or first >= at)


def test_a_cold_start_learns_which_kinds_can_be_kept(questions):
    prices = ask_prices(U, PRICES[0])
    turned_down = [each.draft.first_rejection is not None for each in questions]
    plans, _ = decide_stream(zip(questions, turned_down, strict=True), 1.5, prices, JUDGE)
    late = list(zip(questions, turned_down, plans, strict=True))[100:]
    found = [(bad, *outcome(each, plan, prices)) for each, bad, plan in late]
    once = np.mean([outcome(each, DraftPlan("check", len(each.draft.signals)), prices)[1] for each, _, _ in late])
    assert np.mean([plan.action == "keep" for _, _, plan in late]) > 0.35
    assert np.mean([mended or not bad for bad, mended, _ in found]) > 0.95
    assert np.mean([paid for _, _, paid in found]) < once


def test_what_is_kept_unchecked_teaches_nothing(questions):
    asked = [(each, each.draft.first_rejection is not None) for each in questions[:150]]
    plans, learner = decide_stream(asked, 2.2, ask_prices(U, PRICES[0]), JUDGE)
    assert [each.turned_down is None for each in learner.outcomes] == [plan.action == "keep" for plan in plans]
    assert len({plan.action for plan in plans}) > 1


def test_a_taught_problem_is_what_both_models_answered_and_what_the_judge_says_of_it():
    """Bundled pair, four problems; the verdict on the cloud's own text is taken anew from both models' full rows."""

    async def taught():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            problems = as_questions(draw_problems("test", 1, 3)[:4])
            grid = teaching_grid("bundled", problems, 0.7)
            for number, problem in enumerate(problems):
                seen = []

                async def check(_arm, _sampling, answered, seen=seen):
                    seen.append(answered)

                record = json.loads(json.dumps(await grid.answer(world, number, 0, check)))
                drafted, written = seen
                local, cloud = world.rows(written.prompt, written.ids)
                far = [kl(one, other) for one, other in zip(cloud, local, strict=True)]
                yield record, problem, drafted, written, far
                world.forget()

    async def gather():
        return [each async for each in taught()]

    verdicts = []
    for found, problem, drafted, written, far in each_of(asyncio.run(gather())):
        labelled = labelled_question(found)
        assert found["kind"] == problem.kind
        assert labelled.draft.signals.tokens.tolist()[: len(drafted.ids)] == list(drafted.ids)
        assert labelled.cloud_tokens == sum(each.usage.completion_tokens for each in written.requests)
        rights = [problem.grade(each.answer.text) for each in (drafted, written)]
        assert [found["local_right"], found["cloud_right"]] == rights
        worst = max(float(each) for each in far)
        assert found["written_turned_down"] == (worst > 0.7) or abs(worst - 0.7) < 2 * tolerance().nats
        verdicts.append(found["written_turned_down"])
    assert 0 < sum(verdicts) < len(verdicts)
