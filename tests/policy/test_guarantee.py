"""What a composition guarantees follows from its parts: the right sentence, and nothing that enumeration refutes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases import each, each_of

from hybrid.errors import UsageError
from hybrid.policy import PRESETS, DraftPosition, PolicyOptions, preset
from hybrid.policy.gates import ALWAYS, BaseGate, MaxProbGate
from hybrid.policy.policy import Policy
from hybrid.policy.requests import Check, Write
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import GreedyMatch
from hybrid.types import Sampling

GREEDY, AT_ONE = Sampling(), Sampling(1.0)
LENGTH = 3
CLOUDS, LOCALS = "the cloud model's own", "the local model's own"
TEXT, LAW = "greedy text, token for token", "distribution under the chosen sampling, exactly"
ALL, NONE = "every local token is checked", "no local token is checked"
LAST = "only the last {} of a draft can be checked"
KL = "a checked token is rejected only where KL(cloud || local) is above {:g} nats"
BEST = "an accepted token is the cloud's best"
COSTS = "a checked token is rejected only where it costs over {:g} nats more than the cloud's best"
BLOCKS = "a checked span is accepted or cut as in block verification"
SAMPLED = "a checked token is accepted or replaced as in exact sampling"
WITHIN = "an accepted token has {} of at most {:g} nats"
FAVOURITE = "an unchecked token is the local favourite, and accepted if KL(cloud || local) is at most 0.1 nats there"
MARGIN = "an unchecked token was drawn where the two likeliest local tokens are at least 0.4 apart"
DIFFERS = "an unchecked token differs at other temperatures in at most 0.3 of the draws"
COIN = "a local token was left to the local model by a coin of chance 0.8, whatever it is"
ENTROPY = "a local token was drawn where the local entropy is at most {:g} nats"
MAX_PROB = "a local token was drawn where the likeliest local token has at least 0.7"
DEFERRED = "a checked token is the local model's, or where the rule {} defers as in exact sampling from the cloud's"
WHOLE = "one model's own {}: the local model's or the cloud model's, never a mixture"
PLANNED = "a draft is kept unchecked where that is expected to lose less than asking costs"
BEST_ALONE = PRESETS["exact"].build(PolicyOptions()).judge.guarantee
CLOUD_OWN, LOCAL_OWN = (f"{CLOUDS} {TEXT}", f"{CLOUDS} {LAW}"), (f"{LOCALS} {TEXT}", f"{LOCALS} {LAW}")

# A policy, what is chosen beside it, and what it then guarantees: greedy, and sampled if that differs.
TABLE = (
    ("exact", {}, *CLOUD_OWN),
    ("exact", {"gate": "entropy:0.6:check", "bonus": False, "judge": "block"}, *CLOUD_OWN),
    ("block", {"lead": 2, "hold": 3}, *CLOUD_OWN),
    ("kl", {"judge": "exact"}, *CLOUD_OWN),
    ("kl", {"judge": "greedy"}, CLOUD_OWN[0], f"{BEST}; {ALL}"),
    ("doubt", {"gate": "always", "judge": "block"}, *CLOUD_OWN),
    ("cloud", {}, *CLOUD_OWN),
    ("kl", {"lead": 512}, *CLOUD_OWN),
    ("local", {}, *LOCAL_OWN),
    ("kl", {"gate": "never"}, *LOCAL_OWN),
    ("doubt", {"gate": "entropy:1:keep"}, *LOCAL_OWN),
    ("cloud", {"lead": 3, "gate": "never"}, *(f"after 3 tokens of the cloud's, {own}" for own in LOCAL_OWN)),
    (
        "certified",
        {},
        f"{CLOUDS} {TEXT}, if KL(cloud || local) is at most 0.1 nats at every unchecked token",
        f"{BEST}; {LAST.format('token')}; {FAVOURITE}",
    ),
    (
        "certified",
        {"judge": "tv:0.9"},
        f"a checked token is rejected only where TV(cloud, local) is above 0.9; {LAST.format('token')}; {FAVOURITE}",
    ),
    ("certified", {"gate": "always", "judge": "exact", "scope": 2}, f"{SAMPLED}; {LAST.format('2 tokens')}"),
    ("certified", {"judge": "block", "gate": "always", "scope": 2}, f"{BLOCKS}; {LAST.format('2 tokens')}"),
    ("kl", {}, f"{KL.format(0.5)}; {ALL}"),
    ("auto", {}, f"{KL.format(0.7)}; {PLANNED}"),
    ("route", {}, WHOLE.format("greedy text, token for token"), WHOLE.format("text, as it alone draws it")),
    ("auto", {"judge": "exact"}, f"{BEST_ALONE}; {PLANNED}", f"{SAMPLED}; {PLANNED}"),
    ("once", {}, f"{KL.format(0.5)}; {ALL}"),
    ("once", {"judge": "excess:2"}, f"{COSTS.format(2)}; {ALL}"),
    ("concepts", {}, f"{KL.format(0.5)}, and not over concepts at most 0.5 nats; {ALL}"),
    (
        "concepts",
        {"strict": True, "concept_threshold": 0.1},
        f"{WITHIN.format('KL(cloud || local)', 0.5)}, or over concepts at most 0.1 nats; {ALL}",
    ),
    ("kl", {"threshold": 0.2, "hold": 9}, f"{KL.format(0.2)}; {ALL}"),
    ("kl", {"strict": True}, f"{WITHIN.format('KL(cloud || local)', 0.5)}; {ALL}"),
    ("kl", {"judge": "reverse-kl:0.3", "strict": True}, f"{WITHIN.format('KL(local || cloud)', 0.3)}; {ALL}"),
    ("kl", {"judge": "js"}, f"a checked token is rejected only where JS(cloud, local) is above 0.1 nats; {ALL}"),
    ("kl", {"hold": 0}, f"{KL.format(0.5)}; {ALL}", f"{KL.format(0.5)}; a rejected token is drawn again, unchecked"),
    ("kl", {"gate": "entropy:0.3"}, f"{NONE}; {ENTROPY.format(0.3)}"),
    ("kl", {"gate": "survival"}, f"{KL.format(0.5)}; {ALL}"),
    ("kl", {"gate": "margin:0.4:check", "scope": 1}, f"{KL.format(0.5)}; {LAST.format('token')}; {MARGIN}"),
    ("paper", {}, f"{NONE}: the row after a span is measured once the span is shown"),
    ("doubt", {}, f"{NONE}; {ENTROPY.format(0.5)}"),
    ("random", {"threshold": 0.2}, f"{NONE}; {COIN}"),
    ("u-hlm", {}, f"{SAMPLED}; {LAST.format('token')}; {DIFFERS}"),
    ("bild", {}, f"{BEST}, or its -ln p is at most 2 (unlisted: may be); {ALL}"),
    ("bild", {"gate": "max-prob:0.7", "hold": 2}, f"{NONE}; {MAX_PROB}"),
    ("excess", {}, f"{COSTS.format(0.5)}; {ALL}"),
    ("excess", {"threshold": 1, "strict": True, "bonus": True}, f"{BEST} or costs at most 1 nats more; {ALL}"),
    ("kl", {"judge": "excess:0", "scope": 1}, f"{COSTS.format(0)}; {LAST.format('token')}"),
    ("relaxed", {}, f"{BEST} or has at least 0.3 times its probability; {ALL}"),
    ("relaxed", {"judge": "certified:0.4"}, f"{BEST} or has at least 0.4 times its probability; {ALL}"),
    ("relaxed", {"judge": "additive:0.2"}, f"{BEST} or within 0.2 of its probability; {ALL}"),
    ("relaxed", {"judge": "top-m:4"}, f"{BEST} or among its 4 best; {ALL}"),
    ("relaxed", {"judge": "typical:0.25"}, f"{BEST} or has at least min(0.25, 0.5 exp(-entropy)); {ALL}"),
    ("cascade", {}, f"{DEFERRED.format('opt (cost 0.2)')}; {ALL}"),
    ("cascade", {"judge": "cascade-chow:0.4"}, f"{DEFERRED.format('chow (cost 0.4)')}; {ALL}"),
)


def test_the_guarantee_is_the_one_of_the_parts():
    for name, choices, greedy, *sampled in TABLE:
        for sampling, expected in ((GREEDY, greedy), (AT_ONE, sampled[0] if sampled else greedy)):
            policy = preset(name, PolicyOptions(sampling=sampling, **choices))
            assert policy.guarantee(sampling, 512) == expected, f"{name} {choices} at {sampling.temperature}"


def test_no_preset_and_no_judge_is_left_out_of_the_table():
    assert {name for name, *_ in TABLE} | {"greedy-exact", "fsd"} == set(PRESETS)


def test_the_guarantee_of_a_preset_is_that_of_its_policy():
    assert PRESETS["greedy-exact"].guarantee == f"{CLOUDS} {TEXT}"
    assert PRESETS["exact"].guarantee == f"greedy: {CLOUDS} {TEXT}; sampled: {CLOUDS} {LAW}"
    assert PRESETS["kl"].guarantee == f"{KL.format(0.5)}; {ALL}"


def test_an_exact_greedy_judge_is_lossy_under_sampling(toys):
    """It accepts the cloud's best token more often than the cloud draws it."""
    policy = Policy("by hand", 2, ALWAYS, GreedyMatch(), bonus=True)
    assert policy.guarantee(GREEDY, LENGTH) == f"{CLOUDS} {TEXT}"
    assert policy.guarantee(AT_ONE, LENGTH) == f"an accepted token is the cloud's most likely one; {ALL}"
    small, large = toys.Toy("q0"), toys.Mix(toys.Toy("q0"), "p0", 0.6)
    assert distance(toys, policy, small, large, large, AT_ONE) > 0.01


