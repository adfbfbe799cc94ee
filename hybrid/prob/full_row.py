"""A target that is known in full, where a top-k row may stand: its list is the whole vocabulary, and there is no tail.

A larger local model's rows are such. What needs the list finds it sorted; who knows better asks ``dense``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hybrid.prob.distribution import Dense, Floats, Ints, TopK


class FullRow(TopK):
    """A full distribution as a top-k row of all V tokens, those of probability 0 left out; sorted when first needed.

    >>> row = FullRow(Dense.from_probs(np.array([0.2, 0.5, 0.3])))
    >>> row.ids.tolist(), row.best, row.tail
    ([1, 2, 0], 1, 0.0)
    """

    def __init__(self, dense: Dense) -> None:
        """Take the distribution."""
        object.__setattr__(self, "dense", dense)
        object.__setattr__(self, "noise", dense.noise)

    dense: Dense
    tail = 0.0  # nothing is hidden
    cap = 0.0

    @cached_property
    def ids(self) -> Ints:
        """The tokens, best first, ties by id."""
        order = np.lexsort((np.arange(self.dense.num_tokens), -self.dense.logits))
        possible: Ints = order[self.dense.logits[order] > -np.inf]
        return possible

    @cached_property
    def logprobs(self) -> Floats:
        """Their log-probabilities, which sum to one to the last digit."""
        return self.dense.logprobs_of(self.ids)

    @property
    def num_listed(self) -> int:
        """All of them."""
        return int(self.ids.size)

    @property
    def best(self) -> int:
        """The most likely token."""
        return self.dense.best

    @property
    def listed(self) -> TopK:
        """Itself: nothing was asked for by name."""
        return self

    def within(self, num_tokens: int) -> TopK:  # noqa: ARG002  (its vocabulary is the draft's own)
        """Return itself."""
        return self
