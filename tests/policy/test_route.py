"""``route``: an answer is one model's own text, to the last token, and nothing but a whole answer is ever asked for."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import numpy as np
import pytest
from cases import each, each_of
from naive_policies import text
from toy_score import ToyScore

from hybrid.defer import Forecast, QuestionForecast
from hybrid.errors import UsageError
from hybrid.policy import PolicyOptions, preset
from hybrid.policy.plan import Worth
from hybrid.policy.planning import PRIOR, Planner
from hybrid.policy.requests import Check, Emit, Write
from hybrid.types import Sampling

LENGTH = 6
AT_ONE = Sampling(1.0)


@dataclass(frozen=True)
class ByToken(ToyScore):
    """Forecasts a hazard for every token, so that what a draft says decides whether it is kept."""

    def forecast(self, signals):
        hazard = np.array([(0.0, 0.05, 0.6)[int(token) % 3] for token in signals.tokens])
        return Forecast(hazard, hazard)


def planner(turned_down=0.5, **more):
    """A planner that may do all that ``auto`` does: blocks, checks by chance, short spans, labels."""
    known = {"block": 2, "stream": "blocks", "floor": 0.3, "kept_share": 0.9, "prompt_tokens": 9}
    score = ByToken(question=QuestionForecast(turned_down, LENGTH, 0.3))
    return Planner(**{"score": score, **known, **more})


def route(made, sampling=None, length=LENGTH):
    return preset("route", PolicyOptions(planner=made, max_tokens=length, sampling=sampling or Sampling()))


def own(model):
    shown = ()
    while len(shown) < LENGTH:
        shown += (model(shown).best,)
    return shown


# ---- the law ---------------------------------------------------------------------------------------------------------


@each("stream", ["blocks", "whole", "early"])
def test_a_greedy_text_is_wholly_one_models_own(toys, both, stream):
    """Whatever the score says, whatever a loss is counted in, and whatever ``auto`` would be able to do there."""
    kept = set()
    for pair, nats, worth in each_of(itertools.product(both, (None, 0.5), (0.1, 0.7, 1.5, 9.0))):
        for turned_down in (0.1, 0.6):
            policy = route(planner(turned_down, stream=stream, mean_excess=nats, worth=Worth(worth)))
            shown, log = toys.play(policy, *pair, None, LENGTH, end=-1)
            [whose] = {token.source for token in shown}
            assert text(shown) == own(pair[whose == "cloud"])
            assert not any(isinstance(request, Check) for request in log)
            assert [request.at for request in log if isinstance(request, Write)][:1] in ([], [()])
            kept.add(whose)
    assert kept == {"local", "cloud"}


@each("nats", [None, 0.3])
def test_a_sampled_text_is_wholly_one_models_own_with_that_models_law(toys, nats):
    """Every coin enumerated. What is kept is the local model's own draw; what is written knows nothing of the draft."""
    small, large = toys.Toy("q"), toys.Toy("p")
    for worth in (0.2, 1.0, 2.0, 5.0):
        policy = route(planner(mean_excess=nats, worth=Worth(worth)), AT_ONE, 3)
        mixed = []

        def answer(coin, policy=policy, mixed=mixed):
            shown, log = toys.play(policy, small, large, coin, 3)
            mixed.append(len({token.source for token in shown}) > 1)
            return shown, log

        def keeps(draft, policy=policy):
            shown, _ = toys.play(policy, toys.Made(lambda at: certain(draft, at)), large, None, 3)
            return {token.source for token in shown} == {"local"}

        locals_own, clouds_own = toys.own_law(small, 3), toys.own_law(large, 3)
        kept = {draft: chance for draft, chance in locals_own.items() if keeps(draft)}
        asked = 1.0 - sum(kept.values())
        expected = {end: kept.get(end, 0.0) + asked * clouds_own.get(end, 0.0) for end in {*kept, *clouds_own}}
        assert toys.distance(toys.law_of(answer, 3), expected) < 1e-12
        assert not any(mixed)
        assert 0.0 < asked < 1.0 or worth in {0.2, 5.0}, "what a draft says decides"


