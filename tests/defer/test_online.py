"""Everything that is learned is a function of what came of drafts."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each_of

from hybrid.defer import Calibration, DraftOutcome, NoveltyScore, OnlineLearner, UninformedScore
from hybrid.defer.calibration import CalibrationQuestion, score_digest
from hybrid.defer.dials import KEEP_NOTHING, RiskQuestion, risk_cutoff
from hybrid.defer.online import (
    ENOUGH_TOKENS,
    LOSS_LABELS,
    MOST_OUTCOMES,
    NATS_ABOVE,
    OWN_WEIGHT,
    PRIOR_SURPRISES,
    VERDICT_BELOW,
)
from hybrid.defer.score import Correction

PRIOR = UninformedScore("kl:0.7")


class PriorWithWords(UninformedScore):
    """A score that was fitted to twenty questions of two words."""

    familiarity = NoveltyScore.of([(5, 9)] * 20)


def seen(make_signals, seed, turned_down=False, **more):
    given = {"told": 0.8, "chance": 0.8, "keeps": False, "floor": 0.05, "turned_down": turned_down}
    given |= {"score": score_digest(PRIOR)} | more
    return DraftOutcome.of(make_signals(seed, 6 + seed % 9), **given)


def mixed(make_signals, num):
    """Kept and asked drafts, blocks and handbacks."""
    places = ("start", "start", "block", "handback")
    return [
        seen(
            make_signals,
            n,
            None if n % 3 == 0 else n % 5 == 0,
            keeps=n % 3 == 0,
            after=places[n % 4],
            whole_cost=100.0 + n,
            kept_tokens=3,
            judged_tokens=4,
        )
        for n in range(num)
    ]


def shares(learner):
    return (
        learner.floor,
        learner.kept_share,
        learner.turned_down_share,
        learner.loss,
        learner.worth_at_half_bill(50.0),
        learner.risk_cutoff(0.1),
    )


def test_a_pair_of_which_nothing_is_known_begins_with_high_chances(make_signals):
    learner = OnlineLearner(PRIOR)
    assert learner.score.forecast(make_signals(1, 9)).turned_down == pytest.approx(0.8)
    assert (learner.floor, learner.kept_share, learner.turned_down_share, learner.loss) == (0.05, None, None, "verdict")
    assert not learner.is_measured
    assert learner.risk_cutoff(0.05) == KEEP_NOTHING
    learner.add([seen(make_signals, n) for n in range(12)])
    assert learner.score.forecast(make_signals(500, 9)).turned_down > 0.7  # other words: a dozen labels change little


def test_one_by_one_and_all_at_once_lead_to_the_same_shares(make_signals):
    outcomes = mixed(make_signals, 130)
    at_once, one_by_one = OnlineLearner(PRIOR, outcomes), OnlineLearner(PRIOR)
    for each in outcomes:
        one_by_one.add([each])
    assert shares(at_once) == shares(one_by_one)
    assert at_once.outcomes == one_by_one.outcomes == tuple(outcomes)
    known = [learner.score.familiarity.counts for learner in (at_once, one_by_one)]
    assert np.array_equal(*known)
    assert known[0].sum() == sum(len(each.words) for each in outcomes if each.after == "start")


def test_the_correction_is_fitted_to_the_labelled_drafts_but_those_after_a_handback(make_signals):
    outcomes = mixed(make_signals, 90)
    learner = OnlineLearner(PRIOR, outcomes)
    labelled = [each for each in outcomes if each.turned_down is not None and each.after != "handback"]
    fitted = Correction.fit(labelled, PRIOR.familiarity, 0)
    assert learner.score.correction.weights == pytest.approx(fitted.weights, abs=1e-9)
    fewer = OnlineLearner(PRIOR, labelled[:9])
    assert not fewer.score.correction.weights.any()
    fewer.add(labelled[9:10])
    assert fewer.score.correction.weights.any()


def test_on_top_of_a_fitted_score_a_question_counts_a_fifth_and_on_top_of_the_prior_one(make_signals):
    """What is seen here moves the correction, not the score that was fitted to others."""
    asked = [seen(make_signals, n) for n in range(12)]
    fitted = PriorWithWords("kl:0.7")
    for score, weight in ((PRIOR, 1.0), (fitted, OWN_WEIGHT)):
        expected = score.familiarity.and_seen([each.words for each in asked], weight).counts
        assert OnlineLearner(score, asked).score.familiarity.counts == pytest.approx(expected)


def test_the_share_of_drafts_that_are_turned_down_counts_the_floors_verdicts_for_those_nobody_looked_at(make_signals):
    asked = [seen(make_signals, n, n < 30) for n in range(40)]
    checked = [seen(make_signals, 50, False, keeps=True), seen(make_signals, 51, True, keeps=True)]
    kept = [seen(make_signals, n, None, keeps=True) for n in range(60, 98)]
    learner = OnlineLearner(PRIOR, [*asked, *checked, *kept])
    assert learner.turned_down_share == pytest.approx((30 + 20) / (40 + 40))


def test_the_share_of_kept_tokens_is_told_once_enough_were_judged(make_signals):
    few = [seen(make_signals, 1, kept_tokens=30, judged_tokens=ENOUGH_TOKENS - 1)]
    assert OnlineLearner(PRIOR, few).kept_share is None
    learner = OnlineLearner(PRIOR, [*few, seen(make_signals, 2, kept_tokens=1, judged_tokens=2)])
    assert learner.kept_share == 31 / (ENOUGH_TOKENS + 1)


def test_the_loss_of_an_unknown_pair_is_a_verdict_until_nearly_all_are_turned_down_and_it_says_so_once(make_signals):
    learner = OnlineLearner(PRIOR)
    told = [learner.add([seen(make_signals, n, n % 2 == 0)]) for n in range(40)]
    assert learner.loss == "verdict"
    assert not any(told)
    more = [learner.add([seen(make_signals, n, True)]) for n in range(100)]
    assert learner.loss == "nats"
    assert sum(map(len, more)) == 1
    back = [learner.add([seen(make_signals, n, False)]) for n in range(100)]
    assert learner.loss == "verdict"
    assert sum(map(len, back)) == 1
    calibration = Calibration("a", "b", "kl:0.7", "nats", 1.0, PRIOR)
    assert OnlineLearner(PRIOR, learner.outcomes[:40], calibration).loss == "nats"


def test_on_open_text_twenty_verdicts_make_the_loss_of_an_unknown_pair_nats(make_signals):
    open_text = OnlineLearner(PRIOR)
    told = [learner_said for n in range(60) if (learner_said := open_text.add([seen(make_signals, n, n % 10 > 0)]))]
    assert open_text.loss == "nats"
    assert len(told) == 1
    for num in (19, 20):
        few = OnlineLearner(PRIOR, [seen(make_signals, n, n % 10 > 0) for n in range(num)])
        assert (few.loss, few.is_measured) == (("nats", True) if num == 20 else ("verdict", False))


def test_half_of_the_last_questions_bill_is_spent_at_the_worth_of_half_the_bill(make_signals):
    """The cut-off is the bill-weighted median of surprise per price, found here by trying."""
    rng = np.random.default_rng(3)
    outcomes = [seen(make_signals, n, None, keeps=True, whole_cost=float(rng.uniform(20, 300))) for n in range(400)]
    learner = OnlineLearner(PRIOR, outcomes)
    worth, last = learner.worth_at_half_bill(100.0), outcomes[-200:]
    sent = sum(each.whole_cost for each in last if worth * each.surprise > each.whole_cost)
    assert sent / sum(each.whole_cost for each in last) == pytest.approx(0.5, abs=0.02)


def test_before_anything_was_seen_the_prior_pair_tells_which_half_of_the_bill(make_signals):
    """The middle of eight surprises, at the price of the question itself."""
    worth = OnlineLearner(PRIOR).worth_at_half_bill(70.0)
    assert sum(worth * each > 70.0 for each in PRIOR_SURPRISES) == 4


def test_a_risks_cutoff_moves_at_every_fiftieth_label_and_begins_with_what_the_calibration_held_out(make_signals):
    """What folds told of the other questions is of other functions."""
    questions = tuple(
        CalibrationQuestion(5, 9, 9, n / 100, turned_down=False, excess_told=0.0, excess=0.0) for n in range(100)
    )
    unseen = tuple((n / 1000, n % 7 == 0) for n in range(100))
    calibration = Calibration("a", "b", "kl:0.7", "verdict", 1.0, PRIOR, questions, unseen)
    asked = [RiskQuestion(*each) for each in unseen]
    learner = OnlineLearner(PRIOR, (), calibration)
    first = learner.risk_cutoff(0.05)
    assert first == risk_cutoff(asked, 0.05) > 0
    for number in range(1, 51):
        learner.add([seen(make_signals, number, True, told=0.001, chance=0.9)])
        assert (learner.risk_cutoff(0.05) == first) == (number < 50)
    assert learner.risk_cutoff(0.05) < 0.001, "by the score as it was fitted, and not as it was corrected"
    assert learner.risk_cutoff(0.9) == 1.0
    assert learner.num_unseen == 150
    assert OnlineLearner(PRIOR, (), replace(calibration, unseen=())).risk_cutoff(0.05) == KEEP_NOTHING


@pytest.mark.parametrize("other", ["", score_digest(replace(PRIOR, chance=0.5))])
@pytest.mark.parametrize("is_calibrated", [False, True])
def test_a_risks_cutoff_is_of_what_the_score_in_force_told_alone(make_signals, other, is_calibrated):
    """An earlier score told .9 of each: the certain chances under it made room for what the new one keeps."""
    calibration = Calibration("a", "b", "kl:0.7", "verdict", 1.0, PRIOR, (), ((0.3, True), (0.3, False)) * 20)
    given = calibration if is_calibrated else None
    earlier = [seen(make_signals, n, n % 3 == 0, told=0.9, chance=0.9, score=other) for n in range(100)]
    now = [seen(make_signals, n, n % 5 == 0, told=0.2, chance=0.2) for n in range(100)]
    fresh, mixed_in = OnlineLearner(PRIOR, now, given), OnlineLearner(PRIOR, [*earlier, *now], given)
    assert mixed_in.num_unseen == fresh.num_unseen == 100 + 40 * is_calibrated
    for level in each_of((0.02, 0.1, 0.15, 0.3)):
        assert OnlineLearner(PRIOR, earlier, given).risk_cutoff(level) == OnlineLearner(PRIOR, (), given).risk_cutoff(
            level
        )
        assert mixed_in.risk_cutoff(level) == fresh.risk_cutoff(level)
    assert len(mixed_in.outcomes) == 200, "the rest is learned from them as before"


def test_by_a_level_of_risk_a_calibrated_pair_is_decided_as_it_was_fitted_and_strange_words_only_raise_a_chance(
    make_signals,
):
    """What is learned is learned from the verdicts that the cut-off is taken from."""
    base = PriorWithWords("kl:0.7", chance=0.3)
    calibration = Calibration("a", "b", "kl:0.7", "verdict", 1.0, base)
    learner, unknown = OnlineLearner(base, (), calibration), OnlineLearner(base)
    for each in (learner, unknown):
        each.add([seen(make_signals, n, told=0.3) for n in range(60)])
    known = replace(make_signals(1, 9), words=(5, 9))
    assert learner.risk_score.forecast(known).turned_down == pytest.approx(0.3)
    assert learner.score.forecast(known).turned_down < 0.25, "verdicts have taught the other score"
    assert learner.risk_score.forecast(make_signals(999, 9)).turned_down > 0.3
    assert unknown.risk_score.forecast(known).turned_down == unknown.score.forecast(known).turned_down


def test_an_alarm_of_the_floor_is_told_once(make_signals):
    learner = OnlineLearner(PRIOR)
    told = [learner.add([seen(make_signals, n, True, keeps=True, chance=0.02)]) for n in range(5)]
    [said] = [sentence for sentences in told for sentence in sentences]
    assert "25% of them instead of 5% are checked for the next 100 questions" in said
    assert learner.floor == 0.25
    assert learner.add(()) == ()


def test_the_newest_outcomes_are_kept(make_signals, monkeypatch):
    monkeypatch.setattr("hybrid.defer.online.MOST_OUTCOMES", 30)
    outcomes = mixed(make_signals, 50)
    learner = OnlineLearner(PRIOR, outcomes[:25])
    learner.add(outcomes[25:])
    assert learner.outcomes == tuple(outcomes[-30:])
    assert MOST_OUTCOMES == 5000


def loss_of(outcomes):
    """What keeping loses, outcome after outcome."""
    num, seen, weight, turned_down, loss = 0, 0, 0.0, 0.0, "verdict"
    for each in outcomes:
        seen += each.after == "start"
        if each.after != "start" or each.turned_down is None:
            loss = "nats" if seen >= LOSS_LABELS and not num else loss
            continue
        num, weight = num + 1, weight + 1.0 / each.propensity
        turned_down += each.turned_down / each.propensity
        if num >= LOSS_LABELS and turned_down < VERDICT_BELOW * weight:
            loss = "verdict"
        elif num >= LOSS_LABELS and turned_down > NATS_ABOVE * weight:
            loss = "nats"
    return loss


def decided_in(outcomes, calibration):
    """The questions that a risk is taken from, outcome after outcome."""
    questions, start = [], False
    for each in outcomes:
        if each.score != score_digest(PRIOR) or not each.floor:
            continue
        chance = each.told if calibration else each.chance
        cutoff = 1.0 if each.cutoff is None else each.cutoff
        own = max(cutoff, chance) if each.keeps else min(cutoff, np.nextafter(chance, -1.0))
        if each.after == "start":
            questions.append(RiskQuestion(chance, each.turned_down, own, each.floor))
            start = True
        elif each.after == "block" and start:
            last = questions.pop()
            told = (max(last.chance, chance), last.turned_down or each.turned_down, max(last.cutoff, own))
            questions.append(RiskQuestion(*told, min(last.floor, each.floor)))
    return [*(RiskQuestion(*pair) for pair in (calibration.unseen if calibration else ())), *questions]


@pytest.mark.parametrize("is_calibrated", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_whatever_was_forgotten_all_is_a_function_of_the_newest_outcomes(
    make_signals, monkeypatch, seed, is_calibrated
):
    """One that learned from the beginning says what one says that read the newest at once, and what is counted anew."""
    most, labels = 60, 7
    monkeypatch.setattr("hybrid.defer.online.MOST_OUTCOMES", most)
    monkeypatch.setattr("hybrid.defer.online.RISK_LABELS", labels)
    monkeypatch.setattr("hybrid.defer.online.FEWEST_NEW", 10**6)  # a correction also knows what was forgotten
    rng = np.random.default_rng(seed)
    calibration = Calibration("a", "b", "kl:0.7", "verdict", 1.0, PRIOR, (), ((0.3, True), (0.1, False)) * 9)
    given, outcomes, found = calibration if is_calibrated else None, [], set()
    learner, level = OnlineLearner(PRIOR, (), given), 0.3 if is_calibrated else 0.8
    for number in range(240):
        keeps, floor, chance = bool(rng.random() < 0.5), rng.choice([0.0, 0.25, 1.0]), float(rng.uniform(0, 0.5))
        looked = floor > 0 and (not keeps or rng.random() < 0.5)
        many = [0.0, 0.2, 1.0, 0.9][number // 60]  # of them are turned down
        verdict = bool(rng.random() < many) if looked and not 60 < number < 100 else None
        place, score = rng.choice(["start", "start", "block", "handback"]), rng.choice([score_digest(PRIOR), "other"])
        more = {"told": chance / 2, "chance": chance, "keeps": keeps, "floor": float(floor), "score": str(score)}
        more |= {"kept_tokens": 1, "judged_tokens": 2, "whole_cost": float(number), "cutoff": [None, 0.3][number % 2]}
        outcomes.append(seen(make_signals, number, verdict, after=str(place), **more))
        learner.add(outcomes[-1:])
        # What was read once and what was not, what is kept and what is taken anew: all are told alike.
        cutoff = learner.risk_cutoff(level) if rng.random() < 0.5 else None
        newest = outcomes[-most:]
        fresh = OnlineLearner(PRIOR, newest, given)
        told = [(*shares(each), each.num_unseen, each.is_measured) for each in (learner, fresh)]
        assert told[0] == told[1]
        known = np.cumsum([each.turned_down is not None for each in newest])
        upto = int(np.searchsorted(known, num)) + 1 if (num := known[-1] // labels * labels) else 0
        assert learner.risk_cutoff(level) == risk_cutoff(decided_in(newest[:upto], given), level)
        assert cutoff in {None, learner.risk_cutoff(level)}
        assert learner.num_unseen == len(decided_in(newest, given))
        assert learner.loss == ("verdict" if given else loss_of(newest))
        found |= {learner.loss, learner.floor, learner.risk_cutoff(level)}
    assert {0.05, 0.25} < found
    assert len(found) > 9, "cut-offs, among others"
    assert is_calibrated or {"verdict", "nats"} < found


@pytest.mark.parametrize(
    "wrong",
    [
        {"told": 1.5},
        {"chance": float("nan")},
        {"floor": 0.0, "keeps": True},
        {"words": (4096,)},
        {"statistics": (1.0,)},
        {"judged_tokens": 1, "kept_tokens": 2},
        {"whole_cost": float("inf")},
    ],
)
def test_what_cannot_have_been_is_no_outcome(wrong):
    right = {"told": 0.5, "chance": 0.5, "keeps": False, "floor": 0.05, "turned_down": True, "statistics": (0.0,) * 15}
    DraftOutcome(**right)
    with pytest.raises(ValueError, match="no draft can have come to this"):
        DraftOutcome(**right | wrong)
