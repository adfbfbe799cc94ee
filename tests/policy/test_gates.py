"""Each gate's law: when it ends a draft, with what call, and that only its arguments decide."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_divergence import FAR_APART, POSITIVE, law, naive_kl, pairs
from naive_rules import RULES, accepted, undecided

from hybrid.policy import DraftPosition, PolicyOptions, preset
from hybrid.policy.compose import GATES
from hybrid.policy.gates import (
    ALWAYS,
    NEVER,
    CertifiedSkipGate,
    EntropyGate,
    GateDecision,
    MarginGate,
    MaxProbGate,
    PerturbationGate,
    RandomGate,
    SurvivalGate,
)
from hybrid.policy.requests import Check, Write
from hybrid.prob import Dense, GreedyAcceptance, skip_certificate
from hybrid.types import Sampling

START = DraftPosition(0, ())
HALVES, QUARTERS = law([2, 1, 1]), law([1, 1, 1, 1])
CERTAIN = law([0, 1, 0])
LOCAL_ROWS = st.lists(POSITIVE | FAR_APART, min_size=1, max_size=8).map(law)
LIMITS = st.floats(0.0, 1.0)


def entropy(probs):
    return -math.fsum(p * math.log(p) for p in probs if p > 0)


def margin(probs):
    first, second = sorted([*probs, 0.0], reverse=True)[:2]
    return first - second


# ---- in doubt about a row ------------------------------------------------------------------------------------------


@given(LOCAL_ROWS, LIMITS)
def test_a_row_is_in_doubt_on_one_side_of_the_limit(row, limit):
    """Entropy above it; margin and largest probability below it."""
    probs = row.probs.tolist()
    values = entropy(probs), margin(probs), max(probs)
    assume(min(abs(value - limit) for value in values) > 1e-9)
    gates = EntropyGate(limit), MarginGate(limit), MaxProbGate(limit)
    asked = [gate.before(row, START) == "write" for gate in gates]
    assert asked == [values[0] > limit, values[1] < limit, values[2] < limit]


def test_at_the_limit_itself_a_row_is_not_in_doubt():
    """The limit is what is still good enough: at 0 and at 1 it says never or always, whatever the row."""
    assert EntropyGate(QUARTERS.entropy()).before(QUARTERS, START) is None
    assert EntropyGate(math.nextafter(QUARTERS.entropy(), 0)).before(QUARTERS, START) == "write"
    for gate, limit in ((MarginGate, 0.25), (MaxProbGate, 0.5)):
        assert gate(limit).before(HALVES, START) is None
        assert gate(math.nextafter(limit, 1)).before(HALVES, START) == "write"


@each("never", [EntropyGate(math.inf), MarginGate(0.0), MaxProbGate(0.0)])
@each("always", [EntropyGate(0.0), MarginGate(1.0), MaxProbGate(1.0)])
def test_at_its_ends_a_limit_asks_never_or_wherever_more_than_one_token_is_possible(never, always):
    for row in (HALVES, QUARTERS, law([1, 1e-9])):
        assert never.before(row, START) is None
        assert always.before(row, START) == "write"
    assert always.before(CERTAIN, START) is None
    assert always.before(law([1]), START) is None


@each("gate", [EntropyGate(0.1), MarginGate(0.3), MaxProbGate(0.6)])
def test_doubt_says_its_call_before_a_token_is_drawn_and_nothing_after(gate):
    for call in ("check", "write", "keep"):
        assert replace(gate, decision=call).before(HALVES, START) == call
    assert gate.before(CERTAIN, START) is None
    assert gate.after(HALVES, 0, START) is None
    assert gate.when_full == "keep"


# ---- random --------------------------------------------------------------------------------------------------------


@each("rate", [0.1, 0.5])
def test_random_calls_at_its_rate(rate):
    """20,000 positions; beyond 3.3 standard deviations with a chance of 1e-3."""
    n, gate = 20_000, RandomGate(rate)
    found = sum(gate.before(HALVES, DraftPosition(i, ())) == "write" for i in range(n))
    assert abs(found - n * rate) < 3.3 * math.sqrt(n * rate * (1 - rate))


@each(("rate", "call"), [(0.0, None), (1.0, "write")])
def test_random_at_its_ends_calls_never_or_always(rate, call):
    assert {RandomGate(rate, seed).before(HALVES, DraftPosition(i, ())) for seed in range(10) for i in range(100)} == {
        call
    }


def test_random_calls_by_seed_and_position_alone():
    def calls(seed, row, drafted=()):
        gate = RandomGate(0.3, seed)
        return [gate.before(row, DraftPosition(i, drafted)) for i in range(200)]

    assert calls(1, HALVES) == calls(1, QUARTERS) == calls(1, CERTAIN, [HALVES])
    assert calls(1, HALVES) != calls(2, HALVES)


def test_the_random_preset_tosses_with_the_users_seed():
    seeds = [preset("random", PolicyOptions(sampling=Sampling(seed=seed))).gate.seed for seed in (0, 7)]
    assert seeds == [0, 7]


# ---- perturbed -----------------------------------------------------------------------------------------------------


@given(LOCAL_ROWS, st.integers(0, 7), LIMITS)
def test_perturbed_asks_about_a_token_that_other_temperatures_would_often_not_have_drawn(row, token, limit):
    """The mean over the temperatures of p(x) ** (1 / t), normalised, is the chance of agreement."""
    assume(token < row.num_tokens)
    gate, probs = PerturbationGate(limit), row.probs
    agree = [float(probs[token] ** (1 / t) / (probs ** (1 / t)).sum()) for t in gate.temperatures]
    uncertainty = 1 - math.fsum(agree) / len(agree)
    assume(abs(uncertainty - limit) > 1e-9)
    assert gate.after(row, token, START) == ("check" if uncertainty > limit else None)


def test_perturbed_is_about_the_drawn_token_and_not_the_row():
    row = law([8, 1, 1])
    assert PerturbationGate(0.4).after(row, 0, START) is None
    assert PerturbationGate(0.4).after(row, 1, START) == "check"


# ---- certified -----------------------------------------------------------------------------------------------------


@given(pairs(), st.floats(0, 0.5), RULES)
def test_where_the_divergence_is_within_the_bound_what_is_kept_the_rule_accepts(pair, more, rule):
    """Of greedy acceptance: it is the cloud's best token."""
    cloud, local = pair
    assume(not undecided(cloud.probs, rule))
    bound = naive_kl(cloud.probs, local.probs) + 1e-9 + more
    if CertifiedSkipGate(bound, rule).after(local, local.best, START) is None:
        assert local.best in accepted(cloud.probs, rule)


