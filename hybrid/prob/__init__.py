"""Distributions and what can be said about two of them. numpy only; no idea of what a model is."""

from hybrid.prob.acceptance import accept_prob, residual
from hybrid.prob.boxes import kl_in_boxes
from hybrid.prob.budget import project_within_budget
from hybrid.prob.cells import Cells, Reach, Spelling, TextRow
from hybrid.prob.certificates import (
    DivergenceKind,
    certificate,
    cover_certificate,
    favourite_certificate,
    margin_certificate,
    skip_certificate,
    tree_certificate,
    tree_margin_certificate,
)
from hybrid.prob.coarse import ShownPair, pair_known, pair_shown
from hybrid.prob.concepts import Partition, concept_kl
from hybrid.prob.distribution import Dense, Floats, NotADistribution, TopK
from hybrid.prob.divergence import (
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
from hybrid.prob.excess import excess_loss, excess_with_noise
from hybrid.prob.full_row import FullRow
from hybrid.prob.mixture import ExpertRow, MixtureWeights, Reference, SelectionWeights, losses, mixture, selected
from hybrid.prob.noise import (
    UNMEASURED,
    jensen_shannon_with_noise,
    kl_with_noise,
    total_variation_with_noise,
)
from hybrid.prob.readings import kl_shift, max_log_difference
from hybrid.prob.relaxed import (
    AcceptanceRule,
    AdditiveAcceptance,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    Row,
    TopMAcceptance,
    TypicalAcceptance,
)
from hybrid.prob.shown import determined_distribution
from hybrid.prob.terms import Interval
from hybrid.prob.truncated import kl_both_truncated
from hybrid.prob.warp import warp

__all__ = [
    "UNMEASURED",
    "AcceptanceRule",
    "AdditiveAcceptance",
    "Cells",
    "Dense",
    "DivergenceKind",
    "ExpertRow",
    "Floats",
    "FullRow",
    "GreedyAcceptance",
    "Interval",
    "MixtureWeights",
    "MultiplicativeAcceptance",
    "NotADistribution",
    "Partition",
    "Reach",
    "Reference",
    "Row",
    "SelectionWeights",
    "ShownPair",
    "Spelling",
    "TextRow",
    "TopK",
    "TopMAcceptance",
    "TypicalAcceptance",
    "accept_prob",
    "acceptance",
    "certificate",
    "concept_kl",
    "cover_certificate",
    "determined_distribution",
    "excess_loss",
    "excess_with_noise",
    "favourite_certificate",
    "jensen_shannon",
    "jensen_shannon_with_noise",
    "kl",
    "kl_both_truncated",
    "kl_coarse",
    "kl_divergence",
    "kl_in_boxes",
    "kl_renormalised_on_shared_support",
    "kl_reverse",
    "kl_shift",
    "kl_with_noise",
    "kl_within_rounding",
    "losses",
    "margin_certificate",
    "max_log_difference",
    "mixture",
    "pair_known",
    "pair_shown",
    "project_within_budget",
    "residual",
    "selected",
    "skip_certificate",
    "total_variation",
    "total_variation_with_noise",
    "tree_certificate",
    "tree_margin_certificate",
    "warp",
]
