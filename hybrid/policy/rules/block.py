"""Block verification: one decision for the whole span, exact, and never fewer tokens than one decision for each.

Sun et al. 2024 (arXiv:2403.10444), on the symbols that a row shows, as ``exact.py``. The block ends before a row that
does not determine the cloud's distribution, and with a token outside the list. Both depend on the prefix alone, or on
the token that ends it, so they are leaves of the tree of drafts like any other end of a span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hybrid.policy.choices import HANDOFF_TOKENS, PolicyOptions, Preset
from hybrid.policy.judges import DraftedSpan, TailDraw, Verdict, draft_distribution
from hybrid.policy.policy import Policy
from hybrid.policy.rules.exact import REPLACED, exact_policy
from hybrid.policy.target_sampler import UNDETERMINED, SamplingJudge, TargetSampler, check_drawable, to_token
from hybrid.prob import Floats, TopKPair
from hybrid.types import Sampling


@dataclass(frozen=True)
class BlockVerification(SamplingJudge):
    """Accept the longest prefix that its own coin accepts; then draw from what the scaled target has above the draft.

    Law: the text has the cloud model's own distribution under the user's sampling. The expected number of accepted
    tokens is at least that of ``ExactSampling``.
    """

    takes_bonus: ClassVar[bool] = True
    guarantee: ClassVar[str] = "a checked span is accepted or cut as in block verification"
    sampler: TargetSampler

    def is_exact(self, sampling: Sampling) -> bool:  # noqa: ARG002
        """Under every sampling."""
        return True

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge the span as a whole."""
        shown: list[TopKPair] = []
        for token, row in span.judged:
            here = self.sampler.shown_distributions(row, draft_distribution(token))
            if here is None:
                break
            shown.append(here)
            if here.token(here.symbol(token.id)) is None:
                break
        weights = _prefix_weights(span, shown)
        accepted = 0
        for i in range(1, len(shown) + 1):
            chance = weights[i] if i == len(shown) else _stop_prob(weights[i], shown[i])
            if span.coin(np.array([chance, 1.0 - chance]), i - 1, "accept") == 0:
                accepted = i
        if accepted < len(shown):
            return self._cut(span, accepted, shown[accepted], weights[accepted])
        return self._accept_block(span, shown)

    def _cut(self, span: DraftedSpan, accepted: int, shown: TopKPair, weight: float) -> Verdict:
        token, row = span.judged[accepted]
        symbol = span.coin(_block_residual(weight, shown), accepted, "residual")
        recovered = to_token(shown, symbol, row, token.draft_row, "recovered", REPLACED)
        return Verdict(span.accept(accepted), recovered, rejected=True, why=REPLACED)

    def _accept_block(self, span: DraftedSpan, shown: list[TopKPair]) -> Verdict:
        """Accept the block to its end; what ended it says what follows."""
        if shown and (last := shown[-1]).token(last.symbol(span.tokens[len(shown) - 1].id)) is None:
            tail = TailDraw(frozenset(last.ids.tolist()), REPLACED)
            return Verdict(span.accept(len(shown) - 1), tail, rejected=True, why=REPLACED)
        if len(shown) < len(span.judged):
            left = self.sampler.leave_to_cloud(draft_distribution(span.tokens[len(shown)]))
            return Verdict(span.accept(len(shown)), left, rejected=True, why=UNDETERMINED)
        return self.accept_all(span)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return "block"


def _prefix_weights(span: DraftedSpan, shown: list[TopKPair]) -> list[float]:
    """Return w_0 .. w_n: how much of the target's probability each prefix of the draft can carry, at most 1."""
    weights = [1.0]
    for token, here in zip(span.tokens, shown, strict=False):
        symbol = here.symbol(token.id)
        weights.append(min(1.0, weights[-1] * float(here.target[symbol]) / float(here.draft[symbol])))
    return weights


def _stop_prob(weight: float, following: TopKPair) -> float:
    """Return the chance that a prefix shorter than the draft is accepted, given that no longer one is."""
    over = float(np.maximum(weight * following.target - following.draft, 0.0).sum())
    whole = over + (1.0 - weight)  # in this order a prefix that carries all is accepted for certain, to the last digit
    return over / whole if whole > 0.0 else 1.0


def _block_residual(weight: float, shown: TopKPair) -> Floats:
    """Return max(0, weight * target - draft), normalised; the target itself where that is nothing: never drawn from."""
    left = np.maximum(weight * shown.target - shown.draft, 0.0)
    total = left.sum()
    return left / total if total > 0.0 else shown.target


def _block(choices: PolicyOptions, _: float) -> Policy:
    check_drawable("block", choices.sampling, choices.cloud_top_k)
    judge = BlockVerification(TargetSampler(choices.sampling))
    return exact_policy("block", choices, judge, undetermined_tokens=HANDOFF_TOKENS)


BLOCK = Preset(
    "block",
    "as exact, with one decision for the whole span: at least as many tokens are accepted",
    source="block verification (arXiv:2403.10444), from a top-k list",
    make=_block,
)
