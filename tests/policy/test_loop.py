"""The laws of the whole loop, by enumeration on three tokens, one of which ends the text."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from cases import each, each_of

from hybrid.policy import PRESETS, PolicyOptions, preset
from hybrid.policy.gates import ALWAYS, NEVER, FixedGate
from hybrid.policy.policy import Policy
from hybrid.policy.requests import Check, Draft, Emit, Write
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import GreedyMatch
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import kl
from hybrid.types import Sampling

LENGTH = 12
PAIRS = 40
SPANS = (1, 2, 3, 7)
AT_ONE = Sampling(1.0)


class NeverAgrees:
    """A handback that never comes."""

    def agrees(self, at, token):
        return False


def pairs(toys, share=0.5):
    for i in range(PAIRS):
        small = toys.Toy(f"small{i}")
        yield small, toys.Mix(small, f"large{i}", share)


def models(few, many):
    """So many pairs of models by default, and more among the slow tests."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def text(shown):
    return tuple(token.id for token in shown)


@each("span", SPANS)
@each("k", [1, 2, 3])
def test_greedy_exact_gives_the_targets_own_text(toys, span, k):
    policy = preset("greedy-exact", PolicyOptions(span=span))
    for small, large in each_of(pairs(toys)):
        shown, _ = toys.play(policy, small, large, None, LENGTH, k=k)
        assert text(shown) == toys.greedy_text(large, LENGTH)


def test_greedy_exact_gives_the_targets_text_when_a_server_answers_fewer_rows(toys):
    """Generate-and-compare endpoints answer only up to the first difference."""
    for short in (1, 2):
        for small, large in each_of(pairs(toys)):
            shown, _ = toys.play(preset("greedy-exact", PolicyOptions(span=4)), small, large, None, LENGTH, short=short)
            assert text(shown) == toys.greedy_text(large, LENGTH)


@each("span", SPANS)
@each("k", [1, 3])
def test_kl_at_threshold_zero_gives_the_targets_own_text(toys, span, k):
    policy = preset("kl", PolicyOptions(span=span, threshold=0.0))
    for small, large in each_of(pairs(toys)):
        shown, _ = toys.play(policy, small, large, None, LENGTH, k=k)
        assert text(shown) == toys.greedy_text(large, LENGTH)


@each("span", SPANS)
def test_kl_at_threshold_infinity_gives_the_small_models_text_and_never_hands_over(toys, span):
    policy = preset("kl", PolicyOptions(span=span, threshold=math.inf))
    for small, large in each_of(pairs(toys)):
        shown, log = toys.play(policy, small, large, None, LENGTH)
        assert text(shown) == toys.greedy_text(small, LENGTH)
        assert not any(isinstance(request, Write) for request in log)
        assert all(token.source == "local" for token in shown)


def test_kl_at_infinity_with_a_bonus_would_not_give_the_small_models_text(toys):
    """The reason why kl takes no bonus: the wrong variant is seen to be wrong."""
    wrong = Policy("wrong", 3, ALWAYS, GreedyMatch(), bonus=True)
    assert any(
        text(toys.play(wrong, small, large, None, LENGTH)[0]) != toys.greedy_text(small, LENGTH)
        for small, large in pairs(toys)
    )


def naive_kl_text(small, large, threshold, span, length, end):
    """The kl preset as a separate program, without the loop: walk on, and hand over where KL exceeds the threshold."""
    shown = ()

    def over():
        return len(shown) >= length or end in shown

    while not over():
        drafted = ()
        while len(drafted) < span and len(shown + drafted) < length and end not in drafted:
            drafted += (small(shown + drafted).best,)
        bad = next(
            (i for i in range(len(drafted)) if kl(large(shown + drafted[:i]), small(shown + drafted[:i])) > threshold),
            None,
        )
        if bad is None and not (drafted and drafted[-1] == end):
            at = shown + drafted
            bad = len(drafted) if kl(large(at), small(at)) > threshold else None
        if bad is None:
            shown += drafted
            continue
        shown = shown + drafted[:bad]
        if over():
            break
        shown += (large(shown).best,)
        limit, calm = 4, 0
        while not over():
            for _ in range(limit):
                calm = calm + 1 if kl(large(shown), small(shown)) <= threshold else 0
                shown += (large(shown).best,)
                if over():
                    return shown
            if calm >= 2:
                break
            limit *= 2
    return shown


