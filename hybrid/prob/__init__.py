"""Distributions and what can be said about two of them. numpy only; no idea of what a model is."""

from hybrid.prob.acceptance import accept_prob, residual
from hybrid.prob.budget import budgeted
from hybrid.prob.certificates import (
    Measure,
    certificate,
    cover_certificate,
    favourite_certificate,
    margin_certificate,
    skip_certificate,
    tree_certificate,
    tree_margin_certificate,
)
from hybrid.prob.coarse import Coarse, coarse, coarse_known
from hybrid.prob.distribution import Dense, Floats, NotADistribution, TopK
from hybrid.prob.divergence import (
    Interval,
    acceptance,
    jensen_shannon,
    kl,
    kl_coarse,
    kl_divergence,
    kl_renormalised_on_shared_support,
    kl_reverse,
    kl_within_rounding,
    total_variation,
)
from hybrid.prob.noise import (
    UNMEASURED,
    apart,
    jensen_shannon_with_noise,
    kl_with_noise,
    total_variation_with_noise,
)
from hybrid.prob.relaxed import Additive, Greedy, Multiplicative, Row, Rule, TopM, Typical
from hybrid.prob.shown import shown_law
from hybrid.prob.truncated import kl_both_truncated
from hybrid.prob.warp import warp

__all__ = [
    "UNMEASURED",
    "Additive",
    "Coarse",
    "Dense",
    "Floats",
    "Greedy",
    "Interval",
    "Measure",
    "Multiplicative",
    "NotADistribution",
    "Row",
    "Rule",
    "TopK",
    "TopM",
    "Typical",
    "accept_prob",
    "acceptance",
    "apart",
    "budgeted",
    "certificate",
    "coarse",
    "coarse_known",
    "cover_certificate",
    "favourite_certificate",
    "jensen_shannon",
    "jensen_shannon_with_noise",
    "kl",
    "kl_both_truncated",
    "kl_coarse",
    "kl_divergence",
    "kl_renormalised_on_shared_support",
    "kl_reverse",
    "kl_with_noise",
    "kl_within_rounding",
    "margin_certificate",
    "residual",
    "shown_law",
    "skip_certificate",
    "total_variation",
    "total_variation_with_noise",
    "tree_certificate",
    "tree_margin_certificate",
    "warp",
]
