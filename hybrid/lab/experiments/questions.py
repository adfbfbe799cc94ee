"""The questions that are asked: generated problems, filed ones, and questions to an assistant; which are for what.

Scores are fitted on problems of the calibration split, so what is tuned is tried on other problems of that split, and
the test split is asked once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from hybrid.errors import UsageError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.grid import GradedQuestion, Grid
from hybrid.lab.experiments.trials import teaching_grid
from hybrid.tasks import BY_NAME, FAMILIES, MAX_TOKENS, Problem, distinct
from hybrid.tasks.assistant import QUESTIONS, AssistantQuestion, QuestionSplit
from hybrid.tasks.problem import Wording

Half: TypeAlias = Literal["calibration", "test"]
Asked = TypeVar("Asked", bound=GradedQuestion)
# Problems of the calibration split that scores are fitted on: so many of each family, drawn with this seed.
NUM_FITTED, FITTED_SEED = 80, 0
# The divergence that turns a token down: the demonstration's.
THRESHOLD = 0.7


@dataclass(frozen=True)
class ProblemQuestion:
    """A generated problem as a question."""

    problem: Problem
    max_tokens: int = MAX_TOKENS

    @property
    def text(self) -> str:
        """The problem's question."""
        return self.problem.question

    @property
    def kind(self) -> str:
        """The problem's family."""
        return self.problem.family

    def grade(self, text: str) -> bool:
        """Grade as the family does."""
        right: bool = BY_NAME[self.kind].grade(self.problem, text)
        return right


def draw_problems(split: Half, num: int, seed: int) -> tuple[Problem, ...]:
    """Draw ``num`` problems a family, the families taking turns, but of the calibration split none that fits a score.

    A family that has fewer gives what it has.
    """
    fitted = frozenset(each.canonical for each in fitted_problems()) if split == "calibration" else frozenset[str]()
    drawn: list[Sequence[Problem]] = []
    for family in FAMILIES:
        # A longer draw begins as a shorter one, so this many hold the wanted ones where the family has them.
        wanted = num + (NUM_FITTED if fitted else 0)
        found = [each for each in distinct(family, split, wanted, seed) if each.canonical not in fitted]
        drawn.append(found[:num])
    return tuple(problems[turn] for turn in range(num) for problems in drawn if turn < len(problems))


@cache
def fitted_problems() -> tuple[Problem, ...]:
    """Return the calibration problems that scores are fitted on, the families taking turns."""
    drawn = [distinct(family, "calibration", NUM_FITTED, FITTED_SEED) for family in FAMILIES]
    return tuple(problems[turn] for turn in range(NUM_FITTED) for problems in drawn)


def as_questions(problems: Sequence[Problem]) -> tuple[ProblemQuestion, ...]:
    """Return problems as questions."""
    return tuple(ProblemQuestion(each) for each in problems)


def draw_questions(
    split: QuestionSplit | None, num: int, seed: int, *, graded: bool = False
) -> Sequence[AssistantQuestion]:
    """Draw questions in an order that the seed alone decides; fewer where there are not so many."""
    found = [each for each in QUESTIONS if split in {None, each.split} and (each.graded or not graded)]
    return ordered(found, seed)[:num]


def ordered(questions: Sequence[Asked], seed: int) -> tuple[Asked, ...]:
    """Return questions in an order that the seed alone decides."""
    return tuple(sorted(questions, key=lambda each: hashlib.sha256(f"{seed} {each.text}".encode()).digest()))


# Problems with right answers from a file, for pairs of models that were trained on other tasks than the bundled one.
#
# A line is an object: ``split`` (calibration or test), ``kind`` (what is like it), ``question``, ``answer``, and where
# it is known ``closings``, the texts that may stand before the answer ("answer is " if there are none). Grading is
# exact: an answer is right if what follows the last of any closing, or else all of it, is the filed one. The law
# (``tests/bench/test_filed_problems.py``): whatever a file holds, it is problems or a UsageError that names the line.

# A worked answer says so before its result.
RESULT = "answer is "


