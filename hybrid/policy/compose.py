"""Compositions: a named policy with another lead, hold, scope, bonus, gate or judge (``name`` or ``name:number``).

``--policy kl --gate entropy:0.6:check --judge js:0.1`` drafts until the entropy is above 0.6 nats, and accepts what is
within 0.1 nats of Jensen-Shannon divergence. What a composition guarantees follows from its parts
(``Policy.guarantee``), not from its name; a policy that is exact takes nothing that would make it lossy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from hybrid.errors import UsageError
from hybrid.policy.choices import NO_NUMBER, NumberRange, PolicyOptions
from hybrid.policy.gates import (
    ALWAYS,
    NEVER,
    CertifiedSkipGate,
    EntropyGate,
    Gate,
    GateDecision,
    MarginGate,
    MaxProbGate,
    PerturbationGate,
    RandomGate,
    SurvivalGate,
    number_text,
)
from hybrid.policy.judges import Judge
from hybrid.policy.policy import Policy
from hybrid.policy.rules.bild import ROLL_BACK, BildRollback
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.cascade import ALPHA, CascadeDeferral, Deferral
from hybrid.policy.rules.divergence_threshold import MeasureName, concept_judge, threshold_judge
from hybrid.policy.rules.exact import ExactSampling
from hybrid.policy.rules.excess import THRESHOLD as EXCESS_THRESHOLD
from hybrid.policy.rules.excess import excess_judge
from hybrid.policy.rules.relaxed import CertifiedAcceptance, RelaxedAcceptance, accept_only_best
from hybrid.policy.target_sampler import TargetSampler, check_drawable
from hybrid.prob import AcceptanceRule, AdditiveAcceptance, MultiplicativeAcceptance, TopMAcceptance, TypicalAcceptance

JudgeBuilder: TypeAlias = Callable[[float, PolicyOptions], Judge]

GATES: dict[str, tuple[NumberRange, Callable[[float, PolicyOptions], Gate]]] = {
    "always": (NO_NUMBER, lambda _, __: ALWAYS),
    "never": (NO_NUMBER, lambda _, __: NEVER),
    "random": (NumberRange(0.1, "a chance", most=1.0), lambda rate, choices: RandomGate(rate, choices.sampling.seed)),
    "entropy": (NumberRange(0.5, "an entropy in nats"), lambda limit, _: EntropyGate(limit)),
    "margin": (NumberRange(0.3, "a difference of probabilities", most=1.0), lambda limit, _: MarginGate(limit)),
    "max-prob": (NumberRange(0.6, "a probability", most=1.0), lambda limit, _: MaxProbGate(limit)),
    "perturbed": (NumberRange(0.3, "an uncertainty", most=1.0), lambda limit, _: PerturbationGate(limit)),
    "certified": (NumberRange(0.1, "a bound in nats"), lambda bound, _: CertifiedSkipGate(bound)),
    "survival": (NumberRange(0.5, "a chance", most=1.0), lambda limit, _: SurvivalGate(limit)),
}


def _divergence(measure: MeasureName) -> JudgeBuilder:
    return lambda threshold, choices: replace(
        threshold_judge(choices, threshold, measure), sampler=TargetSampler(choices.sampling)
    )


def _concept(threshold: float, choices: PolicyOptions) -> Judge:
    return replace(concept_judge(choices, threshold, threshold), sampler=TargetSampler(choices.sampling))


def _relaxed(rule: Callable[[float], AcceptanceRule]) -> JudgeBuilder:
    return lambda number, choices: RelaxedAcceptance(rule(number), TargetSampler(choices.sampling))


def _cascade(deferral: Deferral) -> JudgeBuilder:
    return lambda alpha, choices: CascadeDeferral(TargetSampler(choices.sampling), alpha, deferral)


_NATS, _SHARE = "a threshold in nats", "a share of the best probability"
JUDGES: dict[str, tuple[NumberRange, JudgeBuilder]] = {
    "kl": (NumberRange(0.5, _NATS), _divergence("KL")),
    "reverse-kl": (NumberRange(0.5, _NATS), _divergence("reverse KL")),
    "concept": (NumberRange(0.5, _NATS), _concept),
    "js": (NumberRange(0.1, _NATS), _divergence("JS")),
    "tv": (NumberRange(0.3, "a threshold", most=1.0), _divergence("TV")),
    "greedy": (NO_NUMBER, lambda _, choices: accept_only_best(choices)),
    "exact": (NO_NUMBER, lambda _, choices: ExactSampling(TargetSampler(choices.sampling))),
    "block": (NO_NUMBER, lambda _, choices: BlockVerification(TargetSampler(choices.sampling))),
    "additive": (NumberRange(0.3, "a margin of probability", most=0.999), _relaxed(AdditiveAcceptance)),
    "multiplicative": (NumberRange(0.3, _SHARE, 1e-9, 1.0), _relaxed(MultiplicativeAcceptance)),
    "top-m": (
        NumberRange(3, "a number of tokens", 1.0, 1000.0, is_integer=True),
        _relaxed(lambda m: TopMAcceptance(int(m))),
    ),
    "typical": (
        NumberRange(0.09, "Medusa's epsilon; delta is its root", 1e-9, 1.0),
        _relaxed(lambda epsilon: TypicalAcceptance(epsilon, math.sqrt(epsilon))),
    ),
    "certified": (
        NumberRange(0.3, "the share of multiplicative acceptance", 1e-9, 1.0),
        lambda share, choices: CertifiedAcceptance(MultiplicativeAcceptance(share), TargetSampler(choices.sampling)),
    ),
    "excess": (EXCESS_THRESHOLD, lambda nats, choices: excess_judge(choices, nats)),
    "bild": (ROLL_BACK, lambda limit, choices: BildRollback(limit, TargetSampler(choices.sampling))),
    "cascade-chow": (ALPHA, _cascade("chow")),
    "cascade-diff": (ALPHA, _cascade("diff")),
    "cascade-opt": (ALPHA, _cascade("opt")),
}


def compose(own: Policy, choices: PolicyOptions) -> Policy:
    """Return a preset's own policy with what was chosen in the place of its parts. Raises UsageError."""
    policy = own
    if own.gate is not NEVER or choices.gate is not None:  # one model alone opens and hands over nothing
        policy = replace(policy, lead=own.lead if choices.lead is None else choices.lead)
        policy = policy if choices.hold is None else _with_handoff(policy, choices.hold, choices)
    if choices.gate is not None:
        policy = replace(policy, gate=_gate(choices.gate, choices))
    if choices.judge is not None:
        check_drawable(f"--judge {choices.judge}", choices.sampling, choices.cloud_top_k)
        policy = replace(policy, judge=_judge(choices.judge, choices))
    if choices.scope is not None and policy.planner is None:  # a planner says what is checked
        policy = replace(policy, scope=choices.scope)
    if choices.bonus is not None:
        policy = replace(policy, bonus=choices.bonus)
    if choices.most_span is not None and policy.span == choices.span and policy.judge and policy.planner is None:
        policy = replace(policy, longest_span=choices.most_span)  # one that drafts a number of tokens before a check
    if own.is_exact(choices.sampling) and not policy.is_exact(choices.sampling):
        msg = (
            f"{own.name} promises {own.guarantee(choices.sampling, choices.max_tokens)}; that holds only if an exact "
            "judge checks every token: no --scope, a gate that checks, no other judge"
        )
        raise UsageError(msg)
    _check_parts(policy, choices)
    return policy


