"""``once``: the whole answer is drafted and checked in one request; after a rejection the cloud writes the rest."""

from __future__ import annotations

import math
from types import SimpleNamespace

from cases import each, each_of
from naive_divergence import naive_kl
from naive_policies import text

from hybrid.policy import PolicyOptions, preset
from hybrid.policy.requests import Check, Draft, Write
from hybrid.types import Sampling

LENGTH = 12


def naive_once(small, large, threshold, draw, length, end=-1):
    """Draft all; up to the first position where the models are too far apart it stands, and the cloud goes on."""

    def over(shown):
        return len(shown) >= length or end in shown

    drafted = ()
    while not over(drafted):
        drafted += (draw(small, drafted),)
    apart = [naive_kl(large(drafted[:i]).probs, small(drafted[:i]).probs) > threshold for i in range(len(drafted))]
    if True not in apart:
        return drafted
    shown = drafted[: apart.index(True)]
    while not over(shown):
        shown += (draw(large, shown),)
    return shown


def once(threshold, max_tokens, sampling=Sampling()):  # noqa: B008  (a frozen value)
    return preset("once", PolicyOptions(threshold=threshold, max_tokens=max_tokens, sampling=sampling))


@each("threshold", [0.0, 0.1, 0.3, 0.6, math.inf])
def test_once_equals_a_separate_naive_program_and_asks_twice_at_most(toys, both, threshold):
    sources = set()
    for small, large in each_of(both):
        expected = naive_once(small, large, threshold, lambda model, at: model(at).best, LENGTH)
        shown, log = toys.play(once(threshold, LENGTH), small, large, None, LENGTH, k=5, end=-1)
        assert text(shown) == expected
        assert [type(request) for request in log if isinstance(request, Draft | Check)] == [Draft, Check]
        writes = [request for request in log if isinstance(request, Write)]
        assert [request.limit for request in writes] == [LENGTH - i for i in range(len(writes))], "one request, read on"
        assert "unchecked" not in {token.how for token in shown}
        sources |= {token.source for token in shown}
    assert sources == {0.0: {"cloud"}, math.inf: {"local"}}.get(threshold, {"local", "cloud"})


@each("threshold", [0.0, 0.05, 0.3, math.inf])
def test_sampled_once_has_the_law_of_a_separate_naive_program(toys, threshold):
    """Every coin enumerated. At 0 it is the cloud's own law, at infinity the local model's."""
    sampling = Sampling(1.0)
    small = toys.Toy("q0")
    large = toys.Mix(small, "p0", 0.6)

    def naive(coin):
        shown = naive_once(small, large, threshold, lambda model, at: coin(model(at).probs), 3, toys.END)
        return [SimpleNamespace(id=token) for token in shown], None

    found = toys.law_of(lambda coin: toys.play(once(threshold, 3, sampling), small, large, coin, 3), 3)
    assert toys.distance(found, toys.law_of(naive, 3)) < 1e-12
    if threshold in {0.0, math.inf}:
        assert toys.distance(found, toys.own_law(large if threshold == 0.0 else small, 3)) < 1e-12


def test_with_a_number_of_tokens_to_hold_the_pen_for_the_local_model_goes_on(toys, both):
    small, large = both[0]
    policy = preset("once", PolicyOptions(threshold=0.1, max_tokens=LENGTH, hold=2))
    _, log = toys.play(policy, small, large, None, LENGTH, k=5, end=-1)
    assert sum(isinstance(request, Check) for request in log) > 1
