"""Chains from a user's choices: stages that keep each model's own law, and where a chain may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybrid.errors import UsageError
from hybrid.policy.policy import Policy
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.exact import GreedyMatch
from hybrid.policy.stages import Stage
from hybrid.policy.target_sampler import SamplingJudge, TargetSampler
from hybrid.types import Sampling


def exact_stages(spans: Sequence[int], sampling: Sampling) -> tuple[Stage, ...]:
    """Return a stage for each span, the lowest first; what leaves it has its model's own law under ``sampling``."""
    judge = GreedyMatch() if sampling.greedy else BlockVerification(TargetSampler(sampling))
    return tuple(Stage(span, judge, sampling) for span in spans)


def with_stages(policy: Policy, stages: Sequence[Stage]) -> Policy:
    """Return a policy whose drafts come from a chain of local models.

    A policy that checks nothing shows each token as it is drafted; of a chain it shows what a level has read at once.
    Raises UsageError for a stage that changes its model's law below a judge that takes its rows for it: sampled, the
    text would be neither model's.
    """
    for stage, above in zip(stages, range(1, len(stages) + 1), strict=True):
        judges = (*(each.judge for each in stages[above:]), policy.judge)
        lossy = not (stage.sampling.greedy or stage.is_exact)
        if lossy and any(isinstance(judge, SamplingJudge) for judge in judges):
            msg = (
                f"the stage {stage.judge} changes its model's law, and {policy.name} judges what leaves it as that "
                "model's own draws: sampled, the text would be neither's: an exact stage, or --temperature 0"
            )
            raise UsageError(msg)
    if not stages:
        return policy
    at_once = 1 if "check" in policy.gate.decisions else stages[-1].span + stages[-1].takes_bonus
    return replace(policy, stages=tuple(stages), span=max(policy.span, at_once))