def certain(draft, at):
    from hybrid.prob import Dense

    return Dense.from_probs(np.eye(3)[draft[len(at)] if len(at) < len(draft) else 2])


# ---- the cloud that is not there -------------------------------------------------------------------------------------


@each("stream", ["whole", "early"])
def test_a_cloud_that_fails_in_the_middle_is_the_one_mixture(toys, both, stream):
    """One that never answers leaves the local model's own text, of what was drafted already."""
    policy = route(planner(0.9, stream=stream, worth=Worth(50.0)))
    for pair, cut in each_of(itertools.product(both, range(1, LENGTH + 1))):
        shown, _ = toys.play(policy, *pair, None, LENGTH, end=-1, fails=lambda n, cut=cut: n >= cut)
        assert [token.source for token in shown] == ["cloud"] * (cut - 1) + ["local"] * (LENGTH - cut + 1)
        kept = text(shown)
        assert kept[: cut - 1] == own(pair[1])[: cut - 1]
        assert all(pair[0](kept[:i]).best == kept[i] for i in range(cut - 1, LENGTH))


# ---- the planner -----------------------------------------------------------------------------------------------------


def test_a_planner_of_whole_answers_is_the_same_with_two_actions():
    made = planner(score=PRIOR, worth=Worth(3.0), mean_excess=0.4)
    held = made.of_whole_answers()
    assert (held.whole, made.whole) == (True, False)
    assert held.of_whole_answers() == held
    assert Planner.from_json(json.loads(json.dumps(held.to_json()))) == held, "a trace keeps it"
    assert (held.score, held.worth, held.prices, held.mean_excess) == (made.score, made.worth, made.prices, 0.4)
    assert planner(stream="early").of_whole_answers().stream == "early"
    assert not route(made).is_exact(Sampling())
    assert route(made).is_whole(LENGTH)


def test_a_long_answer_is_decided_by_its_beginning(toys, both):
    """What follows a beginning that was shown is the same model's."""
    from hybrid.policy import presets as rule

    small, large = both[0]
    for worth in (0.1, 50.0):
        made = route(planner(0.6, worth=Worth(worth)), length=rule.LONGEST_DRAFT + 88)
        assert made.span == rule.LONGEST_DRAFT
        short = made.__class__(**{**vars(made), "span": 2})
        shown, log = toys.play(short, small, large, None, LENGTH, end=-1)
        assert len({token.source for token in shown}) == 1
        plans = [request.plan for request in log if isinstance(request, Emit | Write) and request.plan]
        assert [plan.action for plan in plans] == (["keep"] * 3 if worth < 1 else ["write"])


@each(
    ("choices", "said"),
    [
        ({"judge": "kl:0.3"}, "route keeps whole answers or gives them up, so no judge would be asked"),
        ({"gate": "entropy"}, "route weighs each draft itself, so no gate would be asked"),
    ],
)
def test_what_a_whole_answer_has_no_use_for_is_refused(choices, said):
    with pytest.raises(UsageError, match=said):
        preset("route", PolicyOptions(**choices))
    with pytest.raises(UsageError, match="route takes no number"):
        preset("route:0.5", PolicyOptions())


def test_which_policies_have_whole_answers():
    for name, choices, whole in (
        ("route", {}, True),
        ("cloud", {}, True),
        ("local", {}, True),
        ("cloud", {"lead": 3, "gate": "never"}, False),
        ("auto", {}, False),
        ("auto", {"planner": planner().of_whole_answers()}, True),
        ("kl", {"gate": "never"}, True),
        ("doubt", {}, False),
        ("kl", {"lead": 512}, True),
    ):
        assert preset(name, PolicyOptions(**choices)).is_whole(512) is whole, (name, choices)
