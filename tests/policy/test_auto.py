"""The loop under a planner: what is kept is the local model's, what is written the cloud's, and every answer ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from cases import each, each_of
from naive_policies import text
from toy_score import ToyScore

from hybrid.defer import QuestionForecast
from hybrid.errors import UsageError
from hybrid.policy import PRESETS, PolicyOptions, preset
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.policy.requests import Check, Draft, Emit, Write
from hybrid.prob import kl
from hybrid.spend import AskPrices
from hybrid.types import Sampling

LENGTH, SIZE = 12, 5
AT_ONE = Sampling(1.0)
FREE = AskPrices(0.0, 0.0, 0.0, closing=0.0)


@dataclass(frozen=True, kw_only=True)
class Scripted(Planner):
    """Plans what a function of (number of the plan, tokens of the draft) says; keeps a note of what it was asked."""

    script: Callable
    seen: list

    def plan(self, signals, *, final, known=0, spans=False, toss=None):
        self.seen.append((signals, final, known, spans))
        return self.script(len(self.seen) - 1, len(signals))


def keep(num):
    return DraftPlan("keep", num)


def auto(script=None, choices=(), **planner):
    """A policy that does what a script says, or one that plans by itself; and what it was asked."""
    seen = []
    made = Planner(**planner) if script is None else Scripted(script=script, seen=seen, **planner)
    return preset("auto", PolicyOptions(planner=made, max_tokens=LENGTH, **dict(choices))), seen


def own(model, shown, length, end=-1):
    while len(shown) < length and end not in shown:
        shown += (model(shown).best,)
    return shown


def play(toys, policy, pair, coin=None, length=LENGTH, **how):
    return toys.play(policy, *pair, coin, length, **{"k": SIZE, "end": -1, **how})


# ---- the text of every plan ------------------------------------------------------------------------------------------


@each("at", range(LENGTH))
def test_a_write_from_a_place_is_the_local_text_up_to_it_and_then_the_clouds(toys, both, at):
    for pair in each_of(both):
        small, large = pair
        policy, seen = auto(lambda _, num: DraftPlan("write", at))
        shown, log = play(toys, policy, pair)
        assert text(shown) == own(large, own(small, (), at), LENGTH)
        assert len(seen) == 1
        assert next(request for request in log if isinstance(request, Write)).limit > LENGTH


def test_what_is_kept_is_the_local_models_text_and_nothing_is_asked(toys, both):
    for pair in each_of(both):
        shown, log = play(toys, auto(lambda _, num: keep(num))[0], pair)
        assert text(shown) == own(pair[0], (), LENGTH)
        assert {type(request) for request in log} == {Draft, Emit}


@each("threshold", [0.0, 0.1, 0.3, 0.6])
def test_a_check_of_the_whole_draft_and_the_rest_is_once(toys, both, threshold):
    policy, _ = auto(lambda _, num: DraftPlan("check", num), {"threshold": threshold})
    once = preset("once", PolicyOptions(threshold=threshold, max_tokens=LENGTH))
    for pair in each_of(both):
        assert text(play(toys, policy, pair)[0]) == text(play(toys, once, pair)[0])


def test_with_one_seed_each_questions_key_says_alone_whether_it_is_checked_at_random(toys):
    """The answer's coin is keyed by no question: under one seed it has all first drafts checked, or none."""
    small, large = toys.Toy("q"), toys.Toy("p")

    def checked(key):
        more = {"score": ToyScore((0.0,) * 3), "prices": FREE, "block": 3, "stream": "blocks"}
        policy, _ = auto(None, {"threshold": 50.0}, floor=0.1, floor_key=key, **more)  # no check turns a block down
        log = play(toys, policy, (small, large), length=9)[1]  # without a coin: a toss of it would fail
        return [request.plan.floor for request in log if not isinstance(request, Draft) and request.plan]

    found = {number / 400: checked(number / 400) for number in range(400)}
    firsts, seconds = ([blocks[i] for blocks in found.values()] for i in (0, 1))
    for share in (sum(firsts), sum(seconds)):
        assert abs(share - 40) < 4 * 6.0, "four standard deviations of a binomial"
    assert firsts != seconds, "each draft has a coin of its own"
    assert checked(0.25) == found[0.25]


