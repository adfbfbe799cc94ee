"""Each rule of rules/ against a separate program written down without the loop, its limits, and what it guarantees.

Most rules decide each position by itself: their program is one choice between two tokens. ``bild`` is the exception.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_divergence import law, naive_jensen_shannon, naive_kl, naive_overlap, naive_reverse, pairs
from naive_rules import RULES as RULES_OF_ACCEPTANCE
from naive_rules import accepted, undecided

from hybrid.policy import Choices, Place, preset
from hybrid.policy.drawing import Drawing
from hybrid.policy.judges import Case
from hybrid.policy.requests import Check, Held
from hybrid.policy.rules.bild import RollBack
from hybrid.policy.rules.relaxed import Certified
from hybrid.prob import Additive, Dense, Greedy, Multiplicative, TopK, TopM, Typical, certificate, warp
from hybrid.types import Sampling

SIZE, LENGTH, NUM_PAIRS = 5, 12, 8
AT_ONE = Sampling(1.0)


@pytest.fixture(scope="module")
def pairs_of(toys):
    """Models on five tokens that part at many positions; their texts do not end early."""

    @lru_cache
    def made(share):
        smalls = [toys.Toy(f"small{i}", SIZE) for i in range(NUM_PAIRS)]
        return [(small, toys.Mix(small, f"large{i}", share)) for i, small in enumerate(smalls)]

    return made


@pytest.fixture
def both(pairs_of):
    return pairs_of(0.5)


@pytest.fixture
def written(toys):
    """What a policy shows of the greedy decoding of a pair."""

    def play(policy, pair, k=SIZE):
        return toys.play(policy, *pair, None, LENGTH, k=k, end=-1)[0]

    return play


def text(shown):
    return tuple(held.id for held in shown)


def walk(choose):
    """Write token by token."""
    shown = ()
    while len(shown) < LENGTH:
        shown += (choose(shown),)
    return shown


# ---- rules that choose between the two models' best tokens at each position ----------------------------------------


def accepting(rule):
    """Whether the local model's best token is accepted by the cloud's row."""
    return lambda local, cloud: local.best in accepted(cloud.probs, rule)


def near(measure, threshold):
    return lambda local, cloud: measure(cloud.probs, local.probs) <= threshold


def undeferred(deferral, alpha):
    def keeps(local, cloud):
        best, other = local.probs.max(), cloud.probs.max()
        apart = np.abs(local.probs - cloud.probs).sum() / 2
        return best >= {"chow": 1 - alpha, "diff": other - alpha, "opt": other - alpha * apart}[deferral]

    return keeps


def certain(bound):
    """The nearest cloud row that has another favourite pools the two best tokens at their geometric mean."""

    def keeps(local, cloud):
        first, second = sorted(local.probs, reverse=True)[:2]
        return -math.log(1 - (math.sqrt(first) - math.sqrt(second)) ** 2) > bound or local.best == cloud.best

    return keeps


def unperturbed(limit):
    def keeps(local, cloud):
        agree = [warp(local, Sampling(t)).probs[local.best] for t in np.arange(1, 9) / 4]
        return 1 - np.mean(agree) <= limit or local.best == cloud.best

    return keeps


def below_certificate(share):
    """A list of all tokens does not say that it is one: the certificate is the row's."""

    def keeps(local, cloud):
        row = TopK.from_dense(cloud, SIZE)
        return naive_kl(cloud.probs, local.probs) < certificate(row, Multiplicative(share))

    return keeps


def naive_tv(target, draft):
    return 1 - naive_overlap(target, draft)


ANY = (1, 2, SIZE)
WHOLE = (SIZE,)
# How the policy is called, when the local token stands, and the top k from which that is known.
RULES = {
    "fsd": ("fsd", {"threshold": 0.1}, near(naive_jensen_shannon, 0.1), WHOLE),
    "fsd, strict": ("fsd", {"threshold": 0.05, "strict": True}, near(naive_jensen_shannon, 0.05), WHOLE),
    "kl": ("fsd", {"judge": "kl:0.2"}, near(naive_kl, 0.2), WHOLE),
    "reverse-kl": ("fsd", {"judge": "reverse-kl:0.2"}, near(naive_reverse, 0.2), WHOLE),
    "js": ("relaxed", {"judge": "js:0.05"}, near(naive_jensen_shannon, 0.05), WHOLE),
    "tv": ("relaxed", {"judge": "tv:0.25"}, near(naive_tv, 0.25), WHOLE),
    "relaxed": ("relaxed", {"threshold": 0.6}, accepting(Multiplicative(0.6)), ANY),
    "additive": ("relaxed", {"judge": "additive:0.1"}, accepting(Additive(0.1)), ANY),
    "multiplicative": ("fsd", {"judge": "multiplicative:0.8"}, accepting(Multiplicative(0.8)), ANY),
    "top-m": ("relaxed", {"judge": "top-m:2"}, accepting(TopM(2)), (2, 3, SIZE)),
    "typical": ("relaxed", {"judge": "typical:0.5"}, accepting(Typical(0.5, math.sqrt(0.5))), WHOLE),
    "certified judge": ("relaxed", {"judge": "certified:0.4"}, below_certificate(0.4), WHOLE),
    "certified": ("certified", {"threshold": 0.05}, certain(0.05), ANY),
    "cascade": ("cascade", {"threshold": 0.3}, undeferred("opt", 0.3), WHOLE),
    "cascade-chow": ("cascade", {"judge": "cascade-chow:0.5"}, undeferred("chow", 0.5), ANY),
    "cascade-diff": ("cascade", {"judge": "cascade-diff:0.1"}, undeferred("diff", 0.1), ANY),
    "u-hlm": ("u-hlm", {"threshold": 0.4}, unperturbed(0.4), ANY),
}