@each("threshold", [0.05, 0.2, 0.6])
def test_kl_equals_a_separate_naive_program(toys, threshold):
    for small, large in each_of(pairs(toys, 0.3)):
        for span in (1, 3, 5):
            policy = preset("kl", PolicyOptions(span=span, threshold=threshold))
            shown, _ = toys.play(policy, small, large, None, LENGTH)
            assert text(shown) == naive_kl_text(small, large, threshold, span, LENGTH, toys.END)


@models(8, 30)
def test_kl_equals_a_separate_naive_program_on_long_texts(toys, count):
    """Texts that do not end early go through many hand-overs and hand-backs."""
    for i in each_of(range(count)):
        small = toys.Toy(f"a{i}", 5)
        large = toys.Mix(small, f"b{i}", 0.35)
        policy = preset("kl", PolicyOptions(span=3, threshold=0.1))
        expected = naive_kl_text(small, large, 0.1, 3, 60, -1)
        assert text(toys.play(policy, small, large, None, 60, k=5, end=-1)[0]) == expected
        assert text(toys.play(policy, small, large, None, 60, k=5, end=-1, told=False)[0]) == expected


def naive_doubt_text(small, large, entropy, threshold, length, end):
    """The doubt preset as a separate program: write locally; in doubt the cloud writes until KL stays small."""
    shown = ()

    def over():
        return len(shown) >= length or end in shown

    while not over():
        if small(shown).entropy() <= entropy:
            shown += (small(shown).best,)
            continue
        limit, calm = 4, 0
        while calm < 2 and not over():
            for _ in range(limit):
                if not over():
                    calm = calm + 1 if kl(large(shown), small(shown)) <= threshold else 0
                    shown += (large(shown).best,)
            limit *= 2
    return shown


@models(10, PAIRS)
@each("threshold", [0.0, 0.1, 0.4])
def test_doubt_equals_a_separate_naive_program(toys, threshold, count):
    """Limits of the rule are cases of it: doubt at 0 is always, at infinity never."""
    for i in each_of(range(count)):
        small = toys.Toy(f"a{i}", 5)
        large = toys.Mix(small, f"b{i}", 0.3)
        for entropy in (0.0, 1.0, 1.3, math.inf):
            shown, log = toys.play(
                preset("doubt", PolicyOptions(entropy=entropy, threshold=threshold)),
                small,
                large,
                None,
                40,
                k=5,
                end=-1,
            )
            assert text(shown) == naive_doubt_text(small, large, entropy, threshold, 40, -1)
            assert entropy < math.inf or not any(isinstance(request, Write) for request in log)


@each("threshold", [0.0, 0.1, 0.4])
def test_what_is_written_without_rows_is_scored_block_by_block_and_the_text_is_the_same(toys, threshold):
    """SGLang tells rows after the temperature: they were dropped, and the pen went back as if the models agreed."""
    for i in each_of(range(PAIRS)):
        small = toys.Toy(f"a{i}", 5)
        large = toys.Mix(small, f"b{i}", 0.3)
        policy = preset("doubt", PolicyOptions(entropy=1.3, threshold=threshold))
        shown, log = toys.play(policy, small, large, None, 40, k=5, end=-1, told=False)
        assert text(shown) == naive_doubt_text(small, large, 1.3, threshold, 40, -1)
        written = [request for request in log if isinstance(request, Check | Write)]
        for before, check in each_of(itertools.pairwise(written)):
            if isinstance(check, Check):
                assert check.at + text(check.span) == (*before.at, check.span[-1].id)
                assert not check.wants_next_row


def test_an_opening_or_a_block_that_nothing_weighs_is_not_scored(toys):
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    for policy in (preset("cloud", PolicyOptions(max_tokens=20)), preset("random", PolicyOptions(threshold=1.0))):
        _, log = toys.play(policy, small, large, None, 20, k=5, end=-1, told=False)
        assert not any(isinstance(request, Check) for request in log)


