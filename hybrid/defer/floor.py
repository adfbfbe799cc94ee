"""The floor: random checks of what would be kept, so that being wrong there is seen.

What is kept has no verdict. A share of it is checked by a coin of its own, and each such check stands for 1 / share
others. One cumulative sum (CUSUM, Page 1954) of the floor's verdicts against the chances that were told raises the
share where drafts are turned down far more often than told. Laws (``tests/defer/test_floor.py``): the sum is the naive
one, and on chances that are true a false alarm is rare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b

from hybrid.defer.outcome import DraftOutcome

FLOOR, RAISED_FLOOR, RAISED_QUESTIONS = 0.05, 0.25, 100
# The alternative: the odds of being turned down are eight times those that were told. On true chances the expected
# product of the likelihood ratios is 1, so that an alarm within N verdicts has a chance of N / 50 at most.
ODDS_RATIO, ALARM = 8.0, math.log(50.0)
# A verdict against a chance below this says no more than one against it: told chances that small are not that exact.
LEAST_CHANCE = 0.02


def floor_coin(*key: object) -> float:
    """Return a number in [0, 1) that is uniform over keys and always the same for one (its ``repr`` counts)."""
    return (int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "big") >> 11) / 2**53


def floor_after(outcomes: Iterable[DraftOutcome]) -> float:
    """Return the share of what would be kept that is to be checked next."""
    return RAISED_FLOOR if raised_for(outcomes) else FLOOR


def raised_for(outcomes: Iterable[DraftOutcome]) -> int:
    """Return for how many more questions the floor is raised; 0: it is not."""
    total, left = 0.0, 0
    for each in outcomes:
        left -= left > 0 and each.after == "start"
        if not (each.keeps and each.turned_down is not None):
            continue
        total = max(0.0, total + _evidence(each.chance, turned_down=each.turned_down))
        if total >= ALARM:
            total, left = 0.0, RAISED_QUESTIONS
    return left


def _evidence(chance: float, *, turned_down: bool) -> float:
    """Return the logarithm of the likelihood ratio of a verdict: odds that are eight times as high against these."""
    told = min(max(chance, LEAST_CHANCE), 1.0 - LEAST_CHANCE)
    scale = 1.0 - told + told * ODDS_RATIO
    return (math.log(ODDS_RATIO) if turned_down else 0.0) - math.log(scale)
