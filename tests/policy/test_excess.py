"""The judge by excess loss: which end decides, what an accepted text costs, and who is asked for what."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.policy import PolicyOptions, preset
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import Check, PendingToken, Write
from hybrid.policy.rules.excess import ExcessThreshold
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import Dense, TopK, excess_loss, warp
from hybrid.types import Sampling

seeds = st.integers(0, 2**31)
GREEDY, AT_ONE = TargetSampler(Sampling()), Sampling(1.0)
LENGTH = 12


def judge(threshold, end="lower"):
    return ExcessThreshold(threshold, GREEDY, end)


def verdict(judging, *judged, bonus=False):
    """Judge pairs of a token and the cloud's row; greedy, no coin is tossed."""
    tokens = tuple(PendingToken(i, "local", "unchecked", draft_row=Dense(np.zeros(8) - math.log(8))) for i, _ in judged)
    return judging(DraftedSpan(tokens, tuple(row for _, row in judged), None, bonus, coin=None))


def dense(rng, size=8):
    return Dense.from_logits(rng.standard_normal(size) * 2)


def true_excess(row, token):
    return math.log(row.probs.max()) - math.log(row.probs[token])


# ---- one verdict ---------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 5), st.integers(1, 8), st.floats(0, 3), st.sampled_from(["lower", "upper"]))
def test_the_first_token_that_costs_more_ends_the_span_and_the_clouds_best_follows(seed, length, k, threshold, end):
    """From any top k, if the endpoint tells the token's own: neither end is open then."""
    rng = np.random.default_rng(seed)
    targets, drafted = [dense(rng) for _ in range(length)], rng.integers(8, size=length).tolist()
    judged = [(i, TopK.from_dense(row, k, i)) for i, row in zip(drafted, targets, strict=True)]
    found = verdict(judge(threshold, end), *judged)
    costs = [true_excess(row, i) > threshold for i, row in zip(drafted, targets, strict=True)]
    first = costs.index(True) if True in costs else length
    assert [token.id for token in found.accepted] == drafted[:first]
    assert found.rejected == (first < length)
    if found.rejected:
        assert (found.next_token.id, found.next_token.how) == (targets[first].best, "recovered")
        assert found.next_token.why == found.why
        assert found.why.startswith("excess loss ")
    else:
        assert found.next_token is None


@given(seeds, st.integers(1, 7), st.floats(0.01, 3))
def test_where_the_token_is_not_shown_each_end_is_certain_of_one_answer(seed, k, threshold):
    rng = np.random.default_rng(seed)
    target, token = dense(rng), int(rng.integers(8))
    row = TopK.from_dense(target, k)
    if verdict(judge(threshold), (token, row)).rejected:
        assert true_excess(target, token) > threshold - 1e-9
    if not verdict(judge(threshold, "upper"), (token, row)).rejected:
        assert true_excess(target, token) <= threshold + 1e-9
    assert verdict(judge(threshold, "upper"), (token, row)).rejected or token in row.ids


def test_an_unseen_token_that_may_be_within_is_kept_by_the_lower_end_alone():
    row = TopK.from_dense(Dense.from_probs(np.array([0.5, 0.2, 0.15, 0.15])), 2)
    assert excess_loss(row, 3).lower == pytest.approx(math.log(2.5))
    for end, threshold, rejected in (("lower", 1.0, False), ("lower", 0.9, True), ("upper", 50.0, True)):
        assert verdict(judge(threshold, end), (3, row)).rejected is rejected


@each("end", ["lower", "upper"])
def test_the_threshold_itself_is_within_the_threshold_and_so_is_infinity_at_infinity(end):
    row = TopK.from_dense(Dense.from_probs(np.array([0.5, 0.3, 0.2, 0.0])), 4)
    cost = excess_loss(row, 1).lower
    assert not verdict(judge(cost, end), (1, row)).rejected
    assert verdict(judge(np.nextafter(cost, 0.0), end), (1, row)).rejected
    assert not verdict(judge(math.inf, end), (3, row)).rejected
    assert verdict(judge(100.0, "upper"), (3, row)).rejected


def test_noise_moves_the_deciding_end_outwards_and_decides_nothing_at_the_ends():
    row = TopK.from_dense(Dense.from_probs(np.array([0.5, 0.3, 0.2])), 3)
    noisy, cost = replace(row, noise=0.01), excess_loss(row, 1).lower
    for threshold, end, rejected in ((cost - 0.015, "lower", False), (cost - 0.025, "lower", True)):
        assert verdict(judge(threshold, end), (1, row)).rejected
        assert verdict(judge(threshold, end), (1, noisy)).rejected is rejected
    for threshold, end, rejected in ((cost + 0.015, "upper", True), (cost + 0.025, "upper", False)):
        assert not verdict(judge(threshold, end), (1, row)).rejected
        assert verdict(judge(threshold, end), (1, noisy)).rejected is rejected
    wild = replace(row, noise=0.5)
    for end in ("lower", "upper"):
        assert verdict(judge(0.0, end), (1, wild)).rejected
        assert not verdict(judge(math.inf, end), (1, wild)).rejected
        assert not verdict(judge(0.1, end), (0, wild)).rejected  # its replacement would be itself


def test_why_names_the_end_that_decided():
    row = replace(TopK.from_dense(Dense.from_probs(np.array([0.5, 0.3, 0.2])), 3), noise=0.05)
    for end, expected in (("lower", math.log(5 / 3) - 0.1), ("upper", math.log(5 / 3) + 0.1)):
        found = verdict(judge(0.1, end), (1, row))
        assert found.why == f"excess loss {expected:.3g} nats, above 0.1"


