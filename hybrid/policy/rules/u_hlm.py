"""U-HLM: a token that the local model would often have drawn otherwise is verified by itself, all others stand.

Oh et al. 2024, "Uncertainty-Aware Hybrid Inference" (arXiv:2412.12687): uncertainty by temperature perturbation; the
uploaded token is accepted or resampled as in speculative sampling.
"""

from __future__ import annotations

from hybrid.policy.choices import SPAN, Choices, Preset, number
from hybrid.policy.gates import PerturbationGate
from hybrid.policy.loop import Policy
from hybrid.policy.rules.exact import ExactSampling
from hybrid.policy.target_sampler import TargetSampler, check_drawable

UNCERTAINTY = 0.3


def _build(choices: Choices) -> Policy:
    check_drawable("u-hlm", choices.sampling, choices.cloud_top_k)
    gate = PerturbationGate(number("an uncertainty", choices.threshold, UNCERTAINTY, most=1.0))
    judge = ExactSampling(TargetSampler(choices.sampling))
    return Policy("u-hlm", choices.span or SPAN, gate, judge, scope=1, tails=not choices.greedy)


U_HLM = Preset(
    "u-hlm",
    "verify only tokens that other temperatures would have drawn otherwise",
    source="U-HLM (arXiv:2412.12687)",
    guarantee="what is not checked is the local model's; what is checked is kept or replaced as in exact",
    build=_build,
)