def _with_handoff(policy: Policy, hold: int | Literal["rest"], choices: PolicyOptions) -> Policy:
    """Return a policy whose cloud writes so many tokens first at a handoff, or the rest; under a planner it does."""
    if policy.planner is not None:
        return policy
    tokens, handback = (choices.max_tokens, None) if hold == "rest" else (hold, policy.handback)
    return replace(policy, handoff_tokens=tokens, handback=handback)


def _check_parts(policy: Policy, choices: PolicyOptions) -> None:
    """Refuse parts that would never be asked, or could not do what they are asked for."""
    decisions, judge, msg = policy.gate.decisions, policy.judge, None
    if policy.lead >= choices.max_tokens and (choices.gate is not None or choices.judge is not None):
        msg = f"{policy.name} has the cloud write to the end, so no gate or judge would be asked: a smaller --lead"
    elif policy.planner is not None and choices.gate is not None:
        msg = f"{policy.name} weighs each draft itself, so no gate would be asked: another --policy, or no --gate"
    elif judge is None and "check" in decisions:
        msg = f"{policy.name} with a gate that checks needs a judge: --judge {', '.join(JUDGES)}"
    elif policy.planner is not None and policy.planner.whole and choices.judge is not None:
        msg = f"{policy.name} keeps whole answers or gives them up, so no judge would be asked: another --policy"
    elif choices.judge is not None and "check" not in decisions:
        msg = f"{policy.name} never checks, so a judge would never be asked: --gate always"
    elif "write" in decisions and not policy.handoff_tokens:
        msg = f"{policy.name} with a gate that hands the pen over needs --hold, the tokens that the cloud then writes"
    elif choices.scope == 0 and not (judge and judge.judges_next_row):
        msg = "--scope 0 judges the row after a span alone: only kl, concept, reverse-kl, js and tv can"
    elif choices.bonus and not (judge and judge.takes_bonus):
        msg = f"the judge of {policy.name} takes no bonus"
    if msg:
        raise UsageError(msg)


