"""What ``hybrid bench peers`` runs: a pair's problems of both halves, answered once by all that is compared.

The calibration half has two parts, the kinds taking turns in both: labels that scores are fitted to, and questions that
dials are set on. The test half is asked for by itself, with dials that are fixed before. Nothing here reads an answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from hybrid.errors import UsageError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.learning_trial import TeachingSection
from hybrid.lab.experiments.problem_suite import THRESHOLD, GradedQuestion, as_questions, draw_problems, fitted_problems
from hybrid.lab.experiments.suite import PAIRS, REFERENCE, draw_questions
from hybrid.tasks import MAX_TOKENS
from hybrid.tasks.problem import Wording

# Problems with right answers from a file, for pairs of models that were trained on other tasks than the bundled one.
#
# A line is an object: ``split`` (calibration or test), ``kind`` (what is like it), ``question``, ``answer``, and where
# it is known ``closings``, the texts that may stand before the answer ("answer is " if there are none). Grading is
# exact: an answer is right if what follows the last of any closing, or else all of it, is the filed one. The law
# (``tests/bench/test_filed_problems.py``): whatever a file holds, it is problems or a UsageError that names the line.

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


Half: TypeAlias = Literal["calibration", "test"]

KL_SPAN, KL_HOLD = 128, 96  # the preset's own are shorter, and dearer at these prices
# The rules that work inside an answer cannot be worked out from both models' texts, so each dial is run.
RUN_ARMS = (
    *(Arm(f"once:{nats:g}", "once", {"threshold": nats}) for nats in (0.3, 0.7, 2.0)),
    *(Arm(f"kl:{nats:g}", "kl", {"threshold": nats, "span": KL_SPAN, "hold": KL_HOLD}) for nats in (0.3, 0.7, 2.0)),
    *(Arm(f"excess:{nats:g}", "excess", {"threshold": nats}) for nats in (0.5, 1.0, 2.0)),
    *(Arm(f"doubt:{nats:g}", "doubt", {"entropy": nats}) for nats in (0.03, 0.1, 0.3, 0.5, 1.0)),
)
# So many of the answers are written again by the client over the bundled server: of 5,000 questions some 160.
CHECK_SHARE = 0.002
# Self-consistency asks for so many answers of the local model, drawn.
NUM_DRAWN = 3
# The most labels that a score is fitted to; dials are set on the questions after them.
NUM_LABELS, NUM_REAL_LABELS = 1000, 100
# The real pair: the smaller of the two local models, and the reference.
REAL_MODELS = PAIRS["d2"], REFERENCE
# The bundled pair's questions: so many a family of either half, the test half drawn with a seed of its own.
NUM_DIALS, NUM_TEST, TEST_SEED = 60, 100, 61


@dataclass(frozen=True)
class Ground:
    """A pair of models with problems: ``name``, its two files, the problems of one half in the order they are asked.

    ``num_labels``: of the calibration half so many are labels, the others set dials.
    """

    name: str
    local: Path
    cloud: Path
    questions: tuple[GradedQuestion, ...]
    num_labels: int = NUM_LABELS

    @property
    def section(self) -> TeachingSection:
        """What is run of it."""
        return TeachingSection(self.name, self.name, self.questions, THRESHOLD, RUN_ARMS, NUM_DRAWN)


def ladder_ground(folder: Path, half: Half, num: int | None = None) -> Ground:
    """Read a ladder: ``small.gguf``, ``large.gguf`` and ``problems.jsonl`` of a folder. Raises UsageError."""
    questions = read_problems(folder / "problems.jsonl", half, num)
    return Ground(folder.name, folder / "small.gguf", folder / "large.gguf", questions)


def bundled_ground(local: Path, cloud: Path, half: Half, num: int | None = None) -> Ground:
    """Return the bundled pair's own problems: those that its score was fitted to come first in the calibration half."""
    drawn: Sequence[GradedQuestion]
    if half == "test":
        drawn = as_questions(draw_problems("test", num or NUM_TEST, TEST_SEED))
    else:
        labels = as_questions(fitted_problems())[:NUM_LABELS]
        drawn = (*labels, *as_questions(draw_problems("calibration", num or NUM_DIALS, 0)))
    return Ground("bundled", local, cloud, tuple(drawn))


def real_ground(local: Path, cloud: Path, half: Half) -> Ground:
    """Return the graded questions to an assistant, over a pair of real models: some 140 in the calibration half."""
    return Ground("real", local, cloud, tuple(draw_questions(half, 1000, 0, graded=True)), NUM_REAL_LABELS)
