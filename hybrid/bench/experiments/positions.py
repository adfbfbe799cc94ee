"""What two models make of one text, position by position: agreement, divergence, and what a top-k list leaves of it.

The text is the reference's own greedy one. Everything is measured on full rows; the intervals are what an endpoint
that shows ``k`` log-probabilities, and the actual token's, leaves to be known.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hybrid.bench.experiments.world import World
from hybrid.prob import (
    Dense,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    certificate,
    favourite_certificate,
    kl_divergence,
    tree_certificate,
)
from hybrid.types import Ids

# Lengths of the top-k list: the least, what is often given, the default, and what few endpoints give.
TOP_KS = (1, 5, 20, 100)
DEFAULT_TOP_K = 20


@dataclass(frozen=True)
class PositionRecord:
    """One position of a text. Divergences and entropies in nats, the rest probabilities.

    ``agrees``: both models have one favourite. ``kl``: KL(reference || local), on full rows; ``intervals`` are what the
    first ``k`` entries leave of it, by ``TOP_KS``. ``overlap``: the chance that a sampled draft is accepted.
    ``beyond``: the reference's mass beyond its first 20. ``certificates``: the least divergence at which the local
    favourite can be rejected: by greedy acceptance, by a third of the best probability, outside the best three, and
    outside the best three of the draft.
    """

    agrees: bool
    kl: float
    entropy: float
    overlap: float
    beyond: float
    intervals: tuple[tuple[float, float], ...]
    certificates: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


CERTIFICATES = ("greedy", "multiplicative 0.3", "top 3", "tree of 3")


def positions(world: World, prompt: Ids, text: Ids) -> list[PositionRecord]:
    """Measure every position of a text; of an empty one there is none."""
    if not text:
        return []
    local, reference = world.rows(prompt, text)
    return [_position(*pair) for pair in zip(reference, local, text, strict=True)]


def _position(reference: Dense, local: Dense, token: int) -> PositionRecord:
    target, draft = reference.logprobs, local.logprobs
    target_probs = np.exp(target)
    shown = [TopK.from_dense(reference, k, token) for k in TOP_KS]
    bounds = [kl_divergence(row, local) for row in shown]
    row = shown[TOP_KS.index(DEFAULT_TOP_K)]
    return PositionRecord(
        agrees=reference.best == local.best,
        kl=float(target_probs @ (target - draft)),
        entropy=local.entropy(),
        overlap=float(np.minimum(target_probs, np.exp(draft)).sum()),
        beyond=1.0 - float(row.listed.probs.sum()),
        intervals=tuple((bound.lower, bound.upper) for bound in bounds),
        certificates=(
            favourite_certificate(row),
            certificate(row, MultiplicativeAcceptance(0.3)),
            certificate(row, TopMAcceptance(3)),
            tree_certificate(row, 3),
        ),
    )
