"""The questions that a pair is calibrated on where the user brings none: those of the calibration splits.

A bundled pair is asked generated problems, its families taking turns; any other pair the questions to an assistant.
Neither split was trained or tested on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hybrid.errors import UsageError
from hybrid.model_names import BUNDLED
from hybrid.tasks import FAMILIES, MAX_TOKENS, TaskFamily, distinct, wordings
from hybrid.tasks.assistant import QUESTIONS
from hybrid.tune.buying import AskedForLabels

# Enough for a dial: on real text 160 questions set one within a tenth of the share that was asked for. A score of
# verdicts goes on getting better: on the bundled pair its AUROC is 0.79 with 140 labels and 0.95 with 1,120.
NUM_QUESTIONS = 200


def bundled_families(cloud: str | None) -> Sequence[TaskFamily] | None:
    """Return the families that a pair with this cloud was trained on; None where it is not bundled."""
    if cloud in wordings.TASTES:
        return wordings.FAMILIES
    return FAMILIES if cloud is None or cloud in BUNDLED else None


def bundled_questions(
    num: int, max_tokens: int | None = None, families: Sequence[TaskFamily] = FAMILIES
) -> list[AskedForLabels]:
    """Return problems of the calibration split, seed 0. Raises UsageError where there are not so many."""
    share, more = divmod(num, len(families))
    try:
        drawn = [distinct(family, "calibration", share + (i < more), 0) for i, family in enumerate(families)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    turns = [problems[turn] for turn in range(share + 1) for problems in drawn if turn < len(problems)]
    return [AskedForLabels(each.question, {"max_tokens": max_tokens or MAX_TOKENS}) for each in turns]


def assistant_questions(num: int, max_tokens: int | None = None) -> list[AskedForLabels]:
    """Return questions of the calibration split in an order of their own. Raises UsageError where there are fewer."""
    found = [each for each in QUESTIONS if each.split == "calibration"]
    if num > len(found):
        msg = f"there are {len(found)} calibration questions, not {num}: bring your own with --questions FILE"
        raise UsageError(msg)
    drawn = sorted(found, key=lambda each: hashlib.sha256(f"0 {each.text}".encode()).digest())[:num]
    return [AskedForLabels(each.text, {"max_tokens": max_tokens or each.max_tokens}) for each in drawn]
