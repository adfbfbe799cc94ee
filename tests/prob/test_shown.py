"""The warped law from the top k alone: it is the warped law of the full distribution, or it is not known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_divergence import heaped, law, unseen

from hybrid.prob import Dense, TopK, determined_distribution, warp
from hybrid.types import Sampling

# Ties and zeros, probabilities orders of magnitude apart, and ordinary ones.
WEIGHTS = st.lists(st.integers(0, 4).map(float) | st.floats(-40, 0).map(math.exp), min_size=1, max_size=9).filter(any)
K = st.integers(1, 10)
TEMPERATURES = st.sampled_from([1e-310, 1e-3, 0.25, 0.7, 1.0, 1.3, 5.0])
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0]) | TEMPERATURES,
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([1e-300, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0.01, 1.0),
    min_p=st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.9]) | st.floats(0.0, 0.99),
)
# Nearer than this to its end a mass or a share may fall on either side of it.
CLEAR = 1e-4


def known(full, k, **sampling):
    sampling = Sampling(**{"temperature": 1.0} | sampling)
    found = determined_distribution(TopK.from_dense(full, k), sampling, full.num_tokens)
    if found is not None:
        assert found.probs == pytest.approx(warp(full, sampling).probs, abs=1e-12)
    return found is not None


def same(one, other):
    return one.probs == pytest.approx(other.probs, abs=1e-12)


@settings(max_examples=120)
@given(WEIGHTS, K, SAMPLINGS)
def test_it_is_the_warped_law_of_the_full_distribution_or_unknown(weights, k, sampling):
    full = law(weights)
    found = determined_distribution(TopK.from_dense(full, k), sampling, full.num_tokens)
    assert found is None or same(found, warp(full, sampling))


@settings(max_examples=50)
@given(WEIGHTS, K, SAMPLINGS, st.randoms(use_true_random=False))
def test_it_holds_whichever_of_equal_tokens_the_server_shows(weights, k, sampling, random):
    """A server may break ties by chance; the full distribution does not."""
    full = law(weights)
    ranked = sorted(range(full.num_tokens), key=lambda i: (-full.logprobs[i], random.random()))
    row = TopK.from_lists({i: float(full.logprobs[i]) for i in ranked[:k] if full.logprobs[i] > -1000})
    found = determined_distribution(row, sampling, full.num_tokens)
    assert found is None or same(found, warp(full, sampling))


@settings(max_examples=25)
@given(WEIGHTS, K, SAMPLINGS, st.data())
def test_an_appended_token_changes_nothing(weights, k, sampling, data):
    """Else whether a law is known would depend on what was drafted, and what stands in the end on that."""
    full = law(weights)
    actual = data.draw(st.integers(0, full.num_tokens - 1))
    plain, told = TopK.from_dense(full, k), TopK.from_dense(full, k, actual)
    without, with_it = (determined_distribution(row, sampling, full.num_tokens) for row in (plain, told))
    assert (without is None) == (with_it is None)
    assert without is None or without.probs.tolist() == with_it.probs.tolist()


def test_not_even_an_appended_token_that_proves_its_rank_is_counted():
    """0.05 is left outside: so 0.1 is third. Had token 3 been drafted, that would not be known."""
    row = TopK.from_dense(law([0.6, 0.25, 0.1, 0.05]), 2, actual=2)
    assert determined_distribution(row, Sampling(temperature=1.0, top_k=3), 4) is None


@settings(max_examples=30)
@given(WEIGHTS.filter(all), SAMPLINGS)
def test_it_is_known_where_all_is_shown(weights, sampling):
    full = law(weights)
    assert determined_distribution(TopK.from_dense(full, full.num_tokens), sampling, full.num_tokens) is not None


# Weights without ties, so that the ranks of the shown tokens are certain.
RANKED = st.lists(st.integers(1, 10**6), min_size=3, max_size=9, unique=True)


@settings(max_examples=30)
@given(RANKED, st.integers(2, 8), TEMPERATURES, st.data())
def test_fewer_tokens_than_are_shown_are_known_after_any_temperature(weights, k, temperature, data):
    full = law(weights)
    top_k = data.draw(st.integers(1, k - 1))
    assert known(full, k, temperature=0.0)
    assert known(full, k, temperature=temperature, top_k=top_k, top_p=0.8, min_p=0.1)


@settings(max_examples=30)
@given(RANKED, st.integers(1, 8), TEMPERATURES.filter(lambda t: t > 1e-300), st.floats(0.01, 0.99))
def test_min_p_is_known_where_it_drops_the_last_shown_token(weights, k, temperature, min_p):
    """The share is of what the temperature made of it: at half the temperature 0.3 of the best is 0.09."""
    full = law(weights)
    row = TopK.from_dense(full, k)
    share = (row.tail_max / row.probs[0]) ** (1 / temperature)
    assume(share < min_p * (1 - CLEAR))
    assert known(full, k, temperature=temperature, min_p=min_p)
    assert known(full, k, temperature=temperature, min_p=min_p, top_p=0.7)


@settings(max_examples=30)
@given(RANKED, st.integers(2, 8), st.floats(0.01, 0.99))
def test_top_p_is_known_where_what_is_above_the_cap_reaches_it(weights, k, top_p):
    full = law(weights)
    reached = np.cumsum(TopK.from_dense(full, k).probs[: k - 1])
    assume(reached[-1] > top_p and (abs(reached - top_p) > CLEAR).all())
    assert known(full, k, top_p=top_p)
    assert known(full, k, top_p=top_p, top_k=0)


@settings(max_examples=40)
@given(RANKED, st.integers(2, 8), st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.3, 5.0]), st.floats(0.01, 0.99))
def test_top_p_is_known_after_a_temperature_exactly_where_the_two_extreme_tails_agree(weights, k, temperature, top_p):
    """The mass of the best tokens depends on the tail's shape: heaped under the cap or even. No third is further."""
    full, k = law(weights), min(k, len(weights) - 1)
    row = TopK.from_dense(full, k)
    hidden = unseen(row, full.num_tokens)
    assume(row.tail > 0.01 and abs(row.tail - row.tail_max) > CLEAR)
    even = np.zeros(full.num_tokens)
    even[row.ids], even[hidden] = row.probs, row.tail / len(hidden)
    kept = []
    for whole in (np.array(heaped(row, full, hidden)), even):
        powers = whole ** (1 / temperature)
        reached = np.cumsum(-np.sort(-powers / powers.sum()))
        assume((abs(reached - top_p) > CLEAR).all())
        kept.append(int((reached < top_p).sum()) + 1)
    num_sure = k if row.tail < row.tail_max else k - 1
    agree = kept[0] == kept[1] <= num_sure
    assert known(full, k, temperature=temperature, top_p=top_p) == agree


