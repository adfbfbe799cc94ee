"""Spans that follow what came of the last: their lengths, and that no law depends on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each, each_of

from hybrid.policy import PRESETS, PolicyOptions, choices_without_effect, exact_stages, preset, with_stages
from hybrid.policy.requests import Check, Draft
from hybrid.types import Sampling

LENGTH, SPANS, AT_ONE = 12, (1, 2, 3, 7), Sampling(1.0)


def pairs(toys, share=0.5, num=40):
    for i in range(num):
        small = toys.Toy(f"small{i}")
        yield small, toys.Mix(small, f"large{i}", share)


def text(shown):
    return tuple(token.id for token in shown)


@each("first", SPANS)
@each("longest", [3, 8, 32])
def test_greedy_exact_gives_the_targets_own_text_with_spans_that_follow(toys, first, longest):
    policy = replace(preset("greedy-exact", PolicyOptions()), span=first, longest_span=max(first, longest))
    for small, large in each_of(pairs(toys)):
        shown, _ = toys.play(policy, small, large, None, LENGTH, k=2)
        assert text(shown) == toys.greedy_text(large, LENGTH)


def spans_by_hand(small, large, length, first, longest):
    """The lengths of all spans of speculative decoding at temperature 0, one after another, token by token."""
    at, span, found = (), first, []
    while len(at) < length:
        num, rejected = min(span, length - len(at)), False
        found.append(num)
        for _ in range(num):
            best = large(at).best
            rejected = small(at).best != best
            at += (best,)
            if rejected:
                break
        if not rejected and len(at) < length:
            at += (large(at).best,)
        span = max(span // 2, min(span, 4)) if rejected else min(2 * span, longest)
    return found


def test_spans_double_while_they_are_kept_and_halve_down_to_four(toys):
    seen = set()
    for share in (0.1, 0.3):
        for small, large in each_of(pairs(toys, share, 10)):
            _, log = toys.play(preset("greedy-exact", PolicyOptions()), small, large, None, 120, k=5, end=-1)
            spans = [len(request.span) for request in log if isinstance(request, Check)]
            assert spans == spans_by_hand(small, large, 120, 16, 32)
            seen.update(spans)
    assert {4, 8, 16, 32} <= seen


@each("name", ["greedy-exact", "exact", "block"])
def test_spans_stay_where_a_number_was_chosen(toys, name):
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    sampling = Sampling() if name == "greedy-exact" else AT_ONE
    policy = preset(name, PolicyOptions(span=5, sampling=sampling))
    _, log = toys.play(policy, small, large, None if sampling.greedy else (lambda _: 0), 60, k=5, end=-1)
    assert {request.limit for request in log if isinstance(request, Draft)} == {5}


@each("name", ["kl", "excess", "greedy-exact"])
def test_a_range_that_was_chosen_follows_the_verdicts_under_any_policy_that_checks(toys, name):
    policy = preset(name, PolicyOptions(span=2, most_span=8))
    assert f"{policy}".split()[1] == "span=2..8"
    seen = set()
    for small, large in each_of(pairs(toys, 0.2, 10)):
        _, log = toys.play(policy, small, large, None, 60, k=5, end=-1)
        limits = [request.limit for request in log if isinstance(request, Draft)]
        assert limits[0] == 2
        seen.update(limits)
    assert seen == {2, 4, 8}, "of two none is halved further"


def test_a_range_acts_where_a_number_of_tokens_is_drafted_before_a_check_and_nowhere_else():
    """What is inherited from a file does not act under another policy; what was chosen for this one is refused."""
    acts = set()
    for name in each_of(PRESETS):
        own = preset(name, PolicyOptions(max_tokens=40))
        for first, most in ((4, 32), (40, 64)):
            policy = preset(name, PolicyOptions(span=first, most_span=most, max_tokens=40))
            assert (policy.longest_span is None) or (policy.span, policy.longest_span) == (first, most)
            if policy.longest_span is None:
                assert policy == preset(name, PolicyOptions(span=first, max_tokens=40))
        idle = "span" in choices_without_effect(name, {"span": "4..32"})
        assert idle == (own.judge is None or own.planner is not None or name == "once"), name
        acts.update(() if idle else (name,))
    assert {"kl", "exact", "excess", "paper"} <= acts
    assert not {"auto", "route", "doubt", "local", "cloud", "random", "once"} & acts


def test_above_a_chain_of_local_models_spans_stay_as_they_were():
    """And as the benchmark of chains has them, which was measured with 8."""
    chain = with_stages(preset("greedy-exact", PolicyOptions()), exact_stages((4,), Sampling()))
    assert (chain.span, chain.longest_span) == (8, None)
    assert with_stages(preset("greedy-exact", PolicyOptions(span=12)), chain.stages).span == 12


def test_a_check_that_is_not_answered_makes_the_next_span_shorter(toys):
    """It kept nothing: where money runs out, a short span may still be paid for."""
    small, large = next(pairs(toys))
    _, log = toys.play(
        preset("greedy-exact", PolicyOptions()), small, large, None, 60, k=5, end=-1, fails=lambda _: True
    )
    limits = [request.limit for request in log if isinstance(request, Draft)]
    assert limits[:4] == [16, 8, 4, 4]


@pytest.mark.parametrize(
    ("name", "first", "longest"),
    [
        ("exact", 4, 4),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("block", 1, 4), ("block", 4, 4), ("exact", 2, 8)]),
    ],
)
def test_spans_that_follow_one_another_leave_the_clouds_law(toys, monkeypatch, name, first, longest):
    """The next span follows from what came of the last, and so from coins: the law must not. Here they halve to 1."""
    monkeypatch.setattr("hybrid.policy.policy.SHORTEST_SPAN", 1)
    small = toys.Toy("q0")
    large = toys.Mix(small, "p0", 0.6)
    policy = replace(preset(name, PolicyOptions(sampling=AT_ONE)), span=first, longest_span=longest)
    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 4, k=2, law=AT_ONE), 4)
    assert toys.distance(found, toys.own_law(large, 4)) < 1e-12
