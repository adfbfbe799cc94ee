"""The rules that draw, by enumeration: the law of the whole loop's text is the one promised, and of no wrong variant.

Three tokens, one of which ends the text; every coin of the driver, the judge and the toy cloud is followed both
ways. A quick run takes one pair of models and each way of asking once; the full grid is slow.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from cases import each, each_of
from wrong_judges import AcceptsEverything, ForgetsTheTail

from hybrid.policy import DraftPosition, PolicyOptions, preset
from hybrid.policy.gates import FixedGate
from hybrid.policy.judges import DraftedSpan, TailDraw, Verdict
from hybrid.policy.requests import Check, Draft, Emit, PendingToken, Write
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.cascade import CascadeDeferral
from hybrid.policy.rules.exact import UNDETERMINED, ExactSampling
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import Dense, warp
from hybrid.types import Sampling

LENGTH = 3
NUM_PAIRS = 3
EXACT = ("exact", "block")
RULES = (ExactSampling, BlockVerification)
AT_ONE = Sampling(1.0)
BEFORE, AFTER = "max-prob:0.45:check", "survival:0.4"
TWO = {"span": 2}
WAYS = (
    {"span": 1},
    {"span": 2, "bonus": False},
    {"span": 2, "hold": 2},
    {"span": 2, "lead": 1},
    {"span": 2, "gate": BEFORE},
    TWO,
    {"span": 3},
    {"span": 3, "gate": AFTER},
)
TRUNCATED = (
    Sampling(1.0, top_k=1),
    Sampling(1.0, top_k=2),
    Sampling(0.6, top_k=2),
    Sampling(1.0, top_p=0.75),
    Sampling(0.7, top_p=0.8),
    Sampling(1.3, min_p=0.4),
    Sampling(0.8, top_k=2, top_p=0.7, min_p=0.1),
    Sampling(1.3, min_p=1e-12),
)
# By two shown tokens: determined nowhere, at some positions, and everywhere.
TEMPERED = (Sampling(1.3, min_p=1e-12), Sampling(1.3, min_p=0.4), Sampling(0.7, top_p=0.8))
PREFIXES = [prefix for length in range(LENGTH) for prefix in itertools.product(range(2), repeat=length)]


def grid(*axes, quick=lambda *_: True):
    """Parametrize by the quick run's combinations, and by all others, a slow case a pair; each begins with its pair."""
    rows = list(itertools.product(range(NUM_PAIRS), *axes))
    fast = [row for row in rows if row[0] == 0 and quick(*row)]
    rest = [[row for row in rows if row[0] == i and row not in fast] for i in range(NUM_PAIRS)]
    slow = [pytest.param(part, id=f"slow-{i}", marks=pytest.mark.slow) for i, part in enumerate(rest) if part]
    return pytest.mark.parametrize("cases", [pytest.param(fast, id="quick"), *slow])


def once(_, k, way):
    """Each way from one k: two shown tokens are the hardest case, all three the cheapest."""
    return way is TWO or k == (3 if way["span"] == 3 else 2)


@pytest.fixture(scope="module")
def pair_of(toys):
    """A drafter, and a target that is nearly half of it."""

    @lru_cache
    def pair(i):
        small = toys.Toy(f"q{i}")
        return small, toys.Mix(small, f"p{i}", 0.6)

    return pair


@pytest.fixture
def pair(pair_of):
    return pair_of(0)


def error(toys, policy, pair, sampling=AT_ONE, expected=None, length=LENGTH, **how):
    """How far the law of the policy's text is from what is expected (the target's own), at any text."""
    small, large = pair
    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, length, law=sampling, **how), length)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    expected = expected or (lambda prefix: large.law(prefix, sampling))
    return toys.distance(found, toys.own_law(toys.Made(expected), length))


