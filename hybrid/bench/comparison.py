"""Compare several arms on the same problems, the small and the large model alone among them.

The laws, tested in ``tests/bench/test_comparison.py``: every ratio is over runs of this comparison; a bill's ratio is
over the large model's own run on the same problems; an undefined number is None. The arms worth comparing are named in
``demo.py`` and ``calibration.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.bench.arms import LARGE, SMALL, Arm, ReportAnswer, Trial, run_arms
from hybrid.engine.real_models import sha256_of
from hybrid.errors import UsageError
from hybrid.tasks import FAMILIES, Problem, Split, distinct
from hybrid.tasks.statistics import Estimate, rpi
from hybrid.tasks.text_statistics import bill_ratio

# The smallest family, facts, has at least one problem a fact in either split that is not trained on.
MOST_PROBLEMS = 150 * len(FAMILIES)


@dataclass(frozen=True)
class Plan:
    """The problems of a comparison, and whether the server's scoring reads its prefix cache."""

    num_problems: int
    split: Split
    seed: int = 0
    scoring_keeps_cache: bool = False


@dataclass(frozen=True)
class Comparison:
    """What the arms did. ``trials`` by the arms' names, in their order; always with ``SMALL`` and ``LARGE``."""

    plan: Plan
    problems: tuple[Problem, ...]
    trials: Mapping[str, Trial]

    def rpi(self, name: str) -> Estimate | None:
        """Return the share of the gap between the models that an arm recovered; None where there is no clear gap."""
        small, hybrid, large = (self.trials[arm].correct for arm in (SMALL.name, name, LARGE.name))
        return rpi(small, hybrid, large)

    def bill_ratio(self, name: str) -> Estimate | None:
        """Return an arm's bill over the large model's own, with its interval; None where that one is zero."""
        bills, alone = self.trials[name].bills, self.trials[LARGE.name].bills
        return bill_ratio(bills, alone) if all(alone) else None


async def compare(arms: Sequence[Arm], plan: Plan, report_answer: ReportAnswer) -> Comparison:
    """Run the arms. Raises UsageError for fewer problems than families, or more than the split has."""
    problems = draw_balanced(plan.num_problems, plan.split, plan.seed)
    return Comparison(
        plan, problems, await run_arms(arms, problems, keep_cache=plan.scoring_keeps_cache, report_answer=report_answer)
    )


def draw_balanced(num_problems: int, split: Split, seed: int) -> tuple[Problem, ...]:
    """Draw problems, equally many of each family (the first ones get what is left over), the families taking turns.

    Raises UsageError for fewer than one of each family, or more than a split has.
    """
    if not len(FAMILIES) <= num_problems <= MOST_PROBLEMS:
        msg = f"{num_problems} tasks: {len(FAMILIES)}, one of each family, are the fewest, and {MOST_PROBLEMS} the most"
        raise UsageError(msg)
    share, more = divmod(num_problems, len(FAMILIES))
    drawn = [distinct(family, split, share + (i < more), seed) for i, family in enumerate(FAMILIES)]
    return tuple(problems[turn] for turn in range(share + 1) for problems in drawn if turn < len(problems))


def fingerprints() -> dict[str, dict[str, str]]:
    """Return the bundled models' file names and SHA-256, by the names of the arms that are those models alone."""
    return {SMALL.name: fingerprint(BUNDLED_LOCAL), LARGE.name: fingerprint(BUNDLED_CLOUD)}


def fingerprint(path: Path) -> dict[str, str]:
    """Return a model's file name and SHA-256 for JSON."""
    return {"file": path.name, "sha256": sha256_of(path)}


def estimate_to_json(estimate: Estimate | None) -> dict[str, float | None]:
    """Round an estimate for JSON; an undefined value and an unbounded end are null."""
    if estimate is None:
        return dict.fromkeys(("value", "low", "high"))
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: round(number, 4) if math.isfinite(number) else None for name, number in numbers.items()}


def bill_to_json(comparison: Comparison, name: str) -> dict[str, float | None]:
    """Return an arm's bill for JSON, its ratio and that one's interval."""
    ratio = estimate_to_json(comparison.bill_ratio(name))
    ends = {"low": ratio["low"], "high": ratio["high"]}
    return {"nanousd": comparison.trials[name].nanousd, "ratio": ratio["value"], **ends}