@pytest.mark.parametrize("called", RULES)
def test_a_rule_equals_a_separate_naive_program(both, written, called):
    """Whatever the span, and from as few shown tokens as it needs. Its text is neither model's own."""
    name, choices, stands, shown_k = RULES[called]
    whose = set()
    for small, large in both:

        def choose(prefix, small=small, large=large):
            local, cloud = small(prefix), large(prefix)
            if local.best == cloud.best:
                return cloud.best
            whose.add(stands(local, cloud))
            return local.best if stands(local, cloud) else cloud.best

        expected = walk(choose)
        for k, span in [*((k, 3) for k in shown_k), (SIZE, 1), (SIZE, 8)]:
            assert text(written(preset(name, Choices(span=span, **choices)), (small, large), k)) == expected
    assert whose == {True, False}


KEEP_FOR_CERTAIN = ("fsd, strict", "relaxed", "additive", "top-m", "typical")
REJECT_FOR_CERTAIN = ("fsd", "kl", "reverse-kl", "js", "tv", "cascade")


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("called", [*KEEP_FOR_CERTAIN, *REJECT_FOR_CERTAIN])
def test_from_a_few_shown_tokens_one_of_the_two_answers_is_certain(both, written, called, k):
    """Of what stays or of what is turned down: the full rows agree."""
    name, choices, stands, _ = RULES[called]
    judged = set()
    for small, large in both:
        shown = written(preset(name, Choices(span=4, **choices)), (small, large), k)
        for i, held in enumerate(shown):
            if (held.source == "local") == (called in KEEP_FOR_CERTAIN):
                judged.add(stands(small(text(shown[:i])), large(text(shown[:i]))))
    assert judged <= {called in KEEP_FOR_CERTAIN}
    assert judged or k < 3


@pytest.mark.parametrize("called", ["fsd", "fsd, strict", "top-m", "typical", "cascade"])
def test_from_one_shown_token_the_other_answer_is_a_guess(both, written, called):
    """Otherwise the law above would say nothing of what is not shown."""
    name, choices, *_ = RULES[called]
    policy = preset(name, Choices(span=4, **choices))
    assert any(text(written(policy, pair, 1)) != text(written(policy, pair)) for pair in both)


@given(pairs(), RULES_OF_ACCEPTANCE, st.data())
def test_a_favourite_that_the_certified_judge_keeps_the_rule_accepts(pair, rule, data):
    """By its divergence alone, from any top k."""
    cloud, local = pair
    assume(not undecided(cloud.probs, rule))
    actual = data.draw(st.sampled_from([None, local.best]))
    row = TopK.from_dense(cloud, data.draw(st.integers(1, cloud.num_tokens)), actual)
    if Certified(rule, Drawing(Sampling())).accepts(row, Held(local.best, "local", "unchecked", local=local)):
        assert local.best in accepted(cloud.probs, rule)


@pytest.mark.parametrize("name", ["relaxed", "fsd", "cascade"])
def test_a_bonus_changes_no_text_of_a_rule_that_takes_none(both, written, name):
    """It would be the cloud's token where the local model's may stand."""
    for pair in both:
        policy = preset(name, Choices(span=3))
        texts = {text(written(replace(policy, bonus=bonus), pair)) for bonus in (False, True)}
        assert len(texts) == 1


def test_a_gate_that_asks_before_the_first_token_lets_nothing_through_that_the_rule_rejects(both, written):
    """A rule without a bonus has nothing to answer such a question with."""
    policy = preset("relaxed", Choices(threshold=1.0, gate="max-prob:0.5:check"))
    for small, large in both:
        shown = written(policy, (small, large))
        for i, held in enumerate(shown):
            assert held.source == "cloud" or held.id == large(text(shown[:i])).best


