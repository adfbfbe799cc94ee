"""The demonstration: the small model alone, three hybrids and the large model on the same test problems.

The laws, tested in ``tests/bench/test_demo.py``: one seed gives one JSON, without times, NaN or infinity; the shown
answers follow a rule that is printed with them. The look stands in ``hybrid/cli/demo``.
"""

from __future__ import annotations

from typing import Any

from hybrid.lab.arms import LARGE, SMALL, Arm, Comparison, bill_to_json, estimate_to_json, fingerprints
from hybrid.tasks import FAMILIES

# Chosen on the calibration split (84 problems, seed 0; ``lab/NOTES.md``): all of kl's settings were as right as the
# large model, and these the cheapest, at 0.89 of its bill. The threshold 0.02 is the preset's own.
KL = Arm("kl", "kl", {"threshold": 0.7, "span": 128, "hold": 96})
DOUBT = Arm("doubt", "doubt", {"entropy": 0.1, "threshold": 0.02})
# As it is shipped: its score and its worth were chosen on the calibration split, too.
AUTO = Arm("auto", "auto")
HYBRIDS = (AUTO, KL, DOUBT)
ARMS = (SMALL, *HYBRIDS, LARGE)
# Five of each family: with it the demonstration stays under a minute on two cores.
NUM_PROBLEMS = 70
# More would not be read: an answer may have two hundred tokens.
NUM_EXAMPLES = 5
HOW_CHOSEN = (
    "of five families one problem each: of those that the small model alone got wrong, the first that most hybrids got "
    "right; where there is none, the first; the families are those of most rescuers and shortest answers"
)


def pick_examples(comparison: Comparison) -> list[int]:
    """Return the numbers of the problems worth showing (``HOW_CHOSEN``), in the order of the families."""
    best: dict[str, int] = {}
    for number, problem in enumerate(comparison.problems):
        found = best.setdefault(problem.family, number)
        if _interest(comparison, number) > _interest(comparison, found):
            best[problem.family] = number
    ranked = sorted(best.values(), key=lambda number: (-_interest(comparison, number), _length(comparison, number)))
    shown = set(ranked[:NUM_EXAMPLES])
    return [best[family.name] for family in FAMILIES if best.get(family.name) in shown]


def _interest(comparison: Comparison, number: int) -> int:
    """Count the hybrids that were right where the small model was not."""
    trials = comparison.trials
    return 0 if trials[SMALL.name].correct[number] else sum(trials[arm.name].correct[number] for arm in HYBRIDS)


def _length(comparison: Comparison, number: int) -> int:
    """Count the characters of the worked answer that the problem came with."""
    return len(comparison.problems[number].worked)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    trials = comparison.trials
    return {
        "tasks": len(comparison.problems),
        "seed": comparison.plan.seed,
        "correct": {name: trial.num_correct for name, trial in trials.items()},
        "rpi": {arm.name: estimate_to_json(comparison.rpi(arm.name)) for arm in HYBRIDS},
        "cloud_token_share": {name: round(trial.cloud_token_share, 4) for name, trial in trials.items()},
        "requests": {name: trial.num_requests for name, trial in trials.items()},
        "bill": {
            **{arm.name: bill_to_json(comparison, arm.name) for arm in HYBRIDS},
            "cloud_nanousd": trials[LARGE.name].nanousd,
        },
        "models": fingerprints(),
        "scoring_keeps_cache": comparison.plan.scoring_keeps_cache,
        "settings": {arm.name: dict(arm.choices) for arm in HYBRIDS},
        "degraded": {name: trial.num_degraded for name, trial in trials.items()},
    }
