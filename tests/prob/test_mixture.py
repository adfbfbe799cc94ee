"""Sums of laws, and weights that follow a reference: against plain floats, and against the best in hindsight."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_divergence import law, naive_kl
from naive_mixture import best_fixed, log_loss, naive_gains, naive_mixture

from hybrid.prob import Dense, MixtureWeights, SelectionWeights, TopK, mixture, selected
from hybrid.prob.mixture import FLOOR, gains, losses
from hybrid.prob.readings import LIKELY, kl_shift


def alike(num):
    return (1 / num,) * num


@st.composite
def several(draw):
    """A target, two to four models and weights for them, over two to nine tokens; what a model excludes, too."""
    size, num = draw(st.integers(2, 9)), draw(st.integers(2, 4))
    weight = st.sampled_from([0.0, 1e-9, 0.1, 1.0, 5.0])
    laws = [law(draw(st.lists(weight, min_size=size, max_size=size).filter(any))) for _ in range(num + 1)]
    weights = np.array(draw(st.lists(weight, min_size=num, max_size=num).filter(any)))
    return laws[0], laws[1:], tuple((weights / weights.sum()).tolist())


@given(several())
def test_a_mixture_is_the_weighted_sum_of_its_parts(made):
    _, parts, weights = made
    row = mixture(parts, weights)
    assert row.probs == pytest.approx(naive_mixture([part.probs for part in parts], weights), abs=1e-12)
    assert row.probs.sum() == pytest.approx(1.0, abs=1e-12)
    assert (row.parts, row.weights) == (tuple(parts), weights)


@given(several())
def test_a_mixture_is_no_farther_from_a_target_than_its_parts_on_average(made):
    """Convexity: what is drawn from the sum needs no better models than what is drawn from one by its weight."""
    target, parts, weights = made
    apart = [w * naive_kl(target.probs, part.probs) if w else 0.0 for part, w in zip(parts, weights, strict=True)]
    assert naive_kl(target.probs, mixture(parts, weights).probs) <= math.fsum(apart) + 1e-9


def test_one_model_of_all_the_weight_is_itself_to_the_last_bit():
    """An answer of one expert is that model's own, as without experts."""
    rng = np.random.default_rng(0)
    one, other = (Dense.from_logits(rng.normal(size=50).astype(np.float32), 0.01, 0.02) for _ in range(2))
    for row in (mixture((other, one), (0.0, 1.0)), selected((None, one), 1, (0.5, 0.5)), mixture((one,), (1.0,))):
        assert row.logits is one.logits
        assert (row.log_total, row.noise, row.shift) == (one.log_total, one.noise, one.shift)


def test_what_was_not_read_cannot_be_chosen():
    with pytest.raises(ValueError, match="not read"):
        selected((None, law([1, 2])), 0, (0.5, 0.5))


@given(several(), st.integers(0, 2**32 - 1))
def test_no_log_probability_of_a_mixture_moves_by_more_than_its_parts_noise(made, seed):
    """The noise of the sum is the most of its parts': each told row beside a true one, and the sums of both."""
    _, parts, weights = made
    rng = np.random.default_rng(seed)
    true = [Dense(part.logits + rng.uniform(-0.05, 0.05, part.num_tokens)) for part in parts]
    told = mixture([Dense(part.logits, 0.0, 0.05 - 0.01 * i) for i, part in enumerate(parts)], weights)
    possible = told.probs > 0.0
    moved = told.logprobs[possible] - mixture(true, weights).logprobs[possible]
    assert told.noise == 0.05 - 0.01 * min(i for i, weight in enumerate(weights) if weight)
    assert np.ptp(moved) <= 2 * 0.05 + 1e-9, "before both are made to sum to one, each moves by 0.05 at most"


def test_a_shift_is_known_where_all_parts_have_one():
    parts = [Dense(law([1, 2, 3]).logits, shift=shift) for shift in (0.03, 0.04, None)]
    assert mixture(parts[:2], (0.5, 0.5)).shift == 0.04
    assert mixture(parts, (0.4, 0.4, 0.2)).shift is None
    assert mixture(parts, (0.5, 0.5, 0.0)).shift == 0.04, "what has no weight has no say"


@given(several(), st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.2, 1.0]))
def test_a_mixture_of_other_readings_shifts_by_no_more_than_one_of_its_parts(made, seed, nats):
    """The law behind the mixture's shift, where every token is likely: what ``kl_shift`` leaves out it leaves out."""
    _, parts, weights = made
    rng = np.random.default_rng(seed)
    parts = [law(part.probs + 0.05) for part in parts]
    others = [Dense.from_logits(part.logprobs + rng.normal(0.0, nats, part.num_tokens)) for part in parts]
    assume(min(other.probs.min() for other in others) > LIKELY)
    shifts = [kl_shift(part.logprobs, other.logprobs) for part, other in zip(parts, others, strict=True)]
    moved = kl_shift(mixture(parts, weights).logprobs, mixture(others, weights).logprobs)
    assert moved <= 1.001 * max(shifts) + 1e-9, "kl_shift is good to a few per cent from above"


@given(several(), st.integers(1, 9))
def test_gains_are_those_of_every_listed_token_and_one_symbol_for_the_rest(made, k):
    target, parts, weights = made
    row = TopK.from_dense(target, k)
    expected = naive_gains(target.probs, row.ids.tolist(), [part.probs for part in parts], weights, FLOOR)
    assert gains(row, parts, weights) == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert gains(row, parts, weights) @ weights == pytest.approx(1.0)