def test_a_gate_that_also_hands_over_or_promises_nothing_is_no_gate_that_checks_all():
    both = Policy("by hand", 2, MaxProbGate(0.6, "write", "check"), GreedyMatch(), handoff_tokens=2)
    assert not both.is_exact(GREEDY)
    assert "an unchecked token was drawn where" in both.guarantee(GREEDY, 512)

    class Silent(BaseGate):
        when_full, decision = "keep", "check"

    assert Policy("by hand", 2, Silent(), DivergenceThreshold(0.5)).guarantee(GREEDY, 512).startswith(KL.format(0.5))


# ---- by enumeration ------------------------------------------------------------------------------------------------

GATES = (None, "always", "never", "max-prob:0.45:check", "survival:0.4", "entropy:0.9", "perturbed:0.4", "random:0.4")
JUDGES = (None, "exact", "block", "greedy", "kl:0.1", "js:0", "top-m:1", "cascade-chow:0.4", "certified:0.5")


def compositions():
    """Every gate with every judge, scope and bonus, in a policy that hands back and in one that only recovers."""
    for name, gate, judge, scope, bonus in itertools.product(("kl", "bild"), GATES, JUDGES, (None, 1), (None, True)):
        chosen = {"gate": gate, "judge": judge, "scope": scope, "bonus": bonus, "hold": 2}
        yield name, chosen
    for name in PRESETS:
        yield name, {"max_tokens": LENGTH}


