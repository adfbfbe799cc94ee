"""Problems with right answers from a file, for pairs of models that were trained on other tasks than the bundled one.

A line is an object: ``split`` (calibration or test), ``kind`` (what is like it), ``question``, ``answer``, and where
it is known ``closings``, the texts that may stand before the answer ("answer is " if there are none). Grading is exact:
an answer is right if what follows the last of any closing, or else all of it, is the filed one. The law
(``tests/bench/test_filed_problems.py``): whatever a file holds, it is problems or a UsageError that names the line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hybrid.errors import UsageError
from hybrid.tasks import MAX_TOKENS
from hybrid.tasks.wording import Wording

FiledSplit = Literal["calibration", "test"]
# A worked answer says so before its result.
RESULT = "answer is "


@dataclass(frozen=True)
class FiledProblem:
    """A problem of a file. ``closings``: what may stand before the answer; none: what does by default."""

    split: FiledSplit
    kind: str
    text: str
    answer: str
    max_tokens: int = MAX_TOKENS
    closings: tuple[str, ...] = ()

    def grade(self, text: str) -> bool:
        """Tell whether an answer is right.

        >>> problem = FiledProblem("test", "sum", "What is 1 + 2?", "3.")
        >>> [problem.grade(text) for text in ("3.", "1 + 2 = 3. The answer is 3.", "The answer is 3. Or 4.")]
        [True, True, False]
        >>> FiledProblem("test", "sum", "What is 1 + 2?", "3", closings=("Result:",)).grade("1 + 2 = 3. Result: 3.")
        True
        """
        if self.closings:
            return self.answer in Wording(self.closings).finals(text)
        return text.rsplit(RESULT, 1)[-1].strip() == self.answer


def read_problems(path: Path, split: FiledSplit, num: int | None = None) -> tuple[FiledProblem, ...]:
    """Read the problems of a split, ``num`` of each kind at most, the kinds taking turns; each question once.

    Raises UsageError where the file cannot be read, a line is no problem, or there is none of the split.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as problems: {error}"
        raise UsageError(msg) from None
    read = [_problem(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    wanted = {each.text: each for each in read if each.split == split}.values()
    kinds = [[each for each in wanted if each.kind == kind][:num] for kind in dict.fromkeys(e.kind for e in wanted)]
    found = tuple(own[turn] for turn in range(max(map(len, kinds), default=0)) for own in kinds if turn < len(own))
    if not found:
        msg = f"{path} holds no problem of the split {split}"
        raise UsageError(msg)
    return found


def _problem(path: Path, number: int, line: str) -> FiledProblem:
    try:
        told: Any = json.loads(line)
        split, kind, question, answer = (told[name] for name in ("split", "kind", "question", "answer"))
        closings = told.get("closings", [])
    except (ValueError, TypeError, KeyError, RecursionError):
        split = None
    known = split in get_args(FiledSplit) and isinstance(closings, list)
    if not known or not all(isinstance(each, str) for each in (kind, question, answer, *closings)):
        msg = f"{path}, line {number}: no problem with the texts split (calibration or test), kind, question and answer"
        raise UsageError(msg)
    return FiledProblem(split, kind, question, answer.strip(), closings=tuple(closings))