# ---- bild and random -----------------------------------------------------------------------------------------------


def naive_bild(small, large, fall_back, roll_back, span, draw, length=LENGTH, end=-1):
    """Draft until unsure, roll back to what the cloud finds too unlikely, and let it write the next token."""
    shown = ()

    def over():
        return len(shown) >= length or end in shown

    while not over():
        drafted = ()
        while len(drafted) < span and len(shown + drafted) < length and end not in drafted:
            if small(shown + drafted).probs.max() < fall_back:
                break
            drafted += (draw(small, shown + drafted),)
        rolled_back = False
        for token in drafted:
            row = large(shown)
            if token != row.best and -math.log(row.probs[token]) > roll_back:
                rolled_back = True
                break
            shown += (token,)
        if rolled_back or not over():
            shown += (draw(large, shown),)
    return shown


@pytest.mark.parametrize("roll_back", [0.0, 1.5, 2.5, math.inf])
@pytest.mark.parametrize("fall_back", [0.0, 0.4, 0.6, 1.0])
def test_bild_equals_a_separate_naive_program(both, written, fall_back, roll_back):
    """From any top k: an endpoint tells the probability of the drafted token itself."""
    policy = preset("bild", Choices(threshold=roll_back, gate=f"max-prob:{fall_back}:check"))
    for pair in both[:6]:
        for k, span in ((1, 3), (2, 1), (SIZE, 3), (SIZE, 10)):
            expected = naive_bild(*pair, fall_back, roll_back, span, lambda model, at: model(at).best)
            assert text(written(replace(policy, span=span), pair, k)) == expected


def test_bild_falls_back_at_the_papers_threshold(both, written):
    assert preset("bild", Choices()) == preset("bild", Choices(threshold=2.0, gate="max-prob:0.6:check"))


@given(pairs(min_size=2), st.floats(0.0, 4.0), st.data())
def test_bild_turns_an_unlisted_token_down_only_where_the_list_proves_it_too_unlikely(pair, limit, data):
    cloud, _ = pair
    token = data.draw(st.integers(0, cloud.num_tokens - 1))
    row = TopK.from_dense(cloud, data.draw(st.integers(1, cloud.num_tokens)))
    held = Held(token, "local", "unchecked", local=cloud)
    verdict = RollBack(limit, Drawing(Sampling()))(Case((held,), (row,), None, bonus=False, draw=None))
    surprise = -math.log(cloud.probs[token]) if cloud.probs[token] > 0 else math.inf
    assume(abs(surprise - limit) > 1e-9)
    if verdict.rejected:
        assert surprise > limit
        assert token != row.best
    elif token in row.ids:
        assert surprise < limit or token == row.best


@pytest.mark.parametrize("hold", [1, 2, 5])
def test_random_equals_a_separate_naive_program(both, written, hold):
    policy = preset("random", Choices(threshold=0.3, hold=hold))
    for small, large in both:
        expected = ()
        while len(expected) < LENGTH:
            handed = policy.gate.before(small(expected), Place(len(expected), ())) == "write"
            for _ in range(hold if handed else 1):
                expected += ((large if handed else small)(expected).best,)
        assert text(written(policy, (small, large))) == expected[:LENGTH]


# ---- limits --------------------------------------------------------------------------------------------------------