def _gate(text: str, choices: PolicyOptions) -> Gate:
    name, value, decision = parse(text, "gate", tuple(GATES))
    number, build = GATES[name]
    gate = build(number.value(value, name), choices)
    if decision is None:
        return gate
    if decision not in get_args(GateDecision) or not hasattr(gate, "decision"):
        msg = (
            f"--gate {text}: {name} decides nothing but its own"
            if decision in get_args(GateDecision)
            else f"--gate {text}: {decision!r} is none of {', '.join(get_args(GateDecision))}"
        )
        raise UsageError(msg)
    when_full = "check" if decision == "check" else "keep"
    return replace(gate, decision=decision, when_full=when_full)  # type: ignore[type-var]


def _judge(text: str, choices: PolicyOptions) -> Judge:
    name, value, decision = parse(text, "judge", tuple(JUDGES))
    if decision is not None:
        msg = f"--judge {text}: a judge is NAME or NAME:NUMBER"
        raise UsageError(msg)
    number, build = JUDGES[name]
    return build(number.value(value, name), choices)


def judge_name(text: str) -> str:
    """Return a judge as it writes itself, whatever its number looks like. Raises UsageError.

    >>> judge_name("kl:0.70"), judge_name("excess"), judge_name("greedy")
    ('kl:0.7', 'excess:0.5', 'greedy')
    """
    name, value, _ = parse(text, "judge", tuple(JUDGES))
    number, _ = JUDGES[name]
    return name if number.default is None else f"{name}:{number_text(number.value(value, name))}"


def parse(text: str, what: str, names: tuple[str, ...]) -> tuple[str, float | None, str | None]:
    """Split NAME[:NUMBER[:DECISION]]: the grammar of policies, gates and judges. Raises UsageError."""
    name, *rest = text.split(":")
    if name not in names:
        msg = f"no {what} is called {name!r}; there are {', '.join(names)}"
        raise UsageError(msg)
    if len(rest) > 2:
        msg = f"--{what} {text}: at most NAME:NUMBER:DECISION"
        raise UsageError(msg)
    try:
        value = float(rest[0]) if rest and rest[0] else None
    except ValueError:
        msg = f"--{what} {text}: {rest[0]!r} is no number"
        raise UsageError(msg) from None
    return name, value, rest[1] if len(rest) > 1 else None
