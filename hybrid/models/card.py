"""The model card: what each file says of itself, what was measured, and the file's fingerprint.

``card.json`` beside the models is the card; ``README.md`` is the same as a page (``card_page.py``). The law, tested in
``tests/models/test_card.py``: a file passes only if it is, byte for byte, the one that was measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.models import evaluation
from hybrid.models import evaluation as agreement
from hybrid.models.evaluation import GROUPS, AnsweringModel, GradedAnswer, ModelGroup, ReportProgress, open_model
from hybrid.tasks import Split

Answers: TypeAlias = Mapping[str, Sequence[GradedAnswer]]

CARD, PAGE = "card.json", "README.md"
NAMES = tuple(name for group in GROUPS for name in group.names)
NUM_PROBLEMS = 150
SPLIT: Split = "test"


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
    beside_large: agreement.AgreementSummary | None
    beside_large_by_family: dict[str, agreement.AgreementSummary]


class ModelCards(_CardPart):
    """The models of a folder, measured on as many problems of each family."""

    split: str
    num_problems: int
    models: Annotated[dict[str, ModelCard], Field(min_length=1)]


def measure_models(folder: Path, report_progress: ReportProgress, num_problems: int = NUM_PROBLEMS) -> ModelCards:
    """Measure the models of a folder on the test split.

    Raises UsageError where a family has not so many problems, EngineError where a model is missing or unusable.
    """
    cards: dict[str, ModelCard] = {}
    for group in GROUPS:
        cards |= _measure_group(group, folder, report_progress, num_problems)
    return ModelCards(split=SPLIT, num_problems=num_problems, models=cards)


def _measure_group(
    group: ModelGroup, folder: Path, report_progress: ReportProgress, num_problems: int
) -> dict[str, ModelCard]:
    """Measure the models of a group on its problems."""
    problems = evaluation.problems_of(SPLIT, num_problems, group=group)
    with ExitStack() as stack:
        models = {name: stack.enter_context(open_model(folder / f"{name}.gguf")) for name in group.names}
        graded = {
            name: evaluation.evaluate(model, problems, _told_of(name, report_progress), group=group)
            for name, model in models.items()
        }
        cards = {}
        for name in group.names:
            if name != group.large:
                report_progress(f"{name} beside {group.large}")
            beside = _beside(name, group.large, models, graded)
            cards[name] = _card(folder / f"{name}.gguf", group, graded[name], beside)
        return cards


def _told_of(name: str, report_progress: ReportProgress) -> ReportProgress:
    return lambda family: report_progress(f"{name} answers {family}")


def _card(path: Path, group: ModelGroup, answers: Answers, beside: Mapping[str, agreement.Agreement]) -> ModelCard:
    """Put together what a file says of itself and what was measured."""
    scores = {name: evaluation.count_right(found) for name, found in answers.items()}
    weights = Weights(path)
    try:
        note = weights.metadata("hybrid.training")
        sizes = {key: int(weights.metadata(f"llama.{full}") or 0) for key, full in _SIZES.items()}
        return ModelCard(
            file=fingerprint(path),
            parameters=weights.num_parameters,
            num_tokens=weights.num_tokens,
            pre_tokenizer=weights.metadata("tokenizer.ggml.pre") or "",
            shape=ModelShape(**sizes),
            training=_training(note),
            overall=round(evaluation.overall(scores), 4),
            families={
                name: TaskFamilyScore(**evaluation.accuracy_to_json(scores[name]), levels=_levels(group, found))
                for name, found in answers.items()
            },
            beside_large=agreement.Agreement.joined(beside.values()).summary() if beside else None,
            beside_large_by_family={name: found.summary() for name, found in beside.items()},
        )
    finally:
        weights.close()


def _training(note: str | None) -> TrainingRun | None:
    """Read the training script's note; None where the file has no such note."""
    try:
        return TrainingRun.model_validate_json(note or "")
    except ValidationError:
        return None


_SIZES = {
    "width": "embedding_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "hidden": "feed_forward_length",
    "context": "context_length",
}


def fingerprint(path: Path) -> Fingerprint:
    """Return a file's size in bytes and its SHA-256. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return Fingerprint(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _levels(group: ModelGroup, answers: Sequence[GradedAnswer]) -> tuple[tuple[int, int], ...]:
    """Return right answers and problems of each level, from 1."""
    numbers = group.families[answers[0].problem.family].numbers
    of_level = [[answer.correct for answer in answers if answer.problem.level == number] for number in numbers]
    return tuple((sum(right), len(right)) for right in of_level)


def _beside(
    name: str, large: str, models: Mapping[str, AnsweringModel], graded: Mapping[str, Answers]
) -> dict[str, agreement.Agreement]:
    """Compare a model with the large one by family; empty for the large one and for a model with other tokens."""
    if name == large or not _one_vocabulary(models[name], models[large]):
        return {}
    return {
        family: agreement.compare(models[name], models[large], graded[name][family], graded[large][family])
        for family in graded[name]
    }


def _one_vocabulary(first: AnsweringModel, second: AnsweringModel) -> bool:
    a, b = first.engine, second.engine
    return a.num_tokens == b.num_tokens and all(a.piece(token) == b.piece(token) for token in range(a.num_tokens))


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