# ---- whole texts ---------------------------------------------------------------------------------------------------


def cost_of(shown, large, counts):
    """The excess loss of the tokens that count, under the large model at the text's own prefixes."""
    text = tuple(token.id for token in shown)
    return sum(true_excess(large(text[:i]), token.id) for i, token in enumerate(shown) if counts(token))


def is_local(token):
    return token.source == "local"


@each("threshold", [0.0, 0.3, 1.0])
def test_a_greedy_text_costs_at_most_the_threshold_times_its_local_tokens(both, written, threshold):
    """The cloud's own tokens cost nothing: over spans, top k, with a bonus and with a handoff."""
    kept = 0
    for strict, bonus, hold, span, k in itertools.product((False, True), (False, True), (0, 2), (1, 3, 8), (1, 5)):
        chosen = {"strict": strict, "bonus": bonus, "hold": hold, "span": span}
        policy = preset("excess", PolicyOptions(threshold=threshold, **chosen))
        for small, large in each_of(both[:4]):
            shown = written(policy, (small, large), k)
            local = sum(map(is_local, shown))
            assert cost_of(shown, large, lambda _: True) <= threshold * local + 1e-9, str(policy)
            kept += sum(
                is_local(token) and token.id != large(tuple(t.id for t in shown[:i])).best
                for i, token in enumerate(shown)
            )
    assert (kept > 0) == (threshold > 0)


@pytest.mark.slow
@each(("threshold", "sampling"), [(0.2, AT_ONE), (0.6, Sampling(0.7, top_k=2))], ids=str)
def test_sampled_the_accepted_tokens_of_every_text_cost_at_most_the_threshold_each(toys, threshold, sampling):
    """Every coin enumerated on three tokens, over spans, a bonus, the scope and a handoff."""
    small = toys.Toy("q0")
    large = toys.Mix(small, "p0", 0.6)
    for span, bonus, scope, hold in itertools.product((1, 3), (False, True), (None, 1), (0, 1)):
        chosen = {"threshold": threshold, "bonus": bonus, "scope": scope, "hold": hold}
        policy, texts = preset("excess", PolicyOptions(span=span, sampling=sampling, **chosen)), []

        def answer(coin, policy=policy, texts=texts):
            played = toys.play(policy, small, large, coin, 3, k=3, law=sampling)
            texts.append(played[0])
            return played

        assert sum(toys.law_of(answer, 3).values()) == pytest.approx(1.0)
        for shown in each_of(texts):
            accepted = sum(token.how == "accepted" for token in shown)
            assert cost_of(shown, large, lambda token: token.how == "accepted") <= threshold * accepted + 1e-9
            assert scope is not None or accepted == sum(map(is_local, shown)), "every local token is checked"


@each("sampling", [Sampling(0.7, top_k=2), Sampling(1.6, top_k=1), Sampling(1.0, top_p=0.6)], ids=str)
def test_the_cost_is_that_of_the_raw_row_whatever_is_drawn_from(toys, sampling):
    """Kept is what the row at temperature 1 keeps; the rest is drawn as the cloud would draw it."""
    small = toys.Toy("q0")
    large = toys.Mix(small, "p0", 0.6)
    policy = preset("excess", PolicyOptions(span=2, sampling=sampling, threshold=0.4))

    def row(prefix):
        keeps = [true_excess(large(prefix), token) <= 0.4 for token in range(3)]
        kept = warp(small(prefix), sampling).probs * keeps
        return Dense.from_probs(kept + (1 - kept.sum()) * warp(large(prefix), sampling).probs)

    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, 2, k=3, law=sampling), 2)
    assert toys.distance(found, toys.own_law(toys.Made(row), 2)) < 1e-12


def test_at_0_the_text_costs_nothing_and_is_the_clouds_but_for_ties(toys):
    """Of two tokens that the cloud likes best the local model may choose: no promise of the cloud's own text."""
    tied = toys.Made(lambda _: Dense.from_probs(np.array([0.4, 0.4, 0.2])))
    small = toys.Made(lambda _: Dense.from_probs(np.array([0.2, 0.5, 0.3])))
    policy = preset("excess", PolicyOptions(threshold=0.0))
    assert not policy.is_exact(Sampling())
    for k in (1, 3):
        shown, _ = toys.play(policy, small, tied, None, 4, k=k, end=-1)
        assert cost_of(shown, tied, lambda _: True) == 0.0
        assert [token.id for token in shown] == [1] * 4 != list(toys.greedy_text(tied, 4, end=-1))


@each("hold", [0, 3])
def test_after_a_corrected_token_the_cloud_writes_as_many_as_it_holds_the_pen_for(toys, both, hold):
    policy, corrected = preset("excess", PolicyOptions(threshold=0.2, span=4, hold=hold)), 0
    for small, large in each_of(both):
        shown, log = toys.play(policy, small, large, None, LENGTH, k=2, end=-1)
        how = [token.how for token in shown]
        corrected += how.count("recovered")
        after = {j for i, came in enumerate(how) if came == "recovered" for j in range(i + 1, i + 1 + hold)}
        assert {i for i, came in enumerate(how) if came == "written"} == {i for i in after if i < LENGTH}
        assert any(isinstance(request, Write) for request in log) == ("written" in how)
        assert any(isinstance(request, Check) for request in log)
    assert corrected > 5
