"""Predicted against observed acceptance: the rule's own law over all its coins, and counts by a second hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest
from cases import each_of
from scipy.stats import spearmanr

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments import position_table
from hybrid.lab.experiments.grid import GridRun, ModelPair
from hybrid.lab.experiments.position_table import compare_rows
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.chains import (
    CHAINS_SECTION,
    chains_grids,
    chains_report,
    checked_spans,
    expected_length,
    try_chains,
)
from hybrid.lab.study.design import Design
from hybrid.lab.study.sections import sections_of
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.exact import ExactSampling, GreedyMatch
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import Dense, TopK
from hybrid.report import Table, html, terminal
from hybrid.spend import tokens_shown
from hybrid.types import Sampling

EXACT = ExactSampling(TargetSampler(Sampling(1.0)))
QUESTIONS = as_questions(draw_problems("calibration", 2, 3))
PAIRS = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Values do not hang on how often questions are drawn again."""
    monkeypatch.setattr(position_table, "NUM_RESAMPLES", 20)


async def no_check(*_):
    """Check nothing."""


@dataclass
class Coins:
    """Coins that fall as wanted, and then on the first side; ``others``: the courses in which one falls otherwise."""

    wanted: tuple[int, ...]
    taken: list[int] = field(default_factory=list)
    others: list[tuple[int, ...]] = field(default_factory=list)
    chance: float = 1.0

    def __call__(self, probs, *_):
        number = len(self.taken)
        if number >= len(self.wanted):
            self.others += [(*self.taken, i) for i in range(1, len(probs)) if probs[i] > 0.0]
        self.taken.append(self.wanted[number] if number < len(self.wanted) else 0)
        self.chance *= float(probs[self.taken[-1]])
        return self.taken[-1]


def every_course(judge, span):
    """Yield the chance of each course of a judge's coins, and how many tokens it then accepts."""
    left = [()]
    while left:
        coins = Coins(left.pop())
        verdict = judge(replace(span, coin=coins))
        left += coins.others
        yield coins.chance, len(verdict.accepted)


def chances_of_lengths(judge, target, draft, size, k, *, greedy=False):
    """Return the chance that 0, 1, ... of ``size`` tokens are accepted, over all drafts and coins; one row for all."""
    row, local, found = Dense.from_probs(target), Dense.from_probs(draft), np.zeros(size + 1)
    drafts = [(local.best,) * size] if greedy else product(range(len(target)), repeat=size)
    for tokens in drafts:
        drafted = tuple(PendingToken(t, "local", "accepted", None if greedy else local, local) for t in tokens)
        shown = tuple(TopK.from_dense(row, k, token) for token in tokens)
        for chance, accepted in every_course(judge, DraftedSpan(drafted, shown, None, False, None)):
            found[accepted] += chance * (1.0 if greedy else float(np.prod(draft[list(tokens)])))
    return found


def drawn_rows(size, num):
    rng = np.random.default_rng(size)
    for spread in np.resize((0.3, 1.0, 5.0), num):
        target, draft = rng.dirichlet(np.full(size, spread), size=2) + 1e-6
        yield target / target.sum(), draft / draft.sum()


def test_over_all_coins_a_drafted_token_is_accepted_in_one_minus_tv_of_the_cases():
    for target, draft in each_of(drawn_rows(5, 30)):
        expected = 1.0 - np.abs(target - draft).sum() / 2
        predicted = compare_rows(Dense.from_probs(target), Dense.from_probs(draft))
        assert predicted["overlap"] == pytest.approx(expected, abs=1e-9)
        assert chances_of_lengths(EXACT, target, draft, 1, 5)[1] == pytest.approx(expected, abs=1e-6)
        kept = chances_of_lengths(GreedyMatch(), target, draft, 1, 1, greedy=True)
        assert kept[1] == predicted["agrees"] == (target.argmax() == draft.argmax())


