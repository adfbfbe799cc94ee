"""Each rule of rules/ against a separate program written down without the loop, and what few shown tokens leave open.

Most rules decide each position by itself: their program is one choice between two tokens. ``bild`` is the exception.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from cases import each, each_of
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_divergence import law, naive_jensen_shannon, naive_kl, naive_reverse, pairs
from naive_policies import (
    accepting,
    below_certificate,
    certain,
    costing,
    naive_bild,
    naive_tv,
    near,
    text,
    undeferred,
    unperturbed,
    walk,
)
from naive_rules import RULES as RULES_OF_ACCEPTANCE
from naive_rules import accepted, undecided

from hybrid.policy import DraftPosition, PolicyOptions, preset
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.bild import BildRollback
from hybrid.policy.rules.relaxed import CertifiedAcceptance
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import (
    AdditiveAcceptance,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    TypicalAcceptance,
    certificate,
    kl_divergence,
)
from hybrid.types import Sampling

# The pairs' vocabulary and the length of their texts (conftest.py).
SIZE, LENGTH = 5, 12
ANY, WHOLE = (1, 2, SIZE), (SIZE,)


# ---- rules that choose between the two models' best tokens at each position ----------------------------------------


# How the policy is called, when the local token stands, and the top k from which that is known.
RULES = {
    "fsd": ("fsd", {"threshold": 0.1}, near(naive_jensen_shannon, 0.1), WHOLE),
    "fsd, strict": ("fsd", {"threshold": 0.05, "strict": True}, near(naive_jensen_shannon, 0.05), WHOLE),
    "kl": ("fsd", {"judge": "kl:0.2"}, near(naive_kl, 0.2), WHOLE),
    "reverse-kl": ("fsd", {"judge": "reverse-kl:0.2"}, near(naive_reverse, 0.2), WHOLE),
    "js": ("relaxed", {"judge": "js:0.05"}, near(naive_jensen_shannon, 0.05), WHOLE),
    "tv": ("relaxed", {"judge": "tv:0.25"}, near(naive_tv, 0.25), WHOLE),
    "relaxed": ("relaxed", {"threshold": 0.6}, accepting(MultiplicativeAcceptance(0.6)), ANY),
    "additive": ("relaxed", {"judge": "additive:0.1"}, accepting(AdditiveAcceptance(0.1)), ANY),
    "multiplicative": ("fsd", {"judge": "multiplicative:0.8"}, accepting(MultiplicativeAcceptance(0.8)), ANY),
    "top-m": ("relaxed", {"judge": "top-m:2"}, accepting(TopMAcceptance(2)), (2, 3, SIZE)),
    "typical": ("relaxed", {"judge": "typical:0.5"}, accepting(TypicalAcceptance(0.5, math.sqrt(0.5))), WHOLE),
    "certified judge": ("relaxed", {"judge": "certified:0.4"}, below_certificate(0.4), WHOLE),
    "certified": ("certified", {"threshold": 0.05}, certain(0.05), ANY),
    "excess": ("excess", {"threshold": 0.4}, costing(0.4), ANY),
    "excess, strict": ("excess", {"threshold": 0.8, "strict": True}, costing(0.8), ANY),
    "excess judge": ("relaxed", {"judge": "excess:0.2"}, costing(0.2), ANY),
    "cascade": ("cascade", {"threshold": 0.3}, undeferred("opt", 0.3), WHOLE),
    "cascade-chow": ("cascade", {"judge": "cascade-chow:0.5"}, undeferred("chow", 0.5), ANY),
    "cascade-diff": ("cascade", {"judge": "cascade-diff:0.1"}, undeferred("diff", 0.1), ANY),
    "u-hlm": ("u-hlm", {"threshold": 0.4}, unperturbed(0.4), ANY),
}


@pytest.mark.slow
@each("called", RULES)
def test_a_rule_equals_a_separate_naive_program(both, written, called):
    """Whatever the span, and from as few shown tokens as it needs. Its text is neither model's own."""
    name, choices, stands, shown_k = RULES[called]
    whose = set()
    for small, large in each_of(both):

        def choose(prefix, small=small, large=large):
            local, cloud = small(prefix), large(prefix)
            if local.best == cloud.best:
                return cloud.best
            whose.add(stands(local, cloud))
            return local.best if stands(local, cloud) else cloud.best

        expected = walk(choose, LENGTH)
        for k, span in [*((k, 3) for k in shown_k), (SIZE, 1), (SIZE, 8)]:
            assert text(written(preset(name, PolicyOptions(span=span, **choices)), (small, large), k)) == expected
    assert whose == {True, False}


KEEP_FOR_CERTAIN = ("fsd, strict", "relaxed", "additive", "top-m", "typical")
REJECT_FOR_CERTAIN = ("fsd", "kl", "reverse-kl", "js", "tv", "cascade")


@pytest.mark.slow
@each("k", [1, 2, 3])
@each("called", [*KEEP_FOR_CERTAIN, *REJECT_FOR_CERTAIN])
def test_from_a_few_shown_tokens_one_of_the_two_answers_is_certain(both, written, called, k):
    """Of what stays or of what is turned down: the full rows agree."""
    name, choices, stands, _ = RULES[called]
    judged = set()
    for small, large in both:
        shown = written(preset(name, PolicyOptions(span=4, **choices)), (small, large), k)
        for i, pending in enumerate(shown):
            if (pending.source == "local") == (called in KEEP_FOR_CERTAIN):
                judged.add(stands(small(text(shown[:i])), large(text(shown[:i]))))
    assert judged <= {called in KEEP_FOR_CERTAIN}
    assert judged or k < 3


