"""Draw the cloud's next token here, from its top-k row; leave it to the cloud where the row is not enough.

The law: a drawn token, or a ``TailDraw`` that the cloud resolves, has the cloud's own distribution under ``Sampling``.
There are three cases. Greedy: the best token. Temperature 1 and nothing cut off: the listed tokens, and one symbol for
all others. Cut off within the list (top-k, top-p, min-p): the whole distribution is known. A row that does not
determine the distribution leaves the token to the cloud, whatever was drafted there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from hybrid.errors import UsageError
from hybrid.policy.judges import DraftedSpan, Judge, TailDraw, Verdict, take_best
from hybrid.policy.requests import PendingToken
from hybrid.prob import Dense, FullRow, TopK, TopKPair, determined_distribution, kl_divergence, pair_known, pair_shown
from hybrid.prob.warp import scatter, warp
from hybrid.types import Sampling

UNDETERMINED = "the shown tokens do not determine the cloud's distribution here"


@dataclass(frozen=True)
class TargetSampler:
    """The sampling under which the cloud would write."""

    sampling: Sampling

    def shown_distributions(self, row: TopK, draft: Dense) -> TopKPair | None:
        """Return the cloud's and the draft's distribution on what the row shows; None where the row is not enough.

        ``draft`` is the distribution that a token was drawn from, over the whole vocabulary.
        """
        if isinstance(row, FullRow):
            return pair_known(warp(row.dense, self.sampling), draft)
        if _is_raw(self.sampling):
            return pair_shown(row, draft)
        if self.sampling.greedy:
            return pair_known(Dense(scatter(draft.num_tokens, [row.best], 0.0)), draft)
        target = determined_distribution(row, self.sampling, draft.num_tokens)
        return None if target is None else pair_known(target, draft)

    def leave_to_cloud(self, draft: Dense, why: str | None = None) -> TailDraw:
        """Leave a token to the cloud because its row is not enough; ``draft``: any Dense over the vocabulary."""
        target = partial(determined_distribution, sampling=self.sampling, num_tokens=draft.num_tokens)
        return TailDraw(why=why or UNDETERMINED, determined=lambda row: target(row) is not None)

    def draw(
        self, span: DraftedSpan, offset: int, local: Dense, how: Literal["recovered", "bonus"], why: str | None = None
    ) -> PendingToken | TailDraw:
        """Draw the cloud's token at a row of the span; ``local`` is the local row there, or any of its size."""
        row = span.target_rows[offset]
        # Of a bonus the local row may be unknown: then ``local`` is another one, for its size alone.
        known = local if how == "recovered" else span.next_draft_row
        if self.sampling.greedy:
            return take_best(row, known, how, why)
        shown = self.shown_distributions(row, local)
        if shown is None:
            return self.leave_to_cloud(local, why)
        return to_token(shown, span.coin(shown.target, offset, how), row, known, how, why)


class SamplingJudge(Judge):
    """A judge that draws the cloud's tokens itself. What its rows do not show is left to the cloud, unless greedy."""

    sampler: TargetSampler

    @property
    def leaves_tail(self) -> bool:
        """Greedy, the best token is always shown."""
        return not self.sampler.sampling.greedy

    def accept_all(self, span: DraftedSpan) -> Verdict:
        """Accept the whole span, and draw the token after it where there is a row and it may give one."""
        local = span.next_draft_row or next((token.draft_row for token in reversed(span.tokens)), None)
        if not span.bonus or span.next_target_row is None or local is None:
            return Verdict(span.accept(), next_divergence=span.next_divergence())
        return Verdict(span.accept(), self.sampler.draw(span, len(span.tokens), local, "bonus"))


def to_token(
    shown: TopKPair,
    symbol: int,
    row: TopK,
    local: Dense | None,
    how: Literal["recovered", "bonus"],
    why: str | None = None,
) -> PendingToken | TailDraw:
    """Turn a drawn symbol into the token it is, or into what only the cloud can draw."""
    token = shown.token(symbol)
    if token is None:
        return TailDraw(frozenset(shown.ids.tolist()), why)
    measured = kl_divergence(row, local) if local is not None else None
    return PendingToken(token, "cloud", how, draft_row=local, target_row=row, kl=measured, why=why)


def _is_raw(sampling: Sampling) -> bool:
    """Whether the cloud writes from its raw rows."""
    return sampling.temperature == 1.0 and not sampling.cut


def check_drawable(name: str, sampling: Sampling, cloud_top_k: int) -> None:
    """Raise UsageError for a sampling that no top-k row can determine: such a policy could only let the cloud write."""
    if sampling.greedy or _is_raw(sampling):
        return
    needs = f"{name} must know the cloud's distribution"
    if not sampling.cut:
        msg = (
            f"{needs}, and at temperature {sampling.temperature:g} the {cloud_top_k} shown tokens do not determine it: "
            f"{_suggest_top_k(cloud_top_k, 'add --top-k {}')}, or take --temperature 1"
        )
        raise UsageError(msg)
    if sampling.top_k >= cloud_top_k and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        msg = (
            f"{needs}, and the last of {cloud_top_k} shown tokens may be tied with one that is not: "
            f"{_suggest_top_k(cloud_top_k, 'take --top-k {} or less')}"
        )
        raise UsageError(msg)


def _suggest_top_k(shown: int, how: str) -> str:
    """Say how to cut off within so many shown tokens."""
    return how.format(shown - 1) if shown > 1 else "raise cloud_top_k"