# ---- the target's law ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
@grid((1, 2, 3), WAYS, quick=once)
def test_the_law_is_the_targets_own_from_any_top_k(toys, pair_of, name, cases):
    for i, k, way in each_of(cases):
        policy = preset(name, PolicyOptions(sampling=AT_ONE, **way))
        assert error(toys, policy, pair_of(i), k=k) < 1e-12, f"pair {i}, {k} shown, {way}"


def test_the_gates_of_these_tests_end_some_drafts_and_not_others(pair):
    """Otherwise the law under a gate would be the law under none."""
    small, _ = pair
    before = preset("exact", PolicyOptions(sampling=AT_ONE, gate=BEFORE)).gate
    after = preset("exact", PolicyOptions(sampling=AT_ONE, gate=AFTER)).gate
    places = [
        (small(prefix), DraftPosition(len(prefix), [small(prefix[:i]) for i in range(len(prefix))]))
        for prefix in PREFIXES
    ]
    assert {before.before(row, place) for row, place in places} == {None, "check"}
    assert {after.after(row, 0, place) for row, place in places} == {None, "check"}


@each("name", EXACT)
def test_the_law_survives_a_gate_that_asks_before_the_first_token_and_no_bonus(toys, pair, name):
    policy = preset(name, PolicyOptions(sampling=AT_ONE, span=2, bonus=False, gate=BEFORE))
    assert error(toys, policy, pair, k=2, length=2) < 1e-12


@pytest.mark.parametrize("name", EXACT)
@grid((2, 3), TRUNCATED)
def test_the_law_is_the_targets_own_under_the_users_sampling(toys, pair_of, name, cases):
    """With what the shown tokens determine, and where they do not: then the cloud draws, whatever was drafted."""
    for i, k, sampling in each_of(cases):
        policy = preset(name, PolicyOptions(span=2, sampling=sampling))
        assert error(toys, policy, pair_of(i), sampling, k=k) < 1e-12, f"pair {i}, {k} shown, {sampling}"


def test_two_shown_tokens_determine_some_of_these_laws_and_not_others(pair):
    small, large = pair
    sides = [
        TargetSampler(sampling).shown_distributions(large.shown(at, 2), small(at))
        for sampling in TRUNCATED
        for at in PREFIXES
    ]
    assert {side is None for side in sides} == {True, False}


@each("rule", RULES)
@each("token", range(3))
def test_where_a_row_does_not_determine_the_law_no_coin_looks_at_what_was_drafted(pair, rule, token):
    """A draw that was made all the same would favour some tokens: here there is nothing to draw with."""
    local, cloud = pair[0](()), pair[1].shown((), 1, token)
    pending = PendingToken(token, "local", "unchecked", drawn_from=local, draft_row=local)
    judge = rule(TargetSampler(Sampling(1.0, top_p=0.99)))
    verdict = judge(DraftedSpan((pending,), (cloud,), None, bonus=False, coin=None))
    assert verdict == Verdict((), TailDraw(why=UNDETERMINED), rejected=True, why=UNDETERMINED)


@pytest.mark.parametrize("name", EXACT)
@grid((0, 1, 2), (True, False), TEMPERED, quick=lambda _, first, told, __: first == 1 or not told)
def test_the_law_is_the_targets_own_however_long_the_cloud_writes_on(toys, pair_of, name, cases):
    """One token and no more, or blocks from one or two tokens up; with rows that tell when to hand back, or without."""
    for i, first, told, sampling in each_of(cases):
        policy = replace(preset(name, PolicyOptions(span=2, sampling=sampling)), undetermined_tokens=first)
        said = f"pair {i}, first block {first}, rows {told}, {sampling}"
        assert error(toys, policy, pair_of(i), sampling, k=2, told=told) < 1e-12, said


def written(log):
    """The limits of what the cloud was let write, a list for each time that it took the pen."""
    found, before = [], None
    for request in log:
        if isinstance(request, Write):
            if not isinstance(before, Write):
                found.append([])
            found[-1].append(request.limit)
        if not isinstance(request, Emit):
            before = request
    return found