def test_a_list_takes_from_that_at_most_its_tail():
    """A token outside the list is drawn again by the cloud, and none of the drafted ones there is counted."""
    less = []
    for (target, draft), k in each_of(product(drawn_rows(6, 12), (1, 2, 4))):
        listed = np.argsort(-target)[:k]
        tail = 1.0 - target[listed].sum()
        accepted = chances_of_lengths(EXACT, target, draft, 1, k)[1]
        overlap = compare_rows(Dense.from_probs(target), Dense.from_probs(draft))["overlap"]
        assert overlap - tail - 1e-6 <= accepted <= overlap + 1e-6
        less.append(overlap - accepted)
    assert max(less) > 0.05


def test_the_expected_length_is_that_of_an_enumeration():
    for (target, draft), size in each_of(product(drawn_rows(3, 6), (1, 2, 4))):
        share = 1.0 - np.abs(target - draft).sum() / 2
        seen = chances_of_lengths(EXACT, target, draft, size, 3) @ np.arange(size + 1.0)
        full = expected_length(np.array([share]), np.ones((size, 1)), np.ones(1))
        assert seen == pytest.approx(full[0], abs=1e-6)
        assert 1.0 + full[0] == pytest.approx(tokens_shown(share, size + 1)[-1])
    # Of two checks one has two tokens and one has three.
    mixed = expected_length(np.array([0.5]), np.array([[2.0], [2.0], [1.0]]), np.array([2.0]))
    assert 1.0 + mixed[0] == pytest.approx(np.mean([tokens_shown(0.5, each)[-1] for each in (3, 4)]))


def test_what_stands_is_what_the_answer_counts_and_the_greedy_prediction_there_is_the_count_itself():
    """On the bundled pair, both rules, with texts that end by themselves and such that are cut."""

    async def compare():
        ended = set()
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            ends = world.cloud.end_ids
            for number, question in each_of(enumerate(QUESTIONS[:10])):
                asked = replace(question, max_tokens=(question.max_tokens, 11)[number % 2])
                record = await try_chains((1, 3, 8), world, asked, Sampling(seed=number), no_check)
                for rule, span in product(record["rules"], (1, 3, 8)):
                    told = record["rules"][rule][f"{span}"]
                    drawing = Sampling(float(rule == "exact"), seed=number)
                    arm = Arm(rule, rule, {"span": span})
                    answered = await world.answer(asked.text, arm, drawing, asked.max_tokens)
                    spans, usage = checked_spans(answered, ends), answered.answer.usage
                    assert (told["checks"], told["reach"][0]) == (usage.checks, len(spans))
                    assert told["accepted"] == usage.drafted - usage.rejected
                    assert sum(told["reach"]) == usage.drafted
                    shown = sum(token.how == "accepted" for token in answered.answer.tokens)
                    assert told["accepted"] - shown in {0, int(answered.ended)}
                    text = (*answered.ids, *[None] * answered.ended)
                    assert told["judged"] == sum(judged for *_, judged in spans)
                    for start, num, accepted, judged in spans:
                        at = len(answered.prompt) + start
                        drafted = next(r.sent[at:] for r in answered.requests if len(r.sent) == at + num)
                        same = [
                            a == b or (b is None and a in ends) for a, b in zip(drafted, text[start:], strict=False)
                        ]
                        assert [*same, False].index(False) == accepted
                        assert judged - accepted == (accepted < len(same))
                    if rule == "greedy-exact":
                        assert told["itself"] == told["accepted"]
                    else:
                        assert 0.0 < told["itself"] <= told["judged"] + 1e-9
                    ended.add((rule, answered.ended))
        assert len(ended) == 4

    asyncio.run(compare())


# Records made by hand: every number drawn.


def counts(rng, span):
    checks = int(rng.integers(1, 9))
    reach = np.sort(rng.integers(0, checks + 1, size=span))[::-1]
    reach[0] = checks
    judged = int(rng.integers(1, reach.sum() + 1))
    accepted = int(rng.integers(0, judged + 1))
    itself = float(rng.uniform(0, judged))
    return {"checks": checks, "accepted": accepted, "judged": judged, "itself": itself, "reach": reach.tolist()}


