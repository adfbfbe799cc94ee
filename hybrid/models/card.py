"""The model card: what each file says of itself, what was measured and how, and the file's fingerprint.

``card.json`` beside the models is the card; ``CARD.md`` is the same as a page. Both are written by
``examples/train_reference_models/card.py``. The law, tested in ``tests/models/test_card.py``: a file passes only if it
is, byte for byte, the one that was measured.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybrid.engine import Engine
from hybrid.engine.llama import Weights
from hybrid.engine.port import Logits
from hybrid.errors import EngineError, UsageError
from hybrid.tasks import BY_NAME, MAX_TOKENS, Problem, Split, TaskFamily, distinct, wordings
from hybrid.tasks.families import MIXES
from hybrid.tasks.statistics import Estimate, wilson
from hybrid.types import Ids, Message

# Count right answers of one model alone, family by family.
#
# The laws, tested in ``tests/models/test_evaluation.py``: the same model on the same problems gives the same figures;
# families weigh alike, whatever the number of problems of each.

# Which models answer which families, and which of them is the one that the others stand beside.
#
# The law, tested in ``tests/models/test_groups.py``: every bundled model is of one group, and no family is in two. A
# model that is not bundled is asked what the ladder is.


@dataclass(frozen=True)
class ModelGroup:
    """Models that answer the same families, with their families by name; ``large`` is the one that is given all.

    ``max_tokens`` is the most that an answer may have.
    """

    names: tuple[str, ...]
    large: str
    families: Mapping[str, TaskFamily]
    max_tokens: int


LADDER = ModelGroup(tuple(MIXES), "large", BY_NAME, MAX_TOKENS)
WORDINGS = ModelGroup(
    tuple(wordings.TASTES), "wordings-large", {each.name: each for each in wordings.FAMILIES}, wordings.MAX_TOKENS
)
GROUPS = (LADDER, WORDINGS)


def group_of(model: str) -> ModelGroup:
    """Return the group of a model's name; the ladder for any that is not bundled."""
    return next((group for group in GROUPS if model in group.names), LADDER)


# Answer questions greedily with one model and keep its logits.
#
# The law, tested in ``tests/models/test_evaluation.py``: an answer is the text that ``hybrid ask --policy local``
# shows.


@dataclass(frozen=True)
class ModelAnswer:
    """A greedy answer. ``ids`` include the end token, ``text`` does not.

    ``rows`` are the logits before each id, shape (len(ids), V).
    """

    prompt: Ids
    ids: Ids
    rows: Logits
    text: str


class AnsweringModel:
    """One model that answers one question after the other."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine; it stays the caller's to close."""
        self.engine = engine

    def write(self, question: str, max_tokens: int = MAX_TOKENS, *, keep_rows: bool = True) -> ModelAnswer:
        """Answer a question greedily until the end, ``max_tokens`` or a full context; the lowest id wins a tie.

        Without ``keep_rows`` only the last row is kept: at 49,152 tokens each takes 192 KiB.
        """
        engine = self.engine
        prompt = engine.render([Message("user", question)])
        limit = min(max_tokens, engine.num_context - len(prompt))
        engine.rewind(0)
        ids: list[int] = []
        rows = [engine.extend(prompt)[-1]]
        while True:
            ids.append(int(rows[-1].argmax()))
            if ids[-1] in engine.end_ids or len(ids) == limit:
                break
            if not keep_rows:
                rows.clear()
            rows.append(engine.extend((ids[-1],))[-1])
        shown = ids[:-1] if ids[-1] in engine.end_ids else ids
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # half a character at the end is not shown
        text = "".join(decoder.decode(engine.piece(token)) for token in shown)
        return ModelAnswer(prompt, tuple(ids), np.stack(rows), text)


@contextmanager
def open_model(path: Path) -> Iterator[AnsweringModel]:
    """Load a GGUF file on one thread. Raises EngineError where that cannot be, or the file has no chat template."""
    weights = Weights(path)
    try:
        if weights.metadata("tokenizer.chat_template") is None:
            msg = f"{path} has no chat template, so that no question can be put to it"
            raise EngineError(msg)
        engine = weights.context(threads=1)
        try:
            yield AnsweringModel(engine)
        finally:
            engine.close()
    finally:
        weights.close()


# Called before each family with its name.
ReportProgress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class GradedAnswer:
    """A problem, the answer, and whether it is right."""

    problem: Problem
    written: ModelAnswer
    correct: bool


@dataclass(frozen=True)
class Accuracy:
    """A number of problems, and how many were answered rightly."""

    num_problems: int
    num_correct: int

    @property
    def share(self) -> Estimate:
        """The share with Wilson's interval."""
        return wilson(self.num_correct, self.num_problems)


def count_right(graded: Sequence[GradedAnswer]) -> Accuracy:
    """Count right answers."""
    return Accuracy(len(graded), sum(answer.correct for answer in graded))


