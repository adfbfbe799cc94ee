"""The seeded coin: repeatable, keyed, and fair."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.policy import CoinKey, PolicyOptions, SeededCoin, decode, preset
from hybrid.policy.requests import AnswerContinues, Check, Draft, Drafted, Emit, PendingToken, Scored
from hybrid.types import Sampling


@given(st.integers(), st.integers(0, 1000), st.integers(0, 5))
def test_the_same_toss_falls_alike(seed, position, rejections):
    probs = np.full(50, 0.02)
    toss = CoinKey(position, "draft", rejections)
    assert SeededCoin(seed)(probs, toss) == SeededCoin(seed)(probs, toss)


def test_position_role_rejections_and_seed_each_key_the_toss():
    probs = np.full(1_000_000, 1e-6)
    tosses = [CoinKey(1, "draft", 0), CoinKey(2, "draft", 0), CoinKey(1, "judge", 0), CoinKey(1, "draft", 1)]
    drawn = [SeededCoin(0)(probs, toss) for toss in tosses] + [SeededCoin(1)(probs, tosses[0])]
    assert len(set(drawn)) == 5


@each("name", ["exact", "block"])
def test_no_coin_is_tossed_twice_in_an_answer(toys, name):
    """A position drafted again after a rejection has met its coin: keyed without the rejections, block is biased.

    Each draft is answered in full, so that no token is drafted twice without having been judged.
    """
    small, tosses, rng = toys.Toy("q0", 5), [], np.random.default_rng(0)
    large, at_one = toys.Mix(small, "p0", 0.6), Sampling(1.0)

    def coin(probs, toss):
        tosses.append(toss)
        return int(rng.choice(len(probs), p=probs / probs.sum()))

    loop, at, reply = decode(preset(name, PolicyOptions(span=4, sampling=at_one)), coin), (), None
    while len(at) < 300:
        match loop.send(reply):
            case Draft(start, limit, _, _, rejections):
                span, text = [], start
                for _ in range(limit):
                    token = coin(small(text).probs, CoinKey(len(text), "draft", rejections))
                    span.append(
                        PendingToken(token, "local", "unchecked", drawn_from=small(text), draft_row=small(text))
                    )
                    text += (token,)
                reply = Drafted(tuple(span), "check", small(text))
            case Check(start, span, _):
                text = start + tuple(token.id for token in span)
                reply = Scored(tuple(large.shown(text[:end], 5) for end in range(len(start), len(text) + 1)))
            case Emit(tokens):
                at += tuple(token.id for token in tokens)
                reply = AnswerContinues()
    assert len(set(tosses)) == len(tosses)
    assert max(toss.rejections for toss in tosses) > 20


@given(st.integers(0, 10_000))
def test_what_cannot_be_is_never_drawn(position):
    probs = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert SeededCoin(3)(probs, CoinKey(position, "draft", 0)) in {1, 3}


def test_frequencies_follow_the_probabilities():
    """20,000 tosses; a chi-square beyond 16.3 has a chance of 1e-3 at three degrees of freedom."""
    probs, n = np.array([0.5, 0.25, 0.2, 0.05]), 20_000
    counts = np.bincount([SeededCoin(7)(probs, CoinKey(i, "draft", 0)) for i in range(n)], minlength=4)
    assert ((counts - n * probs) ** 2 / (n * probs)).sum() < 16.3


def test_probabilities_that_do_not_quite_sum_to_one_are_taken_relatively():
    probs = np.array([0.5, 0.5]) * 0.999
    assert {SeededCoin(0)(probs, CoinKey(i, "draft", 0)) for i in range(100)} == {0, 1}


def test_the_highest_toss_is_below_one(monkeypatch):
    """One bit more than a float holds would round up to 1 and draw an index that is not there."""
    import hashlib

    class Highest:
        def __init__(self, *_, **__):
            pass

        def digest(self):
            return b"\xff" * 8

    monkeypatch.setattr(hashlib, "blake2b", Highest)
    assert SeededCoin(0)(np.array([0.5, 0.5]), CoinKey(0, "draft", 0)) == 1


@each("size", [1, 2])
def test_a_sure_thing_is_drawn(size):
    probs = np.zeros(size)
    probs[-1] = 1.0
    assert SeededCoin(0)(probs, CoinKey(0, "draft", 0)) == size - 1


def test_a_reply_out_of_turn_is_refused(toys):
    loop = decode(preset("kl", PolicyOptions()), SeededCoin(0))
    assert isinstance(next(loop), Draft)
    with pytest.raises(TypeError, match="does not answer"):
        loop.send(AnswerContinues())
