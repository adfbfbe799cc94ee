"""What an answer's events teach: each record says what was judged, and the next answer is decided by it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cases import each

from hybrid.cloud import Capabilities
from hybrid.defer import DraftSignals, UninformedScore
from hybrid.defer.online import OnlineLearner
from hybrid.pairs.knowledge import ASKS_BY_SURPRISE, ASKS_FOR_CHECKS, UNCALIBRATED, UNWRITTEN, OutcomeListener
from hybrid.pairs.profile import PairIdentity
from hybrid.policy.plan import PlanCosts
from hybrid.policy.planning import Planner
from hybrid.record.answer import Token
from hybrid.record.events import Finished, Planned, SpanJudged, TokenEmitted
from hybrid.run.composition import Decoding
from hybrid.run.deferral import PlannerFactory, PlanningContext
from hybrid.settings.config import Settings
from hybrid.spend import Bill, Price
from hybrid.types import Divergence

SIGNALS = DraftSignals(
    (3, 4), 7, 0, np.arange(4), np.full(4, 0.5), np.full(4, 0.6), np.full(4, 0.2), np.full(4, -0.5), ended=True
)
COSTS = PlanCosts(1.0, 2.0, 3.0, None, 0.4, 1, 5.0, 6.0)


def planned(action="check", at=4, *, limit=None, floor=False):
    return Planned(0, action, at, limit, floor, 1.0, COSTS, SIGNALS)


def judged(accepted, *, rejected=False):
    return SpanJudged(0, 4, accepted, rejected)


def written(kl):
    divergence = None if kl is None else Divergence(kl, kl, kl)
    return TokenEmitted(0, Token(1, "a", "cloud", "written", divergence))


WRITE, BELOW, ABOVE = planned("write", 0), written(0.6), written(0.8)


def finished(nanousd=None, alone=None, *, by_itself=False):
    return Finished(SimpleNamespace(bill=Bill(nanousd, alone)), by_itself=by_itself)


ENDED, CUT = finished(by_itself=True), finished()


def outcomes(*events, judge="kl:0.7", **planner):
    listener = OutcomeListener(Planner(score=UninformedScore(judge, chance=0.9), floor=0.05, **planner))
    for event in events:
        listener.observe(event)
    return listener.outcomes(UninformedScore(judge, chance=0.3), "digest")


def verdicts(*events, **more):
    return [each.turned_down for each in outcomes(*events, **more)]


def test_a_check_is_a_verdict_and_what_was_kept_has_none():
    assert verdicts(planned(), judged(2, rejected=True)) == [True]
    assert verdicts(planned(), judged(4)) == [False]
    assert verdicts(planned()) == [None], "nobody answered"
    assert verdicts(planned("keep")) == [None]
    assert verdicts(planned(at=2), judged(2)) == [None], "half of the draft was judged"
    assert verdicts(planned(at=2), judged(1, rejected=True)) == [True]
    assert outcomes() == ()


def test_what_the_cloud_wrote_in_a_drafts_place_is_judged_as_the_draft_would_be():
    assert verdicts(WRITE, BELOW, BELOW, BELOW, BELOW) == [False], "as many as the draft has"
    assert verdicts(WRITE, BELOW, ENDED) == [False], "the cloud ends sooner"
    assert verdicts(WRITE, BELOW, ABOVE, BELOW) == [True]
    assert verdicts(WRITE, *[BELOW] * 6, ABOVE, ENDED) == [True]
    assert verdicts(WRITE, *[written(None)] * 4, ENDED) == [None], "without both models' rows there is no verdict"
    assert verdicts(WRITE, *[ABOVE] * 4, judge="excess:0.5") == [None], "their divergence is another number"


@each("ends", [(), (CUT,), (Planned(1, "keep", 4, None, False, 0.95, COSTS, SIGNALS), ENDED)])
@each("limit", [None, 4])
def test_a_write_that_was_cut_short_turns_a_draft_down_or_says_nothing(limit, ends):
    """The reader leaves; a limit or a stop string; the cloud dies, and the local model goes on to the end."""
    write = planned("write", 0, limit=limit)
    for num in range(4):
        assert verdicts(write, *[BELOW] * num, *ends)[0] is None
        assert verdicts(write, *[BELOW] * num, ABOVE, *ends)[0] is True
    assert verdicts(write, *[BELOW] * 4, *ends)[0] is False, "nothing of the draft is left to be seen"


def test_a_write_from_within_a_draft_says_nothing_of_what_stands_before():
    for at in (1, 2, 3):
        assert verdicts(planned("write", at), *[BELOW] * 4, ENDED) == [None]
        assert verdicts(planned("write", at), BELOW, ABOVE, ENDED) == [True]


def test_a_written_token_that_nobody_compared_may_have_been_the_one():
    for place in range(4):
        tokens = [BELOW] * 4
        tokens[place] = written(None)
        assert verdicts(WRITE, *tokens, ENDED) == [None]
        assert verdicts(WRITE, *tokens, ABOVE) == [True]


def test_a_draft_that_is_shown_since_the_cloud_wrote_nothing_has_no_verdict():
    shown = TokenEmitted(0, Token(1, "a", "local", "unchecked"))
    assert verdicts(WRITE, shown, shown, ENDED) == [None]
    assert verdicts(WRITE, ENDED) == [None]


def test_the_rest_after_a_rejection_is_no_verdict_on_a_draft():
    rest = Planned(2, "write", 0, None, False, 1.0, COSTS)
    assert verdicts(planned(), judged(4), rest, written(9.0)) == [False]
    assert verdicts(WRITE, *[BELOW] * 4, rest, written(9.0)) == [False]
    assert verdicts(WRITE, BELOW, rest, *[BELOW] * 4, ENDED) == [None]


def test_a_record_tells_how_it_was_decided_and_what_is_known_of_the_draft():
    (found,) = outcomes(planned(floor=True), judged(1, rejected=True), keep_below=0.5)
    assert (found.told, found.chance, found.score) == (pytest.approx(0.3), 0.4, "digest")
    assert (found.keeps, found.floor, found.cutoff, found.whole_cost) == (True, 0.05, 0.5, 6.0)
    assert (found.kept_tokens, found.judged_tokens, found.words) == (1, 2, (3, 4))
    (found,) = outcomes(planned(), judged(4))
    assert (found.keeps, found.kept_tokens, found.judged_tokens) == (False, 4, 4)
    assert [each.keeps for each in outcomes(planned("keep"), planned("write", 0))] == [True, False]


def test_the_place_of_a_draft_is_that_after_what_became_of_the_one_before():
    def places(*events):
        return [each.after for each in outcomes(*events)]

    assert places(planned("keep"), planned("keep")) == ["start", "block"]
    assert places(planned(), judged(4), planned()) == ["start", "block"]
    assert places(planned(), judged(1, rejected=True), planned()) == ["start", "handback"]
    assert places(planned("write", 2, limit=4), written(0.1), planned()) == ["start", "handback"]


# ---- a client's source ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def asked(**settings):
    chosen = Settings(policy="auto", **settings)
    return PlanningContext((3, 4), (1, 2), Decoding.of(chosen), Capabilities("big"), Price.parse("1/0.1/4"))


def tell(bound, *events):
    """Have all that observes an answer hear its events."""
    for observe in bound.observers(pytest.fail):
        for event in events:
            observe(event)


async def answer(source, *events, **settings):
    """One answer: what it was decided by."""
    bound = await source.bind(asked(**settings))
    tell(bound, *events)
    source.learn(bound)
    return bound


def chance(bound):
    return bound.planner.score.forecast(SIGNALS).turned_down


def kept(folder):
    return [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]


def test_what_one_answer_shows_the_next_is_decided_by_and_so_is_the_next_clients(a_home):
    async def use():
        first = PlannerFactory(PairIdentity("abc"))
        chances = [chance(await answer(first, planned(), judged(4))) for _ in range(30)]
        await first.aclose()
        second = PlannerFactory(PairIdentity("abc"))
        bound = await second.bind(asked())
        assert bound.pair.learner.num_unseen == 30, "it is known which score told them"
        chances.append(chance(bound))
        stranger = PlannerFactory(PairIdentity("another"))
        return chances, chance(await stranger.bind(asked()))

    chances, of_a_stranger = asyncio.run(use())
    assert chances[0] == of_a_stranger > 0.7
    assert chances[29] < 0.5 * chances[0]
    assert chances[30] == pytest.approx(chances[29], abs=0.05)
    (path,) = kept(a_home)
    assert path.stat().st_mode & 0o777 == 0o600


def test_answers_that_end_together_are_learned_from_one_after_another_and_all_of_them(a_home, monkeypatch):
    """Two threads in one learner's sums would lose what one of them adds; a planner is bound between two of them."""
    at_work, most, add = [], [], OnlineLearner.add

    def slowly(learner, outcomes):
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.01)
        at_work.pop()
        return add(learner, outcomes)

    monkeypatch.setattr(OnlineLearner, "add", slowly)

    async def use():
        source = PlannerFactory(PairIdentity("abc"))
        bound = await asyncio.gather(*(source.bind(asked()) for _ in range(6)))
        assert len({id(one.pair) for one in bound}) == 1, "what is known of a pair is read once"
        for one in bound:
            tell(one, planned(), judged(4))
            source.learn(one)
        found = await source.bind(asked())
        await source.aclose()
        return found

    found = asyncio.run(use())
    assert most == [1] * 7, "once as it is made, and once an answer"
    assert len(found.pair.learner.outcomes) == 6


