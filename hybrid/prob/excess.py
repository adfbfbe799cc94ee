"""Excess loss: what a token costs more than the target's own best, from the little that a top-k row must show for it.

log P(best) - log P(token), in nats under the target's row at temperature 1: never negative, and 0 exactly where the
token is a most likely one. Summed over a text it is the text's loss under the target less that of the best token at
each of its positions: 0 for the target's own greedy text, and blind to what the target itself is unsure of.

The law. Two log-probabilities are enough, so where the row shows the token the value is known: there is no tail in it.
Every completion of the tail lies within the interval, and completions attain its ends where tokens enough are unseen
(``tests/prob/test_excess.py``). Source: this project. This file must not know a draft.
"""

from __future__ import annotations

import numpy as np

from hybrid.prob.cells import TextRow
from hybrid.prob.distribution import TopK
from hybrid.prob.divergence import CAP_SLACK, log_mass
from hybrid.prob.relaxed import most_unseen
from hybrid.prob.terms import Interval


def excess_loss(row: TopK, token: int) -> Interval:
    """Return log P(best) - log P(token), in nats, as far as a row tells it.

    Known (``lower == upper``) where ``token`` is listed or was asked for by name. Else it has at most the cap, and at
    most what the shown tokens leave: that gives the lower end, and nothing bounds it from above. Where the list may
    miss a token likelier than its best (``hidden`` of ``TopK.from_lists``) a shown token's value has a width, too.
    ``noise`` is twice the row's: both log-probabilities may be off.

    >>> row = TopK.from_lists({7: np.log(0.5), 3: np.log(0.25)})
    >>> [round(excess_loss(row, token).lower, 3) for token in (7, 3, 4)]
    [0.0, 0.693, 0.693]
    >>> excess_loss(row, 4).upper
    inf
    """
    if isinstance(row, TextRow):
        return row.excess(token)
    best, unseen = float(row.logprobs.max()), log_mass(most_unseen(row))
    shown = row.logprobs[row.ids == token]
    if not shown.size:
        return Interval(_lead(best, unseen), np.inf, 2.0 * row.noise)
    known = best - float(shown[0])
    return Interval(known, known + _lead(unseen, best), 2.0 * row.noise)


def excess_with_noise(value: float, noise: float) -> float:
    """Return the most that an excess loss can be which was told as ``value``; where ``noise`` is negative, the least.

    >>> [excess_with_noise(0.5, noise) for noise in (-0.25, 0.25, -1.0)]
    [0.25, 0.75, 0.0]
    """
    return max(0.0, value + noise)


def _lead(first: float, second: float) -> float:
    """Return how far one log-probability lies above another, at least 0; the last digits are rounding."""
    return first - second if first - second > CAP_SLACK else 0.0
