"""Noise in the rows: a verdict that it could have made is none, and a promise that it could break is not given."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import each

from hybrid.policy import PolicyOptions, preset
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import Draft, PendingToken, Write
from hybrid.policy.rules.divergence_threshold import MEASURES, DivergenceThreshold
from hybrid.prob import Dense, TopK, kl_divergence

LARGE, SMALL = np.array([0.55, 0.3, 0.1, 0.05]), np.array([0.3, 0.2, 0.1, 0.4])


def pair(cloud, local, k=4):
    """One position's rows, the noise of each in nats; the cloud shows k tokens."""
    row = TopK.from_dense(Dense.from_logits(np.log(LARGE), cloud), k)
    return row, PendingToken(0, "local", "unchecked", draft_row=Dense.from_logits(np.log(SMALL), local))


def verdict(judge, cloud, local, k=4):
    row, token = pair(cloud, local, k)
    return judge(DraftedSpan((token,), (row,), None, bonus=False, coin=None))


def told(measure, k=4):
    row, token = pair(0.0, 0.0, k)
    return MEASURES[measure](row, token.draft_row)


@each("measure", MEASURES)
@each("noise", [(0.02, 0.0), (0.0, 0.02), (0.01, 0.01)])
def test_a_token_whose_lower_end_exceeds_the_threshold_by_less_than_the_noise_stands(measure, noise):
    """Whichever side the noise is on. What exceeds it by more is turned down as ever."""
    judge = DivergenceThreshold(0.999 * told(measure).lower, measure=measure)
    assert verdict(judge, 0.0, 0.0).rejected
    assert not verdict(judge, *noise).rejected
    assert verdict(DivergenceThreshold(0.7 * told(measure).lower, measure=measure), *noise).rejected


@each("measure", ["KL", "JS", "TV"])
@each("k", [2, 4])
def test_strict_keeps_a_token_only_if_its_upper_end_is_within_by_more_than_the_noise(measure, k):
    judge = DivergenceThreshold(1.001 * told(measure, k).upper, "upper", measure=measure)
    assert not verdict(judge, 0.0, 0.0, k).rejected
    assert verdict(judge, 0.01, 0.01, k).rejected
    assert not verdict(
        DivergenceThreshold(1.4 * told(measure, k).upper, "upper", measure=measure), 0.01, 0.01, k
    ).rejected


@each("measure", MEASURES)
@each("number", ["lower", "upper"])
def test_at_the_ends_of_the_thresholds_noise_decides_nothing(measure, number):
    """At 0 the text is the cloud model's own, at infinity the local one's, however sure the numbers are."""
    assert verdict(DivergenceThreshold(0.0, number, measure=measure), 0.5, 0.5).rejected
    assert not verdict(DivergenceThreshold(math.inf, number, measure=measure), 0.5, 0.5).rejected
    row = TopK.from_dense(Dense.from_logits(np.log(SMALL), 0.5), 4)
    same = DraftedSpan((pair(0.0, 0.5)[1],), (row,), None, bonus=False, coin=None)
    assert not DivergenceThreshold(1e-9, measure=measure)(same).rejected


@each("measure", MEASURES)
@each(("number", "kept_more"), [("lower", True), ("upper", False)])
def test_more_noise_turns_less_down_by_the_lower_end_and_keeps_less_by_the_upper(measure, number, kept_more):
    for share in (0.2, 0.5, 0.9, 0.999, 1.001, 1.1, 1.5, 3.0):
        judge = DivergenceThreshold(share * told(measure).lower, number, measure=measure)
        kept = [not verdict(judge, noise, 0.0).rejected for noise in (0.0, 0.001, 0.01, 0.1, 0.5)]
        assert all((more or not less) if kept_more else (less or not more) for less, more in itertools.pairwise(kept))


def test_why_a_token_was_turned_down_names_the_end_that_decided():
    """A larger number than the threshold, whichever way the noise moved it."""
    for judge in (DivergenceThreshold(0.1), DivergenceThreshold(1.001 * told("KL").upper, "upper")):
        value, threshold = map(float, verdict(judge, 0.05, 0.05).why.removeprefix("KL ").split(" nats, above "))
        assert value > threshold
        assert value != pytest.approx(told("KL").lower, rel=1e-3)


def test_a_kept_token_tells_its_noise_and_a_certificate_that_holds_within_it():
    silent, noisy = (verdict(DivergenceThreshold(math.inf), cloud, 0.25).accepted[0] for cloud in (0.0, 0.125))
    assert (silent.kl.noise, noisy.kl.noise) == (0.25, 0.375)
    assert replace(noisy.kl, noise=0.0) == replace(silent.kl, noise=0.0)
    assert 0.0 < noisy.certificate < silent.certificate
    assert verdict(DivergenceThreshold(math.inf), 0.5, 0.0).accepted[0].certificate == 0.0  # the second may be the best


def reached(toys, policy, small, large, k):
    """Where the cloud hands the pen back for the first time; None: it never does."""
    _, log = toys.play(policy, small, large, None, 40, k=k, end=-1)
    first = next(i for i, request in enumerate(log) if isinstance(request, Write))
    return next((len(request.at) for request in log[first:] if isinstance(request, Draft)), None)


@each("name", ["kl", "doubt"])
def test_strict_decides_when_the_pen_goes_back_too(toys, name):
    """From two shown tokens the threshold lies between the ends: by the lower one the two models agree everywhere."""
    large = toys.Made(lambda _: Dense.from_logits(np.log(LARGE)))
    small = toys.Made(lambda _: Dense.from_logits(np.log(SMALL)))
    found = kl_divergence(TopK.from_dense(large(()), 2), small(()))
    choices = PolicyOptions(threshold=(found.lower + found.upper) / 2, entropy=0.0, span=2, strict=True)
    strict, loose = preset(name, choices), preset(name, choices.model_copy(update={"strict": False}))
    assert reached(toys, strict, small, large, 2) is None
    assert reached(toys, replace(strict, handback=loose.handback), small, large, 2) < 10


@each("strict", [False, True])
def test_noise_decides_when_the_pen_goes_back_as_it_decides_when_it_is_taken(strict):
    found = told("KL")
    threshold = found.lower * 0.999 if not strict else found.upper * 1.001
    back = preset("doubt", PolicyOptions(threshold=threshold, strict=strict)).handback
    token = PendingToken(0, "cloud", "written", kl=found)
    assert back.agrees((), token) is strict
    assert back.agrees((), replace(token, kl=replace(found, noise=0.02))) is not strict