def test_of_an_unknown_pair_the_share_that_was_measured_is_told_and_no_other(a_home):
    """It was told that half of the bill is spent; 0.07, 0.49, 0.56 and 0.67 were. The next client goes on counting."""

    async def use(answers, **settings):
        source = PlannerFactory(PairIdentity("abc"))
        told = [(await answer(source, *events, **settings)).notes for events in answers]
        last = (await source.bind(asked(**settings))).notes
        await source.aclose()
        return [*told, last]

    unmeasured = UNCALIBRATED.format(asks=ASKS_FOR_CHECKS, measured="no share of the cloud's own bill was measured yet")
    unlearned = unmeasured.replace(ASKS_FOR_CHECKS, ASKS_BY_SURPRISE)
    assert asyncio.run(use([[planned(), finished(3, 10)]], learn=False)) == [(unlearned,)] * 2
    unpriced = [[finished()], [planned(), finished(0, 0)], [planned(), finished(5, None)]]
    assert asyncio.run(use(unpriced)) == [(unmeasured,)] * 4
    whole = replace(planned("write"), signals=None)  # by the question alone: no draft, and the whole bill
    bills = [[planned(), finished(0, 100)], [whole, finished(200, 200)], [planned(), finished(10, 100)]]
    shares = [(0.0, "1 answer"), (200 / 300, "2 answers"), (210 / 400, "3 answers")]
    told = [unmeasured] + [
        UNCALIBRATED.format(
            asks=ASKS_FOR_CHECKS, measured=f"so far that took {share:.2f} of the cloud's own bill, over {num}"
        )
        for share, num in shares
    ]
    assert asyncio.run(use(bills)) == [(each,) for each in told]
    assert asyncio.run(use([])) == [(told[-1],)], "an interrupted batch ends in the lines of another one"


