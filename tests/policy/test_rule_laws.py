"""What each rule of rules/ is at its ends, what a certificate's bound buys, and the laws of sampled texts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from cases import each, each_of
from naive_divergence import law, naive_jensen_shannon, naive_kl
from naive_policies import certain, naive_bild, near, text
from naive_rules import accepted

from hybrid.policy import PolicyOptions, preset
from hybrid.policy.requests import Check
from hybrid.prob import AdditiveAcceptance, Dense, GreedyAcceptance, MultiplicativeAcceptance
from hybrid.types import Sampling

AT_ONE = Sampling(1.0)
# The length of the pairs' texts (conftest.py), and of three tokens how many are shown.
LENGTH = 12
ANY, WHOLE = (1, 2, 3), (3,)


# ---- limits --------------------------------------------------------------------------------------------------------

CLOUDS = (
    ("fsd", {"threshold": 0.0}),
    ("excess", {"threshold": 0.0}),
    ("excess", {"threshold": 0.0, "strict": True}),
    ("relaxed", {"threshold": 1.0}),
    ("relaxed", {"judge": "additive:0"}),
    ("relaxed", {"judge": "top-m:1"}),
    ("relaxed", {"judge": "greedy"}),
    ("certified", {"threshold": math.inf}),
    ("bild", {"threshold": 0.0}),
    ("bild", {"threshold": math.inf, "gate": "max-prob:1:check"}),
    ("cascade", {"judge": "cascade-chow:0"}),
    ("u-hlm", {"threshold": 0.0}),
    ("random", {"threshold": 1.0}),
    ("cloud", {}),
)
LOCALS = (
    ("fsd", {"threshold": math.inf}),
    ("excess", {"threshold": math.inf}),
    ("relaxed", {"judge": "excess:inf"}),
    ("relaxed", {"threshold": 1e-9}),
    ("relaxed", {"judge": "additive:0.999"}),
    ("relaxed", {"judge": "top-m:5"}),
    ("relaxed", {"judge": "bild:inf"}),
    ("certified", {"threshold": 0.0}),
    ("cascade", {"threshold": 1.0}),
    ("cascade", {"judge": "cascade-diff:1"}),
    ("cascade", {"judge": "cascade-chow:1"}),
    ("u-hlm", {"threshold": 1.0}),
    ("random", {"threshold": 0.0}),
    ("local", {}),
)


@pytest.mark.slow
@each(("name", "choices"), CLOUDS, ids=str)
def test_at_one_end_a_rule_gives_the_clouds_greedy_text(toys, both, written, name, choices):
    for small, large in each_of(both):
        expected = toys.greedy_text(large, LENGTH, end=-1)
        for k in each_of(ANY):
            assert text(written(preset(name, PolicyOptions(**choices)), (small, large), k)) == expected


@each(("name", "choices"), LOCALS, ids=str)
def test_at_the_other_end_a_rule_gives_the_local_models_greedy_text(toys, both, written, name, choices):
    for small, large in each_of(both):
        expected = toys.greedy_text(small, LENGTH, end=-1)
        assert text(written(preset(name, PolicyOptions(**choices)), (small, large))) == expected


def test_bild_that_never_falls_or_rolls_back_has_one_token_of_the_cloud_after_each_span(both, written):
    """The row after a kept span is there: the rule takes its token."""
    shown = written(preset("bild", PolicyOptions(threshold=math.inf, gate="always", span=3)), both[0])
    assert [token.how for token in shown] == ["accepted", "accepted", "accepted", "bonus"] * 3


# ---- certified -----------------------------------------------------------------------------------------------------


def within_bound(toys, large, noise, bound):
    """A local model whose KL from the cloud is just within the bound, at every position."""

    def row(prefix):
        cloud, other = large(prefix).probs, noise(prefix).probs
        low, high = 0.0, 1.0
        for _ in range(40):
            share = (low + high) / 2
            apart = naive_kl(cloud, (1 - share) * cloud + share * other)
            low, high = (share, high) if apart <= bound else (low, share)
        return Dense.from_probs((1 - low) * cloud + low * other)

    return toys.Made(row)


@each("bound", [0.02, 0.06])
def test_certified_gives_the_clouds_text_where_the_divergence_is_within_the_bound(toys, pairs_of, bound):
    """And saves questions: many a token that it shows, nobody was asked about."""
    policy, unasked, asked = preset("certified", PolicyOptions(threshold=bound)), 0, 0
    for noise, large in each_of(pairs_of(0.9)):
        small = within_bound(toys, large, noise, bound)
        shown, log = toys.play(policy, small, large, None, LENGTH, k=2, end=-1)
        assert text(shown) == toys.greedy_text(large, LENGTH, end=-1)
        unasked += sum(token.how == "unchecked" for token in shown)
        asked += sum(isinstance(request, Check) for request in log)
    assert min(unasked, asked) > 5


def test_certified_beyond_its_bound_skips_a_token_that_the_cloud_would_have_turned_down(toys):
    """KL of 0.63 nats where 0.1 was promised: the local model is sure enough, and wrong."""
    small, large = (toys.Made(lambda _, probs=probs: law(probs)) for probs in ([7, 2, 1], [2, 7, 1]))
    assert naive_kl(large(()).probs, small(()).probs) == pytest.approx(0.626, abs=1e-3)
    for bound, best in ((0.1, 0), (0.63, 1)):
        shown, _ = toys.play(preset("certified", PolicyOptions(threshold=bound)), small, large, None, 3, k=3, end=-1)
        assert text(shown) == (best,) * 3


# ---- sampled -------------------------------------------------------------------------------------------------------


def kept_or_drawn(small, large, keeps):
    """The law of a rule that keeps a drafted token or draws the cloud's: q on what it keeps, the rest spread as p."""

    def row(prefix):
        q, p = small(prefix), large(prefix)
        kept = q.probs * [keeps(q, p, token) for token in range(q.num_tokens)]
        return Dense.from_probs(kept + (1 - kept.sum()) * p.probs)

    return row


