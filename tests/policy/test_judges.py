"""Each judge on its own: what it keeps, what follows, and why."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import GreedyMatch
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import Dense, TopK, kl, kl_divergence
from hybrid.types import Sampling

seeds = st.integers(0, 2**31)
GREEDY = TargetSampler(Sampling())


def case(span, rows, after=None, bonus=False):
    """What a judge sees; one that only compares tosses no coin."""
    return DraftedSpan(span, rows, after, bonus, coin=None)


def dense(rng, size=8):
    return Dense.from_logits(rng.standard_normal(size) * 2)


def drafted(rng, length, size=8):
    rows = [dense(rng, size) for _ in range(length)]
    return tuple(PendingToken(row.best, "local", "unchecked", draft_row=row) for row in rows)


@given(seeds, st.integers(0, 5), st.integers(1, 8), st.booleans())
def test_greedy_match_keeps_the_longest_agreeing_prefix_and_adds_the_clouds_own_token(seed, length, k, bonus):
    rng = np.random.default_rng(seed)
    span = drafted(rng, length)
    targets = [dense(rng) if rng.random() < 0.4 or i == length else span[i].draft_row for i in range(length + 1)]
    rows = tuple(TopK.from_dense(t, k) for t in targets)
    verdict = GreedyMatch()(case(span, rows, None, bonus))
    agree = next((i for i in range(length) if targets[i].best != span[i].id), length)
    assert [token.id for token in verdict.accepted] == [token.id for token in span[:agree]]
    assert verdict.rejected == (agree < length)
    if agree < length or bonus:
        assert verdict.next_token.id == targets[agree].best
        assert verdict.next_token.how == ("recovered" if agree < length else "bonus")
    else:
        assert verdict.next_token is None


@given(seeds, st.integers(1, 5), st.floats(0, 2), st.sampled_from(["lower", "upper"]))
def test_kl_cuts_at_the_first_offending_position_and_never_earlier(seed, length, threshold, number):
    rng = np.random.default_rng(seed)
    span = drafted(rng, length)
    targets = [dense(rng) for _ in span]
    rows = tuple(TopK.from_dense(t, 8) for t in targets)  # all of it: the interval is a point
    verdict = DivergenceThreshold(threshold, number, sampler=GREEDY)(case(span, rows))
    true = [kl(t, token.draft_row) for t, token in zip(targets, span, strict=True)]
    first = next((i for i, value in enumerate(true) if value > threshold), length)
    assert len(verdict.accepted) == first
    assert verdict.rejected == (first < length)
    assert all(token.how == "accepted" for token in verdict.accepted)
    assert [token.kl.lower for token in verdict.accepted] == pytest.approx(true[:first], rel=1e-9, abs=1e-12)


@given(seeds, st.integers(1, 7), st.floats(0.01, 2))
def test_what_lower_rejects_violates_the_threshold_and_what_upper_keeps_respects_it(seed, k, threshold):
    """With a truncated row only one side can be certain; which one is the user's choice."""
    rng = np.random.default_rng(seed)
    span = drafted(rng, 1)
    target = dense(rng)
    rows = (TopK.from_dense(target, k),)
    true = kl(target, span[0].draft_row)
    if DivergenceThreshold(threshold, "lower", sampler=GREEDY)(case(span, rows)).rejected:
        assert true > threshold - 1e-9
    if not DivergenceThreshold(threshold, "upper", sampler=GREEDY)(case(span, rows)).rejected:
        assert true <= threshold + 1e-9


