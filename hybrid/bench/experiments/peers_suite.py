"""What ``hybrid bench peers`` runs: a pair's problems of both halves, answered once by all that is compared.

The calibration half has two parts, the kinds taking turns in both: labels that scores are fitted to, and questions that
dials are set on. The test half is asked for by itself, with dials that are fixed before. Nothing here reads an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hybrid.bench.arms import Arm
from hybrid.bench.experiments.filed_problems import read_problems
from hybrid.bench.experiments.learning_trial import TeachingSection
from hybrid.bench.experiments.problem_suite import THRESHOLD, as_questions, draw_problems, fitted_problems
from hybrid.bench.experiments.problem_trial import GradedQuestion
from hybrid.bench.experiments.suite import PAIRS, REFERENCE, draw_questions

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
