"""The grammar of policies (NAME or NAME:NUMBER), and which choices have no effect on which policy."""

from __future__ import annotations

import pytest
from cases import each, each_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.errors import UsageError
from hybrid.policy import PRESETS, PolicyOptions, choices_without_effect, parse_policy, preset
from hybrid.policy.gates import number_text
from hybrid.types import Sampling

TAKE_A_NUMBER = {name for name, found in PRESETS.items() if found.number.default is not None}
CHOSEN = {
    "threshold": 0.3,
    "entropy": 0.3,
    "concept_threshold": 0.2,
    "strict": True,
    "span": 4,
    "lead": 2,
    "hold": 3,
    "scope": 2,
}
CONCEPT = "concept_threshold"
# What changes nothing in a named policy as it is.
WITHOUT_EFFECT = {
    "auto": {"entropy", "scope", "hold", CONCEPT},
    "kl": {"entropy", CONCEPT},
    "concepts": {"entropy"},
    "once": {"entropy", "span", CONCEPT},
    "doubt": {"span", "scope", CONCEPT},
    "greedy-exact": {"threshold", "entropy", "strict", CONCEPT},
    "exact": {"threshold", "entropy", "strict", CONCEPT},
    "block": {"threshold", "entropy", "strict", CONCEPT},
    "cascade": {"entropy", "strict", CONCEPT},
    "relaxed": {"entropy", "strict", CONCEPT},
    "certified": {"entropy", "strict", CONCEPT},
    "bild": {"entropy", "strict", CONCEPT},
    "fsd": {"entropy", CONCEPT},
    "excess": {"entropy", CONCEPT},
    "u-hlm": {"entropy", "strict", CONCEPT},
    "paper": {"entropy", CONCEPT},
    "random": {"entropy", "strict", "span", "scope", CONCEPT},
    "local": set(CHOSEN),
    "cloud": set(CHOSEN),
    "route": set(CHOSEN),
}


# ---- the grammar ---------------------------------------------------------------------------------------------------


def test_a_number_in_the_name_is_the_policys_threshold():
    for name, found in each_of(PRESETS.items()):
        if name in TAKE_A_NUMBER:
            for number in (0.25, 0.75, found.number.default):
                text = f"{name}:{number_text(number)}"
                assert parse_policy(text) == (found, number)
                assert preset(text, PolicyOptions()) == preset(name, PolicyOptions(threshold=number)), text
                assert preset(text, PolicyOptions(threshold=number)) == preset(text, PolicyOptions()), (
                    "the same, said twice"
                )
        else:
            assert parse_policy(name) == (found, None)


def test_an_inherited_threshold_does_not_reach_a_policy_that_takes_none():
    for name in each_of(PRESETS.keys() - TAKE_A_NUMBER):
        assert preset(name, PolicyOptions(threshold=0.3)) == preset(name, PolicyOptions())


@each(
    "text, threshold, said",
    [
        ("kl:0.5", 0.3, "kl:0.5 and a threshold of 0.3 are two numbers for one policy"),
        ("kl:much", None, "--policy kl:much: 'much' is no number"),
        ("kl:-1", None, "kl: a threshold in nats is 0 or more, not -1.0"),
        ("kl:nan", None, "kl: a threshold in nats is 0 or more, not nan"),
        ("relaxed:0", None, "relaxed: a share of the best probability is between 1e-09 and 1, not 0.0"),
        ("random:1.5", None, "random: a chance is between 0 and 1, not 1.5"),
        ("kl:0.5:check", None, "--policy kl:0.5:check: a policy is NAME or NAME:NUMBER"),
        ("kl:0.5:check:more", None, "at most NAME:NUMBER"),
        ("exact:1", None, "exact takes no number"),
        ("Kl:0.5", None, "no policy is called 'Kl'; there are auto, route, kl, concepts, doubt"),
        ("", None, "no policy is called ''"),
    ],
)
def test_a_policy_that_cannot_be_is_one_sentence(text, threshold, said):
    with pytest.raises(UsageError) as error:
        preset(text, PolicyOptions(threshold=threshold))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_describes_itself_in_the_same_grammar():
    """The gate and the judge that it names build the same again; a number is written to the last digit."""
    assert str(preset("kl", PolicyOptions())) == "kl span=32 gate=always judge=kl:0.5 hold=4 handback=kl:0.5"
    assert str(preset("doubt:0.03", PolicyOptions(strict=True))).endswith("handback=kl:0.03:strict")
    assert str(preset("certified", PolicyOptions(judge="tv:0.9"))) == (
        "certified span=8 gate=certified:0.1 judge=tv:0.9 scope=1"
    )
    assert str(preset("auto", PolicyOptions())) == "auto span=512 plan=worth:2.2:verdict:whole judge=kl:0.7 hold=512"
    assert str(preset("cloud", PolicyOptions(max_tokens=9))) == "cloud span=1 gate=never lead=9"
    for name in each_of(PRESETS):
        own = preset(name, PolicyOptions())
        parts = dict(part.split("=", 1) for part in str(own).split(" ")[1:])
        chosen = {} if name in {"local", "cloud"} else {"gate": parts.get("gate"), "judge": parts.get("judge")}
        again = preset(name, PolicyOptions(**chosen))
        assert (again.gate, again.handoff_tokens, again.lead) == (own.gate, own.handoff_tokens, own.lead), name
        assert str(again) == str(own)