@given(st.lists(POSITIVE, min_size=2, max_size=8).map(law))
def test_the_nearest_cloud_row_with_another_favourite_is_asked_about(local):
    """The bound is sharp: the two best pooled at their geometric mean, and the second a little ahead."""
    (first, p1), (second, p2) = local.top(2)
    scores = local.logprobs
    scores[[first, second]] = (p1 + p2) / 2 + np.array([-1e-5, 1e-5])
    cloud = Dense.from_logits(scores)
    divergence = naive_kl(cloud.probs, local.probs)
    assert cloud.best == second
    assert divergence == pytest.approx(skip_certificate(local, GreedyAcceptance()), abs=1e-4)
    assert CertifiedSkipGate(divergence).after(local, local.best, START) == "check"
    if divergence > 1e-3:
        assert CertifiedSkipGate(divergence - 1e-3).after(local, local.best, START) is None


def test_certified_asks_about_every_token_that_is_not_the_local_favourite():
    sure = law([100, 1, 1])
    assert CertifiedSkipGate(0.1).after(sure, 0, START) is None
    assert CertifiedSkipGate(0.1).after(sure, 1, START) == "check"
    assert CertifiedSkipGate(math.inf).after(sure, 0, START) == "check"


# ---- survival ------------------------------------------------------------------------------------------------------