def distance(toys, policy, small, large, expected, sampling):
    """How far the law of a policy's text is from a model's own."""
    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, LENGTH, k=2, law=sampling), LENGTH)
    return toys.distance(found, toys.own_law(expected, LENGTH))


def own_text(toys, policy, small, large, expected):
    """Whether the greedy text is a model's own."""
    shown, _ = toys.play(policy, small, large, None, LENGTH, k=2)
    return tuple(token.id for token in shown) == toys.greedy_text(expected, LENGTH)


@pytest.mark.slow
@each("sampling", [GREEDY, AT_ONE], ids=["greedy", "sampled"])
def test_who_is_said_to_have_a_models_own_text_has_it(toys, sampling):
    small = toys.Toy("q0")
    large = toys.Mix(small, "p0", 0.6)
    said = {small: 0, large: 0}
    for name, chosen in each_of(compositions()):
        try:
            policy = preset(name, PolicyOptions(span=2, sampling=sampling, **chosen))
        except UsageError:
            continue
        sentence = policy.guarantee(sampling, chosen.get("max_tokens", 512))
        whose = {f"{CLOUDS} ": large, f"{LOCALS} ": small}
        model = next((model for start, model in whose.items() if sentence.startswith(start)), None)
        if model is not None and ", if " not in sentence:
            said[model] += 1
        else:
            continue
        if sampling.greedy:
            pairs = [(small, large), *((q := toys.Toy(f"s{i}"), toys.Mix(q, f"l{i}", 0.5)) for i in range(8))]
            assert all(own_text(toys, policy, q, p, p if model is large else q) for q, p in pairs), str(policy)
        else:
            assert distance(toys, policy, small, large, model, sampling) < 1e-12, str(policy)
    assert min(said.values()) > 3


def test_compositions_that_lost_the_clouds_law_do_not_say_that_they_have_it(toys):
    """Each of them by one part: the judge, the gate, the scope, the sampling."""
    small = toys.Toy("q0")
    large = toys.Mix(small, "p0", 0.6)
    for name, chosen in (
        ("kl", {"judge": "greedy"}),
        ("kl", {"judge": "top-m:2"}),
        ("bild", {"judge": "exact", "gate": "perturbed:0.4"}),
        ("bild", {"judge": "block", "gate": "always", "scope": 1}),
        ("certified", {"judge": "tv:0.9"}),
        ("u-hlm", {}),
        ("bild", {"gate": "max-prob:0.45", "hold": 1}),
    ):
        policy = preset(name, PolicyOptions(span=2, sampling=AT_ONE, **chosen))
        assert not policy.guarantee(AT_ONE, 512).startswith(CLOUDS), name
        assert distance(toys, policy, small, large, large, AT_ONE) > 0.001, name