@each("at", [0, 1, 2])
def test_sampled_each_token_has_the_law_of_the_model_that_was_planned_to_write_it(toys, at):
    """Every coin enumerated: a plan that does not look at the draft biases nothing, though it drops drawn tokens."""
    small, large = toys.Toy("q"), toys.Toy("p")
    policy, _ = auto(lambda _, num: DraftPlan("write", min(at, num)), {"sampling": AT_ONE})

    def law(shown):
        model = small if len(shown) < at else large
        if len(shown) == 3 or toys.END in shown:
            return {shown: 1.0}
        parts = [
            {end: p * chance for end, chance in law((*shown, i)).items()} for i, p in enumerate(model(shown).probs)
        ]
        return {end: chance for part in parts for end, chance in part.items()}

    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 3), 3)
    assert toys.distance(found, law(())) < 1e-12


def test_short_spans_have_the_text_of_excess_whatever_their_length(toys, both):
    """One token is corrected, nothing is handed over, and every draft from there on is as short."""
    score = ToyScore(judge="excess:0.5")
    for span in (1, 2, 5):
        policy, seen = auto(lambda _, num, span=span: DraftPlan("check", min(span, num), 0), {}, score=score)
        asked = 0
        for pair in each_of(both):
            shown, log = play(toys, policy, pair)
            assert text(shown) == text(play(toys, preset("excess:0.5", PolicyOptions(span=3)), pair)[0])
            assert all(len(request.span) <= span for request in log if isinstance(request, Check))
            assert not any(isinstance(request, Write) for request in log)
            drafts = [request.limit for request in log if isinstance(request, Draft)]
            assert drafts == [LENGTH] + [span] * (len(drafts) - 1)
            asked += len(drafts)
        assert [spans for _, _, _, spans in seen].count(False) == len(both)
        assert len(seen) == asked


@each("stream", ["whole", "blocks"])
@each("worth", [1.0, float("inf")])
def test_with_an_infinite_worth_and_threshold_zero_the_text_is_the_clouds_own(toys, both, stream, worth):
    """It is never said to be: a score may be certain, and wrong."""
    score = ToyScore((0.2,) * LENGTH, judge="kl:0")
    policy, _ = auto(None, {}, score=score, worth=Worth(worth), stream=stream, block=3, prompt_tokens=4)
    same = []
    for pair in each_of(both):
        shown, _ = play(toys, policy, pair)
        same.append(text(shown) == own(pair[1], (), LENGTH))
        assert worth < float("inf") or {token.source for token in shown} == {"cloud"}
    assert all(same) or worth == 1.0
    assert worth == float("inf") or not all(same), "where worth is small something is kept"
    assert not policy.is_exact(Sampling())


# ---- the cloud that is not there -------------------------------------------------------------------------------------