@dataclass(frozen=True)
class ProblemRow:
    """A problem of a file. ``closings``: what may stand before the answer; none: what does by default."""

    split: Half
    kind: str
    text: str
    answer: str
    max_tokens: int = MAX_TOKENS
    closings: tuple[str, ...] = ()

    def grade(self, text: str) -> bool:
        """Tell whether an answer is right.

        >>> problem = ProblemRow("test", "sum", "What is 1 + 2?", "3.")
        >>> [problem.grade(text) for text in ("3.", "1 + 2 = 3. The answer is 3.", "The answer is 3. Or 4.")]
        [True, True, False]
        >>> ProblemRow("test", "sum", "What is 1 + 2?", "3", closings=("Result:",)).grade("1 + 2 = 3. Result: 3.")
        True
        """
        if self.closings:
            return self.answer in Wording(self.closings).finals(text)
        return text.rsplit(RESULT, 1)[-1].strip() == self.answer


def read_problems(path: Path, split: Half, num: int | None = None) -> tuple[ProblemRow, ...]:
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


def _problem(path: Path, number: int, line: str) -> ProblemRow:
    try:
        told: Any = json.loads(line)
        split, kind, question, answer = (told[name] for name in ("split", "kind", "question", "answer"))
        closings = told.get("closings", [])
    except (ValueError, TypeError, KeyError, RecursionError):
        split = None
    known = split in get_args(Half) and isinstance(closings, list)
    if not known or not all(isinstance(each, str) for each in (kind, question, answer, *closings)):
        msg = f"{path}, line {number}: no problem with the texts split (calibration or test), kind, question and answer"
        raise UsageError(msg)
    return ProblemRow(split, kind, question, answer.strip(), closings=tuple(closings))


# The ground of ``hybrid bench peers``: a pair with problems of two halves. The calibration half has two parts, the
# kinds taking turns in both: labels that scores are fitted to, and questions that dials are set on. The test half is
# asked for by itself, with dials that are fixed before.

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
REAL_MODELS = "real:d2", "real"
# The bundled pair's questions: so many a family of either half, the test half drawn with a seed of its own.
NUM_DIALS, NUM_TEST, TEST_SEED = 60, 100, 61


@dataclass(frozen=True)
class ProblemSet:
    """A pair of models with problems: ``name``, its two files, the problems of one half in the order they are asked.

    ``num_labels``: of the calibration half so many are labels, the others set dials.
    """

    name: str
    local: Path
    cloud: Path
    questions: tuple[GradedQuestion, ...]
    num_labels: int = NUM_LABELS

    @property
    def grid(self) -> Grid:
        """What is run of it."""
        return teaching_grid(self.name, self.questions, THRESHOLD, RUN_ARMS, NUM_DRAWN)


def ladder_ground(folder: Path, half: Half, num: int | None = None) -> ProblemSet:
    """Read a ladder: ``small.gguf``, ``large.gguf`` and ``problems.jsonl`` of a folder. Raises UsageError."""
    questions = read_problems(folder / "problems.jsonl", half, num)
    return ProblemSet(folder.name, folder / "small.gguf", folder / "large.gguf", questions)


def bundled_ground(local: Path, cloud: Path, half: Half, num: int | None = None) -> ProblemSet:
    """Return the bundled pair's own problems: those that its score was fitted to come first in the calibration half."""
    if half == "test":
        return ProblemSet("bundled", local, cloud, as_questions(draw_problems("test", num or NUM_TEST, TEST_SEED)))
    labels = as_questions(fitted_problems())[:NUM_LABELS]
    dialled = as_questions(draw_problems("calibration", num or NUM_DIALS, 0))
    return ProblemSet("bundled", local, cloud, (*labels, *dialled))


def real_ground(local: Path, cloud: Path, half: Half) -> ProblemSet:
    """Return the graded questions to an assistant, over a pair of real models: some 140 in the calibration half."""
    return ProblemSet("real", local, cloud, tuple(draw_questions(half, 1000, 0, graded=True)), NUM_REAL_LABELS)