CLOUDS = (
    ("fsd", {"threshold": 0.0}),
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


@pytest.mark.parametrize(("name", "choices"), CLOUDS, ids=str)
def test_at_one_end_a_rule_gives_the_clouds_greedy_text(toys, both, written, name, choices):
    for small, large in both:
        expected = toys.greedy_text(large, LENGTH, end=-1)
        for k in ANY:
            assert text(written(preset(name, Choices(**choices)), (small, large), k)) == expected


@pytest.mark.parametrize(("name", "choices"), LOCALS, ids=str)
def test_at_the_other_end_a_rule_gives_the_local_models_greedy_text(toys, both, written, name, choices):
    for small, large in both:
        expected = toys.greedy_text(small, LENGTH, end=-1)
        assert text(written(preset(name, Choices(**choices)), (small, large))) == expected


def test_bild_that_never_falls_or_rolls_back_has_one_token_of_the_cloud_after_each_span(both, written):
    """The row after a kept span is there: the rule takes its token."""
    shown = written(preset("bild", Choices(threshold=math.inf, gate="always", span=3)), both[0])
    assert [held.how for held in shown] == ["accepted", "accepted", "accepted", "bonus"] * 3


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


@pytest.mark.parametrize("bound", [0.02, 0.06])
def test_certified_gives_the_clouds_text_where_the_divergence_is_within_the_bound(toys, pairs_of, bound):
    """And saves questions: many a token that it shows, nobody was asked about."""
    policy, unasked, asked = preset("certified", Choices(threshold=bound)), 0, 0
    for noise, large in pairs_of(0.9):
        small = within_bound(toys, large, noise, bound)
        shown, log = toys.play(policy, small, large, None, LENGTH, k=2, end=-1)
        assert text(shown) == toys.greedy_text(large, LENGTH, end=-1)
        unasked += sum(held.how == "unchecked" for held in shown)
        asked += sum(isinstance(request, Check) for request in log)
    assert min(unasked, asked) > 5


def test_certified_beyond_its_bound_skips_a_token_that_the_cloud_would_have_turned_down(toys):
    """KL of 0.63 nats where 0.1 was promised: the local model is sure enough, and wrong."""
    small, large = (toys.Made(lambda _, probs=probs: law(probs)) for probs in ([7, 2, 1], [2, 7, 1]))
    assert naive_kl(large(()).probs, small(()).probs) == pytest.approx(0.626, abs=1e-3)
    for bound, best in ((0.1, 0), (0.63, 1)):
        shown, _ = toys.play(preset("certified", Choices(threshold=bound)), small, large, None, 3, k=3, end=-1)
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


def of_certified(bound):
    keeps = certain(bound)
    return lambda q, p, token: token == p.best or (token == q.best and keeps(q, p))


SAMPLED = (
    ("fsd", {"threshold": 0.0}, lambda *_: False, ANY),
    ("fsd", {"threshold": math.inf}, lambda *_: True, ANY),
    ("fsd", {"threshold": 0.03}, lambda q, p, _: near(naive_jensen_shannon, 0.03)(q, p), WHOLE),
    ("relaxed", {"threshold": 1.0}, of_rule(Greedy()), ANY),
    ("relaxed", {"threshold": 0.3}, of_rule(Multiplicative(0.3)), ANY),
    ("relaxed", {"judge": "additive:0.2"}, of_rule(Additive(0.2)), ANY),
    ("relaxed", {"judge": "bild:0"}, of_rule(Greedy()), ANY),
    ("certified", {"threshold": 0.05}, of_certified(0.05), ANY),
)


@pytest.fixture(scope="module")
def three(toys):
    """Three tokens, one of which ends the text: all coins can be followed."""
    small = toys.Toy("q0")
    return small, toys.Mix(small, "p0", 0.6)


@pytest.mark.parametrize(("name", "choices", "keeps", "shown_k"), SAMPLED, ids=lambda value: str(value)[:30])
def test_sampled_a_rule_has_its_closed_form(toys, three, name, choices, keeps, shown_k):
    """Every coin enumerated; what a few shown tokens leave open the cloud draws. fsd at 0 has the cloud's law."""
    policy = preset(name, Choices(span=2, sampling=AT_ONE, **choices))
    expected = toys.own_law(toys.Made(kept_or_drawn(*three, keeps)), 2)
    for k in sorted({min(k, 3) for k in shown_k}):
        found = toys.law_of(lambda coin, k=k: toys.play(policy, *three, coin, 2, k=k), 2)
        assert toys.distance(found, expected) < 1e-12


@pytest.mark.parametrize(("name", "threshold"), [("relaxed", 1.0), ("bild", 0.0)])
def test_sampled_a_rule_at_its_strictest_does_not_have_the_clouds_law(toys, three, name, threshold):
    """It keeps the cloud's best token more often than the cloud draws it: only ``exact`` and ``block`` are exact."""
    policy = preset(name, Choices(span=2, sampling=AT_ONE, threshold=threshold, gate="always"))
    found = toys.law_of(lambda coin: toys.play(policy, *three, coin, 2), 2)
    assert toys.distance(found, toys.own_law(three[1], 2)) > 0.01


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("roll_back", [0.0, 1.5, math.inf])
def test_sampled_bild_has_the_law_of_a_separate_naive_program(toys, three, roll_back, k):
    policy = preset("bild", Choices(span=2, sampling=AT_ONE, threshold=roll_back, gate="max-prob:0.45:check"))

    def naive(coin):
        draw = lambda model, at: coin(model(at).probs)  # noqa: E731
        shown = naive_bild(*three, 0.45, roll_back, 2, draw, length=3, end=toys.END)
        return [SimpleNamespace(id=token) for token in shown], None

    found = toys.law_of(lambda coin: toys.play(policy, *three, coin, 3, k=k), 3)
    assert toys.distance(found, toys.law_of(naive, 3)) < 1e-12
