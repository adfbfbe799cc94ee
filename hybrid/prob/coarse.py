"""A target and a draft on what can be known of both: the tokens a top-k list shows, and one symbol for all others.

The law. Exact sampling on these symbols, the last one resolved by whoever knows the target in full, gives the target's
own law: two laws that agree on the symbols and, given the last, on its tokens, are one law.
Enumerated over the whole loop in ``tests/policy``. What is shown must depend on the position alone: the actual token
that an endpoint appends is not among the symbols, or the alphabet would depend on what was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid.prob.distribution import Dense, Floats, Ints, TopK


@dataclass(frozen=True, eq=False)
class ShownPair:
    """``target`` and ``draft``, shape (A + 1,): the probabilities of ``ids``, shape (A,), and of all other tokens."""

    ids: Ints
    target: Floats
    draft: Floats

    def symbol(self, token: int) -> int:
        """Return where a token stands: its index in ``ids``, or A."""
        found = np.flatnonzero(self.ids == token)
        return int(found[0]) if found.size else self.ids.size

    def token(self, symbol: int) -> int | None:
        """Return the token of a symbol; None for the last, which is many."""
        return int(self.ids[symbol]) if symbol < self.ids.size else None


def pair_shown(target: TopK, draft: Dense) -> ShownPair:
    """Return both on the listed tokens of the target, as they are at temperature 1."""
    ids = target.ids[: target.num_listed]
    probs = target.probs[: target.num_listed]
    # All of the vocabulary is listed: what the sum leaves of one is rounding, and there is no token to draw.
    rest = max(0.0, 1.0 - float(probs.sum())) if ids.size < draft.num_tokens else 0.0
    return ShownPair(ids, np.append(probs, rest), _on(ids, draft))


def pair_known(target: Dense, draft: Dense) -> ShownPair:
    """Return both on the support of a target that is known in full; it leaves nothing for other tokens."""
    probs = target.probs
    ids = np.flatnonzero(probs > 0.0)
    return ShownPair(ids, np.append(probs[ids], 0.0), _on(ids, draft))


def _on(ids: Ints, draft: Dense) -> Floats:
    shared = ids[ids < draft.num_tokens]
    probs = np.zeros(ids.size + 1)
    probs[:-1][ids < draft.num_tokens] = draft.probs_of(shared)
    probs[-1] = draft.mass_outside(shared)
    return probs
