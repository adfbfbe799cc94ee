"""Where the demonstration's settings come from: a sweep on problems that are neither trained on nor tested on.

The law, tested in ``tests/bench/test_calibration.py``: within a policy the arm with the highest RPI is chosen, and
among equals the one with the cheapest bill.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from hybrid.bench.arms import LARGE, SMALL, Arm
from hybrid.bench.comparison import Comparison, plain, plain_bill
from hybrid.bench.demo import DOUBT, HYBRIDS

THRESHOLDS, SPANS = (0.2, 0.5, 1.0), (16, 32, 64)
ENTROPIES = (0.3, 0.5, 0.7, 1.0)
SWEEP = (
    *(Arm(f"kl {t:g}/{k}", "kl", {"threshold": t, "span": k}) for t, k in product(THRESHOLDS, SPANS)),
    *(Arm(f"doubt {h:g}", "doubt", {**DOUBT.choices, "entropy": h}) for h in ENTROPIES),
)
ARMS = (SMALL, *SWEEP, LARGE)
# Twice the demonstration's: what differs by one problem there should differ by two here.
NUM_PROBLEMS = 120


def chosen(comparison: Comparison) -> dict[str, Arm]:
    """Return the best arm of each hybrid policy. RPI orders arms as their right answers do: the models are the same."""
    best: dict[str, Arm] = {}
    trials = comparison.trials
    for arm in SWEEP:
        found, tried = trials[best.setdefault(arm.policy, arm).name], trials[arm.name]
        if (tried.num_correct, -tried.nanousd) > (found.num_correct, -found.nanousd):
            best[arm.policy] = arm
    return best


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
