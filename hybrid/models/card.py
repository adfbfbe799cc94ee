"""The model card: what each file says of itself, what was measured, and the file's fingerprint.

``card.json`` beside the models is the card; ``CARD.md`` is the same as a page. Both are written by
``examples/train_reference_models/card.py``. The law, tested in ``tests/models/test_card.py``: a file passes only if it
is, byte for byte, the one that was measured.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybrid.errors import UsageError

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