SCRIPTS = {
    "check": lambda _, num: DraftPlan("check", num),
    "write": lambda _, num: DraftPlan("write", 0),
    "write on": lambda _, num: DraftPlan("write", num // 2),
    "spans": lambda _, num: DraftPlan("check", min(2, num), 0),
    "by turns": lambda number, num: [DraftPlan("check", num), DraftPlan("write", num // 2), keep(num)][number % 3],
}


@each("name", SCRIPTS)
@each("stream", ["whole", "blocks"])
def test_with_a_cloud_that_never_answers_the_text_is_the_local_models_and_nothing_is_drafted_twice(
    toys, both, name, stream
):
    for pair in each_of(both):
        policy, _ = auto(SCRIPTS[name], {}, stream=stream, block=5)
        shown, log = play(toys, policy, pair, fails=lambda _: True)
        assert text(shown) == own(pair[0], (), LENGTH)
        drafted = [len(request.at) for request in log if isinstance(request, Draft)]
        assert drafted == sorted(set(drafted))


@each("name", SCRIPTS)
def test_with_a_cloud_that_never_answers_sampled_text_has_the_local_models_law(toys, name):
    small, large = toys.Toy("q"), toys.Toy("p")
    policy, _ = auto(SCRIPTS[name], {"sampling": AT_ONE})
    law = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 3, fails=lambda _: True), 3)
    assert toys.distance(law, toys.own_law(small, 3)) < 1e-12


@each("name", SCRIPTS)
def test_every_answer_ends_wherever_the_cloud_is_cut_off(toys, both, name):
    for cut, pair in each_of(itertools.product((1, 2, 3, 5), both)):
        for how in ({}, {"told": False}, {"short": 1}, {"end": 2}):
            policy, _ = auto(SCRIPTS[name], {"threshold": 0.1}, stream="blocks", block=4)
            shown, log = play(toys, policy, pair, fails=lambda n, cut=cut: n >= cut, **how)
            assert len(shown) == LENGTH or shown[-1].id == how.get("end")
            assert len(log) < 10 * LENGTH
            last = max((i for i, token in enumerate(shown) if token.source == "cloud"), default=-1)
            kept = text(shown)
            assert all(pair[0](kept[:i]).best == kept[i] for i in range(last + 1, len(kept)))


# ---- blocks, and deciding early --------------------------------------------------------------------------------------


def test_blocks_are_shown_once_each_is_decided(toys, both):
    policy, seen = auto(lambda _, num: keep(num), {}, stream="blocks", block=5)
    shown, log = play(toys, policy, both[0])
    assert [len(request.tokens) for request in log if isinstance(request, Emit)] == [5, 5, 2]
    assert [final for _, final, _, _ in seen] == [False, False, True]
    assert [signals.shown for signals, *_ in seen] == [0, 5, 10]
    assert text(shown) == own(both[0][0], (), LENGTH)
    chosen, _ = auto(lambda _, num: keep(num), {"span": 3}, stream="blocks", block=5)
    assert [len(request.tokens) for request in play(toys, chosen, both[0])[1] if isinstance(request, Emit)] == [3] * 4


@each("turned_down", [0.01, 0.99])
def test_an_early_decision_shows_each_token_at_once_and_takes_nothing_back(toys, both, turned_down):
    score = ToyScore(question=QuestionForecast(turned_down, 20.0, 1.0))
    policy, _ = auto(None, {}, score=score, stream="early", prompt_tokens=9)
    for pair in each_of(both):
        shown, log = play(toys, policy, pair)
        assert text(shown) == own(pair[turned_down > 0.5], (), LENGTH)
        assert not any(isinstance(request, Check) for request in log)
        if turned_down < 0.5:
            assert [len(request.tokens) for request in log if isinstance(request, Emit)] == [1] * LENGTH
        cut, _ = play(toys, policy, pair, fails=lambda n: n >= 4)
        local = [token.source for token in cut].count("local")
        assert local == (LENGTH if turned_down < 0.5 else LENGTH - 3)


# ---- what is known, asked and told -----------------------------------------------------------------------------------


@each("fails", [lambda _: False, lambda number: number % 2 == 0])
def test_a_planner_is_told_what_the_cloud_has_read_or_written_of_this_answer(toys, both, fails):
    """A second hand: of every text that was sent or written, the longest beginning that the draft shares.

    Where the cloud fails after it has turned a draft down, another text is sent later.
    """
    for pair in each_of(both):
        for script in (SCRIPTS["check"], SCRIPTS["write on"], SCRIPTS["by turns"]):
            policy, seen = auto(script, {"threshold": 0.2}, stream="blocks", block=4, prompt_tokens=100)
            _, log = play(toys, policy, pair, fails=fails)
            sent, told, asked = [], iter(seen), 0
            for request in each_of(log):
                asked += isinstance(request, Check | Write)
                if isinstance(request, Check) and not fails(asked):
                    sent.append(request.at + text(request.span))
                if isinstance(request, Write) and not fails(asked):
                    sent.append((*request.at, pair[1](request.at).best))
                if isinstance(request, Draft):
                    signals, _, known, _ = next(told)
                    draft = request.at + tuple(signals.tokens)
                    shared = max((len(common(one, draft)) for one in sent), default=0)
                    assert known == (100 + shared if sent else 0)


def common(first, second):
    return list(itertools.takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False)))