def test_a_written_token_gains_by_how_likely_each_made_it():
    parts = [law([8, 1, 1]), law([1, 8, 1])]
    assert gains(0, parts, (0.5, 0.5)) == pytest.approx([0.8 / 0.45, 0.1 / 0.45], rel=1e-5)
    assert losses(0, parts) == pytest.approx([-math.log(0.8), -math.log(0.1)], rel=1e-5)


@given(several(), st.integers(1, 9))
def test_a_loss_is_at_most_the_divergence(made, k):
    """On fewer symbols laws are never farther apart; the floor makes an infinite divergence a large loss."""
    target, parts, _ = made
    for part, lost in each_of(zip(parts, losses(TopK.from_dense(target, k), parts), strict=True)):
        assert -1e-12 <= lost <= naive_kl(target.probs, part.probs) + 1e-5
        assert lost <= math.log(1e7)


@given(several(), st.lists(st.integers(0, 1), min_size=1, max_size=30))
def test_weights_stay_a_distribution(made, kinds):
    target, parts, _ = made
    mixed, chosen = MixtureWeights.start(alike(len(parts))), SelectionWeights.start(alike(len(parts)))
    for kind in each_of(kinds):
        reference = TopK.from_dense(target, 2) if kind else target.best
        mixed, chosen = mixed.after(reference, parts), chosen.after(reference, parts)
        for weights in (mixed.weights, chosen.weights):
            assert min(weights) >= 0.0
            assert sum(weights) == pytest.approx(1.0, abs=1e-12)
        assert min(chosen.weights) >= 0.02 / len(parts) * 0.999


def sequences(kind, num, length, seed):
    """Laws and tokens in which a true mixture, one model, turns of models or the weaker of the moment is right."""
    rng = np.random.default_rng(seed)
    laws = [[rng.dirichlet(np.full(6, 0.2)) + 1e-4 for _ in range(num)] for _ in range(length)]
    laws = [[each / each.sum() for each in at] for at in laws]
    share = rng.dirichlet(np.ones(num))
    tokens, weights = [], MixtureWeights.start(alike(num))
    for t, at in enumerate(laws):
        truth = {
            "mixture": share @ np.array(at),
            "one": at[0],
            "turns": at[t * num // length],
            "weaker": at[int(np.argmin(weights.weights))],
        }[kind]
        tokens.append(int(rng.choice(6, p=truth)))
        weights = weights.after(tokens[-1], [Dense.from_probs(each) for each in at])
    return laws, tokens


@each("kind", ["mixture", "one", "turns", "weaker"])
@pytest.mark.parametrize("num", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
def test_soft_bayes_loses_little_against_the_best_fixed_mixture(kind, num):
    """At most sqrt(N T ln N) + ln N nats, of which six seeds of each kind took 0.7 at most."""
    length = 60 if num == 2 else 300
    laws, tokens = sequences(kind, num, length, seed=num)
    rows = [[Dense.from_probs(each) for each in at] for at in laws]
    steps = accumulate(
        zip(tokens, rows, strict=True), lambda w, seen: w.after(*seen), initial=MixtureWeights.start(alike(num))
    )
    used = [step.weights for step in steps][:length]
    regret = log_loss(laws, tokens, used) - best_fixed(laws, tokens, steps=100)
    assert regret <= math.sqrt(num * length * math.log(num)) + math.log(num)
    even = log_loss(laws, tokens, [[1 / num] * num] * length) - best_fixed(laws, tokens, steps=100)
    assert kind in {"turns", "weaker", "mixture"} or regret < even, "better than to learn nothing"


def test_a_step_is_the_published_one():
    """w_i (1 - r + r g_i) at rate r = sqrt(ln 2 / (2 t)), then by as much as that falls toward the first weights."""
    parts = [law([8, 1, 1]), law([1, 8, 1])]
    weights = MixtureWeights((0.3, 0.7), (0.4, 0.6), num_seen=3).after(0, parts)
    rate, kept = math.sqrt(math.log(2) / 8), math.sqrt(4 / 5)
    moved = 0.3 * (1 - rate + rate * 0.8 / (0.3 * 0.8 + 0.7 * 0.1))
    assert weights.weights[0] == pytest.approx(kept * moved + (1 - kept) * 0.4, rel=1e-5)
    assert weights.num_seen == 4


def test_soft_bayes_finds_a_true_mixture_where_bayes_finds_one_model():
    rng, share = np.random.default_rng(3), np.array([0.6, 0.4])
    weights = MixtureWeights.start(alike(2))
    parts = [law([90, 5, 5]), law([5, 5, 90])]
    truth = share @ np.array([part.probs for part in parts])
    for _ in range(300):
        weights = weights.after(int(rng.choice(3, p=truth)), parts)
    assert weights.weights == pytest.approx(share, abs=0.1)


def test_the_chosen_is_the_nearest_of_late():
    """Fixed share: after a hundred references near to one model it takes few to choose another."""
    near, far = law([8, 1, 1]), law([1, 8, 1])
    row, other = TopK.from_dense(near, 2), TopK.from_dense(far, 2)
    weights = SelectionWeights.start(alike(2))
    assert weights.chosen == 0, "the first on a tie"
    for _ in range(100):
        weights = weights.after(other, (near, far))
    assert weights.chosen == 1
    taken = 0
    while weights.chosen == 1:
        weights, taken = weights.after(row, (near, far)), taken + 1
    assert taken <= 5