@each("end", ["lower", "upper"])
def test_the_threshold_itself_is_within_the_threshold_and_so_is_infinity_at_infinity(end):
    rng = np.random.default_rng(0)
    span, target = drafted(rng, 1), dense(rng)
    found = kl_divergence(row := TopK.from_dense(target, 3), span[0].draft_row)
    excluded = PendingToken(0, "local", "unchecked", draft_row=Dense.from_probs(np.array([1.0, 0.0, 0.0])))
    other = TopK.from_dense(Dense.from_probs(np.array([0.5, 0.4, 0.1])), 3)
    assert kl_divergence(other, excluded.draft_row).lower == np.inf
    for tokens, rows, at in ((span, (row,), getattr(found, end)), ((excluded,), (other,), np.inf)):
        assert not DivergenceThreshold(at, end, sampler=GREEDY)(case(tokens, rows)).rejected
        below = np.nextafter(at, 0.0)
        assert DivergenceThreshold(below, end, sampler=GREEDY)(case(tokens, rows)).rejected


def test_the_direction_is_cloud_against_local():
    """KL(cloud || local) is large where the local model excludes what the cloud may say; not the other way round."""
    certain, open_minded = Dense.from_probs(np.array([0.98, 0.01, 0.01])), Dense.from_probs(np.array([0.4, 0.3, 0.3]))
    span = (PendingToken(0, "local", "unchecked", draft_row=certain),)
    threshold = 1.0
    assert kl(open_minded, certain) > threshold > kl(certain, open_minded)
    assert DivergenceThreshold(threshold, sampler=GREEDY)(case(span, (TopK.from_dense(open_minded, 3),))).rejected
    span = (PendingToken(0, "local", "unchecked", draft_row=open_minded),)
    assert not DivergenceThreshold(threshold, sampler=GREEDY)(case(span, (TopK.from_dense(certain, 3),))).rejected


def test_the_row_after_a_kept_span_judges_the_next_local_token_for_nothing():
    here, there = Dense.from_probs(np.array([0.9, 0.05, 0.05])), Dense.from_probs(np.array([0.05, 0.05, 0.9]))
    span = (PendingToken(0, "local", "unchecked", draft_row=here),)
    rows = (TopK.from_dense(here, 3), TopK.from_dense(there, 3))
    verdict = DivergenceThreshold(0.5, sampler=GREEDY)(case(span, rows, here))
    assert len(verdict.accepted) == 1
    assert verdict.rejected
    assert verdict.next_token.id == 2
    assert "nats" in verdict.why


@each("measure", ["KL", "reverse KL", "JS", "TV"])
@each("there", [[0.05, 0.05, 0.9], [0.85, 0.05, 0.1]])
def test_whatever_a_judge_measures_the_next_token_has_its_kl(measure, there):
    """The handback, a trace and the page read it as one: a distance of another kind would pass for it."""
    here, target = Dense.from_probs(np.array([0.9, 0.05, 0.05])), Dense.from_probs(np.array(there))
    span = (PendingToken(0, "local", "unchecked", draft_row=here),)
    rows = (TopK.from_dense(here, 3), TopK.from_dense(target, 2))
    verdict = DivergenceThreshold(0.3, sampler=GREEDY, measure=measure)(case(span, rows, here))
    assert verdict.rejected == (there[0] < 0.5)
    assert verdict.next_divergence == kl_divergence(rows[1], here)


def test_no_token_is_judged_without_its_row():
    rng = np.random.default_rng(0)
    span = drafted(rng, 3)
    rows = (TopK.from_dense(span[0].draft_row, 8),)
    assert len(DivergenceThreshold(0.5, sampler=GREEDY)(case(span[:1], rows)).accepted) == 1
    assert GreedyMatch()(case(span[:1], rows, None, True)).next_token is None


def test_sampling_recovers_nothing_from_a_truncated_row():
    rng = np.random.default_rng(1)
    span = drafted(rng, 1)
    verdict = DivergenceThreshold(0.0)(case(span, (TopK.from_dense(dense(rng), 2),)))
    assert verdict.rejected
    assert verdict.next_token is None


@each("threshold", [-1.0, float("nan")])
def test_an_impossible_threshold_is_refused(threshold):
    from hybrid.errors import UsageError
    from hybrid.policy import PolicyOptions, preset

    with pytest.raises(UsageError):
        preset("kl", PolicyOptions(threshold=threshold))
