"""Relaxed acceptance: a drafted token is accepted if the cloud likes it well enough. Presets relaxed and certified.

The rules are ``prob.acceptance``'s: additive, multiplicative, top-m and Medusa's typical acceptance (arXiv:2401.10774).
What a divergence says about them are ``prob.certificates`` (after arXiv:2606.30265).
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.policy.choices import SPAN, NumberRange, PolicyOptions, Preset
from hybrid.policy.gates import ALWAYS, CertifiedSkipGate, number_text
from hybrid.policy.judges import DraftedSpan, Judge, Verdict, draft_distribution
from hybrid.policy.policy import Policy
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.exact import GreedyMatch
from hybrid.policy.target_sampler import SamplingJudge, TargetSampler, check_drawable
from hybrid.prob import (
    AcceptanceRule,
    AdditiveAcceptance,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    TypicalAcceptance,
    certificate,
    kl_divergence,
)

SHARE = NumberRange(0.3, "a share of the best probability", 1e-9, 1.0)
BOUND = NumberRange(0.1, "a bound in nats")


@dataclass(frozen=True)
class RelaxedAcceptance(SamplingJudge):
    """Accept while the rule accepts each token for certain; then the cloud's token, and no bonus.

    Law: every accepted token is one that the rule accepts from the cloud's full row.
    """

    rule: AcceptanceRule
    sampler: TargetSampler

    @property
    def guarantee(self) -> str:
        """What the rule asks of a token."""
        return f"an accepted token is the cloud's best{_or_else(self.rule)}"

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge token by token."""
        for i, (token, row) in enumerate(span.judged):
            if not self.accepts(row, token):
                why = f"{_kind(self.rule)} acceptance turns it down"
                local = token.draft_row or draft_distribution(token)
                recovered = self.sampler.draw(span, i, local, "recovered", why)
                return Verdict(span.accept(i), recovered, rejected=True, why=why)
        return Verdict(span.accept(), next_divergence=span.next_divergence())

    def accepts(self, row: TopK, token: PendingToken) -> bool:
        """Whether the token itself is certain to be accepted."""
        return self.rule.accepts(row, token.id)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return _name(self.rule)


@dataclass(frozen=True)
class CertifiedAcceptance(RelaxedAcceptance):
    """Accept a token that is the local model's favourite while the divergence is below the rule's certificate.

    Law: every accepted token is one that the rule accepts.
    """

    def accepts(self, row: TopK, token: PendingToken) -> bool:
        """Compare KL(cloud || local) with the least at which the rule can reject a favourite."""
        if token.draft_row is None or token.id != token.draft_row.best:
            return super().accepts(row, token)
        return kl_divergence(row, token.draft_row).upper < certificate(row, self.rule)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return super().__str__().replace("multiplicative", "certified")


def _or_else(rule: AcceptanceRule) -> str:
    """Say which tokens but the best one a rule accepts."""
    match rule:
        case GreedyAcceptance():
            return ""
        case AdditiveAcceptance(margin):
            return f" or within {margin:g} of its probability"
        case MultiplicativeAcceptance(share):
            return f" or has at least {share:g} times its probability"
        case TopMAcceptance(m):
            return f" or among its {m} best"
        case TypicalAcceptance(epsilon, delta):
            return f" or has at least min({epsilon:g}, {delta:g} exp(-entropy))"
        case _:
            return f" or what {type(rule).__name__} accepts"


def _name(rule: AcceptanceRule) -> str:
    """Return what ``--judge`` calls acceptance by a rule."""
    match rule:
        case AdditiveAcceptance(margin):
            return f"additive:{number_text(margin)}"
        case MultiplicativeAcceptance(share):
            return f"multiplicative:{number_text(share)}"
        case TopMAcceptance(m):
            return f"top-m:{m}"
        case TypicalAcceptance(epsilon, _):
            return f"typical:{number_text(epsilon)}"
        case _:
            return _kind(rule)


def _kind(rule: AcceptanceRule) -> str:
    return type(rule).__name__.removesuffix("Acceptance").lower()


def accept_only_best(choices: PolicyOptions) -> Judge:
    """Return the judge that accepts the cloud's most likely token alone, greedy or sampled."""
    return GreedyMatch() if choices.greedy else RelaxedAcceptance(GreedyAcceptance(), TargetSampler(choices.sampling))


def _relaxed(choices: PolicyOptions, share: float) -> Policy:
    check_drawable("relaxed", choices.sampling, choices.cloud_top_k)
    judge = RelaxedAcceptance(MultiplicativeAcceptance(share), TargetSampler(choices.sampling))
    return Policy("relaxed", choices.span or SPAN, ALWAYS, judge)


def _certified(choices: PolicyOptions, bound_nats: float) -> Policy:
    check_drawable("certified", choices.sampling, choices.cloud_top_k)
    gate = CertifiedSkipGate(bound_nats)
    return Policy("certified", choices.span or SPAN, gate, accept_only_best(choices), scope=1)


RELAXED = Preset(
    "relaxed",
    "accept a token with at least a share of the cloud's best probability",
    source="multiplicative acceptance, as in lossy speculative decoding",
    make=_relaxed,
    number=SHARE,
)
CERTIFIED = Preset(
    "certified",
    "ask only where KL(cloud || local) up to a bound could change the most likely token",
    source="certificates after arXiv:2606.30265, from the drafter's side",
    make=_certified,
    number=BOUND,
)
