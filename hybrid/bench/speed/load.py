"""What a benchmark decodes: a model, a text for it, and how much of it is in the cache at a measurement.

Two kinds. A random model has the shape of a real one at 152k tokens, and its text is drawn. A model that the user names
is measured on questions in English, also where its context is nearly full.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, cycle, islice, zip_longest
from pathlib import Path

import numpy as np

from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.tasks.assistant import KINDS, QUESTIONS
from hybrid.types import Ids

# Tokens in the cache; the longer ones are measured where a named model was trained with as many.
NEAR, LONG = 100, (2000, 7000)
# Ids below this may be control tokens or bytes in a random model's vocabulary.
FIRST_WORD = 300


@dataclass(frozen=True)
class NamedPair:
    """Models that the user named; the ``cloud`` one is the reference, and has the same vocabulary."""

    local: Path
    cloud: Path


def mixed_questions() -> list[str]:
    """Return every question to an assistant, the kinds in turn."""
    by_kind = [[question.text for question in QUESTIONS if question.kind == kind] for kind in KINDS]
    return [text for text in chain.from_iterable(zip_longest(*by_kind)) if text is not None]


def check_same_vocabulary(local: Weights, cloud: Weights) -> None:
    """Raise UsageError where the models do not name tokens alike."""
    if local.vocabulary_digest != cloud.vocabulary_digest:
        msg = f"{local.path} and {cloud.path} have different vocabularies: one cannot check what the other drafts"
        raise UsageError(msg)


@dataclass(frozen=True)
class BenchmarkLoad:
    """A model and its text. ``lengths``: after how many tokens something is measured."""

    model: Path
    lengths: tuple[int, ...] = (NEAR,)
    named: bool = False

    @classmethod
    def of(cls, model: Path, room: int) -> BenchmarkLoad:
        """Take a model that the user names, at each length that leaves ``room`` tokens in its trained context.

        Raises EngineError where it cannot be loaded, UsageError where its context is too short.
        """
        weights = Weights(model)
        most = weights.longest_context
        weights.close()
        lengths = tuple(length for length in (NEAR, *LONG) if most is None or length + room <= most)
        if not lengths:
            msg = f"{model} was trained with {most} tokens of context: {NEAR + room} are needed to measure it"
            raise UsageError(msg)
        return cls(model, lengths, named=True)

    def text(self, weights: Weights, num_tokens: int) -> Ids:
        """Return the first tokens of the text, the same ones every time."""
        if not self.named:
            drawn = np.random.default_rng(0).integers(FIRST_WORD, weights.num_tokens, num_tokens)
            return tuple(drawn.tolist())
        ids = weights.tokenize("".join(f"{question}\n\n" for question in mixed_questions()))
        return tuple(islice(cycle(ids), num_tokens))

    def describe(self, weights: Weights) -> str:
        """Name the model by its size, and by its file where the user named it."""
        size = f"{weights.num_parameters // 1_000_000} M parameters, {weights.num_tokens} tokens"
        return f"{self.model.name}, {size}" if self.named else f"{size}, 8 bits"
