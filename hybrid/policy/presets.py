"""The table of named policies, and how one is named: NAME or NAME:NUMBER.

A new policy is one file in ``rules/`` (none, if its parts exist) and one line here. A new judge for ``--judge`` is one
line in ``compose.JUDGES``: its class says itself whether it is exact, takes a bonus, or leaves a token to the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from hybrid.defer import DEFAULT_NATS
from hybrid.errors import UsageError
from hybrid.policy.adaptive import ADAPTIVE
from hybrid.policy.branches import BranchRule
from hybrid.policy.choices import LONGEST_DRAFT, NumberRange, PolicyOptions, Preset
from hybrid.policy.compose import compose, parse
from hybrid.policy.gates import ALWAYS, NEVER, RandomGate
from hybrid.policy.planning import Planner
from hybrid.policy.policy import Policy
from hybrid.policy.rules.bild import BILD
from hybrid.policy.rules.block import BLOCK, BlockVerification
from hybrid.policy.rules.cascade import CASCADE
from hybrid.policy.rules.divergence_threshold import CONCEPTS, DOUBT, FSD, KL, ONCE, PAPER, threshold_judge
from hybrid.policy.rules.exact import EXACT, GREEDY_EXACT, U_HLM, GreedyMatch
from hybrid.policy.rules.excess import EXCESS, excess_judge
from hybrid.policy.rules.relaxed import CERTIFIED, RELAXED
from hybrid.policy.stages import ChainLevel
from hybrid.policy.target_sampler import SamplingJudge, TargetSampler
from hybrid.settings.policy_choices import MOST_SPAN, PolicyChoices, span_limits
from hybrid.types import Sampling

# Ask where it pays, by the price of each question. Preset auto; the rule is in ``policy.planning``.
#
# A draft is kept, checked, or written by the cloud, whichever is expected to cost least. The judge of a check is the
# one whose verdict the score forecasts, so that what is planned is what happens.


def _auto(choices: PolicyOptions, nats: float) -> Policy:
    """Judge as the score forecasts; a number that was chosen takes the place of the score's."""
    planner = choices.planner or Planner()
    name, _, number = planner.score.judge.partition(":")
    limit = nats if choices.threshold is not None or not number else float(number.partition(":")[0])
    judge = excess_judge(choices, limit) if name == "excess" else threshold_judge(choices, limit)
    span = choices.span or min(choices.max_tokens, LONGEST_DRAFT)
    return Policy("auto", span, ALWAYS, judge, handoff_tokens=choices.max_tokens, planner=planner)


JUDGED_AT = NumberRange(DEFAULT_NATS, "the judge's threshold in nats, where the calibration's own is not taken")

AUTO = Preset(
    "auto",
    "keep a draft, check it, or let the cloud write: whichever is expected to cost least for this question",
    source="this project: what keeping may lose, beside this endpoint's prices",
    make=_auto,
    number=JUDGED_AT,
)


# Whole answers: the local model's own or the cloud's, never mixed. Preset route.
#
# It is ``auto`` with two actions left (``Planner.of_whole_answers``): an answer that was drafted whole is kept, or the
# cloud writes it from its beginning; with stream early the question alone decides which. Nothing is checked, so there
# is no judge, and nothing of the cloud's is read but its text: the two models need no common vocabulary.
#
# The law (``tests/policy/test_route.py``): while the cloud answers, the text is what ``local`` writes under the same
# coins, or what ``cloud`` does. A cloud that fails in the middle of its answer is the one mixture: the local model goes
# on, and the answer says so.


def _route(choices: PolicyOptions, _: float) -> Policy:
    """Draft as much as ``auto`` does before it decides: a longer answer is decided by its beginning."""
    planner = (choices.planner or Planner()).of_whole_answers()
    return Policy("route", min(choices.max_tokens, LONGEST_DRAFT), NEVER, planner=planner)


ROUTE = Preset(
    "route",
    "auto held to whole answers: keep the local model's own, or have the cloud write its own, never a mixture",
    source="this project: auto, for services that take messages and models that share no vocabulary",
    make=_route,
)


# Chains from a user's choices: stages that keep each model's own law, and where a chain may stand.


def exact_stages(spans: Sequence[int], sampling: Sampling) -> tuple[ChainLevel, ...]:
    """Return a stage for each span, the lowest first; what leaves it has its model's own law under ``sampling``."""
    judge = GreedyMatch() if sampling.greedy else BlockVerification(TargetSampler(sampling))
    return tuple(ChainLevel(span, judge, sampling) for span in spans)


def with_stages(policy: Policy, stages: Sequence[ChainLevel]) -> Policy:
    """Return a policy whose drafts come from a chain of local models.

    A policy that checks nothing shows each token as it is drafted; of a chain it shows what a level has read at once.
    Raises UsageError for a stage that changes its model's law below a judge that takes its rows for it: sampled, the
    text would be neither model's.
    """
    for stage, above in zip(stages, range(1, len(stages) + 1), strict=True):
        judges = (*(each.judge for each in stages[above:]), policy.judge)
        lossy = not (stage.sampling.greedy or stage.is_exact)
        if lossy and any(isinstance(judge, SamplingJudge) for judge in judges):
            msg = (
                f"the stage {stage.judge} changes its model's law, and {policy.name} judges what leaves it as that "
                "model's own draws: sampled, the text would be neither's: an exact stage, or --temperature 0"
            )
            raise UsageError(msg)
    if not stages:
        return policy
    at_once = 1 if "check" in policy.gate.decisions else stages[-1].span + stages[-1].takes_bonus
    return replace(policy, stages=tuple(stages), span=max(policy.chain_span, at_once), longest_span=None)


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


def _branching(choices: PolicyOptions, num: int) -> Policy:
    """Return the policy that draws branches. Raises UsageError where all of them would be one text."""
    if num > 1 and choices.greedy:
        msg = f"{num} branches at temperature 0 are {num} times one text: choose a temperature, such as 0.7"
        raise UsageError(msg)
    return Policy("branches", 1, NEVER, branches=BranchRule(num, choices.choose or "logprob"))


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
    if choices.branches is not None:
        return _branching(choices, choices.branches)
    found, number = parse_policy(text)
    if number is not None:
        if choices.threshold is not None and choices.threshold != number:
            msg = f"{text} and a threshold of {choices.threshold:g} are two numbers for one policy: give one of them"
            raise UsageError(msg)
        choices = choices.model_copy(update={"threshold": number})
    return compose(found.build(choices), choices)


def parse_policy(text: str) -> tuple[Preset, float | None]:
    """Return the preset that NAME or NAME:NUMBER names, and its number if there is one. Raises UsageError.

    ``kl:adaptive`` is ``kl``, until it is known for which question its settings are chosen.
    """
    text = "kl" if text == ADAPTIVE else text
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
        known |= {"most_span": MOST_SPAN} if span_limits(known["span"])[1] else {}
        known["span"] = _OTHER_VALUES[int][0]
    idle = (key for key in known if _other_values(key) and not _acts(name, known, key))
    return tuple(dict.fromkeys("span" if key == "most_span" else key for key in idle))


def _other_values(key: str) -> tuple[float | bool, ...]:
    """Return two values of a choice, by its type; none for what is named in words."""
    fields = PolicyChoices.model_fields | {"most_span": PolicyOptions.model_fields["most_span"]}
    kind = fields[key].annotation if key in fields else None
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
