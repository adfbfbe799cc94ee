"""Compositions: what each name builds, and one sentence for each that cannot be."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from cases import each

from hybrid.errors import UsageError
from hybrid.policy import PRESETS, PolicyOptions, preset
from hybrid.policy.compose import GATES, JUDGES
from hybrid.policy.concepts import WordingTest
from hybrid.policy.gates import (
    ALWAYS,
    NEVER,
    CertifiedSkipGate,
    EntropyGate,
    MarginGate,
    MaxProbGate,
    PerturbationGate,
    RandomGate,
    SurvivalGate,
)
from hybrid.policy.requests import Write
from hybrid.policy.rules.bild import BildRollback
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.cascade import CascadeDeferral
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import ExactSampling, GreedyMatch
from hybrid.policy.rules.excess import ExcessThreshold
from hybrid.policy.rules.relaxed import CertifiedAcceptance, RelaxedAcceptance
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import (
    AdditiveAcceptance,
    Dense,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    TypicalAcceptance,
    determined_distribution,
)
from hybrid.types import Sampling

GREEDY, AT_ONE = Sampling(seed=5), Sampling(1.0, seed=5)
EXACT = ("exact", "block", "greedy-exact")
DRAWN = ("exact", "block", "cascade", "relaxed", "certified", "bild", "fsd", "excess", "u-hlm")
JUDGELESS = ("local", "cloud", "doubt", "random")
CHECKING = ("always", "survival", "entropy:0.5:check", "margin:0.3:check", "max-prob:0.5:check", "random:0.1:check")
KEEPING = ("never", "random", "entropy", "margin", "max-prob:0.5:keep", "perturbed", "certified")
LOSSY = tuple(name for name in JUDGES if name not in {"exact", "block", "greedy"})


def built(name="kl", sampling=GREEDY, **choices):
    return preset(name, PolicyOptions(sampling=sampling, **choices))


def refused(name="kl", sampling=GREEDY, **choices):
    """The sentence that says why not: one line, one sentence, and no number without its name."""
    with pytest.raises(UsageError) as error:
        built(name, sampling, **choices)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert ". " not in sentence
    assert not sentence.endswith(".")
    return sentence


# ---- what each name builds -----------------------------------------------------------------------------------------

BUILT_GATES = {
    "always": ALWAYS,
    "never": NEVER,
    "random": RandomGate(0.1, seed=5),
    "random:0.2:check": RandomGate(0.2, 5, "check", "check"),
    "entropy": EntropyGate(0.5, "write", "keep"),
    "entropy:0.7": EntropyGate(0.7, "write", "keep"),
    "entropy:0.7:write": EntropyGate(0.7, "write", "keep"),
    "entropy:0.7:check": EntropyGate(0.7, "check", "check"),
    "entropy:0.7:keep": EntropyGate(0.7, "keep", "keep"),
    "entropy::check": EntropyGate(0.5, "check", "check"),
    "margin:0.2": MarginGate(0.2),
    "max-prob:0.9": MaxProbGate(0.9),
    "perturbed:0.4": PerturbationGate(0.4),
    "certified:0.3": CertifiedSkipGate(0.3, GreedyAcceptance()),
    "survival:0.2": SurvivalGate(0.2),
}


@each("called", BUILT_GATES)
def test_a_gate_is_called_by_name_number_and_call(called):
    assert built(gate=called).gate == BUILT_GATES[called]


def built_judges(sampling):
    drawing = TargetSampler(sampling)
    return {
        "kl:0.2": DivergenceThreshold(0.2, "lower", drawing, "KL"),
        "concept:0.2": DivergenceThreshold(0.2, "lower", drawing, "KL", WordingTest(0.2)),
        "reverse-kl:0.2": DivergenceThreshold(0.2, "lower", drawing, "reverse KL"),
        "js:0.2": DivergenceThreshold(0.2, "lower", drawing, "JS"),
        "tv:0.2": DivergenceThreshold(0.2, "lower", drawing, "TV"),
        "greedy": GreedyMatch() if sampling.greedy else RelaxedAcceptance(GreedyAcceptance(), drawing),
        "exact": ExactSampling(drawing),
        "block": BlockVerification(drawing),
        "additive:0.2": RelaxedAcceptance(AdditiveAcceptance(0.2), drawing),
        "multiplicative:0.2": RelaxedAcceptance(MultiplicativeAcceptance(0.2), drawing),
        "top-m:4": RelaxedAcceptance(TopMAcceptance(4), drawing),
        "typical:0.25": RelaxedAcceptance(TypicalAcceptance(0.25, 0.5), drawing),
        "certified:0.2": CertifiedAcceptance(MultiplicativeAcceptance(0.2), drawing),
        "excess:0.2": ExcessThreshold(0.2, drawing),
        "bild:3": BildRollback(3.0, drawing),
        "cascade-chow:0.1": CascadeDeferral(drawing, 0.1, "chow"),
        "cascade-diff:0.1": CascadeDeferral(drawing, 0.1, "diff"),
        "cascade-opt:0.1": CascadeDeferral(drawing, 0.1, "opt"),
    }


@each("sampling", [GREEDY, AT_ONE], ids=["greedy", "sampled"])
@each("called", built_judges(GREEDY))
def test_a_judge_is_called_by_name_and_number(called, sampling):
    """Under sampling it may leave a token to the cloud."""
    policy = built(sampling=sampling, judge=called)
    assert policy.judge == built_judges(sampling)[called]
    assert policy.judge.leaves_tail == (not sampling.greedy)


def test_no_name_is_left_out_here():
    assert {called.split(":")[0] for called in BUILT_GATES} == set(GATES)
    assert {called.split(":")[0] for called in built_judges(GREEDY)} == set(JUDGES)


@each("name", JUDGES)
def test_every_judge_has_a_number_of_its_own_where_it_takes_one(name):
    kind, _ = JUDGES[name]
    assert kind.default is None or built(judge=name).judge == built(judge=f"{name}:{kind.default}").judge


def test_strict_judges_by_the_upper_end():
    assert built(judge="js:0.2", strict=True).judge.end == "upper"


@each("name", ["local", "cloud"])
def test_one_model_alone_opens_nothing_and_hands_nothing_over(name):
    assert built(name, lead=3, hold=3) == built(name)


@each("name", [name for name in PRESETS if name not in {"local", "cloud", "route", "auto"}])
def test_every_other_policy_takes_a_lead_and_a_hold(name):
    policy = built(name, lead=3, hold=5)
    assert (policy.lead, policy.handoff_tokens) == (3, 5)


def test_what_was_not_chosen_stays_the_policys_own():
    own = built("bild")
    changes = {"gate": ("never", NEVER), "judge": ("block", BlockVerification(TargetSampler(GREEDY)))}
    for field, (chosen, value) in (changes | {"bonus": (False, False)}).items():
        assert built("bild", **{field: chosen}) == replace(own, **{field: value})
    assert built("bild", scope=2) == replace(own, scope=2)
    assert "judges the row after a span alone" in refused("bild", scope=0)
    assert built("kl", scope=0).scope == 0


# ---- refused -------------------------------------------------------------------------------------------------------


@each(
    ("called", "said"),
    [
        ("doubtful", "no gate is called 'doubtful'"),
        ("", "no gate is called ''"),
        ("Entropy:0.5", "no gate is called 'Entropy'"),
        ("entropy:much", "'much' is no number"),
        ("entropy:-1", "an entropy in nats is 0 or more, not -1"),
        ("entropy:nan", "an entropy in nats is 0 or more, not nan"),
        ("random:1.1", "a chance is between 0 and 1, not 1.1"),
        ("margin:1.5", "a difference of probabilities is between 0 and 1"),
        ("max-prob:-0.1", "a probability is between 0 and 1"),
        ("perturbed:2", "an uncertainty is between 0 and 1"),
        ("certified:-0.1", "a bound in nats is 0 or more"),
        ("survival:7", "a chance is between 0 and 1"),
        ("always:1", "always takes no number"),
        ("never:0", "never takes no number"),
        ("entropy:0.5:check:more", "at most NAME:NUMBER:DECISION"),
        ("entropy:0.5:shout", "'shout' is none of"),
        ("entropy:0.5:", "'' is none of"),
        ("always::check", "always decides nothing but its own"),
        ("survival:0.5:write", "survival decides nothing but its own"),
        ("perturbed:0.5:check", "perturbed decides nothing but its own"),
        ("certified:0.5:keep", "certified decides nothing but its own"),
    ],
)
def test_a_gate_that_cannot_be_is_one_sentence(called, said):
    assert said in refused(gate=called)


@each(
    ("called", "said"),
    [
        ("jury", "no judge is called 'jury'"),
        ("", "no judge is called ''"),
        ("kl:far", "'far' is no number"),
        ("kl:-1", "a threshold in nats is 0 or more, not -1"),
        ("js:nan", "a threshold in nats is 0 or more, not nan"),
        ("tv:1.5", "a threshold is between 0 and 1"),
        ("exact:1", "exact takes no number"),
        ("block:0", "block takes no number"),
        ("greedy:2", "greedy takes no number"),
        ("js:0.1:check", "a judge is NAME or NAME:NUMBER"),
        ("js:0.1:check:more", "at most NAME:NUMBER:DECISION"),
        ("additive:1", "a margin of probability is between 0 and 0.999"),
        ("multiplicative:0", "a share of the best probability is between 1e-09 and 1, not 0"),
        ("top-m:0", "a number of tokens is between 1 and 1000"),
        ("typical:2", "Medusa's epsilon"),
        ("certified:0", "the share of multiplicative acceptance is between"),
        ("bild:-1", "a roll-back limit in nats is 0 or more"),
        ("cascade-chow:1.1", "a deferral cost is between 0 and 1"),
        ("cascade-diff:-0.1", "a deferral cost is between 0 and 1"),
        ("cascade-opt:nan", "a deferral cost is between 0 and 1"),
        ("top-m:inf", "a number of tokens"),
    ],
)
def test_a_judge_that_cannot_be_is_one_sentence(called, said):
    assert said in refused(judge=called)


@each("value", [-0.5, float("nan")])
@each("name", [*DRAWN[2:], "kl", "paper", "random"])
def test_a_threshold_that_cannot_be_is_one_sentence(name, value):
    assert f"not {value}" in refused(name, threshold=value)


@each(
    ("name", "choices"),
    [
        ("relaxed", {"threshold": 0.0}),
        ("relaxed", {"threshold": 1.1}),
        ("cascade", {"threshold": 1.1}),
        ("u-hlm", {"threshold": 1.1}),
        ("random", {"threshold": 1.1}),
        ("doubt", {"entropy": -1.0}),
        ("doubt", {"threshold": -1.0}),
    ],
)
def test_a_policys_number_has_its_range(name, choices):
    assert " is " in refused(name, **choices)


def test_an_unknown_policy_is_one_sentence_with_the_names_there_are():
    assert all(name in refused("nobody") for name in PRESETS)


# ---- what exact policies refuse ------------------------------------------------------------------------------------

CONTRADICTIONS = [
    *({"scope": scope} for scope in (0, 1, 100)),
    *({"gate": gate} for gate in KEEPING),
    *({"judge": judge} for judge in LOSSY),
]


@each("name", EXACT)
@each("choices", CONTRADICTIONS, ids=str)
def test_a_policy_that_promises_the_clouds_own_law_takes_nothing_that_breaks_it(name, choices):
    sentence = refused(name, **choices)
    assert name in sentence
    assert built(name).guarantee(GREEDY, 512) in sentence


@each("name", EXACT[:2])
@each("choices", CONTRADICTIONS, ids=str)
def test_nor_under_sampling(name, choices):
    refused(name, AT_ONE, **choices)


@each("name", EXACT[:2])
def test_nor_the_greedy_judge_under_sampling(name):
    refused(name, AT_ONE, judge="greedy")


@each("name", EXACT)
def test_a_policy_that_promises_the_clouds_own_law_takes_what_keeps_it(name):
    for gate in CHECKING:
        assert built(name, gate=gate).gate.when_full == "check"
    for judge in ("exact", "block", "greedy"):
        assert built(name, judge=judge).judge == built_judges(GREEDY)[judge]
    assert not built(name, bonus=False).bonus


def test_greedy_exact_is_greedy():
    assert "--temperature 0" in refused("greedy-exact", AT_ONE)


def test_only_these_promise_the_clouds_own_law():
    assert {name for name in PRESETS if built(name).is_exact(GREEDY)} == set(EXACT)


# ---- gates that check need a judge ---------------------------------------------------------------------------------


@each("name", JUDGELESS)
@each(
    "gate",
    [
        *CHECKING,
        "perturbed",
        "certified",
    ],
)
def test_a_gate_that_checks_needs_a_judge(name, gate):
    """Without one its call would be passed over, and nothing ever asked."""
    assert "--judge" in refused(name, gate=gate, lead=0)
    assert built(name, gate=gate, judge="js", lead=0).needs >= {"score"}


def test_where_the_cloud_writes_to_the_end_no_gate_or_judge_is_taken():
    """They would never be asked; with a smaller lead they are."""
    for parts in ({"gate": "random:0.5", "hold": 2}, {"gate": "always", "judge": "js"}):
        assert "no gate or judge would be asked" in refused("cloud", **parts)
        assert "no gate or judge would be asked" in refused("kl", **parts, lead=512)
        assert built("cloud", **parts, lead=3).lead == 3


@each("name", ["local", "cloud"])
def test_one_model_alone_with_a_gate_that_hands_over_takes_a_hold(name):
    assert "needs --hold" in refused(name, gate="random:0.5", lead=0)
    assert built(name, gate="random:0.5", lead=0, hold=2).handoff_tokens == 2


def test_a_gate_that_hands_the_pen_over_is_no_gate_that_asks_nothing(toys):
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    assert "needs --hold" in refused("relaxed", gate="entropy:0")
    _, log = toys.play(built("relaxed", gate="entropy:0", hold=3), small, large, None, 8, k=5, end=-1)
    assert any(isinstance(request, Write) for request in log)


def test_a_bonus_does_not_switch_a_judge_off(toys):
    """``paper`` judges by the row after its span, and by nothing else."""
    small, large = toys.Toy("a", 5), toys.Toy("b", 5)
    assert "takes no bonus" in refused("paper", bonus=True)
    policy = replace(built("paper", threshold=0.0, lead=0), bonus=True)
    _, log = toys.play(policy, small, large, None, 20, k=5, end=-1)
    assert any(isinstance(request, Write) for request in log)


# ---- samplings that no row determines ------------------------------------------------------------------------------

WARM = Sampling(0.7)


@each("name", DRAWN)
def test_a_temperature_alone_is_refused_with_what_to_add(name):
    """No top-k list determines it: such a policy could only let the cloud write."""
    sentence = refused(name, WARM, cloud_top_k=12)
    assert sentence.startswith(f"{name} must know the cloud's distribution")
    assert "at temperature 0.7 the 12 shown tokens do not determine it" in sentence
    assert "add --top-k" in sentence
    assert "--temperature 1" in sentence


@each("judge", JUDGES)
def test_so_is_a_judge(judge):
    assert refused(sampling=WARM, judge=judge).startswith(f"--judge {judge} must know the cloud's distribution")


@each("name", DRAWN)
def test_what_a_row_can_determine_is_taken(name):
    for sampling in (GREEDY, AT_ONE, Sampling(0.7, top_k=19), Sampling(0.7, top_p=0.9), Sampling(0.7, min_p=0.1)):
        assert built(name, sampling).name == name
    assert built(name, Sampling(0.7, top_k=50, top_p=0.9)).name == name


@each("name", DRAWN)
def test_more_tokens_than_are_shown_are_refused(name):
    for top_k in (20, 21):
        assert "take --top-k 19 or less" in refused(name, Sampling(0.7, top_k=top_k))


@each("name", [name for name in PRESETS if name not in {*DRAWN, "greedy-exact"}])
def test_a_policy_that_draws_nothing_of_the_clouds_takes_any_sampling(name):
    assert built(name, WARM).name == name


def test_a_list_of_one_has_nothing_within_it_to_cut_off():
    for sampling in (WARM, Sampling(0.7, top_k=3)):
        sentence = refused("exact", sampling, cloud_top_k=1)
        assert "raise cloud_top_k" in sentence
        assert "--top-k 0" not in sentence


def test_who_does_as_the_sentence_says_has_rows_that_determine_the_law():
    (top_k,) = re.findall(r"add --top-k (\d+)", refused("exact", WARM, cloud_top_k=20))
    full = Dense.from_logits(np.random.default_rng(0).standard_normal(100))
    assert determined_distribution(TopK.from_dense(full, 20), replace(WARM, top_k=int(top_k)), 100) is not None
