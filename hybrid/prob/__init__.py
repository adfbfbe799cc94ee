"""Distributions and what can be said about two of them. numpy only; no idea of what a model is."""

from hybrid.prob.acceptance import accept_prob, residual
from hybrid.prob.distribution import Dense, Floats, NotADistribution, TopK
from hybrid.prob.divergence import (
    Interval,
    acceptance,
    kl,
    kl_coarse,
    kl_divergence,
    kl_renormalised_on_shared_support,
    total_variation,
)
from hybrid.prob.warp import warp

__all__ = [
    "Dense",
    "Floats",
    "Interval",
    "NotADistribution",
    "TopK",
    "accept_prob",
    "acceptance",
    "kl",
    "kl_coarse",
    "kl_divergence",
    "kl_renormalised_on_shared_support",
    "residual",
    "total_variation",
    "warp",
]
