"""The law of branches: the whole loop on three tokens, every coin enumerated, against a sum over what may be drawn."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from cases import each, each_of

from hybrid.errors import UsageError
from hybrid.policy import PolicyOptions, SeededCoin, decode, exact_stages, preset, with_stages
from hybrid.policy.branches import BLOCK, final_answer
from hybrid.policy.requests import Check, Draft, Emit, ids
from hybrid.types import Sampling

LENGTH = 2
NATS = 1e-9


def branching(num, sampling, choose=None):
    return preset("auto", PolicyOptions(branches=num, choose=choose, sampling=sampling))


def pair(toys, number=9):
    small = toys.Toy(f"small{number}")
    return small, toys.Mix(small, f"large{number}", 0.7)


def spelled(text, toys):
    return "".join("xy."[token] for token in text if token != toys.END)


def enumerated(toys, policy, models, sampling, fails=None, mids=()):
    """The law of the shown text, by running the loop for every fall of its coins; one key falls one way."""

    def answer(coin):
        player = toys.Player(*models, coin, LENGTH, law=sampling, keyed=True, fails=fails, mids=mids)
        loop = decode(policy, player.toss, frozenset({toys.END}), LENGTH, lambda text: (spelled(text, toys), None))
        reply = None
        for _ in range(100):
            try:
                reply = player.answer(loop.send(reply))
            except StopIteration:
                return player.shown, None
        raise AssertionError("it goes on for ever")

    return toys.law_of(answer, LENGTH)


def logprob(model, text):
    return sum(float(model(text[:i]).logprobs[token]) for i, token in enumerate(text))


def a_token(model):
    return lambda drawn: max(drawn, key=lambda text: logprob(model, text) / len(text))


def in_sum(model):
    return lambda drawn: max(drawn, key=lambda text: logprob(model, text))


def by_vote(toys, model):
    def chosen(drawn):
        votes = Counter(spelled(text, toys) for text in drawn)
        return max(drawn, key=lambda text: (votes[spelled(text, toys)], logprob(model, text) / len(text)))

    return chosen


def expected(toys, small, sampling, num, chosen):
    """The same law as a sum over all that N independent draws may be."""
    own = toys.own_law(toys.Made(lambda prefix: small.law(prefix, sampling)), LENGTH)
    found = defaultdict(float)
    for drawn in itertools.product(own, repeat=num):
        found[chosen(drawn)] += math.prod(own[text] for text in drawn)
    return found


SAMPLINGS = (Sampling(0.5), Sampling(1.0), Sampling(1.6), Sampling(1.3, top_k=2))


@each("num", [1, 2, 3])
@each("sampling", SAMPLINGS)
def test_the_shown_text_is_the_likeliest_a_token_for_the_large_model_of_n_draws_of_the_small_one(toys, num, sampling):
    small, large = pair(toys)
    found = enumerated(toys, branching(num, sampling), (small, large), sampling)
    assert toys.distance(found, expected(toys, small, sampling, num, a_token(large))) < NATS


def test_the_same_enumeration_turns_wrong_laws_down(toys):
    small, large = pair(toys)
    sampling = Sampling(1.6)
    found = enumerated(toys, branching(3, sampling), (small, large), sampling)
    wrong = {
        "sums": expected(toys, small, sampling, 3, in_sum(large)),
        "the small model's own": expected(toys, small, sampling, 3, a_token(small)),
        "one draw fewer": expected(toys, small, sampling, 2, a_token(large)),
        "another temperature": expected(toys, small, Sampling(1.0), 3, a_token(large)),
        "one draw again and again": expected(toys, small, sampling, 1, a_token(large)),
    }
    for name, law in each_of(wrong.items()):
        assert toys.distance(found, law) > 0.01, name


@each("sampling", SAMPLINGS)
def test_a_majority_is_of_the_draws_and_asks_nobody(toys, sampling):
    small, large = pair(toys, 1)

    def never(_):
        raise AssertionError("a request was sent")

    found = enumerated(toys, branching(3, sampling, "majority"), (small, large), sampling, never)
    assert toys.distance(found, expected(toys, small, sampling, 3, by_vote(toys, small))) < NATS
    assert toys.distance(found, expected(toys, small, sampling, 3, a_token(small))) > 0.01


@each("choose", [len, lambda text: text.count("y") - len(text)])
def test_a_grader_takes_the_text_and_asks_nobody(toys, choose):
    small, sampling = toys.Toy("small"), Sampling(1.3)
    found = enumerated(toys, branching(3, sampling, choose), (small, small), sampling, lambda _: 1 / 0)
    best = expected(toys, small, sampling, 3, lambda drawn: max(drawn, key=lambda text: choose(spelled(text, toys))))
    assert toys.distance(found, best) < NATS


def test_without_an_answer_of_the_cloud_the_majority_decides_and_with_some_those_that_were_scored(toys):
    small, large = pair(toys, 2)
    sampling = Sampling(1.3)
    found = enumerated(toys, branching(3, sampling), (small, large), sampling, lambda _: True)
    assert toys.distance(found, expected(toys, small, sampling, 3, by_vote(toys, small))) < NATS

    def best_of_the_answered(drawn):
        different = list(dict.fromkeys(drawn))
        return a_token(large)([*different[:1], *different[2:]])

    found = enumerated(toys, branching(3, sampling), (small, large), sampling, lambda n: n == 2)
    assert toys.distance(found, expected(toys, small, sampling, 3, best_of_the_answered)) < NATS


def test_a_chain_draws_branches_of_its_largest_models_law(toys):
    small, mid = pair(toys, 3)
    large, sampling = toys.Mix(mid, "largest", 0.5), Sampling(1.0)
    policy = with_stages(branching(2, sampling), exact_stages((2,), sampling))
    found = enumerated(toys, policy, (small, large), sampling, mids=(mid,))
    assert toys.distance(found, expected(toys, mid, sampling, 2, a_token(large))) < NATS


def requests_of(toys, policy, models, seed, length, sampling):
    _, log = toys.play(policy, *models, SeededCoin(seed), length, law=sampling, keyed=True)
    return log


def test_each_different_branch_is_checked_once_whole_and_where_all_say_the_same_none_is(toys):
    sampling, alike = Sampling(1.0), set()
    for seed in range(30):
        log = requests_of(toys, branching(4, sampling), pair(toys, 4), seed, 3, sampling)
        (emit,) = [request for request in log if isinstance(request, Emit)]
        checks = [ids(request.span) for request in log if isinstance(request, Check)]
        texts = [ids(branch.tokens) for branch in emit.branches]
        assert len({*texts}) == len(texts)
        assert checks == (texts if len(texts) > 1 else [])
        assert sorted(draw for branch in emit.branches for draw in branch.draws) == [0, 1, 2, 3]
        alike.add(len(texts))
    assert len(alike) > 1
    sure = toys.Made(lambda _: toys.Toy("sure").law((), Sampling(1.0, top_k=1)))
    log = requests_of(toys, branching(4, sampling), (sure, sure), 0, 3, sampling)
    assert not any(isinstance(request, Check) for request in log)
    (emit,) = [request for request in log if isinstance(request, Emit)]
    assert [branch.draws for branch in emit.branches] == [(0, 1, 2, 3)]


def test_more_branches_begin_with_the_same_ones(toys):
    """So an experiment draws the most of them once."""
    sampling, models = Sampling(1.3), pair(toys, 5)
    drawn = {}
    for num in (2, 4):
        emit = requests_of(toys, branching(num, sampling), models, 7, 3, sampling)[-1]
        drawn[num] = {draw: ids(branch.tokens) for branch in emit.branches for draw in branch.draws}
    assert drawn[2].items() <= drawn[4].items()


def test_a_long_branch_is_drafted_in_blocks_and_keeps_no_row(toys):
    endless = toys.Made(lambda _: toys.Toy("endless").law((), Sampling(1.0, top_k=2)))
    sampling, length = Sampling(1.0), 2 * BLOCK + 5
    coin, reply = SeededCoin(0), None
    player = toys.Player(endless, endless, coin, length, law=sampling, keyed=True, end=-1)
    loop, log = decode(branching(2, sampling), coin, frozenset(), length), []
    while not log or not isinstance(log[-1], Emit):
        log.append(loop.send(reply))
        reply = player.answer(log[-1])
    assert [request.limit for request in log if isinstance(request, Draft)] == [BLOCK, BLOCK, 5] * 2
    for branch in each_of(log[-1].branches):
        assert len(branch.tokens) == length
        assert branch.local_logprob == pytest.approx(logprob(endless, ids(branch.tokens)))
        assert branch.cloud_logprob == pytest.approx(branch.local_logprob)
        assert all(token.draft_row is token.drawn_from is None for token in branch.tokens)


def test_a_branch_ends_with_the_token_that_completes_a_stop_string(toys):
    sampling, models = Sampling(1.0), (toys.Toy("small"), toys.Toy("large"))

    def read(text):
        return "", text.index(1) + 1 if 1 in text else None

    for seed in range(20):
        player = toys.Player(*models, SeededCoin(seed), 6, law=sampling, keyed=True)
        loop, reply = decode(branching(2, sampling), player.toss, frozenset({toys.END}), 6, read), None
        while not isinstance(request := loop.send(reply), Emit):
            reply = player.answer(request)
        for branch in each_of(request.branches):
            text = ids(branch.tokens)
            assert 1 not in text[:-1]
            assert branch.local_logprob == pytest.approx(logprob(models[0], text))


def test_a_score_needs_every_tokens_own_log_probability(toys):
    """A row of one token that is not the drafted one, or too few rows, give none: such a branch is left out."""
    sampling, (small, large) = Sampling(1.6), pair(toys, 6)
    log = requests_of(toys, branching(3, sampling), (small, large), 1, 3, sampling)
    assert all(branch.cloud_logprob is not None for branch in log[-1].branches)
    assert len(log[-1].branches) > 1
    assert log[-1].note is None
    _, short = toys.play(branching(3, sampling), small, large, SeededCoin(1), 3, law=sampling, keyed=True, short=1)
    told = [(len(branch.tokens) == 1) == (branch.cloud_logprob is not None) for branch in short[-1].branches]
    assert all(told)
    assert "are left out" in short[-1].note


def test_several_branches_at_temperature_zero_are_refused_and_one_is_not():
    with pytest.raises(UsageError, match="4 branches at temperature 0 are 4 times one text"):
        branching(4, Sampling())
    assert str(branching(1, Sampling())).endswith("branches=1:logprob")


def test_what_it_needs_and_says_of_itself():
    scored, voted = branching(4, Sampling(1.0)), branching(4, Sampling(1.0), "majority")
    assert scored.needs == {"score", "ids"}
    assert not voted.needs
    assert (scored.is_whole(9), voted.is_whole(9)) == (False, True)
    assert (scored.reads_text, voted.reads_text) == (False, True)
    told = {policy.guarantee(Sampling(1.0), 9) for policy in (scored, voted, branching(4, Sampling(1.0), len))}
    assert len(told) == 3
    for said in each_of(told):
        assert said.startswith("of 4 draws of the local model's own distribution")


@each(
    ("text", "answer"),
    [
        ("Let x = 3.\nThe answer is 61.", "61"),
        ("a; b; Answer: 17 23.", "17 23"),
        ("So  y =\t8", "8"),
        ("This island", "this island"),
        ("", ""),
        ("first\n\nlast \n", "last"),
    ],
)
def test_the_final_answer_is_what_the_last_line_ends_with(text, answer):
    assert final_answer(text) == answer


def test_a_tie_goes_to_the_first_draw(toys):
    even = toys.Made(lambda _: toys.Toy("even").law((), Sampling(1.0)))
    flat = toys.Made(lambda _: type(even(()))(np.log(np.full(3, 1 / 3))))
    sampling = Sampling(1.0)
    for seed in range(10):
        emit = requests_of(toys, branching(3, sampling), (flat, flat), seed, 1, sampling)[-1]
        assert ids(emit.tokens) == ids(emit.branches[0].tokens)
