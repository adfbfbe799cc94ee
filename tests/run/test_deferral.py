"""What a planner is bound to: what is known of the pair, the prices, the dials, and the time that is given."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cloud import Capabilities
from hybrid.defer import Calibration, CalibrationQuestion, DraftSignals, UninformedScore
from hybrid.defer.outcome import DraftOutcome
from hybrid.errors import UsageError
from hybrid.pairs.knowledge import ASKS_BY_SURPRISE, ASKS_FOR_CHECKS, UNCALIBRATED
from hybrid.pairs.profile import PairIdentity
from hybrid.pairs.store import keep_calibration
from hybrid.policy.plan import WORTH, WaitPrice, Worth
from hybrid.run.composition import Decoding
from hybrid.run.deferral import SECONDS_UNWEIGHED, PlannerFactory, PlanningContext
from hybrid.settings.config import Settings
from hybrid.spend import CapStatus, Price, TokenTimes

CAN = Capabilities("big")
NO_ROWS = Capabilities("big", rows=False)
NUMBERS = (0.0,) * 15
UNMEASURED = "no share of the cloud's own bill was measured yet"
PRICE = Price.parse("1/0.1/4")
QUESTIONS = (
    CalibrationQuestion(10, 20, 30, 0.2, False, 0.1, 0.2),
    CalibrationQuestion(30, 5, 50, 0.9, True, 0.5, 0.6),
)
OURS = Calibration("abc", "big", "kl:0.7", "verdict", 1.5, UninformedScore("kl:0.7", chance=0.3), QUESTIONS)


@pytest.fixture(autouse=True)
def a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def source(**more):
    return PlannerFactory(PairIdentity("abc", **more))


def bind(found, *, can=CAN, price=PRICE, caps=(), span=None, ms_per_token=None, **settings):
    settings = Settings(**({"policy": "auto", "cloud": "http://gpu:8000"} | settings))
    asked = PlanningContext((3, 4), tuple(range(7)), Decoding.of(settings), can, price, caps, span, ms_per_token)
    return asyncio.run(found.bind(asked))


def refusal(found, **more):
    with pytest.raises(UsageError) as refused:
        bind(found, **more)
    return str(refused.value)


def test_a_calibrated_pair_has_its_score_its_loss_and_its_dial():
    keep_calibration(OURS)
    bound = bind(source())
    planner = bound.planner
    assert (planner.score.score, planner.worth, planner.mean_excess) == (OURS.score, Worth(1.5), None)
    assert (planner.words, planner.prompt_tokens) == ((3, 4), 7)
    assert bound.notes == ()
    assert bind(source(), worth=3).planner.worth == Worth(3.0)


@pytest.mark.slow
def test_the_floor_falls_by_the_seed_the_question_and_what_is_learned_by_then():
    """Binomial over questions of one seed: the share that was told is the share that is checked."""
    keep_calibration(OURS)
    found = source()

    def key(ids, seed=3):
        settings = Settings(policy="auto", cloud="http://gpu:8000", seed=seed)
        return asyncio.run(
            found.bind(PlanningContext((3, 4), ids, Decoding.of(settings), CAN, PRICE))
        ).planner.floor_key

    keys = [key((number,)) for number in range(400)]
    assert len(set(keys)) == 400
    assert abs(sum(each < 0.05 for each in keys) - 20) < 4 * 19**0.5
    assert key((5,)) == keys[5] != key((5,), seed=4)
    (pair,) = found._pairs.values()
    pair.learner.add([DraftOutcome(told=0.1, chance=0.1, keeps=True, floor=0.05, turned_down=None)])
    assert key((5,)) not in keys


def test_in_nats_one_worth_holds_for_all_questions_at_this_endpoints_prices():
    keep_calibration(replace(OURS, loss="nats"))
    for price in (PRICE, Price.parse("1/0.1/8:cached"), Price.parse("2/0.5/2/3/0.001")):
        for dial, multiple in ((None, 1.5), ("0.4", 0.4)):
            planner = bind(source(), price=price, worth=dial).planner
            alone = [price.prompt * each.prompt_tokens + price.completion * each.cloud_tokens for each in QUESTIONS]
            mean = np.mean(alone) / 1e6 + price.request
            assert planner.worth.amount == pytest.approx(multiple * mean)
            assert planner.mean_excess == pytest.approx(0.4)


def test_a_pair_of_which_nothing_is_known_learns_from_checks_and_every_answer_says_so():
    keep_calibration(replace(OURS, cloud="another"))
    found = source()
    first, second = bind(found), bind(found)
    assert isinstance(first.planner.score.score, UninformedScore)
    assert (first.planner.mean_excess, first.planner.worth) == (None, Worth(1.5))
    note = UNCALIBRATED.format(asks=ASKS_FOR_CHECKS, measured=UNMEASURED)
    assert first.notes == second.notes == (note,), "an interrupted batch ends in the lines of another one"
    assert bind(PlannerFactory()).notes == (note,)
    assert bind(source(), can=None).notes == (), "nobody knows yet who answers there"


def test_where_nothing_can_be_checked_a_pair_of_which_nothing_is_known_is_routed_by_nats():
    """What is kept has no verdict there: half of the bill goes where the drafts are least sure beside their price."""
    note = UNCALIBRATED.format(asks=ASKS_BY_SURPRISE, measured=UNMEASURED)
    for named in ({"can": NO_ROWS}, {"policy": "route"}, {"learn": False}, {"stream": "early"}):
        bound = bind(PlannerFactory(), **named)
        assert (bound.planner.mean_excess, bound.notes) == (1.0, (note,))


def test_what_an_unknown_pairs_verdicts_taught_counts_where_nothing_can_be_checked_too():
    for turned_down, by_nats in ((False, False), (True, True)):
        found = PlannerFactory(PairIdentity("abc"))
        bind(found)
        (pair,) = found._pairs.values()
        seen = DraftOutcome(told=0.8, chance=0.8, keeps=False, floor=0.05, turned_down=turned_down, statistics=NUMBERS)
        pair.learner.add([seen] * 40)
        for named in ({}, {"can": NO_ROWS}, {"policy": "route"}):
            planner = bind(found, **named).planner
            assert (planner.mean_excess is not None) == by_nats, named
            assert by_nats or planner.worth == Worth(2.2 if named else 1.5)


def test_an_unknown_pair_whose_drafts_bring_no_verdict_is_routed_by_nats():
    """A long prompt, or a judge that tells nothing of what the cloud writes: the cloud would write every answer."""
    found = PlannerFactory(PairIdentity("abc"))
    bind(found)
    (pair,) = found._pairs.values()
    unseen = DraftOutcome(told=0.8, chance=0.8, keeps=False, floor=0.05, turned_down=None)
    pair.learner.add([unseen] * 19)
    assert bind(found).planner.mean_excess is None
    pair.learner.add([unseen])
    assert bind(found).planner.mean_excess == 1.0


def test_another_judge_than_the_calibrations_is_a_sentence_and_the_prior():
    keep_calibration(OURS)
    for named in ({"threshold": 0.2}, {"policy": "auto:0.2"}, {"judge": "kl:0.2"}):
        bound = bind(source(), **named)
        assert (bound.planner.score.judge, type(bound.planner.score.score)) == ("kl:0.2", UninformedScore)
        assert bound.notes == ("this pair was calibrated for kl:0.7, and nothing is known of it under kl:0.2",)
        assert (bound.planner.mean_excess, bound.planner.worth) == (None, Worth()), "most count as turned down"
    assert bind(source(), threshold=0.7).planner.score.score == OURS.score
    keep_calibration(replace(OURS, judge="kl:0.2", score=UninformedScore("kl:0.2", chance=0.9)))
    assert bind(source(), threshold=0.2).planner.score.score.chance == 0.9
    assert bind(source(), threshold=0.2, strict=True).planner.score.judge == "kl:0.2:strict"


def test_a_worth_in_usd_is_one_amount_and_needs_a_price():
    keep_calibration(OURS)
    assert bind(source(), worth="0.001usd").planner.worth.amount == 1_000_000
    for price in (None, Price.parse("free")):
        assert refusal(source(), price=price, worth="0.001usd").startswith("worth 0.001usd needs a price: ")


def test_where_no_price_is_known_measured_times_stand_in_its_place_and_that_is_told_of_an_endpoint():
    keep_calibration(OURS)
    times = TokenTimes(20.0, 1.0, 0.1, 30.0)
    timed = bind(source(times=lambda can: times if can.model == "big" else None), price=None)
    assert (timed.planner.prices.unit, timed.planner.prices.written) == ("ms", 20.0)
    assert ["time that was measured" in note for note in timed.notes] == [True]
    untimed = bind(source(), price=Price.parse("free"))
    assert untimed.planner.prices.unit == "tokens"
    assert ["1 : 0.1 : 4" in note for note in untimed.notes] == [True]
    assert bind(source(), price=Price.parse("free"), cloud=None).notes == (), (
        "the bundled server costs nothing, as known"
    )
    assert bind(source(times=lambda _: times)).planner.prices.unit == "nanousd", "a price comes before a time"


def test_an_endpoint_is_taken_for_what_it_can_do_and_for_everything_where_it_is_not_reached():
    for can in (CAN, Capabilities("big", rows=False), Capabilities("big", rows=False, continues=False, ids=False)):
        assert bind(source(), can=can).planner.abilities == can.abilities
    assert bind(source(), can=None).planner.abilities == CAN.abilities


def test_what_cannot_be_scored_is_not_checked_at_random():
    assert bind(source()).planner.floor > 0.0
    assert bind(source(), can=Capabilities("big", rows=False)).planner.floor == 0.0
    assert bind(source(), learn=False).planner.floor == 0.0


def test_a_judge_is_the_same_however_its_number_is_written():
    keep_calibration(OURS)
    for named in ({"judge": "kl:0.70"}, {"judge": "kl:.7"}, {"policy": "auto:0.70"}, {"threshold": 0.7}):
        assert bind(source(), **named).planner.score.score == OURS.score
    assert bind(source(), judge="kl").planner.score.judge == "kl:0.5"


def test_a_block_is_what_is_drafted_within_the_patience_unless_a_span_is_chosen():
    assert bind(source(), ms_per_token=10.0).planner.block == 128
    assert bind(source(), ms_per_token=10.0, patience=0.5).planner.block == 32
    assert bind(source(), ms_per_token=10.0, span=24).planner.block == 24
    assert [bind(source(), stream=how).planner.stream for how in ("whole", "blocks", "early")] == [
        "whole",
        "blocks",
        "early",
    ]


def test_the_default_worth_is_the_rules_own():
    keep_calibration(replace(OURS, worth=WORTH))
    assert bind(source()).planner.worth == Worth(WORTH) == Worth()


def test_the_worth_where_nothing_can_be_checked_is_that_of_half_the_bill_and_the_dial_multiplies_it():
    half = bind(PlannerFactory(), can=NO_ROWS).planner.worth.amount
    assert half > 0.0
    assert bind(PlannerFactory(), can=NO_ROWS, worth=2 * WORTH).planner.worth.amount == pytest.approx(2 * half)
    ten = bind(PlannerFactory(), can=NO_ROWS, price=Price.parse("10/1/40")).planner.worth.amount
    assert ten == pytest.approx(10 * half), "only the ratios of prices matter"
    assert bind(PlannerFactory(), worth=3.0).planner.worth == Worth(3.0), "a multiple of its own price where checks are"


def test_a_risk_keeps_by_its_cut_off_and_a_worth_has_none():
    keep_calibration(replace(OURS, unseen=((0.2, False), (0.9, True)) * 30))
    assert bind(source()).planner.keep_below is None
    assert bind(source(), risk=0.11).planner.keep_below == 0.2, "of 60 questions 30 are kept, and none of them badly"
    assert not any("keeps nothing yet" in note for note in bind(source(), risk=0.1).notes)
    assert bind(source(), risk=0.9).planner.keep_below == 1.0
    for stream in ("blocks", "whole", "early"):
        assert bind(source(), risk=0.1, stream=stream).planner.stream == "whole", "the promise is of whole drafts"
    assert bind(PlannerFactory(), risk=0.1).planner.keep_below == -1.0, "nothing is known: nothing is kept"


def test_a_calibration_of_an_earlier_version_keeps_nothing_at_a_level_of_risk_and_says_what_is_wanted():
    """It held no question out: what it told of its own is of functions that nothing is decided by."""
    keep_calibration(replace(OURS, questions=QUESTIONS * 300))
    bound = bind(source(), risk=0.02)
    assert bound.planner.keep_below == -1.0
    [note] = [note for note in bound.notes if "keeps nothing yet" in note]
    assert note.startswith("a risk of 0.02 keeps nothing yet: it is taken from 49 questions or more")
    assert "and 0 are known (hybrid calibrate" in note


def test_under_a_days_cap_a_multiple_falls_while_spending_runs_ahead_and_an_amount_rises_too():
    keep_calibration(OURS)

    def worth(spent, hour, **settings):
        caps = (CapStatus("total", 1000, 999, 0), CapStatus("day", 1000, spent, 100))
        found = PlannerFactory(PairIdentity("abc"), clock=lambda: 5 * 86_400 + 3600 * hour)
        bound = bind(found, caps=caps, **settings)
        return bound.planner.worth, bound.planner.unpaced_worth

    assert worth(400, 12) == (Worth(1.5), None)
    assert worth(650, 12) == (Worth(1.5 * 0.25), Worth(1.5))
    assert worth(150, 12) == (Worth(1.5), None)
    assert worth(401, 12)[1] == worth(0, 0)[1] == Worth(1.5), "from the first minute, and however little it is"
    usd, unpaced = worth(150, 12, worth="0.001usd")
    assert usd.amount == pytest.approx(1e6 * 2.25)
    assert unpaced is None
    assert worth(650, 12, worth="0.001usd")[0].amount == pytest.approx(1e6 * 0.25)


def test_a_days_cap_is_used_up_where_no_request_fits_under_it_and_is_ahead_of_the_day_where_one_does():
    """Seven tokens of prompt and one of answer cost 11,000 nano-dollars; what is reserved is gone, too."""
    keep_calibration(OURS)
    for left, used_up in ((-500, True), (0, True), (10_999, True), (11_000, False), (10**6, False)):
        for level, reserved in (("day", 0), ("day", 3_000), ("month", 0)):
            caps = (CapStatus(level, 10**7, 10**7 - left - reserved, reserved),)
            found = bind(PlannerFactory(PairIdentity("abc"), clock=lambda: 0.0), caps=caps).planner.used_up_nanousd
            assert found == (10**7 if used_up and level == "day" else None), (left, level, reserved)
    assert bind(source(), caps=(CapStatus("day", 10, 10, 0),), price=None).planner.used_up_nanousd == 10


# ---- a cloud that charges nothing ------------------------------------------------------------------------------------

UNCHARGED = {"free": Price.parse("free"), "unknown": None}
surprises = st.lists(st.floats(0.0, 30.0), min_size=1, max_size=12)


def draft(surprise):
    """A draft whose tokens are surprising by so many nats; 0: the small model is as sure as can be."""
    values = np.array(surprise)
    return DraftSignals(
        (3, 4), 7, 0, np.arange(len(values)), values, np.zeros(len(values)), -values, -values, ended=True
    )


def plans(planner, surprise):
    """What is planned of a draft, by the question alone, and where whole answers are routed."""
    found = [
        made.plan(draft(surprise), final=final) for made in (planner, planner.of_whole_answers()) for final in (0, 1)
    ]
    return [*found, planner.opening()]


@pytest.fixture(scope="module")
def uncharged(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        times = [None, lambda _: TokenTimes(20.0, 1.0, 0.1, 30.0)]
        return [
            bind(source(times=time) if time else source(), price=price)
            for price in UNCHARGED.values()
            for time in times
        ]


@given(surprises)
def test_where_nothing_is_charged_and_nothing_was_measured_every_draft_is_asked_about(uncharged, surprise):
    """However sure the small model is of its nonsense: there is nothing that keeping it would save."""
    assert len(uncharged) == 4
    for bound in each_of(uncharged):
        for plan in each_of(plans(bound.planner, surprise)):
            assert (plan.action, plan.at, plan.limit) == ("write", 0, None)


@each("price", UNCHARGED.values())
def test_what_is_charged_measured_or_set_by_a_dial_is_weighed_as_before(price):
    told = bind(source(), price=price).notes
    assert [each.startswith("nothing is known of this pair of models, and ") for each in told] == [True]
    assert [each.startswith("nothing is known of this pair of models: ") for each in bind(source()).notes] == [True]
    for bound in (bind(source(), can=NO_ROWS), bind(source(), can=NO_ROWS, price=price, worth=1)):
        assert bound.planner.keep_below is None
        assert plans(bound.planner, [1e-9])[0].action == "keep"
    assert bind(source()).planner.keep_below is None
    assert bind(source(), price=price, worth=1).planner.keep_below is None
    measured = source()
    bind(measured, price=price)
    (pair,) = measured._pairs.values()
    kept = DraftOutcome(told=0.8, chance=0.8, keeps=False, floor=0.05, turned_down=False, statistics=(0.0,) * 15)
    pair.learner.add([kept] * 40)
    assert bind(measured, price=price).planner.keep_below is None
    keep_calibration(replace(OURS, local="def"))
    assert bind(PlannerFactory(PairIdentity("def")), price=price).planner.keep_below is None
    for price_of_one in ("0.000001/0/0", "0/0/0/0/0.0001"):
        assert bind(source(), price=Price.parse(price_of_one)).planner.keep_below is None


def test_a_second_that_costs_something_is_weighed_where_all_that_it_takes_was_measured():
    keep_calibration(OURS)
    timed = source(times=lambda _: TokenTimes(20.0, 1.0, 0.1, 30.0))
    found = bind(timed, ms_per_token=15.0, second_usd=0.002)
    drafts = ((0.2, 0.1), (0.9, 0.5))
    assert found.planner.wait == WaitPrice(2000.0, 15.0, TokenTimes(20.0, 1.0, 0.1, 30.0), drafts)
    assert found.notes == ()
    in_time = bind(timed, ms_per_token=15.0, second_usd=0.002, price=Price.parse("free")).planner
    assert (in_time.prices.unit, in_time.wait) == ("ms", WaitPrice(1.0, 15.0, None, drafts))
    for changed in ({}, {"second_usd": 0.0}, {"second_usd": 0.002, "risk": 0.05}, {"second_usd": 0.002, "can": None}):
        bound = bind(timed, ms_per_token=15.0, **changed)
        assert bound.planner.wait is None
        assert not [note for note in bound.notes if "second_usd" in note]
    free, unsaid = (bind(timed, ms_per_token=15.0, **said).planner for said in ({"second_usd": 0.0}, {}))
    assert json.dumps(free.to_json()) == json.dumps(unsaid.to_json()), "a trace is the same to the last byte"


def test_what_is_missing_to_weigh_a_second_is_told():
    keep_calibration(OURS)
    times = TokenTimes(20.0, 1.0, 0.1, 30.0)
    unknown = PlannerFactory(PairIdentity("another", times=lambda _: times))
    for found, ms in ((source(), 15.0), (unknown, 15.0), (source(times=lambda _: times), None)):
        bound = bind(found, ms_per_token=ms, second_usd=0.002)
        assert bound.planner.wait is None
        assert (SECONDS_UNWEIGHED in bound.notes) == (ms is not None), "what the first draft takes is measured"