@given(st.lists(LOCAL_ROWS, max_size=5), LOCAL_ROWS, LIMITS)
def test_survival_asks_when_the_product_of_the_predicted_chances_is_below_the_limit(drafted, row, limit):
    chance = math.prod(max(0.0, 1 - math.sqrt(entropy(seen.probs.tolist()) / 5)) for seen in [*drafted, row])
    assume(abs(chance - limit) > 1e-9)
    assert SurvivalGate(limit).after(row, 0, DraftPosition(len(drafted), drafted)) == (
        "check" if chance < limit else None
    )


@given(st.lists(LOCAL_ROWS, max_size=4), LOCAL_ROWS, LOCAL_ROWS, st.floats(0.5, 1.0))
def test_survival_that_asks_still_asks_of_a_longer_or_a_less_certain_draft(drafted, row, other, limit):
    gate = SurvivalGate(limit)
    assume(gate.after(row, 0, DraftPosition(len(drafted), drafted)) == "check")
    assert gate.after(row, 0, DraftPosition(len(drafted) + 1, [*drafted, other])) == "check"
    flatter = row if row.entropy() >= other.entropy() else other
    assert gate.after(flatter, 0, DraftPosition(len(drafted), drafted)) == "check"


def test_survival_lets_a_certain_draft_grow_and_never_lets_one_grow_beyond_five_nats():
    assert SurvivalGate(1.0).after(CERTAIN, 1, DraftPosition(9, [CERTAIN] * 9)) is None
    assert SurvivalGate(1e-9).after(law([1] * 149), 0, START) == "check"


# ---- all of them ---------------------------------------------------------------------------------------------------


def built(name):
    kind, build = GATES[name]
    return build(kind.value(None, name), PolicyOptions())


@each("name", GATES)
def test_what_a_gate_says_depends_on_its_arguments_alone(name):
    """A draft that was decoded ahead meets it again, in another order and after others."""
    rng = np.random.default_rng(0)
    rows = [Dense.from_logits(rng.standard_normal(4) * 2) for _ in range(12)]
    asked = [(rows[i], int(rng.integers(4)), DraftPosition(i, rows[: i % 3])) for i in range(12)]

    def said(gate, order):
        answers = {i: (gate.before(asked[i][0], asked[i][2]), gate.after(*asked[i])) for i in order}
        return [answers[i] for i in range(12)]

    gate = built(name)
    first = said(gate, range(12))
    assert said(gate, rng.permutation(12).tolist()) == first
    assert said(built(name), reversed(range(12))) == first
    assert gate == built(name)
    assert hash(gate) == hash(built(name))


@settings(max_examples=30)
@given(st.lists(LOCAL_ROWS, max_size=3), LOCAL_ROWS, st.data())
def test_a_gate_goes_on_or_says_one_of_three_calls(drafted, row, data):
    """None of which drops the token that was drawn."""
    token, place = data.draw(st.integers(0, row.num_tokens - 1)), DraftPosition(len(drafted), drafted)
    for name in each_of(GATES):
        gate = built(name)
        assert gate.when_full in get_args(GateDecision)
        assert gate.before(row, place) in {None, *get_args(GateDecision)}
        assert gate.after(row, token, place) in {None, *get_args(GateDecision)}


def test_never_and_always_say_the_same_of_every_span():
    for gate, full in ((NEVER, "keep"), (ALWAYS, "check")):
        assert gate.when_full == full
        assert gate.before(QUARTERS, START) is None
        assert gate.after(QUARTERS, 3, START) is None


def test_a_row_in_doubt_is_given_away_where_the_gate_says_write_and_asked_about_where_it_says_check(toys):
    """The call reaches the loop as it was said."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    for call, kind, other in (("write", Write, Check), ("check", Check, Write)):
        policy = replace(preset("bild", PolicyOptions()), gate=MaxProbGate(1.0, call, "check"), handoff_tokens=2)
        _, log = toys.play(policy, small, large, None, 8, k=5, end=-1)
        assert isinstance(log[1], kind)
        assert not any(isinstance(request, other) for request in log)