def test_a_tie_with_the_cap_leaves_it_open_who_is_kept():
    """Token 2 may be as likely as token 3, and then goes before it; where less than the cap is left, it may not."""
    assert not known(law([0.1, 0.5, 0.2, 0.2]), 2, top_k=2)
    row = TopK.from_lists({1: math.log(0.5), 3: math.log(0.2)})
    assert determined_distribution(row, Sampling(temperature=1.0, top_k=2), 4) is None
    assert known(law([0.1, 0.6, 0.1, 0.2]), 3, top_k=2)
    assert known(law([0.1, 0.6, 0.05, 0.25]), 2, top_k=2)
    assert known(law([0.1, 0.9]), 1, temperature=0.0)
    assert not known(law([0.3, 0.4, 0.3]), 1, temperature=0.0)


def test_the_whole_law_is_not_known_from_a_part():
    assert not known(law([0.6, 0.2, 0.1, 0.1]), 3)
    assert not known(law([0.6, 0.2, 0.1, 0.1]), 3, top_k=4)
    assert not known(law([0.6, 0.2, 0.1, 0.1]), 3, top_p=0.95)
    assert not known(law([0.6, 0.2, 0.1, 0.1]), 3, min_p=0.1)


def test_min_p_that_cuts_the_tail_nobody_knows_where_still_leaves_a_nucleus():
    """0.9 of 1 or of 0.97: the two best tokens, whatever min-p leaves of the 0.03 outside.

    The other way: 0.93 of 1 takes four tokens and of 0.96 three, and whether the 0.04 is one token or two is not shown.
    """
    full = law([0.6, 0.35, 0.02, 0.02, 0.01])
    assert known(full, 3, top_p=0.9, min_p=0.02)
    assert known(full, 3, top_p=0.9, top_k=4)
    assert not known(law([0.5, 0.3, 0.1, 0.06, 0.02, 0.02]), 4, top_p=0.93, min_p=0.05)
    assert not known(law([0.5, 0.3, 0.1, 0.06, 0.04, 0.0]), 4, top_p=0.93, min_p=0.05)


def test_a_token_beyond_the_vocabulary_has_no_place_in_it():
    row = TopK.from_lists({0: math.log(0.6), 7: math.log(0.3)})
    assert determined_distribution(row, Sampling(temperature=1.0, top_k=1), 5) is None
    assert isinstance(determined_distribution(row, Sampling(temperature=1.0, top_k=1), 8), Dense)


def test_a_tail_that_rounding_hides_may_weigh_more_after_a_high_temperature():
    """Probabilities of 1e-9 are lost in the sum, but at temperature 5 a thousand of them weigh 16 of the best."""
    row = TopK.from_lists({0: 0.0, 1: math.log(1e-9)})
    assert row.tail == 0.0
    assert determined_distribution(row, Sampling(temperature=1.0, top_p=0.9), 1000) is not None
    assert determined_distribution(row, Sampling(temperature=5.0, top_p=0.9), 1000) is None