def of_rule(rule):
    return lambda q, p, token: token in accepted(p.probs, rule)


def of_excess(nats):
    return lambda _, p, token: p.probs[token] >= p.probs.max() * math.exp(-nats)


def of_certified(bound):
    keeps = certain(bound)
    return lambda q, p, token: token == p.best or (token == q.best and keeps(q, p))


SAMPLED = (
    ("fsd", {"threshold": 0.0}, lambda *_: False, ANY),
    ("fsd", {"threshold": math.inf}, lambda *_: True, ANY),
    ("fsd", {"threshold": 0.03}, lambda q, p, _: near(naive_jensen_shannon, 0.03)(q, p), WHOLE),
    ("excess", {"threshold": 0.0}, of_excess(0.0), ANY),
    ("excess", {"threshold": 0.4}, of_excess(0.4), ANY),
    ("excess", {"threshold": 0.8, "strict": True}, of_excess(0.8), ANY),
    ("excess", {"threshold": math.inf}, lambda *_: True, ANY),
    ("relaxed", {"threshold": 1.0}, of_rule(GreedyAcceptance()), ANY),
    ("relaxed", {"threshold": 0.3}, of_rule(MultiplicativeAcceptance(0.3)), ANY),
    ("relaxed", {"judge": "additive:0.2"}, of_rule(AdditiveAcceptance(0.2)), ANY),
    ("relaxed", {"judge": "bild:0"}, of_rule(GreedyAcceptance()), ANY),
    ("certified", {"threshold": 0.05}, of_certified(0.05), ANY),
)


@pytest.fixture(scope="module")
def three(toys):
    """Three tokens, one of which ends the text: all coins can be followed."""
    small = toys.Toy("q0")
    return small, toys.Mix(small, "p0", 0.6)


@each(("name", "choices", "keeps", "shown_k"), SAMPLED, ids=[f"{name}-{choices}" for name, choices, _, _ in SAMPLED])
def test_sampled_a_rule_has_its_closed_form(toys, three, name, choices, keeps, shown_k):
    """Every coin enumerated; what a few shown tokens leave open the cloud draws. fsd at 0 has the cloud's law."""
    policy = preset(name, PolicyOptions(span=2, sampling=AT_ONE, **choices))
    expected = toys.own_law(toys.Made(kept_or_drawn(*three, keeps)), 2)
    for k in each_of(shown_k):
        found = toys.law_of(lambda coin, k=k: toys.play(policy, *three, coin, 2, k=k), 2)
        assert toys.distance(found, expected) < 1e-12


@each(("name", "threshold"), [("relaxed", 1.0), ("bild", 0.0)])
def test_sampled_a_rule_at_its_strictest_does_not_have_the_clouds_law(toys, three, name, threshold):
    """It keeps the cloud's best token more often than the cloud draws it: only ``exact`` and ``block`` are exact."""
    policy = preset(name, PolicyOptions(span=2, sampling=AT_ONE, threshold=threshold, gate="always"))
    found = toys.law_of(lambda coin: toys.play(policy, *three, coin, 2), 2)
    assert toys.distance(found, toys.own_law(three[1], 2)) > 0.01


@pytest.mark.slow
@each("k", [1, 3])
@each("roll_back", [0.0, 1.5, math.inf])
def test_sampled_bild_has_the_law_of_a_separate_naive_program(toys, three, roll_back, k):
    policy = preset("bild", PolicyOptions(span=2, sampling=AT_ONE, threshold=roll_back, gate="max-prob:0.45:check"))

    def naive(coin):
        draw = lambda model, at: coin(model(at).probs)  # noqa: E731
        shown = naive_bild(*three, 0.45, roll_back, 2, draw, 3, toys.END)
        return [SimpleNamespace(id=token) for token in shown], None

    found = toys.law_of(lambda coin: toys.play(policy, *three, coin, 3, k=k), 3)
    assert toys.distance(found, toys.law_of(naive, 3)) < 1e-12