@pytest.mark.slow
def test_what_is_said_of_unchecked_tokens_is_true_of_each(toys):
    """None where every local token is checked; else the gate, asked again at the token's own row, lets it through."""
    small = toys.Toy("q0", 5)
    large = toys.Mix(small, "p0", 0.6)
    none, some = 0, 0
    for (name, chosen), sampling in each_of(itertools.product(compositions(), (GREEDY, AT_ONE))):
        try:
            policy = preset(name, PolicyOptions(span=3, sampling=sampling, **chosen))
        except UsageError:
            continue
        toss = np.random.default_rng(3)
        coin = None if sampling.greedy else lambda probs, toss=toss: int(toss.choice(len(probs), p=probs / sum(probs)))
        shown, _ = toys.play(policy, small, large, coin, 16, k=3, end=-1)
        sentence = policy.guarantee(sampling, 512)
        text = tuple(token.id for token in shown)
        for i, token in each_of(enumerate(shown)):
            if token.how != "unchecked":
                continue
            assert ALL not in sentence, str(policy)
            assert not sentence.startswith(CLOUDS) or ", if " in sentence, str(policy)
            if policy.gate.unchecked is not None and policy.gate.unchecked in sentence:
                row, place = small(text[:i]), DraftPosition(i, ())
                assert policy.gate.before(row, place) is None, str(policy)
                assert policy.gate.after(row, token.id, place) is None, str(policy)
                some += 1
        none += ALL in sentence
    assert min(none, some) > 20


def test_a_gate_that_skips_what_a_greedy_draft_would_keep_promises_no_distribution():
    """Its bound says which token is the cloud's best; drawn tokens that it lets through are the local model's."""
    chosen = {"gate": "certified:0.1", "judge": "exact", "max_tokens": 10}
    for sampling, promised in ((GREEDY, True), (AT_ONE, False)):
        policy = preset("kl", PolicyOptions(sampling=sampling, **chosen))
        assert policy.guarantee(sampling, 10).startswith("the cloud model's own") is promised, sampling


# ---- what an endpoint must be able to do ---------------------------------------------------------------------------

NEEDS = {
    "local": (set(), set()),
    "cloud": ({"open"}, {"open"}),
    "random": ({"write"}, {"write"}),
    "doubt": ({"write"}, {"write"}),
    "kl": ({"score", "write"}, {"score", "write"}),
    "concepts": ({"score", "write"}, {"score", "write"}),
    "once": ({"score", "write"}, {"score", "write"}),
    "paper": ({"score", "write", "open"}, {"score", "write", "open"}),
    "exact": ({"score"}, {"score", "write", "ids"}),
    "block": ({"score"}, {"score", "write", "ids"}),
    "cascade": ({"score"}, {"score", "write", "ids"}),
    "relaxed": ({"score"}, {"score", "write", "ids"}),
    "certified": ({"score"}, {"score", "write", "ids"}),
    "bild": ({"score"}, {"score", "write", "ids"}),
    "fsd": ({"score"}, {"score", "write", "ids"}),
    "excess": ({"score"}, {"score", "write", "ids"}),
    "u-hlm": ({"score"}, {"score", "write", "ids"}),
}


def test_a_policy_needs_of_an_endpoint_what_its_judge_and_its_handoff_do():
    """A judge that draws needs the drafted token's own probability, by its id, and may leave a token to the cloud."""
    for name, (greedy, sampled) in NEEDS.items():
        for sampling, expected in ((GREEDY, greedy), (AT_ONE, sampled)):
            assert preset(name, PolicyOptions(sampling=sampling)).needs == expected, f"{name} at {sampling.temperature}"
        assert PRESETS[name].needs == greedy | sampled, name
    assert preset("greedy-exact", PolicyOptions()).needs == PRESETS["greedy-exact"].needs == {"score"}


def test_no_composition_asks_for_what_it_does_not_say_it_needs(toys):
    """The coin takes the last symbol wherever it may: the tail is drawn as often as it can be."""
    small = toys.Toy("q0", 5)
    large = toys.Mix(small, "p0", 0.6)
    for sampling, (name, chosen) in each_of(itertools.product((GREEDY, AT_ONE), compositions())):
        try:
            policy = preset(name, PolicyOptions(span=2, sampling=sampling, **chosen))
        except UsageError:
            continue
        coin = None if sampling.greedy else lambda probs: max(i for i, p in enumerate(probs) if p > 0)
        _, log = toys.play(policy, small, large, coin, 8, k=2, end=-1)
        writes = [request for request in log if isinstance(request, Write)]
        # A planner needs nothing: it plans with what the endpoint can do (``test_auto.py``).
        able = policy.needs if policy.planner is None else policy.planner.abilities
        if any(isinstance(request, Check) for request in log):
            assert "score" in able, str(policy)
        # What is written from the beginning is read on from there, however often it is asked for.
        opened = 8 if policy.planner is not None and policy.planner.whole else policy.lead
        if any(len(request.at) >= opened for request in writes):
            assert "write" in able, str(policy)
        if any(request.ban for request in writes):
            assert "ids" in able, str(policy)
