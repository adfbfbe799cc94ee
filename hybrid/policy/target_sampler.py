"""How the cloud's own token at a row is drawn here, from what the row shows; what it does not show, the cloud draws.

The law: a drawn token, or a ``TailDraw`` resolved by the cloud, has the cloud's own law under ``Sampling``. Three
cases. Greedy: the best token. Temperature 1 and nothing cut off: the listed tokens and one symbol for the rest. Cut off
within the list (top-k, top-p, min-p): the law is known in full. A row that does not determine it leaves the token to
the cloud, whatever was drafted there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from hybrid.errors import UsageError
from hybrid.policy.judges import DraftedSpan, TailDraw, best_of
from hybrid.policy.requests import PendingToken
from hybrid.prob import Coarse, Dense, TopK, coarse, coarse_known, kl_divergence, shown_law
from hybrid.prob.warp import only
from hybrid.types import Sampling

UNDETERMINED = "the shown tokens do not determine the cloud's law here"


@dataclass(frozen=True)
class TargetSampler:
    """The sampling under which the cloud would write."""

    sampling: Sampling

    def sides(self, row: TopK, draft: Dense) -> Coarse | None:
        """Return the cloud's law and the draft's on what the row shows; None where it does not determine the law.

        ``draft`` is the law that a token was drawn from, over the whole vocabulary.
        """
        if _plain(self.sampling):
            return coarse(row, draft)
        if self.sampling.greedy:
            return coarse_known(Dense(only(draft.num_tokens, [row.best], 0.0)), draft)
        law = shown_law(row, self.sampling, draft.num_tokens)
        return None if law is None else coarse_known(law, draft)

    def left(self, law: Dense, why: str | None = None) -> TailDraw:
        """Leave a token to the cloud because the row does not determine its law; ``law``: any over the vocabulary."""
        known = partial(shown_law, sampling=self.sampling, num_tokens=law.num_tokens)
        return TailDraw(why=why or UNDETERMINED, determined=lambda row: known(row) is not None)

    def token(
        self, case: DraftedSpan, offset: int, local: Dense, how: Literal["recovered", "bonus"], why: str | None = None
    ) -> PendingToken | TailDraw:
        """Draw the cloud's token at a row of the case; ``local`` is the local row there, or any of its size."""
        row, known = case.rows[offset], local if how == "recovered" else case.after
        if self.sampling.greedy:
            return best_of(row, known, how, why)
        sides = self.sides(row, local)
        if sides is None:
            return self.left(local, why)
        return as_token(sides, case.draw(sides.target, offset, how), row, known, how, why)


def as_token(
    sides: Coarse,
    symbol: int,
    row: TopK,
    local: Dense | None,
    how: Literal["recovered", "bonus"],
    why: str | None = None,
) -> PendingToken | TailDraw:
    """Turn a drawn symbol into the token it is, or into what only the cloud can draw."""
    token = sides.token(symbol)
    if token is None:
        return TailDraw(frozenset(sides.ids.tolist()), why)
    measured = kl_divergence(row, local) if local is not None else None
    return PendingToken(token, "cloud", how, draft_row=local, target_row=row, kl=measured, why=why)


def _plain(sampling: Sampling) -> bool:
    return sampling.temperature == 1.0 and not sampling.cut


def check_drawable(name: str, sampling: Sampling, cloud_top_k: int) -> None:
    """Raise UsageError for a sampling that no top-k row can determine: such a policy could only let the cloud write."""
    if sampling.greedy or _plain(sampling):
        return
    if not sampling.cut:
        msg = (
            f"{name} must know the cloud's law, and at temperature {sampling.temperature:g} the {cloud_top_k} shown "
            f"tokens do not determine it: {_less(cloud_top_k, 'add --top-k {}')}, or take --temperature 1"
        )
        raise UsageError(msg)
    if sampling.top_k >= cloud_top_k and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        msg = (
            f"{name} must know the cloud's law, and the last of {cloud_top_k} shown tokens may be tied with one that "
            f"is not: {_less(cloud_top_k, 'take --top-k {} or less')}"
        )
        raise UsageError(msg)


def _less(shown: int, how: str) -> str:
    """Say how to cut off within so many shown tokens."""
    return how.format(shown - 1) if shown > 1 else "raise cloud_top_k"
