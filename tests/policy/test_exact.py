"""The exact rules, by enumeration: the law of the whole loop's text is the target's, to 1e-12, and of no wrong variant.

Three tokens, one of which ends the text; every coin of the driver, the judge and the toy cloud is followed both ways.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybrid.policy import Choices, preset
from hybrid.policy.drawing import Drawing
from hybrid.policy.gates import Fixed, MaxProb, Survival
from hybrid.policy.judges import Tail, Verdict, best_of
from hybrid.policy.rules.exact import Exact
from hybrid.prob import accept_prob, coarse, residual, warp
from hybrid.types import Sampling

LENGTH = 3
EXACT = ("exact", "block")
AT_ONE = Sampling(1.0)
TRUNCATED = (
    Sampling(1.0, top_k=1),
    Sampling(1.0, top_k=2),
    Sampling(0.6, top_k=2),
    Sampling(1.0, top_p=0.75),
    Sampling(0.7, top_p=0.8),
    Sampling(1.3, min_p=0.4),
    Sampling(0.8, top_k=2, top_p=0.7, min_p=0.1),
)


@pytest.fixture(params=range(3))
def pair(request, toys):
    """A drafter, and a target that is half of it."""
    small = toys.Toy(f"q{request.param}")
    return small, toys.Mix(small, f"p{request.param}", 0.6)


def warped(toys, model, sampling):
    """The model as it is sampled."""

    class Warped(toys.Toy):
        def __call__(self, prefix):
            return warp(model(prefix), sampling)

    return Warped("warped")


def error(toys, policy, pair, sampling=AT_ONE, expected=None, **how):
    """How far the law of the policy's text is from the target's own, at any text."""
    small, large = pair
    law = toys.law_of(lambda coin: toys.play(policy, small, large, coin, LENGTH, law=sampling, **how), LENGTH)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    return toys.distance(law, toys.own_law(expected or warped(toys, large, sampling), LENGTH))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(
    "choices",
    [
        {"span": 1},
        {"span": 2},
        {"span": 3},
        {"span": 3, "bonus": False},
        {"span": 2, "hold": 2},
        {"span": 2, "lead": 1},
        {"span": 3, "gate": "max-prob:0.5:check"},
        {"span": 3, "gate": "survival:0.3"},
    ],
    ids=str,
)
def test_the_law_is_the_targets_own_from_any_top_k(toys, pair, name, k, choices):
    policy = preset(name, Choices(sampling=AT_ONE, **choices))
    assert error(toys, policy, pair, k=k) < 1e-12


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("sampling", TRUNCATED, ids=str)
def test_the_law_is_the_targets_own_under_the_users_sampling(toys, pair, name, k, sampling):
    """With what the shown tokens determine, and where they do not: then the cloud draws, whatever was drafted."""
    policy = preset(name, Choices(span=2, sampling=sampling))
    assert error(toys, policy, pair, sampling, k=k) < 1e-12


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("short", [1, 2])
def test_the_law_survives_an_endpoint_that_answers_fewer_rows(toys, pair, name, short):
    policy = preset(name, Choices(span=3, sampling=AT_ONE))
    assert error(toys, policy, pair, k=2, short=short) < 1e-12


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("span", [1, 2, 4])
def test_greedy_gives_the_targets_greedy_text(toys, name, span):
    for i in range(20):
        small = toys.Toy(f"q{i}")
        large = toys.Mix(small, f"p{i}", 0.5)
        shown, _ = toys.play(preset(name, Choices(span=span)), small, large, None, 12, k=2)
        assert tuple(held.id for held in shown) == toys.greedy_text(large, 12)


def test_block_keeps_at_least_as_many_tokens_as_one_decision_for_each(toys, pair):
    """In expectation, of one span: what the two rules differ in. Strictly more for some pair."""
    small, large = pair
    kept = {}
    for name in EXACT:
        policy = preset(name, Choices(span=3, sampling=AT_ONE, bonus=False))
        kept[name] = 0.0

        def first_span(coin, policy=policy, name=name, weight=None):
            return toys.play(policy, small, large, coin, 3, end=-1)

        for text, weight in spans(toys, first_span).items():
            kept[name] += weight * text
    assert kept["block"] >= kept["exact"] - 1e-12


def spans(toys, answer):
    """The distribution of how many drafted tokens the first check kept."""
    found = {}

    def counted(coin):
        shown, log = answer(coin)
        run = next((i for i, held in enumerate(shown) if held.source == "cloud"), len(shown))
        return shown[:run], log

    for text, weight in toys.law_of(counted, 3).items():
        found[len(text)] = found.get(len(text), 0.0) + weight
    return found


# ---- wrong variants ------------------------------------------------------------------------------------------------


class AcceptsEverything(Exact):
    def __call__(self, case):
        return Verdict(case.accepted())


class ForgetsTheTail(Exact):
    """Draws the replacement from the listed tokens alone: the residual renormalised on the top k."""

    def __call__(self, case):
        for i, (held, row) in enumerate(case.judged):
            sides = coarse(row, held.law)
            chance = float(accept_prob(sides.target, sides.draft)[sides.symbol(held.id)])
            if case.draw(np.array([chance, 1 - chance]), i, "accept") == 1:
                left = residual(sides.target, sides.draft)[:-1]
                left = left / left.sum() if left.sum() > 0 else np.full(left.size, 1 / left.size)
                token = int(sides.ids[case.draw(left, i, "residual")])
                then = replace(best_of(row, held.local, "recovered"), id=token)
                return Verdict(case.accepted(i), then, rejected=True)
        return Verdict(case.accepted())


class Drops(Fixed):
    """Forgets a drawn token that it finds unlikely."""

    def after(self, row, token, place):
        return "drop" if row.probs[token] < 0.3 else None


def test_the_same_enumeration_rejects_wrong_variants(toys, pair):
    right = preset("exact", Choices(span=2, sampling=AT_ONE))
    assert error(toys, right, pair, k=2) < 1e-12
    assert error(toys, replace(right, judge=AcceptsEverything(Drawing(AT_ONE))), pair, k=2) > 0.01
    assert error(toys, replace(right, judge=ForgetsTheTail(Drawing(AT_ONE))), pair, k=2) > 0.001
    assert error(toys, replace(right, gate=Drops("check")), pair, k=2) > 0.001


def test_an_alphabet_that_depends_on_the_draft_would_be_seen(toys, pair):
    """The token an endpoint appends to its list is not among the symbols: with it the law is another one."""

    class Fine(Exact):
        def __call__(self, case):
            rows = tuple(replace(row, num_listed=row.ids.size) for row in case.rows)
            return super().__call__(replace(case, rows=rows))

    right = preset("exact", Choices(span=2, sampling=AT_ONE))
    assert error(toys, replace(right, judge=Fine(Drawing(AT_ONE))), pair, k=1) > 0.001


# ---- lossy rules with a law of their own ---------------------------------------------------------------------------


@pytest.mark.parametrize("deferral", ["chow", "diff", "opt"])
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_a_cascade_has_the_law_that_its_deferral_rule_says(toys, pair, deferral, alpha):
    small, large = pair

    class Either(toys.Toy):
        def __call__(self, prefix):
            q, p = small(prefix).probs, large(prefix).probs
            slack = {"chow": None, "diff": 1.0, "opt": 0.5 * np.abs(p - q).sum()}[deferral]
            defers = q.max() < 1 - alpha if slack is None else q.max() < p.max() - alpha * slack
            return large(prefix) if defers else small(prefix)

    policy = preset("cascade", Choices(span=2, sampling=AT_ONE, judge=f"cascade-{deferral}:{alpha}"))
    assert error(toys, policy, pair, k=3, expected=Either("either")) < 1e-12
    if deferral != "chow":
        with_bonus = replace(policy, bonus=True)
        assert error(toys, with_bonus, pair, k=3, expected=Either("either")) < 1e-12  # the judge takes none


@pytest.mark.parametrize("limit", [0.3, 0.45, 0.6])
def test_u_hlm_has_its_closed_form(toys, pair, limit):
    """Tokens that are not asked about keep q; the others are thinned, and what they lose goes to the residual."""
    small, large = pair
    policy = preset("u-hlm", Choices(span=3, sampling=AT_ONE, threshold=limit))

    class Closed(toys.Toy):
        def __call__(self, prefix):
            q, p = small(prefix).probs, large(prefix).probs
            heats = [warp(small(prefix), Sampling(t)).probs for t in policy.gate.temperatures]
            asked = 1 - np.mean(heats, axis=0) > limit
            lost = np.maximum(q - p, 0) * asked
            left = np.maximum(p - q, 0)
            probs = q - lost + lost.sum() * (left / left.sum() if left.sum() else 0)
            from hybrid.prob import Dense

            return Dense.from_probs(probs)

    assert error(toys, policy, pair, k=3, expected=Closed("closed")) < 1e-12


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_hands_over_by_position_alone(toys, pair, rate):
    small, large = pair
    policy = preset("random", Choices(sampling=Sampling(1.0, seed=4), threshold=rate, hold=1))
    handed = [policy.gate.before(small(()), place) == "write" for place in ((i, ()) for i in range(0))]
    del handed
    from hybrid.policy import Place

    class ByPosition(toys.Toy):
        def __call__(self, prefix):
            given = policy.gate.before(small(()), Place(len(prefix), ())) == "write"
            return large(prefix) if given else small(prefix)

    assert error(toys, policy, pair, expected=ByPosition("by position")) < 1e-12


def test_what_a_row_does_not_determine_is_left_to_the_cloud(toys, pair):
    small, large = pair
    policy = preset("exact", Choices(span=1, sampling=Sampling(1.0, top_p=0.99)))
    _, log = toys.play(policy, small, large, lambda probs: int(np.argmax(probs)), 2, k=1, law=Sampling(1.0, top_p=0.99))
    assert any(getattr(request, "limit", 0) == 1 and not request.ban for request in log if hasattr(request, "ban"))
    assert Tail() == Tail(frozenset())
    assert isinstance(policy.gate, Fixed | MaxProb | Survival)
