"""The cloud model's own text, drafted locally: speculative decoding, greedy and sampled from a top-k list.

Leviathan et al. 2023 (arXiv:2211.17192). Greedy, a drafted token is accepted while it is the cloud's most likely one.
Sampled, it is accepted or replaced by coins on the symbols that a row shows (``prob.TopKPair``). These are the listed
tokens and, at temperature 1 with nothing cut off, one symbol for all others, which only the cloud can resolve: a
request for one token, as often as the tail is heavy. Presets: greedy-exact, exact, and u-hlm, which checks single
tokens so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hybrid.errors import UsageError
from hybrid.policy.choices import FIRST_SPAN, HANDOFF_TOKENS, SPAN, NumberRange, PolicyOptions, Preset
from hybrid.policy.gates import ALWAYS, PerturbationGate
from hybrid.policy.judges import DraftedSpan, Judge, Verdict, draft_distribution, take_best
from hybrid.policy.policy import Policy
from hybrid.policy.requests import PendingToken
from hybrid.policy.target_sampler import UNDETERMINED, SamplingJudge, TargetSampler, check_drawable, to_token
from hybrid.prob import TopKPair, accept_prob, residual
from hybrid.types import Sampling

REPLACED = "exact sampling drew another token"


@dataclass(frozen=True)
class GreedyMatch(Judge):
    """Accept while each token is the cloud's own most likely one; then the cloud's token.

    Law: of greedy drafts the text is the cloud model's own greedy text, token for token, whatever was drafted.
    """

    takes_bonus: ClassVar[bool] = True
    guarantee: ClassVar[str] = "an accepted token is the cloud's most likely one"
    reads_text: ClassVar[bool] = True  # the token that a row names is its text's beginning

    def is_exact(self, sampling: Sampling) -> bool:
        """Of sampled drafts it accepts the cloud's best token more often than the cloud draws it."""
        return sampling.greedy

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge token by token."""
        for i, (token, row) in enumerate(span.judged):
            if token.id != row.best:
                why = "the cloud's most likely token is another"
                best = take_best(row, token.draft_row, "recovered", why)
                return Verdict(span.accept(i), best, rejected=True, why=why)
        if span.bonus and span.next_target_row is not None:
            return Verdict(span.accept(), take_best(span.next_target_row, span.next_draft_row, "bonus"))
        return Verdict(span.accept(), next_divergence=span.next_divergence())

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return "greedy"


@dataclass(frozen=True)
class ExactSampling(SamplingJudge):
    """Accept a token with chance min(1, target / draft), else draw from the residual.

    Law: the text has the cloud model's own distribution under the user's sampling, whatever drafted it, for every
    sampling that ``check_drawable`` allows. Where a row does not determine that distribution its token is the cloud's
    to draw, whatever was drafted: no coin has looked at it.
    """

    takes_bonus: ClassVar[bool] = True
    guarantee: ClassVar[str] = "a checked token is accepted or replaced as in exact sampling"
    sampler: TargetSampler

    def is_exact(self, sampling: Sampling) -> bool:  # noqa: ARG002
        """Under every sampling."""
        return True

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge token by token; the first that is replaced ends the span."""
        for i, (token, row) in enumerate(span.judged):
            shown = self.sampler.shown_distributions(row, draft := draft_distribution(token))
            if shown is None:
                left = self.sampler.leave_to_cloud(draft)
                return Verdict(span.accept(i), left, rejected=True, why=UNDETERMINED)
            if (replaced := accept_or_replace(span, i, shown, token)) is not None:
                recovered = to_token(shown, replaced, row, token.draft_row, "recovered", REPLACED)
                return Verdict(span.accept(i), recovered, rejected=True, why=REPLACED)
        return self.accept_all(span)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return "exact"


def accept_or_replace(span: DraftedSpan, offset: int, shown: TopKPair, token: PendingToken) -> int | None:
    """Accept a drafted token (None), or return the symbol that replaces it; the last symbol is never accepted.

    An accepted token outside the list is only known to be outside: which one it is the cloud draws again.
    """
    symbol = shown.symbol(token.id)
    chance = float(accept_prob(shown.target, shown.draft)[symbol])
    if span.coin(np.array([chance, 1.0 - chance]), offset, "accept") == 0:
        return symbol if shown.token(symbol) is None else None
    return span.coin(residual(shown.target, shown.draft), offset, "residual")


def exact_policy(name: str, choices: PolicyOptions, judge: Judge, undetermined_tokens: int = 0) -> Policy:
    """Return a policy that checks every token, with a bonus; spans follow one another where no length was chosen."""
    return Policy(
        name,
        choices.span or FIRST_SPAN,
        ALWAYS,
        judge,
        bonus=True,
        longest_span=choices.longest_span,
        undetermined_tokens=undetermined_tokens,
    )


def _greedy_exact(choices: PolicyOptions, _: float) -> Policy:
    if not choices.greedy:
        msg = "greedy-exact reproduces the cloud model's greedy text: it needs --temperature 0"
        raise UsageError(msg)
    return exact_policy("greedy-exact", choices, GreedyMatch())


def _exact(choices: PolicyOptions, _: float) -> Policy:
    check_drawable("exact", choices.sampling, choices.cloud_top_k)
    judge = ExactSampling(TargetSampler(choices.sampling))
    return exact_policy("exact", choices, judge, undetermined_tokens=HANDOFF_TOKENS)


def _u_hlm(choices: PolicyOptions, uncertainty: float) -> Policy:
    check_drawable("u-hlm", choices.sampling, choices.cloud_top_k)
    judge = ExactSampling(TargetSampler(choices.sampling))
    return Policy("u-hlm", choices.span or SPAN, PerturbationGate(uncertainty), judge, scope=1)


GREEDY_EXACT = Preset(
    "greedy-exact",
    "the cloud model's own greedy text, drafted locally and checked",
    source="speculative decoding at temperature 0 (arXiv:2211.17192)",
    make=_greedy_exact,
)
EXACT = Preset(
    "exact",
    "the cloud model's own distribution, drafted locally: tokens are accepted or replaced by coins",
    source="speculative sampling (arXiv:2211.17192), from a top-k list",
    make=_exact,
)
U_HLM = Preset(
    "u-hlm",
    "verify only tokens that other temperatures would have drawn otherwise",
    source="U-HLM (arXiv:2412.12687)",
    make=_u_hlm,
    number=NumberRange(0.3, "an uncertainty", most=1.0),
)
