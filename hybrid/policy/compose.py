"""Compositions: a named policy with another lead, hold, scope, bonus, gate or judge (``name`` or ``name:number``).

``--policy kl --gate entropy:0.6:check --judge js:0.1`` drafts until the entropy is above 0.6 nats, and keeps what is
within 0.1 nats of Jensen-Shannon divergence. What a rule guarantees is then its judge's and gate's, not its name's; a
policy whose guarantee is the cloud's own law takes nothing that would break it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, get_args

from hybrid.errors import UsageError
from hybrid.policy.choices import Choices, Preset, number
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
)
from hybrid.policy.judges import Judge
from hybrid.policy.loop import Policy
from hybrid.policy.rules.bild import BildRollback
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.cascade import CascadeDeferral
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold, MeasureName, within
from hybrid.policy.rules.exact import ExactSampling
from hybrid.policy.rules.greedy import greedy_match
from hybrid.policy.rules.relaxed import CertifiedAcceptance, RelaxedAcceptance
from hybrid.policy.target_sampler import TargetSampler, check_drawable
from hybrid.prob import Additive, Greedy, Multiplicative, TopM, Typical

JudgeBuilder: TypeAlias = Callable[[float, Choices], Judge]


@dataclass(frozen=True)
class NumberRange:
    """What a composition may name: the number it takes (None: none), what that is, and its range."""

    default: float | None
    what: str = ""
    least: float = 0.0
    most: float = math.inf
    whole: bool = False

    def value(self, given: float | None, name: str) -> float:
        """Return the number, or the default. Raises UsageError."""
        if self.default is None:
            if given is not None:
                msg = f"{name} takes no number"
                raise UsageError(msg)
            return 0.0
        found = number(f"{name}: {self.what}", given, self.default, self.least, self.most)
        if self.whole and found != int(found):
            msg = f"{name}: {self.what} is whole, not {found}"
            raise UsageError(msg)
        return found


GATES: dict[str, tuple[NumberRange, Callable[[float, Choices], Gate]]] = {
    "always": (NumberRange(None), lambda _, __: ALWAYS),
    "never": (NumberRange(None), lambda _, __: NEVER),
    "random": (NumberRange(0.1, "a chance", most=1.0), lambda rate, choices: RandomGate(rate, choices.sampling.seed)),
    "entropy": (NumberRange(0.5, "an entropy in nats"), lambda limit, _: EntropyGate(limit)),
    "margin": (NumberRange(0.3, "a difference of probabilities", most=1.0), lambda limit, _: MarginGate(limit)),
    "max-prob": (NumberRange(0.6, "a probability", most=1.0), lambda limit, _: MaxProbGate(limit)),
    "perturbed": (NumberRange(0.3, "an uncertainty", most=1.0), lambda limit, _: PerturbationGate(limit)),
    "certified": (NumberRange(0.1, "a bound in nats"), lambda bound, _: CertifiedSkipGate(bound)),
    "survival": (NumberRange(0.5, "a chance", most=1.0), lambda limit, _: SurvivalGate(limit)),
}


def _measured(measure: MeasureName) -> JudgeBuilder:
    def build(threshold: float, choices: Choices) -> Judge:
        return replace(within(choices, threshold, measure), drawing=TargetSampler(choices.sampling))

    return build


JUDGES: dict[str, tuple[NumberRange, JudgeBuilder]] = {
    "kl": (NumberRange(0.5, "a threshold in nats"), _measured("KL")),
    "reverse-kl": (NumberRange(0.5, "a threshold in nats"), _measured("reverse KL")),
    "js": (NumberRange(0.1, "a threshold in nats"), _measured("JS")),
    "tv": (NumberRange(0.3, "a threshold", most=1.0), _measured("TV")),
    "greedy": (
        NumberRange(None),
        lambda _, c: greedy_match if c.greedy else RelaxedAcceptance(Greedy(), TargetSampler(c.sampling)),
    ),
    "exact": (NumberRange(None), lambda _, c: ExactSampling(TargetSampler(c.sampling))),
    "block": (NumberRange(None), lambda _, c: BlockVerification(TargetSampler(c.sampling))),
    "additive": (
        NumberRange(0.3, "a margin", most=0.999),
        lambda t, c: RelaxedAcceptance(Additive(t), TargetSampler(c.sampling)),
    ),
    "multiplicative": (
        NumberRange(0.3, "a share", 1e-9, 1.0),
        lambda share, c: RelaxedAcceptance(Multiplicative(share), TargetSampler(c.sampling)),
    ),
    "top-m": (
        NumberRange(3, "a number of tokens", 1.0, 1000.0, whole=True),
        lambda m, c: RelaxedAcceptance(TopM(int(m)), TargetSampler(c.sampling)),
    ),
    "typical": (
        NumberRange(0.09, "Medusa's epsilon; delta is its root", 1e-9, 1.0),
        lambda e, c: RelaxedAcceptance(Typical(e, math.sqrt(e)), TargetSampler(c.sampling)),
    ),
    "certified": (
        NumberRange(0.3, "the share of multiplicative acceptance", 1e-9, 1.0),
        lambda share, c: CertifiedAcceptance(Multiplicative(share), TargetSampler(c.sampling)),
    ),
    "bild": (
        NumberRange(2.0, "a roll-back limit in nats"),
        lambda limit, c: BildRollback(limit, TargetSampler(c.sampling)),
    ),
    "cascade-chow": (
        NumberRange(0.2, "a deferral cost", most=1.0),
        lambda a, c: CascadeDeferral(TargetSampler(c.sampling), a, "chow"),
    ),
    "cascade-diff": (
        NumberRange(0.2, "a deferral cost", most=1.0),
        lambda a, c: CascadeDeferral(TargetSampler(c.sampling), a, "diff"),
    ),
    "cascade-opt": (
        NumberRange(0.2, "a deferral cost", most=1.0),
        lambda a, c: CascadeDeferral(TargetSampler(c.sampling), a, "opt"),
    ),
}
# Judges that may take the row after a kept span for one more token; those that judge it for nothing.
_TAKE_A_BONUS = (ExactSampling, BlockVerification, BildRollback)


def composed(found: Preset, policy: Policy, choices: Choices) -> Policy:
    """Return the policy with what was chosen in the place of its own. Raises UsageError."""
    if policy.gate is not NEVER or choices.gate is not None:  # one model alone opens and hands over nothing
        lead = policy.lead if choices.lead is None else choices.lead
        hold = policy.hold if choices.hold is None else choices.hold
        policy = replace(policy, lead=lead, hold=hold)
    if choices.gate is not None:
        policy = replace(policy, gate=_gate(choices.gate, choices))
    if choices.judge is not None:
        check_drawable(f"--judge {choices.judge}", choices.sampling, choices.cloud_top_k)
        policy = replace(policy, judge=_judge(choices.judge, choices), tails=not choices.greedy)
    if choices.scope is not None:
        policy = replace(policy, scope=choices.scope)
    if choices.bonus is not None:
        policy = replace(policy, bonus=choices.bonus)
    if found.exact:
        _check_exact(found, policy, choices)
    _check_parts(policy, choices)
    return policy


def _check_parts(policy: Policy, choices: Choices) -> None:
    """Refuse parts that would never be asked, or could not do what they are asked for."""
    calls, msg = policy.gate.calls, None
    if policy.lead >= choices.max_tokens and (choices.gate is not None or choices.judge is not None):
        msg = f"{policy.name} has the cloud write to the end, so no gate or judge would be asked: a smaller --lead"
    elif policy.judge is None and "check" in calls:
        msg = f"{policy.name} with a gate that checks needs a judge: --judge {', '.join(JUDGES)}"
    elif choices.judge is not None and "check" not in calls:
        msg = f"{policy.name} never checks, so a judge would never be asked: --gate always"
    elif "write" in calls and not policy.hold:
        msg = f"{policy.name} with a gate that hands the pen over needs --hold, the tokens that the cloud then writes"
    elif choices.scope == 0 and not isinstance(policy.judge, DivergenceThreshold):
        msg = "--scope 0 judges the row after a span alone: only kl, reverse-kl, js and tv can"
    elif choices.bonus and not (policy.judge is greedy_match or isinstance(policy.judge, _TAKE_A_BONUS)):
        msg = f"the judge of {policy.name} takes no bonus"
    if msg:
        raise UsageError(msg)


def _check_exact(found: Preset, policy: Policy, choices: Choices) -> None:
    """Refuse what would let through tokens that no exact judge has seen."""
    exact = isinstance(policy.judge, ExactSampling | BlockVerification) or (
        policy.judge is greedy_match and choices.greedy
    )
    if policy.scope is not None or policy.gate.full != "check" or not exact:
        msg = (
            f"{found.name} promises {found.guarantee}; that holds only if an exact judge checks every token: "
            "no --scope, a gate that checks, no other judge"
        )
        raise UsageError(msg)


def _gate(text: str, choices: Choices) -> Gate:
    name, value, call = _read(text, "gate", tuple(GATES))
    kind, build = GATES[name]
    gate = build(kind.value(value, name), choices)
    if call is None:
        return gate
    if call not in get_args(GateDecision) or not hasattr(gate, "call"):
        msg = (
            f"--gate {text}: {name} says nothing but its own call"
            if call in get_args(GateDecision)
            else f"no call {call!r}"
        )
        raise UsageError(msg)
    return replace(gate, call=call, full="check" if call == "check" else "keep")  # type: ignore[type-var]


def _judge(text: str, choices: Choices) -> Judge:
    name, value, call = _read(text, "judge", tuple(JUDGES))
    if call is not None:
        msg = f"--judge {text}: a judge is NAME or NAME:NUMBER"
        raise UsageError(msg)
    kind, build = JUDGES[name]
    return build(kind.value(value, name), choices)


def _read(text: str, what: str, names: tuple[str, ...]) -> tuple[str, float | None, str | None]:
    """Split NAME[:NUMBER[:CALL]]. Raises UsageError."""
    name, *rest = text.split(":")
    if name not in names:
        msg = f"no {what} is called {name!r}; there are {', '.join(names)}"
        raise UsageError(msg)
    if len(rest) > 2:
        msg = f"--{what} {text}: at most NAME:NUMBER:CALL"
        raise UsageError(msg)
    try:
        value = float(rest[0]) if rest and rest[0] else None
    except ValueError:
        msg = f"--{what} {text}: {rest[0]!r} is no number"
        raise UsageError(msg) from None
    return name, value, rest[1] if len(rest) > 1 else None
