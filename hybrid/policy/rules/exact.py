"""Exact speculative sampling from a top-k list: drafted tokens are kept or replaced so that the law is the cloud's.

Leviathan et al. 2023 (arXiv:2211.17192), on the symbols that a row shows (``prob.coarse``). A row that determines the
law under the user's sampling is all there is to it; at temperature 1 with nothing cut off, a token outside the list is
one symbol, which only the cloud can resolve (a call for one token, as often as the tail is heavy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid.policy.choices import HOLD, SPAN, Choices, Preset
from hybrid.policy.gates import ALWAYS
from hybrid.policy.judges import DraftedSpan, Verdict
from hybrid.policy.loop import Policy
from hybrid.policy.requests import PendingToken
from hybrid.policy.target_sampler import UNDETERMINED, TargetSampler, as_token, check_drawable
from hybrid.prob import Coarse, Dense, accept_prob, residual

REPLACED = "exact sampling drew another token"


@dataclass(frozen=True)
class ExactSampling:
    """Keep a token with chance min(1, p / q), else draw from what p has more than q.

    Law: the text has the cloud model's own law under the user's sampling, whatever drafted it, for every sampling that
    ``check_drawable`` lets through. Where a row does not
    determine that law its token is the cloud's to draw, whatever was drafted: no coin has looked at it.
    """

    drawing: TargetSampler

    def __call__(self, case: DraftedSpan) -> Verdict:
        """Judge token by token; the first that is replaced ends the span."""
        for i, (held, row) in enumerate(case.judged):
            sides = self.drawing.sides(row, law := law_of(held))
            if sides is None:
                return Verdict(case.accepted(i), self.drawing.left(law), rejected=True, why=UNDETERMINED)
            if (replaced := thinned(case, i, sides, held)) is not None:
                then = as_token(sides, replaced, row, held.draft_row, "recovered", REPLACED)
                return Verdict(case.accepted(i), then, rejected=True, why=REPLACED)
        return with_bonus(case, self.drawing)


def thinned(case: DraftedSpan, offset: int, sides: Coarse, held: PendingToken) -> int | None:
    """Keep a drafted token (None), or return the symbol that replaces it; the last symbol is kept by nobody.

    A kept token outside the list is only known to be outside: which one it is the cloud draws again.
    """
    symbol = sides.symbol(held.id)
    chance = float(accept_prob(sides.target, sides.draft)[symbol])
    if case.draw(np.array([chance, 1.0 - chance]), offset, "accept") == 0:
        return symbol if sides.token(symbol) is None else None
    return case.draw(residual(sides.target, sides.draft), offset, "residual")


def with_bonus(case: DraftedSpan, drawing: TargetSampler) -> Verdict:
    """Keep the whole span, and draw the token after it where there is a row and it may give one."""
    local = case.after or next((held.draft_row for held in reversed(case.span)), None)
    if not case.bonus or case.next_row is None or local is None:
        return Verdict(case.accepted(), ahead=case.ahead())
    return Verdict(case.accepted(), drawing.token(case, len(case.span), local, "bonus"))


def law_of(held: PendingToken) -> Dense:
    """Return what a token was drawn from: greedy drafting puts all on the token itself."""
    if held.drawn_from is not None:
        return held.drawn_from
    if held.draft_row is None:
        msg = "a drafted token without a local row"
        raise TypeError(msg)
    point = np.full(held.draft_row.num_tokens, -np.inf)
    point[held.id] = 0.0
    return Dense(point)


def _build(choices: Choices) -> Policy:
    check_drawable("exact", choices.sampling, choices.cloud_top_k)
    judge = ExactSampling(TargetSampler(choices.sampling))
    tails = not choices.greedy
    return Policy("exact", choices.span or SPAN, ALWAYS, judge, bonus=True, tails=tails, writes_on=HOLD)


EXACT = Preset(
    "exact",
    "the cloud model's own law, drafted locally: tokens are kept or replaced by coins",
    source="speculative sampling (arXiv:2211.17192), from a top-k list",
    guarantee="the cloud model's law, exactly: at --temperature 1, or with --top-k, --top-p or --min-p within the list",
    build=_build,
    exact=True,
)
