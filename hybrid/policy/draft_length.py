"""How many tokens to draft before a check, for a measured round trip or a known price.

A round of g drafted tokens costs ``overhead + g * per_token``, in seconds or in money. If each token stands with the
same chance a, and what follows the first that does not falls with it, the round shows 1 + a + ... + a^g tokens: those
that stand, and the cloud's own after them (Leviathan et al. 2023, arXiv:2211.17192, section 3.3).
"""

from __future__ import annotations

import numpy as np

LONGEST = 64


def best_length(acceptance: float, overhead: float, per_token: float, longest: int = LONGEST) -> int:
    """Return the length with the most tokens for the cost, between 1 and ``longest``.

    ``acceptance``: the chance that a drafted token stands, in [0, 1]. ``overhead``: what a round costs that does not
    depend on its length; ``per_token``: one drafted token's part, positive. Raises ValueError for other numbers.

    >>> best_length(0.8, overhead=0.15, per_token=0.015)
    6
    """
    if not (0.0 <= acceptance <= 1.0 and 0.0 <= overhead < np.inf and 0.0 < per_token < np.inf and longest >= 1):
        msg = f"no draft length for an acceptance of {acceptance}, {overhead} a round and {per_token} a token"
        raise ValueError(msg)
    lengths = np.arange(1, longest + 1)
    shown = np.cumsum(acceptance ** np.arange(longest + 1))[1:]
    return int(lengths[np.argmax(shown / (overhead + per_token * lengths))])