@each(("cut", "written"), [(2, 1), (5, 3)])
def test_where_a_written_block_cannot_be_scored_the_pen_goes_back(toys, cut, written):
    """A token and a check, two tokens and a check: it is the first of these checks that fails, or the second."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    policy = Policy("doubt", 1, FixedGate("write"), handoff_tokens=1, handback=NeverAgrees())
    shown, _ = toys.play(policy, small, large, None, 8, k=5, end=-1, told=False, fails=lambda n: n >= cut)
    assert [token.source for token in shown].count("cloud") == written
    assert len(shown) == 8


def test_doubt_gives_the_pen_away_before_it_draws_and_says_how_doubtful_it_was(toys):
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    shown, log = toys.play(preset("doubt", PolicyOptions(entropy=0.0)), small, large, None, 8, k=5, end=-1)
    assert [type(request) for request in log[:2]] == [Draft, Write]
    assert shown[0].why == f"the local model is in doubt: entropy {small(()).entropy():.3g} nats"
    assert shown[0].kl.lower == pytest.approx(kl(large(()), small(())))


def naive_paper_text(toys, small, large, threshold, span, lead):
    """The 2023 draft as it is written: lead, then k local, one KL, above it k by the cloud, and so on."""
    shown = ()

    def write(model, count):
        nonlocal shown
        for _ in range(count):
            if len(shown) < LENGTH and toys.END not in shown:
                shown += (model(shown).best,)

    write(large, lead)
    while len(shown) < LENGTH and toys.END not in shown:
        write(small, span)
        if len(shown) < LENGTH and toys.END not in shown and kl(large(shown), small(shown)) > threshold:
            write(large, span)
    return shown


@each("lead", [0, 2])
def test_paper_equals_the_draft_paper_written_down_separately(toys, lead):
    for small, large in each_of(pairs(toys, 0.3)):
        for threshold in (0.0, 0.1, 0.3, math.inf):
            policy = preset("paper", PolicyOptions(span=3, threshold=threshold, lead=lead))
            shown, _ = toys.play(policy, small, large, None, LENGTH)
            assert text(shown) == naive_paper_text(toys, small, large, threshold, 3, lead)


@each("name", ["kl", "doubt"])
def test_what_the_cloud_opens_ends_after_its_tokens_though_the_models_do_not_agree(toys, name):
    """Agreement gives the pen back after a hand-off; an opening is over when it is over."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    _, log = toys.play(preset(name, PolicyOptions(threshold=0.0, lead=2)), small, large, None, LENGTH, k=5, end=-1)
    opening = list(itertools.takewhile(lambda request: not isinstance(request, Draft), log))
    assert sum(len(request.tokens) for request in opening if isinstance(request, Emit)) == 2


def test_paper_shows_its_tokens_before_it_asks(toys):
    """Text that is let through unchecked need not wait for the round trip."""
    small, large = next(pairs(toys))
    _, log = toys.play(preset("paper", PolicyOptions(span=3, lead=0)), small, large, None, LENGTH)
    kinds = [type(request) for request in log]
    assert kinds[:3] == [Draft, Emit, Check] or Check not in kinds


@each("name", ["kl", "doubt"])
@each("hold", [None, 2, 7])
def test_the_cloud_writes_as_much_as_was_chosen_before_it_may_hand_back(toys, name, hold):
    """The first request to write of a hand-off; 4 tokens where nothing was chosen."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    policy = preset(name, PolicyOptions(span=3, threshold=0.0, entropy=0.0, hold=hold))
    _, log = toys.play(policy, small, large, None, 30, k=5, end=-1)
    (first, *_) = (request.limit for request in log if isinstance(request, Write))
    assert first == (hold or 4)


@each("name", PRESETS)
def test_with_a_cloud_that_never_answers_every_preset_gives_exactly_the_small_models_text(toys, name):
    for span in (1, 3):
        policy = preset(name, PolicyOptions(span=span, max_tokens=LENGTH))
        for small, large in each_of(pairs(toys)):
            shown, _ = toys.play(policy, small, large, None, LENGTH, fails=lambda _: True)
            assert text(shown) == toys.greedy_text(small, LENGTH)


@each("name", [name for name in PRESETS if name != "greedy-exact"])
def test_with_a_cloud_that_never_answers_sampled_text_has_exactly_the_small_models_law(toys, name):
    """Every coin enumerated: nothing in the loop draws, drops or redraws a token."""
    small, large = toys.Toy("q"), toys.Toy("p")
    policy = preset(name, PolicyOptions(span=2, sampling=AT_ONE, max_tokens=3))
    law = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 3, fails=lambda _: True), 3)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert toys.distance(law, toys.own_law(small, 3)) < 1e-12


@each("name", ["kl", "greedy-exact", "paper"])
def test_what_was_drafted_is_not_drafted_again_because_the_cloud_is_gone(toys, name):
    """A dead cloud costs the user's time once, not once per span."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    _, log = toys.play(preset(name, PolicyOptions(span=3)), small, large, None, 12, k=5, end=-1, fails=lambda _: True)
    assert [len(request.at) for request in log if isinstance(request, Draft)] == [0, 3, 6, 9]