@each("name", EXACT)
def test_where_no_row_determines_the_law_the_cloud_writes_on_and_it_is_said(toys, name):
    """Each token used to be a check and a request of its own, and the prompt paid twice for it, without a word."""
    small, large = toys.Toy("q", 5), toys.Toy("p", 5)
    sampling = Sampling(1.3, min_p=1e-12)
    policy = preset(name, PolicyOptions(span=2, sampling=sampling))
    toss = np.random.default_rng(5)
    coin = lambda probs: int(toss.choice(len(probs), p=probs))  # noqa: E731
    shown, log = toys.play(policy, small, large, coin, 28, k=2, end=-1, law=sampling)
    assert written(log) == [[4, 3, 2, 1, *range(8, 0, -1), *range(16, 0, -1)]]
    assert [request.note is not None for request in log if isinstance(request, Write)] == [False] * 4 + [True] * 24
    assert sum(isinstance(request, Check) for request in log) == 1
    assert [pending.why for pending in shown] == [UNDETERMINED] + [None] * 27
    _, log = toys.play(policy, small, large, coin, 28, k=2, end=-1, law=sampling, told=False)
    assert written(log) == [[4, 3, 2, 1], [*range(8, 0, -1)], [*range(16, 0, -1)]], "what is not told, a check tells"


@each("name", EXACT)
def test_the_cloud_hands_back_at_the_first_row_that_determines_the_law(toys, name):
    """The block in which it stands is read to its end; from a kept token on the blocks are small again."""
    sampling = Sampling(0.7, top_p=0.8)
    policy = replace(preset(name, PolicyOptions(span=2, sampling=sampling)), undetermined_tokens=1)
    small = toys.Toy("q", 5)
    large = toys.Mix(small, "p", 0.6)
    goes_on, comes_back = 0, 0
    for seed in range(20):
        toss = np.random.default_rng(seed)
        coin = lambda probs, toss=toss: int(toss.choice(len(probs), p=probs))  # noqa: E731
        shown, log = toys.play(policy, small, large, coin, 20, k=3, end=-1, law=sampling)
        texts = tuple(pending.id for pending in shown)
        drawing = TargetSampler(sampling)
        known = [
            drawing.shown_distributions(large.shown(texts[:i], 3), small(texts[:i])) is not None for i in range(20)
        ]
        for before, request in each_of(itertools.pairwise([one for one in log if not isinstance(one, Emit)])):
            if isinstance(before, Write) and before.limit == 1 and len(before.at) < 19:
                goes_on += isinstance(request, Write)
                comes_back += isinstance(request, Draft)
                assert isinstance(request, Write) is not known[len(before.at)]
    assert min(goes_on, comes_back) > 10


@pytest.mark.slow
@each("name", EXACT)
@each("short", [1, 2])
def test_the_law_survives_an_endpoint_that_answers_fewer_rows(toys, pair, name, short):
    policy = preset(name, PolicyOptions(span=2, sampling=AT_ONE))
    assert error(toys, policy, pair, k=3, short=short) < 1e-12


@each("judge", EXACT)
def test_an_exact_judge_gives_another_policy_the_targets_law(toys, pair, judge):
    """With a cloud that holds the pen after a rejection until the divergence is small."""
    policy = preset("kl", PolicyOptions(span=2, sampling=AT_ONE, judge=judge))
    assert error(toys, policy, pair, k=2) < 1e-12


@each("name", EXACT)
@each("k", [1, 2, 3])
def test_greedy_gives_the_targets_greedy_text(toys, name, k):
    for i, span in itertools.product(range(15), (1, 3)):
        small = toys.Toy(f"q{i}")
        large = toys.Mix(small, f"p{i}", 0.5)
        shown, _ = toys.play(preset(name, PolicyOptions(span=span)), small, large, None, 12, k=k)
        assert tuple(pending.id for pending in shown) == toys.greedy_text(large, 12)


