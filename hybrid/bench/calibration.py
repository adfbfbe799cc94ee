"""Where the demonstration's settings come from: a sweep on problems that are neither trained on nor tested on.

The law, tested in ``tests/bench/test_calibration.py``: within a policy, among the arms that cost less than the large
model alone (or all, where none does), the one with the highest RPI is chosen, and among equals the cheapest.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from hybrid.bench.arms import LARGE, SMALL, Arm
from hybrid.bench.comparison import Comparison, plain, plain_bill
from hybrid.bench.demo import DOUBT, HYBRIDS

THRESHOLDS, SPANS, HOLDS = (0.5, 0.7), (32, 128), (12, 48, 96)
ENTROPIES = (0.03, 0.1, 0.3, 0.5)
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


def chosen(comparison: Comparison) -> dict[str, Arm]:
    """Return the best arm of each hybrid policy. RPI orders arms as their right answers do: the models are the same."""
    best: dict[str, Arm] = {}
    for arm in SWEEP:
        if _worth(comparison, arm) > _worth(comparison, best.setdefault(arm.policy, arm)):
            best[arm.policy] = arm
    return best


def _worth(comparison: Comparison, arm: Arm) -> tuple[bool, int, int]:
    """Order arms: what the large model alone would not have been cheaper than, then right answers, then the bill."""
    trial, alone = comparison.trials[arm.name], comparison.trials[LARGE.name]
    return trial.nanousd < alone.nanousd, trial.num_correct, -trial.nanousd


def is_shipped(arm: Arm) -> bool:
    """Whether an arm has the settings of one of the demonstration's."""
    return any((arm.policy, arm.choices) == (ours.policy, ours.choices) for ours in HYBRIDS)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return plain data for ``json.dumps``: a row for each arm, and the chosen settings beside the shipped ones."""
    return {
        "tasks": len(comparison.problems),
        "seed": comparison.plan.seed,
        "scoring_keeps_cache": comparison.plan.scoring_keeps_cache,
        "arms": [_row(comparison, name) for name in comparison.trials],
        "chosen": {policy: dict(arm.choices) for policy, arm in chosen(comparison).items()},
        "shipped": {arm.name: dict(arm.choices) for arm in HYBRIDS},
    }


def _row(comparison: Comparison, name: str) -> dict[str, Any]:
    trial = comparison.trials[name]
    return {
        "policy": trial.arm.policy,
        "settings": dict(trial.arm.choices),
        "correct": trial.num_correct,
        "rpi": plain(comparison.rpi(name)),
        "cloud_token_share": round(trial.cloud_token_share, 4),
        "requests": trial.num_requests,
        "bill": plain_bill(comparison, name),
        "degraded": trial.num_degraded,
    }
