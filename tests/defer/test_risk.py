"""The conformal promise: of ALL questions few were kept and would have been turned down."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each

from hybrid.defer import Calibration, DraftOutcome, UninformedScore
from hybrid.defer.dials import KEEP_NOTHING, RiskQuestion, question_after, risk_cutoff, unseen_questions


def draw(rng, num):
    """Chances that are somewhat wrong, and verdicts."""
    chances = rng.beta(0.5, 0.6, num)
    return chances, rng.random(num) < np.clip(chances * 1.3, 0, 1)


def naive_cutoff(chances, bad, level):
    """The promise of the theorem, tried at every chance; the worst that the next question can do is 1.

    What is kept must not expect more to be lost than the level allows, either.
    """
    num = len(chances)
    fits = [
        t
        for t in sorted(chances)
        if (sum(b and c <= t for c, b in zip(chances, bad, strict=True)) + 1) / (num + 1) <= level
        and sum(c for c in sorted(chances) if c <= t) <= level * num
    ]
    return max(fits, default=KEEP_NOTHING) if 1 / (num + 1) <= level else KEEP_NOTHING


@pytest.mark.parametrize("level", [0.02, 0.05, 0.1, 0.4])
def test_where_all_were_asked_it_is_the_theorems_cutoff(level):
    rng = np.random.default_rng(0)
    for num in (5, 30, 100, 300):
        chances, bad = draw(rng, num)
        chances = np.round(chances, 2)  # with ties
        found = risk_cutoff([RiskQuestion(float(c), bool(b)) for c, b in zip(chances, bad, strict=True)], level)
        naive = naive_cutoff(chances, bad, level)
        assert found == naive or (found == 1.0 and naive == chances.max())


def test_the_mean_realised_share_is_at_most_the_asked_one_over_splits():
    rng = np.random.default_rng(1)
    chances, bad = draw(rng, 700)
    for level in (0.02, 0.05, 0.1):
        realised = []
        for _ in range(200):
            order = rng.permutation(700)
            asked, others = order[:350], order[350:]
            cutoff = risk_cutoff([RiskQuestion(float(chances[i]), bool(bad[i])) for i in asked], level)
            realised.append(np.mean(bad[others] & (chances[others] <= cutoff)))
        assert np.mean(realised) <= level + 2 * np.std(realised) / np.sqrt(200)
        assert np.mean(realised) > level / 2  # it is not kept by keeping nothing


def test_over_streams_in_which_what_is_kept_has_no_verdict_but_the_floors_the_share_is_kept_too():
    """Forty streams of 600 questions; the cut-off is taken anew at every 50th."""
    rng, level, floor = np.random.default_rng(2), 0.1, 0.1
    realised, kept = [], []
    for _ in range(40):
        chances, bad = draw(rng, 600)
        seen, cutoff, lost = [], KEEP_NOTHING, []
        for number, (chance, wrong) in enumerate(zip(chances, bad, strict=True)):
            if number % 50 == 0:
                cutoff = risk_cutoff(seen, level)
            keeps = chance <= cutoff
            asked = not keeps or rng.random() < floor
            seen.append(RiskQuestion(chance, bool(wrong) if asked else None, cutoff, floor))
            lost.append(keeps and wrong)
            kept.append(keeps)
        realised.append(np.mean(lost))
    assert np.mean(realised) <= level + 2 * np.std(realised) / np.sqrt(40)
    assert np.mean(kept) > 0.25


@pytest.mark.parametrize("level", [0.02, 0.1, 0.4])
def test_the_sum_of_the_chances_that_are_kept_never_passes_the_level_times_the_questions(level):
    """Whatever the verdicts were: few of them may have been lucky."""
    rng, kept = np.random.default_rng(5), 0
    for num in (60, 200):
        for lucky in (0.0, 0.3, 1.0):
            chances = np.round(rng.beta(0.5, 0.6, num), 2)  # with ties
            bad = rng.random(num) < chances * lucky
            found = risk_cutoff([RiskQuestion(float(c), bool(b)) for c, b in zip(chances, bad, strict=True)], level)
            assert chances[chances <= found].sum() <= level * num
            kept += int((chances <= found).sum())
    assert kept > 0


def test_a_floors_verdict_stands_for_those_that_nobody_looked_at():
    """Two of 40 kept drafts were checked and one was bad: as twenty of 400, in a sample of which all were asked."""
    kept = [RiskQuestion(0.01, None, 0.5, 0.05)] * 38 + [RiskQuestion(0.01, bad, 0.5, 0.05) for bad in (True, False)]
    asked = [RiskQuestion(0.9, turned_down=True, cutoff=0.5, floor=0.05)] * 360
    num = 400
    weight = num / (40 * 0.05 + 360 * 0.05)  # a chance of 0.01 was under every question's cut-off
    for level in (0.04, 0.09, 0.11):
        least = (weight + weight) / (num + 1)
        assert (risk_cutoff([*kept, *asked], level) >= 0.01) == (least <= level)


def test_a_level_is_a_share_and_of_nothing_nothing_is_kept():
    assert risk_cutoff([], 0.05) == KEEP_NOTHING
    for level in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="is no share"):
            risk_cutoff([], level)


def outcome(chance, turned_down, keeps, after="start", cutoff=None):
    numbers = () if turned_down is None else (0.0,) * 15
    return DraftOutcome(0.5, chance, keeps, 0.05, turned_down, after, statistics=numbers, cutoff=cutoff)


def decided_questions(outcomes):
    """Put the drafts of each question together, in the order of their first ones."""
    questions = []
    for draft in outcomes:
        now = question_after(questions[-1] if questions else None, draft, draft.chance)
        questions = [*(questions if draft.after == "start" else questions[:-1]), now] if now else questions
    return questions


def test_a_question_is_decided_by_the_highest_chance_of_its_blocks_and_what_followed_a_handback_is_no_part_of_it():
    outcomes = [
        outcome(0.1, None, keeps=True),
        outcome(0.3, True, True, "block"),
        outcome(0.9, True, False, "handback"),
        outcome(0.4, False, False),
        outcome(0.2, None, keeps=True, cutoff=0.25),
    ]
    first, second, third = decided_questions(outcomes)
    assert first == RiskQuestion(0.3, turned_down=True, cutoff=1.0, floor=0.05)
    assert (second.chance, second.turned_down) == (0.4, False)
    assert 0.39 < second.cutoff < 0.4  # its own chance was asked about
    assert third == RiskQuestion(0.2, None, 0.25, 0.05)
    unseen = [replace(each, floor=0.0) for each in outcomes[3:]]
    assert list(decided_questions(unseen)) == [], "no coin could have asked: what was kept has no verdict for certain"


@each("floors", [(0.05, 0.2), (0.2, 0.05), (0.2, 0.05, 0.4)])
def test_a_question_counts_by_the_least_chance_with_which_a_coin_could_have_had_a_block_of_it_checked(floors):
    """By the greatest, a verdict stood for fewer questions than nobody looked at, and more was kept than promised."""
    first, *others = (replace(outcome(0.1, None, keeps=True), floor=floor) for floor in floors)
    [question] = decided_questions([first, *(replace(each, after="block") for each in others)])
    assert question.floor == 0.05


def test_a_calibration_knows_the_questions_that_its_score_was_not_fitted_to_and_an_older_one_none():
    older = Calibration("a", "b", "kl:0.7", "verdict", 2.2, UninformedScore("kl:0.7"))
    assert [*unseen_questions(None), *unseen_questions(older)] == []
    assert list(unseen_questions(replace(older, unseen=((0.6, True),)))) == [RiskQuestion(0.6, turned_down=True)]


def test_what_a_function_learned_later_would_have_kept_was_kept_or_asked_about_as_it_was():
    """A chance on the other side of the cut-off that was in force: the decision counts, and not the chance."""
    kept, asked = decided_questions([outcome(0.6, None, keeps=True, cutoff=0.5), outcome(0.3, True, False, cutoff=0.5)])
    assert kept.chance <= kept.cutoff
    assert asked.chance > asked.cutoff