@each("name", EXACT)
def test_greedy_asks_for_nothing_that_it_does_not_say_it_needs(toys, name):
    """An endpoint that only scores must do for it."""
    policy = preset(name, PolicyOptions(span=3))
    logs = [toys.play(policy, toys.Toy(f"q{i}"), toys.Toy(f"p{i}"), None, 12, k=1)[1] for i in range(10)]
    assert "write" in policy.needs or not any(isinstance(request, Write) for log in logs for request in log)


# ---- how many tokens are kept --------------------------------------------------------------------------------------


def expected_kept(toys, rule, pair, k, num_drafted=3):
    """How many tokens of one draft are kept, in expectation. What replaces a token is not looked at."""
    small, large = pair

    def judged(coin):
        span, at = (), ()
        for _ in range(num_drafted):
            span += (
                PendingToken(coin(small(at).probs), "local", "unchecked", drawn_from=small(at), draft_row=small(at)),
            )
            at += (span[-1].id,)
        rows = tuple(large.shown(at[:i], k, at[i]) for i in range(num_drafted))
        draw = lambda probs, _, role: coin(probs) if role == "accept" else int(np.argmax(probs))  # noqa: E731
        return rule(TargetSampler(AT_ONE))(DraftedSpan(span, rows, None, bonus=False, coin=draw)).accepted, None

    return sum(weight * len(kept) for kept, weight in toys.law_of(judged, num_drafted).items())


@each("i", range(NUM_PAIRS))
def test_block_keeps_at_least_as_many_tokens_as_one_decision_for_each(toys, pair_of, i):
    """From any top k; from the full row, on each of these pairs, it keeps more."""
    more = [
        expected_kept(toys, BlockVerification, pair_of(i), k) - expected_kept(toys, ExactSampling, pair_of(i), k)
        for k in (1, 2, 3)
    ]
    assert min(more) > -1e-12
    assert more[-1] > 0.01


def test_of_one_token_block_keeps_what_exact_keeps(toys, pair):
    """The sum of min(p, q): the most that any rule can keep."""
    small, large = pair
    most = np.minimum(small(()).probs, large(()).probs).sum()
    for rule in RULES:
        assert expected_kept(toys, rule, pair, 3, num_drafted=1) == pytest.approx(most, abs=1e-12)


# ---- wrong variants ------------------------------------------------------------------------------------------------


class SeesWhatWasAppended(ExactSampling):
    """Takes the actual token that an endpoint appends to its list for one of the list."""

    def __call__(self, case):
        rows = tuple(replace(row, num_listed=row.ids.size) for row in case.target_rows)
        return super().__call__(replace(case, target_rows=rows))


class Drops(FixedGate):
    """Forgets a drawn token that it finds unlikely."""

    def after(self, row, token, place):
        return "drop" if row.probs[token] < 0.3 else None


@each("wrong", [AcceptsEverything, ForgetsTheTail, SeesWhatWasAppended, Drops])
def test_the_same_enumeration_rejects_a_wrong_variant(toys, pair_of, wrong):
    pair = pair_of(1)
    right = preset("exact", PolicyOptions(span=2, sampling=AT_ONE))
    change = {"gate": Drops("check")} if wrong is Drops else {"judge": wrong(TargetSampler(AT_ONE))}
    assert error(toys, right, pair, k=1, length=2) < 1e-12
    assert error(toys, replace(right, **change), pair, k=1, length=2) > 0.001


# ---- lossy rules with a law of their own ---------------------------------------------------------------------------


def either(pair, deferral, alpha):
    """What a deferral rule says from the full rows: at each position the cloud's law or the local model's."""
    small, large = pair

    def row(prefix):
        q, p = small(prefix).probs, large(prefix).probs
        slack = {"chow": None, "diff": 1.0, "opt": 0.5 * np.abs(p - q).sum()}[deferral]
        defers = q.max() < 1 - alpha if slack is None else q.max() < p.max() - alpha * slack
        return large(prefix) if defers else small(prefix)

    return row