def problems_of(split: Split, num_problems: int, seed: int = 0, group: ModelGroup = LADDER) -> dict[str, list[Problem]]:
    """Draw as many problems of each family of a group. Raises UsageError where a family has not so many."""
    try:
        return {name: distinct(family, split, num_problems, seed) for name, family in group.families.items()}
    except ValueError as error:
        raise UsageError(str(error)) from None


def evaluate(
    model: AnsweringModel,
    problems: Mapping[str, Sequence[Problem]],
    report_progress: ReportProgress,
    *,
    group: ModelGroup = LADDER,
    keep_rows: bool = True,
) -> dict[str, list[GradedAnswer]]:
    """Let a model answer problems of a group, and grade it. ``keep_rows`` as in ``AnsweringModel.write``."""
    found: dict[str, list[GradedAnswer]] = {}
    for name, asked in problems.items():
        report_progress(name)
        grade = group.families[name].grade
        answers = [(each, model.write(each.question, group.max_tokens, keep_rows=keep_rows)) for each in asked]
        found[name] = [GradedAnswer(each, written, grade(each, written.text)) for each, written in answers]
    return found


def overall(scores: Mapping[str, Accuracy]) -> float:
    """Return the share of right answers, each family weighing alike."""
    return sum(score.share.value for score in scores.values()) / len(scores)


def to_json(model: str, graded: Mapping[str, Sequence[GradedAnswer]]) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    scores = {name: count_right(answers) for name, answers in graded.items()}
    return {
        "model": model,
        "overall": round(overall(scores), 4),
        "families": {name: accuracy_to_json(found) for name, found in scores.items()},
    }


def accuracy_to_json(found: Accuracy) -> dict[str, float]:
    """Return a family's figures for JSON."""
    return {
        "n": found.num_problems,
        "correct": found.num_correct,
        "low": round(found.share.low, 4),
        "high": round(found.share.high, 4),
    }


CARD = "card.json"


class _CardPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelShape(_CardPart):
    """The network's sizes."""

    width: int
    layers: int
    heads: int
    hidden: int
    context: int


class TrainingRun(_CardPart):
    """The training script's note in the file. ``weights``: how often a family came, 1 where it is not named.

    ``teacher``: the model whose rows were learnt in the place of the answers' tokens.
    """

    step: int
    tokens: int
    answer_tokens: int
    seconds: int
    seed: int
    device: str
    weights: dict[str, float] = {}
    teacher: str | None = None


class Fingerprint(_CardPart):
    """A file's size and SHA-256."""

    bytes: int
    sha256: str


class TaskFamilyScore(_CardPart):
    """A family's right answers with Wilson's interval; ``levels``: right answers and problems of each, from 1."""

    n: int
    correct: int
    low: float
    high: float
    levels: tuple[tuple[int, int], ...]


class AgreementSummary(_CardPart):
    """The figures of an agreement, for the card.

    Along the large model's answers (``num_large_tokens``): the share of positions where both would write the same
    token, and the mean KL. Along the small model's (``num_small_tokens``): how often the large one would write another
    token, and the AUROC of the small one's entropy.
    """

    agreement: float
    mean_kl: float
    num_large_tokens: int
    auroc: float | None
    num_differing: int
    num_small_tokens: int


class ModelCard(_CardPart):
    """One model. ``beside_large`` is None for its group's large model itself and for a model with other tokens."""

    file: Fingerprint
    parameters: int
    num_tokens: int
    pre_tokenizer: str
    shape: ModelShape
    training: TrainingRun | None
    overall: float
    families: dict[str, TaskFamilyScore]
    beside_large: AgreementSummary | None
    beside_large_by_family: dict[str, AgreementSummary]


class ModelCards(_CardPart):
    """The models of a folder, measured on as many problems of each family."""

    split: str
    num_problems: int
    models: Annotated[dict[str, ModelCard], Field(min_length=1)]


def fingerprint(path: Path) -> Fingerprint:
    """Return a file's size in bytes and its SHA-256. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return Fingerprint(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def load(folder: Path) -> ModelCards:
    """Read the card beside the models. Raises UsageError where there is none, or it cannot be read."""
    path = folder / CARD
    try:
        return ModelCards.model_validate_json(path.read_bytes())
    except ValidationError:
        msg = f"{path}: it is no model card"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise UsageError(msg) from None


def differences(folder: Path, card: ModelCards) -> dict[str, str | None]:
    """Return, by model, None or the difference between file and card. A GGUF file that is not in the card differs."""
    found = {name: _difference(folder / f"{name}.gguf", model.file) for name, model in card.models.items()}
    others = sorted(path.stem for path in folder.glob("*.gguf") if path.stem not in found)
    return found | dict.fromkeys(others, "the card does not know it")


def _difference(path: Path, expected: Fingerprint) -> str | None:
    try:
        found = fingerprint(path)
    except OSError as error:
        return str(error.strerror)
    if found.bytes != expected.bytes:
        return f"{found.bytes} bytes, not {expected.bytes}"
    return None if found == expected else f"SHA-256 {found.sha256}, not {expected.sha256}"
