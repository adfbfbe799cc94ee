"""The table of named policies, and how one is named: NAME or NAME:NUMBER.

A new policy is one file in ``rules/`` (none, if its parts exist) and one line here. A new judge for ``--judge`` is one
line in ``compose.JUDGES``: its class says itself whether it is exact, takes a bonus, or leaves a token to the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from hybrid.errors import UsageError
from hybrid.policy.choices import NumberRange, PolicyOptions, Preset
from hybrid.policy.compose import compose, parse
from hybrid.policy.gates import NEVER, RandomGate
from hybrid.policy.policy import Policy
from hybrid.policy.rules.auto import AUTO
from hybrid.policy.rules.bild import BILD
from hybrid.policy.rules.block import BLOCK
from hybrid.policy.rules.cascade import CASCADE
from hybrid.policy.rules.concepts import CONCEPTS
from hybrid.policy.rules.divergence_threshold import DOUBT, FSD, KL, ONCE, PAPER
from hybrid.policy.rules.exact import EXACT, GREEDY_EXACT, U_HLM
from hybrid.policy.rules.excess import EXCESS
from hybrid.policy.rules.relaxed import CERTIFIED, RELAXED
from hybrid.policy.rules.route import ROUTE
from hybrid.policy_choices import PolicyChoices
from hybrid.types import Sampling

# One model alone, and a handoff at random: what every other policy is compared with.
LOCAL = Preset(
    "local",
    "the local model alone; no request is sent",
    source="plain decoding",
    make=lambda _, __: Policy("local", 1, NEVER),
)
CLOUD = Preset(
    "cloud",
    "the cloud model alone; the local one only finishes if it fails",
    source="plain decoding",
    make=lambda choices, _: Policy("cloud", 1, NEVER, lead=choices.max_tokens),
)
RANDOM = Preset(
    "random",
    "at each position the cloud takes the pen for a few tokens, by a coin",
    source="the baseline of every deferral curve",
    make=lambda choices, rate: Policy("random", 1, RandomGate(rate, choices.sampling.seed), handoff_tokens=4),
    number=NumberRange(0.1, "a chance", most=1.0),
)

PRESETS = {
    preset.name: preset
    for preset in (
        AUTO,
        ROUTE,
        KL,
        CONCEPTS,
        DOUBT,
        ONCE,
        GREEDY_EXACT,
        EXACT,
        BLOCK,
        CASCADE,
        RELAXED,
        CERTIFIED,
        BILD,
        FSD,
        EXCESS,
        U_HLM,
        PAPER,
        RANDOM,
        LOCAL,
        CLOUD,
    )
}


# What another number or switch may be, by its type, to see whether a choice changes anything. A gate or a judge that
# could not act is refused by ``compose`` in a sentence of its own.
_OTHER_VALUES: Mapping[type, tuple[float | bool, ...]] = {bool: (False, True), int: (2, 3), float: (0.25, 0.75)}


def preset(text: str, choices: PolicyOptions) -> Policy:
    """Build the policy that ``text`` names (NAME or NAME:NUMBER), with what the choices compose differently.

    The number is what ``threshold`` is. Raises UsageError for an unknown name, a number that the policy does not take
    or that is out of its range, a number beside another ``threshold``, and choices that contradict the policy.

    >>> str(preset("kl:0.2", PolicyOptions(span=4)))
    'kl span=4 gate=always judge=kl:0.2 hold=4 handback=kl:0.2'
    """
    found, number = parse_policy(text)
    if number is not None:
        if choices.threshold is not None and choices.threshold != number:
            msg = f"{text} and a threshold of {choices.threshold:g} are two numbers for one policy: give one of them"
            raise UsageError(msg)
        choices = choices.model_copy(update={"threshold": number})
    return compose(found.build(choices), choices)


def parse_policy(text: str) -> tuple[Preset, float | None]:
    """Return the preset that NAME or NAME:NUMBER names, and its number if there is one. Raises UsageError."""
    name, value, more = parse(text, "policy", tuple(PRESETS))
    if more is not None:
        msg = f"--policy {text}: a policy is NAME or NAME:NUMBER"
        raise UsageError(msg)
    if value is not None:
        PRESETS[name].number.value(value, name)
    return PRESETS[name], value


def choices_without_effect(text: str, chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in ``chosen`` (of fields of ``PolicyOptions``) that change nothing in the policy ``text``.

    A choice acts if the composed policy differs between two of its values, the others as chosen, greedy or sampled.
    Names that are no part of a policy, and values of None, are passed over. Of a composition that cannot be built
    nothing is returned: ``preset`` refuses it in a sentence of its own.

    >>> choices_without_effect("doubt:0.03", {"entropy": 0.6, "strict": True, "scope": 2})
    ('scope',)
    """
    name = text.partition(":")[0]
    known = {key: value for key, value in chosen.items() if key in PolicyOptions.model_fields and value is not None}
    known.pop("policy", None)
    if not isinstance(known.get("span", 1), int):  # ``auto`` and ``cheap`` are numbers when a policy is built
        known["span"] = _OTHER_VALUES[int][0]
    return tuple(key for key in known if _other_values(key) and not _acts(name, known, key))


def _other_values(key: str) -> tuple[float | bool, ...]:
    """Return two values of a choice, by its type; none for what is named in words."""
    kind = PolicyChoices.model_fields[key].annotation if key in PolicyChoices.model_fields else None
    kinds = get_args(kind) or (kind,)
    return next((values for each, values in _OTHER_VALUES.items() if each in kinds), ())


def _acts(name: str, known: Mapping[str, Any], key: str) -> bool:
    """Whether a choice changes what a policy does, or keeps it from being built at all."""
    buildable = False
    for sampling in (Sampling(), Sampling(1.0)):
        others = ({**known, key: value} for value in _other_values(key))
        as_chosen, *rest = (_effective(name, choices, sampling) for choices in (known, *others))
        buildable = buildable or as_chosen is not None
        if as_chosen is not None and any(policy is not None and policy != as_chosen for policy in rest):
            return True
    return not buildable


def _effective(name: str, known: Mapping[str, Any], sampling: Sampling) -> Policy | None:
    """Return what acts of a composed policy; None where it cannot be built."""
    try:
        return preset(name, PolicyOptions(**known, sampling=sampling)).effective
    except UsageError:
        return None