DEFERRALS = (("chow", 0.4), ("diff", 0.02), ("diff", 0.1), ("opt", 0.05), ("opt", 0.3))


@grid(DEFERRALS)
def test_a_cascade_has_the_law_that_its_deferral_rule_says(toys, pair_of, cases):
    for i, (deferral, alpha) in each_of(cases):
        policy = preset("cascade", PolicyOptions(span=2, sampling=AT_ONE, judge=f"cascade-{deferral}:{alpha}"))
        expected = either(pair_of(i), deferral, alpha)
        assert error(toys, policy, pair_of(i), k=3, expected=expected) < 1e-12, f"pair {i}, {deferral}:{alpha}"


@each("rule", DEFERRALS)
def test_these_deferrals_are_the_clouds_at_some_positions_and_not_at_others(pair, rule):
    expected = either(pair, *rule)
    assert {expected(prefix) is pair[1](prefix) for prefix in PREFIXES} == {True, False}


def test_a_cascade_takes_no_bonus(toys, pair):
    """It would be the cloud's token where the rule may not defer."""
    policy = replace(preset("cascade", PolicyOptions(span=1, sampling=AT_ONE, judge="cascade-diff:0.1")), bonus=True)
    assert error(toys, policy, pair, k=3, length=2, expected=either(pair, "diff", 0.1)) < 1e-12


def test_a_cascade_decides_by_the_position_and_not_by_what_was_drafted(pair):
    """Otherwise the law is neither model's: with the appended token among the shown ones the rule asks about some."""
    small, large = pair
    for alpha in (0.2, 0.4):
        judge = CascadeDeferral(TargetSampler(AT_ONE), alpha, "opt")
        for at in each_of(PREFIXES):
            assert len({judge.defers(large.shown(at, 1, token), small(at)) for token in range(3)}) == 1


@grid((0.3, 0.45, 0.6))
def test_u_hlm_has_its_closed_form(toys, pair_of, cases):
    """Tokens that are not asked about keep q; the others are thinned, and what they lose goes to the residual."""
    for i, limit in each_of(cases):
        small, large = pair_of(i)
        policy = preset("u-hlm", PolicyOptions(span=3, sampling=AT_ONE, threshold=limit))

        def closed(prefix, small=small, large=large, policy=policy, limit=limit):
            q, p = small(prefix).probs, large(prefix).probs
            heats = [warp(small(prefix), Sampling(t)).probs for t in policy.gate.temperatures]
            asked = 1 - np.mean(heats, axis=0) > limit
            lost, left = np.maximum(q - p, 0) * asked, np.maximum(p - q, 0)
            return Dense.from_probs(q - lost + lost.sum() * left / left.sum())

        assert error(toys, policy, (small, large), k=3, expected=closed) < 1e-12, f"pair {i}, limit {limit}"


@each("rate", [0.0, 0.3, 1.0])
def test_random_gives_each_position_to_one_model_whatever_it_holds(toys, pair, rate):
    """By the seed and the position alone: under this seed the cloud has the second of three at a rate of 0.3."""
    small, large = pair
    policy = preset("random", PolicyOptions(sampling=Sampling(1.0, seed=4), threshold=rate, hold=1))
    clouds = [policy.gate.before(small(()), DraftPosition(i, ())) == "write" for i in range(LENGTH)]
    assert clouds == {0.0: [False] * 3, 0.3: [False, True, False], 1.0: [True] * 3}[rate]
    expected = lambda prefix: (large if len(prefix) < LENGTH and clouds[len(prefix)] else small)(prefix)  # noqa: E731
    assert error(toys, policy, pair, expected=expected) < 1e-12