def test_a_planner_is_told_the_last_divergence_and_its_age(toys, both):
    every_other = [DraftPlan("check", 3), keep(3), DraftPlan("check", 2), keep(3)]
    policy, seen = auto(lambda number, _: every_other[number % 4], {"threshold": 50.0}, stream="blocks", block=3)
    for pair in each_of(both):
        seen.clear()
        shown, _ = play(toys, policy, pair)
        assert seen[0][0].last_divergence is None
        for signals, *_ in each_of(seen[1:]):
            measured = [i for i in range(signals.shown) if shown[i].kl is not None]
            assert measured, "what is checked comes with both rows"
            last = text(shown)[: measured[-1]]
            assert signals.last_divergence == pytest.approx(kl(pair[1](last), pair[0](last)), abs=1e-6)
            assert signals.divergence_age == signals.shown - 1 - measured[-1]


def test_each_plan_is_told_once_at_the_first_request_that_follows_it(toys, both):
    for name, script in SCRIPTS.items():
        for pair in each_of(both):
            policy, seen = auto(script, {"threshold": 0.2}, stream="blocks", block=5)
            _, log = play(toys, policy, pair)
            plans = [request.plan for request in log if not isinstance(request, Draft) and request.plan]
            assert len(plans) == len(seen), name
            for before, request in each_of(itertools.pairwise(log)):
                if not isinstance(request, Draft) and request.plan is not None:
                    assert isinstance(before, Draft)


def test_what_a_judge_said_is_told_even_where_nothing_stands(toys, both):
    """A label is a count, not something to be guessed from what is shown."""
    for sampling in (Sampling(), AT_ONE):
        rejected = 0
        for pair in each_of(both):
            policy, _ = auto(SCRIPTS["check"], {"threshold": 0.1, "sampling": sampling})
            _, log = play(toys, policy, pair, coin=None)
            (check,) = (request for request in log if isinstance(request, Check))
            (judged,) = (request.judged for request in log if isinstance(request, Emit) and request.judged)
            draft = text(check.span)
            apart = [kl(pair[1](draft[:i]), pair[0](draft[:i])) > 0.1 for i in range(LENGTH)]
            expected = apart.index(True) if True in apart else LENGTH
            assert (judged.num_judged, judged.num_accepted) == (LENGTH, expected)
            assert judged.rejected == (True in apart)
            rejected += expected == 0
        assert rejected, "one is rejected at once"
    policy, _ = auto(SCRIPTS["check"])
    _, log = play(toys, policy, both[0], fails=lambda _: True)
    assert not any(request.judged for request in log if isinstance(request, Emit))


@each("labels", [True, False])
def test_what_the_cloud_writes_is_asked_for_with_both_rows_and_never_scored_for_them(toys, both, labels):
    for told in (True, False):
        policy, _ = auto(SCRIPTS["write on"], {}, labels=labels)
        _, log = play(toys, policy, both[0], told=told)
        writes = [request for request in log if isinstance(request, Write)]
        assert writes
        assert all((write.wants_draft_rows, write.wants_target_rows) == (labels, labels) for write in writes)
        assert not any(isinstance(request, Check) for request in log)


