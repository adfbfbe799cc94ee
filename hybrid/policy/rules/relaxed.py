"""Relaxed acceptance: a drafted token stands if the cloud likes it well enough. The presets relaxed and certified.

The rules are ``prob.relaxed``'s: additive, multiplicative, top-m and Medusa's typical acceptance (arXiv:2401.10774).
What a divergence says about them are ``prob.certificates`` (after arXiv:2606.30265).
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.policy.choices import SPAN, Choices, Preset, number
from hybrid.policy.gates import ALWAYS, CertifiedSkipGate
from hybrid.policy.judges import DraftedSpan, Verdict
from hybrid.policy.loop import Policy
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.exact import law_of
from hybrid.policy.rules.greedy import greedy_match
from hybrid.policy.target_sampler import TargetSampler, check_drawable
from hybrid.prob import Greedy, Multiplicative, Rule, TopK, certificate, kl_divergence

SHARE = 0.3
BOUND = 0.1


@dataclass(frozen=True)
class RelaxedAcceptance:
    """Keep while the rule accepts each token for certain; then the cloud's token, and no bonus.

    Law: every kept token is one that the rule accepts from the cloud's full row.
    """

    rule: Rule
    drawing: TargetSampler

    def __call__(self, case: DraftedSpan) -> Verdict:
        """Judge token by token."""
        for i, (held, row) in enumerate(case.judged):
            if not self.accepts(row, held):
                why = f"{type(self.rule).__name__.lower()} acceptance turns it down"
                then = self.drawing.token(case, i, held.draft_row or law_of(held), "recovered", why)
                return Verdict(case.accepted(i), then, rejected=True, why=why)
        return Verdict(case.accepted(), ahead=case.ahead())

    def accepts(self, row: TopK, held: PendingToken) -> bool:
        """Whether the token itself is certain to be accepted."""
        return self.rule.accepts(row, held.id)


@dataclass(frozen=True)
class CertifiedAcceptance(RelaxedAcceptance):
    """Keep a token that is the local model's favourite while the divergence is below the rule's certificate.

    Law: where the draft is greedy, every kept token is one that the rule accepts.
    """

    def accepts(self, row: TopK, held: PendingToken) -> bool:
        """Compare KL(cloud || local) with the least at which the rule can reject a favourite."""
        if held.draft_row is None or held.id != held.draft_row.best:
            return super().accepts(row, held)
        return kl_divergence(row, held.draft_row).upper < certificate(row, self.rule)


def _relaxed(choices: Choices) -> Policy:
    check_drawable("relaxed", choices.sampling, choices.cloud_top_k)
    rule = Multiplicative(number("a share", choices.threshold, SHARE, least=1e-9, most=1.0))
    judge = RelaxedAcceptance(rule, TargetSampler(choices.sampling))
    return Policy("relaxed", choices.span or SPAN, ALWAYS, judge, tails=not choices.greedy)


def _certified(choices: Choices) -> Policy:
    check_drawable("certified", choices.sampling, choices.cloud_top_k)
    gate = CertifiedSkipGate(number("a bound in nats", choices.threshold, BOUND))
    judge = greedy_match if choices.greedy else RelaxedAcceptance(Greedy(), TargetSampler(choices.sampling))
    return Policy("certified", choices.span or SPAN, gate, judge, scope=1, tails=not choices.greedy)


RELAXED = Preset(
    "relaxed",
    "keep a token with at least a share of the cloud's best probability",
    source="multiplicative acceptance, as in lossy speculative decoding",
    guarantee="every kept token has at least --threshold times the cloud's best probability",
    build=_relaxed,
)
CERTIFIED = Preset(
    "certified",
    "ask only where KL(cloud || local) up to a bound could change the most likely token",
    source="certificates after arXiv:2606.30265, from the drafter's side",
    guarantee="at temperature 0 the cloud's greedy text, if KL is at most --threshold wherever it does not ask",
    build=_certified,
)