def test_cloud_sampled_has_exactly_the_large_models_law(toys):
    small, large = toys.Toy("q"), toys.Toy("p")
    policy = preset("cloud", PolicyOptions(sampling=AT_ONE, max_tokens=3))
    law = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 3), 3)
    assert toys.distance(law, toys.own_law(large, 3)) < 1e-12
    assert toys.distance(law, toys.own_law(small, 3)) > 0.05


def test_kl_sampled_at_threshold_zero_has_exactly_the_large_models_law(toys):
    """A rejection under sampling hands over; a token taken from the truncated row would bias the text."""
    small, large = toys.Toy("q"), toys.Toy("p")
    policy = preset("kl", PolicyOptions(span=2, threshold=0.0, sampling=AT_ONE))
    law = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 3), 3)
    assert toys.distance(law, toys.own_law(large, 3)) < 1e-12
    unweighed = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 3, told=False), 3)
    assert toys.distance(unweighed, toys.own_law(large, 3)) < 1e-12
    wrong = replace(policy, judge=DivergenceThreshold(0.0, sampler=TargetSampler(Sampling())))
    biased = toys.law_of(lambda coin: toys.play(wrong, small, large, coin, 3), 3)
    assert toys.distance(biased, toys.own_law(large, 3)) > 0.01


@each("name", PRESETS)
@each("cut", [1, 2, 3])
def test_with_a_cloud_cut_at_any_request_every_preset_finishes(toys, name, cut):
    """From the cut on the text is the small model's."""
    policy = preset(name, PolicyOptions(span=2, max_tokens=LENGTH))
    for small, large in each_of(pairs(toys)):
        shown, _ = toys.play(policy, small, large, None, LENGTH, fails=lambda n: n >= cut)
        assert len(shown) == LENGTH or shown[-1].id == toys.END
        kept = text(shown)
        last = max((i for i, token in enumerate(shown) if token.source == "cloud"), default=-1)
        assert all(small(kept[:i]).best == kept[i] for i in range(last + 1, len(kept)))


@each("call", ["keep", "check", "write"])
def test_a_gate_that_never_lets_a_token_be_drawn_still_lets_every_answer_end(toys, call):
    """The progress law: a round that showed nothing is followed by one ungated local token."""

    class Stubborn(FixedGate):
        def before(self, row, place):
            return call

    policy = Policy("stubborn", 3, Stubborn("check"), GreedyMatch(), handoff_tokens=2)
    small, large = next(pairs(toys))
    shown, log = toys.play(policy, small, large, None, LENGTH, fails=lambda _: True)
    assert text(shown) == toys.greedy_text(small, LENGTH)
    assert len(log) < 10 * LENGTH


def test_scope_checks_only_the_trailing_tokens_and_shows_the_others_at_once(toys):
    policy = Policy("tail", 4, ALWAYS, DivergenceThreshold(math.inf), scope=1)
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    shown, log = toys.play(policy, small, large, None, 8, k=5, end=-1)
    assert [len(request.span) for request in log if isinstance(request, Check)] == [1, 1]
    assert [token.how for token in shown] == ["unchecked", "unchecked", "unchecked", "accepted"] * 2


def test_a_handoff_doubles_its_blocks_until_the_models_agree(toys):
    """Each block is one request whose limit is a promise to the bill."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    judge = DivergenceThreshold(0.0, sampler=TargetSampler(Sampling()))
    policy = Policy("hold", 2, ALWAYS, judge, handoff_tokens=2, handback=NeverAgrees())
    _, log = toys.play(policy, small, large, None, 1 + 2 + 4 + 8, k=5, end=-1)
    limits = [request.limit for request in log if isinstance(request, Write)]
    assert limits == [2, 1, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1]


def test_a_reason_stands_at_the_first_token_of_its_handoff_only(toys):
    """The block after a recovered token has no reason of its own: it would read as if each token had been rejected."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    shown, _ = toys.play(preset("kl", PolicyOptions(span=3, threshold=0.1)), small, large, None, 40, k=5, end=-1)
    assert any(token.how == "recovered" for token in shown)
    for before, token in each_of(itertools.pairwise(shown)):
        assert (token.why is not None) == (token.how == "recovered") or before.how not in {"recovered", "written"}
        assert not (token.how == "written" and before.how in {"recovered", "written"} and token.why)


def test_never_gate_asks_nothing(toys):
    small, large = next(pairs(toys))
    _, log = toys.play(Policy("local", 3, NEVER), small, large, None, LENGTH)
    assert {type(request) for request in log} <= {Draft, Emit}