def made(num):
    rng, records = np.random.default_rng(4), []
    for number in range(num):
        rules = {}
        for rule in ("greedy-exact", "exact"):
            rules[rule] = {f"{span}": counts(rng, span) for span in (2, 5)}
            for name in ("cloud", "local"):
                size = int(rng.integers(1, 40))
                rules[rule][name] = [float(rng.uniform(0, size)), size]
        records.append({"text": f"{number}", "kind": "", "seed": 0, "rules": rules})
    design = Design("made", ("chains",), PAIRS, {0: {"bundled": QUESTIONS[:num]}}, options={"spans": (2.0, 5.0)})
    return design, chains_grids(design), [records]


def test_shares_lengths_and_differences_are_those_of_a_second_hand():
    design, grids, [records] = made(9)
    assert [(grid.content, grid.num_answers) for grid in grids] == [(("chains", (2, 5)), 8)]
    report = chains_report(design, grids, [records])
    assert [(row["rule"], row["span"]) for row in report["rows"]] == [*product(("greedy-exact", "exact"), (2, 5))]
    for row in each_of(report["rows"]):
        of = [each["rules"][row["rule"]] for each in records]
        own = [each[f"{row['span']}"] for each in of]
        judged, checks = (sum(each[name] for each in own) for name in ("judged", "checks"))
        observed = sum(each["accepted"] for each in own) / judged
        assert (row["questions"], row["judged"]) == (9, judged)
        assert row["observed"]["value"] == pytest.approx(observed, abs=1e-4)
        length = sum(each["accepted"] for each in own) / checks
        assert row["length"]["observed"]["value"] == pytest.approx(length, abs=1e-4)
        shares = {name: sum(e[name][0] for e in of) / sum(e[name][1] for e in of) for name in ("cloud", "local")}
        shares["itself"] = sum(each["itself"] for each in own) / judged
        for source, share in each_of(shares.items()):
            assert row[source]["predicted"]["value"] == pytest.approx(share, abs=1e-4)
            assert row[source]["less"]["value"] == pytest.approx(share - observed, abs=1e-4)
            assert row[source]["less"]["low"] <= row[source]["less"]["value"] <= row[source]["less"]["high"]
            expected = sum(share ** (i + 1) * e["reach"][i] for e in own for i in range(row["span"])) / checks
            assert row["length"][source]["value"] == pytest.approx(expected, abs=1e-4)
        for source in ("cloud", "local"):
            shares = [e[source][0] / e[source][1] for e in of]
            rank = spearmanr(shares, [each["accepted"] / each["judged"] for each in own]).statistic
            assert row[source]["rank"]["value"] == pytest.approx(rank, abs=1e-4)


def test_a_prediction_that_is_surely_off_is_called_so_and_the_rules_own_law_nothing_new():
    design, grids, [records] = made(9)
    for shift, said in each_of(((-1, "too low"), (1, "too high"))):
        for each in records:
            each["rules"]["exact"]["5"]["accepted"] = 0 if shift > 0 else each["rules"]["exact"]["5"]["judged"]
        [first, second, last] = chains_report(design, grids, [records])["summary"]
        assert first.startswith("bundled, greedy-exact, spans of 5: ")
        assert f": {said}; along the local model's" in second
        assert "tells nothing new" in last


@pytest.mark.parametrize("num", [1, 9])
def test_the_section_is_shown_whatever_was_read(num):
    design, grids, found = made(num)
    for name in ("checks", "accepted", "judged", "itself"):
        found[0][0]["rules"]["exact"]["5"][name] = 0  # an answer of which nothing was judged
    document = CHAINS_SECTION.document(chains_report(design, grids, found))
    assert sections_of(design) == (CHAINS_SECTION,)
    assert [len(block.rows) for block in document if isinstance(block, Table)] == [4, 4]
    assert "exact, 5" in html.page("title", document)
    terminal.show(document)


def test_another_span_is_another_record():
    design, grids, _ = made(2)
    other = chains_grids(replace(design, options={"spans": (2.0, 4.0)}))
    keys = [GridRun(each, PAIRS, BUNDLED_LOCAL.parent).key((0, 0)) for each in (grids, other, (*grids, *other))]
    assert keys[0] == keys[2] != keys[1]
