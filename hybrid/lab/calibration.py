"""Choose the demonstration's settings by a sweep over problems that are in neither the training nor the test split.

The law, tested in ``tests/bench/test_calibration.py``: within a policy, the arm with the highest RPI is chosen among
those that cost less than the large model alone (among all, if none does), and the cheapest of equals.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from hybrid.lab.arms import LARGE, SMALL, Arm, Comparison, bill_to_json, estimate_to_json
from hybrid.lab.demo import DOUBT, KL

THRESHOLDS, SPANS, HOLDS = (0.5, 0.7), (32, 128), (12, 48, 96)
ENTROPIES = (0.03, 0.1, 0.3, 0.5)
# What the demonstration has of it. Its auto has no settings of its own.
SHIPPED = (KL, DOUBT)
SWEEP = (
    *(
        Arm(f"kl {t:g}/{k}/{h}", "kl", {"threshold": t, "span": k, "hold": h})
        for t, k, h in product(THRESHOLDS, SPANS, HOLDS)
    ),
    *(Arm(f"doubt {h:g}", "doubt", {**DOUBT.choices, "entropy": h}) for h in ENTROPIES),
)
ARMS = (SMALL, *SWEEP, LARGE)
# Six of each family. Of the calibration split, which neither the models nor the demonstration see.
NUM_PROBLEMS = 84


def choose_arms(comparison: Comparison) -> dict[str, Arm]:
    """Return the best arm of each hybrid policy. Over one pair of models, RPI orders arms as their right answers do."""
    best: dict[str, Arm] = {}
    for arm in SWEEP:
        if _worth(comparison, arm) > _worth(comparison, best.setdefault(arm.policy, arm)):
            best[arm.policy] = arm
    return best


def _worth(comparison: Comparison, arm: Arm) -> tuple[bool, int, int]:
    """Rank an arm: cheaper than the large model alone first, then by right answers, then by the lower bill."""
    trial, alone = comparison.trials[arm.name], comparison.trials[LARGE.name]
    return trial.nanousd < alone.nanousd, trial.num_correct, -trial.nanousd


def is_shipped(arm: Arm) -> bool:
    """Whether an arm has the settings of one of the demonstration's."""
    return any((arm.policy, arm.choices) == (ours.policy, ours.choices) for ours in SHIPPED)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return plain data for ``json.dumps``: a row for each arm, and the chosen settings beside the shipped ones."""
    return {
        "tasks": len(comparison.problems),
        "seed": comparison.plan.seed,
        "scoring_keeps_cache": comparison.plan.scoring_keeps_cache,
        "arms": [_row(comparison, name) for name in comparison.trials],
        "chosen": {policy: dict(arm.choices) for policy, arm in choose_arms(comparison).items()},
        "shipped": {arm.name: dict(arm.choices) for arm in SHIPPED},
    }


def _row(comparison: Comparison, name: str) -> dict[str, Any]:
    trial = comparison.trials[name]
    return {
        "policy": trial.arm.policy,
        "settings": dict(trial.arm.choices),
        "correct": trial.num_correct,
        "rpi": estimate_to_json(comparison.rpi(name)),
        "cloud_token_share": round(trial.cloud_token_share, 4),
        "requests": trial.num_requests,
        "bill": bill_to_json(comparison, name),
        "degraded": trial.num_degraded,
    }