@each("labels", [True, False])
def test_what_a_cap_has_cut_short_is_not_scored_for_its_labels_either(toys, both, labels, monkeypatch):
    """The block ends, and the answer goes on: with the local model's own tokens."""
    write, cut = toys.Player.write, 6

    def cut_short(player, request):
        wrote = write(player, request)
        return replace(wrote, span=wrote.span[: cut - len(request.at)], ended=len(request.at) >= cut - 1)

    monkeypatch.setattr(toys.Player, "write", cut_short)
    for pair in each_of(both):
        policy, _ = auto(
            lambda number, num: DraftPlan("keep" if number else "write", num if number else 0), labels=labels
        )
        shown, log = play(toys, policy, pair, told=False)
        assert text(shown) == own(pair[0], own(pair[1], (), cut), LENGTH)
        assert not any(isinstance(request, Check) for request in log)


@each("abilities", [(), ("open",), ("open", "write"), ("open", "write", "score"), ("open", "score", "ids")])
def test_nothing_is_asked_that_the_endpoint_cannot_do(toys, both, abilities):
    """It is never refused, and needs no more than that an answer can be written."""
    for hazard, stream, nats in itertools.product((0.05, 0.6), ("whole", "blocks", "early"), (None, 0.5)):
        judge = "kl:0.1" if nats is None else "excess:0.5"
        score = ToyScore((hazard,) * LENGTH, (hazard * 2,) * LENGTH, judge, question=QuestionForecast(hazard, 12, 0.5))
        more = {"score": score, "mean_excess": nats, "kept_share": 0.9, "block": 5, "worth": Worth(4.0)}
        policy, _ = auto(None, {}, abilities=frozenset(abilities), stream=stream, prompt_tokens=20, **more)
        for pair in each_of(both[:4]):
            _, log = play(toys, policy, pair)
            for request in each_of(log):
                if isinstance(request, Check):
                    assert "score" in abilities
                if isinstance(request, Write):
                    assert ("write" if request.at else "open") in abilities or within_stream(request, log)
    assert policy.needs == PRESETS["auto"].needs == {"open"}


def within_stream(request, log):
    """Whether a write reads on in the stream that began the answer."""
    writes = [each for each in log if isinstance(each, Write)]
    return writes[0].at == () and [len(each.at) for each in writes] == list(range(len(writes)))


# ---- the handoff of other policies -----------------------------------------------------------------------------------


@each("name", ["kl", "excess", "doubt"])
def test_with_the_rest_as_handoff_the_first_one_goes_to_the_end(toys, both, name):
    for pair in each_of(both):
        shown, log = play(
            toys, preset(name, PolicyOptions(span=3, threshold=0.2, hold="rest", max_tokens=LENGTH)), pair
        )
        sources = [token.source for token in shown]
        first = sources.index("cloud") if "cloud" in sources else LENGTH
        assert set(sources[first:]) <= {"cloud"}
        kept = text(shown)
        assert kept == own(pair[1], kept[:first], LENGTH)
        assert sum(write.limit == LENGTH for write in log if isinstance(write, Write)) <= 1


def test_auto_takes_no_gate_and_its_judge_is_the_scores_unless_another_is_chosen():
    with pytest.raises(UsageError, match="auto weighs each draft itself, so no gate would be asked"):
        preset("auto", PolicyOptions(gate="entropy:0.5"))
    planner = Planner(score=ToyScore(judge="kl:0.7"))
    assert str(preset("auto", PolicyOptions(planner=planner)).judge) == "kl:0.7"
    assert str(preset("auto:0.2", PolicyOptions(planner=planner)).judge) == "kl:0.2"
    assert str(preset("auto", PolicyOptions(planner=planner, judge="tv:0.3")).judge) == "tv:0.3"
    nats = Planner(score=ToyScore(judge="excess:0.4"))
    assert str(preset("auto", PolicyOptions(planner=nats, sampling=Sampling(0.7))).judge) == "excess:0.4"