def test_a_planner_that_is_bound_changes_no_more(a_home):
    async def use():
        source = PlannerFactory(PairIdentity("abc"))
        bound = await source.bind(asked())
        before = bound.planner.to_json()
        for _ in range(30):
            await answer(source, planned(), judged(4))
        await source.aclose()
        return before, bound.planner.to_json()

    before, after = asyncio.run(use())
    assert before == after


def test_with_learning_off_nothing_is_heard_written_or_checked_at_random(a_home):
    async def use():
        source = PlannerFactory(PairIdentity("abc"))
        found = [await answer(source, planned(), judged(4), learn=False) for _ in range(30)]
        await source.aclose()
        return found

    found = asyncio.run(use())
    assert len({chance(each) for each in found}) == 1
    assert {(each.planner.floor, each.planner.labels, each.listener) for each in found} == {(0.0, False, None)}
    assert not a_home.exists()


def test_a_disk_that_fails_is_a_note_once_and_no_failure(a_home):
    a_home.write_text("in the way")

    async def use():
        source = PlannerFactory(PairIdentity("abc"))
        notes = []
        for _ in range(3):
            notes += (await answer(source, planned(), judged(4))).notes
            await source.aclose()
        notes += (await source.bind(asked())).notes
        return notes

    assert asyncio.run(use()).count(UNWRITTEN) == 1


def test_an_answer_without_a_draft_teaches_nothing(a_home):
    async def use():
        source = PlannerFactory(PairIdentity("abc"))
        await answer(source, replace(planned(), signals=None))
        await source.aclose()

    asyncio.run(use())
    assert not a_home.exists()


def test_a_client_of_what_is_shipped_neither_reads_what_was_learned_nor_keeps_it(a_home):
    async def use():
        user = PlannerFactory(PairIdentity("abc"))
        for _ in range(30):
            await answer(user, planned(), judged(4))
        await user.aclose()
        before = {path: path.read_bytes() for path in kept(a_home)}
        other = PlannerFactory(PairIdentity("abc", shipped_only=True))
        found = chance(await answer(other, planned(), judged(4)))
        await other.aclose()
        stranger = PlannerFactory(PairIdentity("another"))
        assert {path: path.read_bytes() for path in kept(a_home)} == before != {}
        return found, chance(await stranger.bind(asked()))

    found, of_a_stranger = asyncio.run(use())
    assert found == of_a_stranger