# ---- choices without effect ----------------------------------------------------------------------------------------


def test_each_policy_names_the_choices_that_change_nothing_in_it():
    assert WITHOUT_EFFECT.keys() == PRESETS.keys()
    for name, expected in WITHOUT_EFFECT.items():
        found = {key for key, value in CHOSEN.items() if choices_without_effect(name, {key: value})}
        # An exact policy refuses a scope in a sentence of its own.
        assert found == expected, name


@each(
    "text, chosen, expected",
    [
        ("fsd", {"judge": "tv:0.9", "threshold": 0.3, "strict": True}, ("threshold",)),
        ("kl", {"judge": "exact", "threshold": 0.3, "strict": True}, ()),  # they say when the pen goes back
        ("fsd", {"judge": "exact", "strict": True}, ("strict",)),
        ("doubt", {"gate": "margin:0.3", "entropy": 0.3}, ("entropy",)),
        ("doubt:0.03", {"entropy": 0.3, "strict": False, "span": "auto"}, ("span",)),
        ("kl", {"gate": "never", "threshold": 0.2, "hold": 3, "strict": True}, ("threshold", "hold", "strict")),
        ("kl:0.5", {"threshold": 0.5, "span": "cheap"}, ()),
        ("kl", {"bonus": False}, ("bonus",)),
        ("kl", {"judge": "exact", "bonus": False}, ()),
        ("exact", {"scope": 2}, ()),  # refused: it would break the promise
        ("relaxed", {"bonus": True}, ()),  # refused: the judge takes none
        ("exact", {"gate": "entropy", "entropy": 0.3}, ()),  # refused: the gate
        ("random", {"gate": "entropy:0.3", "threshold": 0.3}, ("threshold",)),
        ("local", {"temperature": 1.0, "max_tokens": 4, "threshold": None, "hold": 2}, ("hold",)),
        ("cloud", {"lead": 3, "gate": "random:0.5", "hold": 2}, ()),
    ],
)
def test_what_else_is_chosen_says_which_choices_act(text, chosen, expected):
    assert choices_without_effect(text, chosen) == expected


VALUES = {
    "threshold": st.floats(0.01, 1.0),
    "entropy": st.floats(0.0, 2.0),
    "concept_threshold": st.floats(0.01, 1.0),
    "strict": st.booleans(),
    "span": st.integers(1, 9),
    "lead": st.integers(0, 4),
    "hold": st.integers(1, 4),
    "scope": st.integers(1, 4),
    "bonus": st.booleans(),
}
GATES = st.sampled_from(["always", "never", "entropy:0.9", "max-prob:0.5:check", "perturbed", "survival", "random:0.3"])
JUDGES = st.sampled_from(
    [
        "kl:0.1",
        "concept:0.1",
        "js",
        "exact",
        "block",
        "greedy",
        "top-m:2",
        "bild",
        "cascade-chow",
        "certified",
        "excess",
    ]
)
COMPOSITIONS = st.fixed_dictionaries({}, optional={"gate": GATES, "judge": JUDGES, **VALUES})


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(sorted(PRESETS)), COMPOSITIONS, st.booleans(), st.data())
def test_another_value_of_what_has_no_effect_decodes_alike(toys, name, chosen, sampled, data):
    """The same requests and the same text, whatever the value: by playing it, not by comparing policies."""
    sampling = Sampling(1.0 if sampled else 0.0)
    idle = choices_without_effect(name, chosen)
    other = {key: data.draw(VALUES[key]) for key in idle}
    try:
        policies = [preset(name, PolicyOptions(**{**chosen, **more}, sampling=sampling)) for more in ({}, other)]
    except UsageError:
        return  # refused, whatever else it is
    small = toys.Toy("a", 5)
    large = toys.Mix(small, "b", 0.5)
    logs = []
    for policy in policies:
        coin = (lambda probs: int(probs.argmax())) if sampled else None
        shown, log = toys.play(policy, small, large, coin, 10, k=3, end=-1)
        logs.append(([token.id for token in shown], [type(request).__name__ for request in log]))
    assert logs[0] == logs[1]
    assert policies[0].effective == policies[1].effective
    assert policies[0].guarantee(sampling, 10) == policies[1].guarantee(sampling, 10)


# ---- the table -----------------------------------------------------------------------------------------------------


@each("name", PRESETS)
def test_every_policy_says_in_one_line_what_it_does_where_it_is_from_and_what_it_guarantees(name):
    found = PRESETS[name]
    assert found.name == preset(name, PolicyOptions()).name == name
    for said in (found.summary, found.source, found.guarantee):
        assert said == said.strip() != ""
        assert "\n" not in said
        assert not said.endswith(".")