@each("called", ["fsd", "fsd, strict", "top-m", "typical", "cascade"])
def test_from_one_shown_token_the_other_answer_is_a_guess(both, written, called):
    """Otherwise the law above would say nothing of what is not shown."""
    name, choices, *_ = RULES[called]
    policy = preset(name, PolicyOptions(span=4, **choices))
    assert any(text(written(policy, pair, 1)) != text(written(policy, pair)) for pair in both)


@given(pairs(), RULES_OF_ACCEPTANCE, st.data())
def test_a_favourite_that_the_certified_judge_keeps_the_rule_accepts(pair, rule, data):
    """By its divergence alone, from any top k."""
    cloud, local = pair
    assume(not undecided(cloud.probs, rule))
    actual = data.draw(st.sampled_from([None, local.best]))
    row = TopK.from_dense(cloud, data.draw(st.integers(1, cloud.num_tokens)), actual)
    assume(abs(kl_divergence(row, local).upper - certificate(row, rule)) > 1e-12)  # else the last bit decides
    if CertifiedAcceptance(rule, TargetSampler(Sampling())).accepts(
        row, PendingToken(local.best, "local", "unchecked", draft_row=local)
    ):
        assert local.best in accepted(cloud.probs, rule)


def test_the_certified_judge_believes_the_upper_end_alone():
    """From one shown token the divergence may be small: then the unseen favourite is likely. Here it is not."""
    cloud, local, rule = law([0.5, 0.1, 0.4]), law([0.45, 0.5, 0.05]), MultiplicativeAcceptance(0.6)
    row = TopK.from_dense(cloud, 1)
    assert kl_divergence(row, local).lower < certificate(row, rule) < kl_divergence(row, local).upper
    assert local.best not in accepted(cloud.probs, rule)
    pending = PendingToken(local.best, "local", "unchecked", draft_row=local)
    assert not CertifiedAcceptance(rule, TargetSampler(Sampling())).accepts(row, pending)


@each("name", ["relaxed", "fsd", "cascade"])
def test_a_bonus_changes_no_text_of_a_rule_that_takes_none(both, written, name):
    """It would be the cloud's token where the local model's may stand."""
    for pair in each_of(both):
        policy = preset(name, PolicyOptions(span=3))
        texts = {text(written(replace(policy, bonus=bonus), pair)) for bonus in (False, True)}
        assert len(texts) == 1


def test_a_gate_that_asks_before_the_first_token_lets_nothing_through_that_the_rule_rejects(both, written):
    """A rule without a bonus has nothing to answer such a question with."""
    policy = preset("relaxed", PolicyOptions(threshold=1.0, gate="max-prob:0.5:check"))
    for small, large in each_of(both):
        shown = written(policy, (small, large))
        for i, pending in each_of(enumerate(shown)):
            assert pending.source == "cloud" or pending.id == large(text(shown[:i])).best


# ---- bild and random -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("roll_back", [0.0, 1.5, 2.5, math.inf])
@each("fall_back", [0.0, 0.4, 0.6, 1.0])
def test_bild_equals_a_separate_naive_program(both, written, fall_back, roll_back):
    """From any top k: an endpoint tells the probability of the drafted token itself."""
    policy = preset("bild", PolicyOptions(threshold=roll_back, gate=f"max-prob:{fall_back}:check"))
    for pair in each_of(both[:6]):
        for k, span in ((1, 3), (2, 1), (SIZE, 3), (SIZE, 10)):
            expected = naive_bild(*pair, fall_back, roll_back, span, lambda model, at: model(at).best, LENGTH)
            assert text(written(replace(policy, span=span), pair, k)) == expected


def test_bild_falls_back_at_the_papers_threshold(both, written):
    assert preset("bild", PolicyOptions()) == preset("bild", PolicyOptions(threshold=2.0, gate="max-prob:0.6:check"))


@given(pairs(min_size=2), st.floats(0.0, 4.0), st.data())
def test_bild_turns_an_unlisted_token_down_only_where_the_list_proves_it_too_unlikely(pair, limit, data):
    cloud, _ = pair
    token = data.draw(st.integers(0, cloud.num_tokens - 1))
    row = TopK.from_dense(cloud, data.draw(st.integers(1, cloud.num_tokens)))
    pending = PendingToken(token, "local", "unchecked", draft_row=cloud)
    verdict = BildRollback(limit, TargetSampler(Sampling()))(
        DraftedSpan((pending,), (row,), None, bonus=False, coin=None)
    )
    surprise = -math.log(cloud.probs[token]) if cloud.probs[token] > 0 else math.inf
    assume(abs(surprise - limit) > 1e-9)
    if verdict.rejected:
        assert surprise > limit
        assert token != row.best
    elif token in row.ids:
        assert surprise < limit or token == row.best


@each("hold", [1, 2, 5])
def test_random_equals_a_separate_naive_program(both, written, hold):
    policy = preset("random", PolicyOptions(threshold=0.3, hold=hold))
    for small, large in each_of(both):
        expected = ()
        while len(expected) < LENGTH:
            handed = policy.gate.before(small(expected), DraftPosition(len(expected), ())) == "write"
            for _ in range(hold if handed else 1):
                expected += ((large if handed else small)(expected).best,)
        assert text(written(policy, (small, large))) == expected[:LENGTH]
