"""Batches of worked problems: one conversation a row, loss on the answer's tokens only, or on those that go on with it.

A row holds one conversation from its first token, as the model will meet it; a step's rows are sorted by length and cut
into blocks, so that little is padded. A step begins with no leftovers of the one before: the generator's state
between two steps is the random generator's alone, and a resumed run goes on as if it had not stopped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import foreign
import torch
from tokenizers import Tokenizer
from torch import Tensor
from vocabulary import TURN_END, TURN_START

from hybrid.tasks import wordings
from hybrid.tasks.families import Model, training_stream

AnyModel: TypeAlias = Model | wordings.WordingsModel | foreign.ForeignModel
# A question, a text that answers it, and how somebody else has begun that text, of which nothing is learnt.
TrainingText: TypeAlias = tuple[str, str] | tuple[str, str, str]
IGNORE = -100
BLOCKS = 12


@dataclass(frozen=True)
class Block:
    """Rows of like length: ``ids`` and ``labels`` are (B, T); ``IGNORE`` stands where nothing is to be learnt."""

    ids: Tensor
    labels: Tensor
    num_tokens: int

    @property
    def num_labels(self) -> int:
        """How many tokens are to be learnt."""
        return int((self.labels != IGNORE).sum())


class Lessons:
    """The endless training data of one model; ``rng`` is its whole state between steps."""

    def __init__(self, stream: Iterator[TrainingText], tokenizer: Tokenizer, rng: random.Random) -> None:
        """Take questions with their texts, and the generator that they are drawn by."""
        self.rng = rng
        self._stream = stream
        self._tokenizer = tokenizer
        self._start, self._end = (tokenizer.token_to_id(token) for token in (TURN_START, TURN_END))
        self._user, self._assistant, self._newline = (
            tokenizer.encode(text).ids for text in ("user\n", "assistant\n", "\n")
        )

    def step(self, num_tokens: int) -> list[Block]:
        """Draw conversations of at least ``num_tokens`` tokens together."""
        rows: list[tuple[list[int], int]] = []
        drawn = 0
        while drawn < num_tokens:
            row = self._row(*next(self._stream))
            rows.append(row)
            drawn += len(row[0])
        rows.sort(key=lambda row: len(row[0]))
        share = drawn / BLOCKS
        blocks: list[list[tuple[list[int], int]]] = [[]]
        seen = 0
        for row in rows:
            if seen >= share * len(blocks):
                blocks.append([])
            blocks[-1].append(row)
            seen += len(row[0])
        return [_block(block, self._end) for block in blocks]

    def _row(self, question: str, worked: str, begun: str = "") -> tuple[list[int], int]:
        """Return the ids of a conversation, and how many of them are given: the question, and how the answer began."""
        encode = self._tokenizer.encode
        asked = [self._start, *self._user, *encode(question).ids, self._end, *self._newline]
        asked += [self._start, *self._assistant]
        return [*asked, *encode(worked).ids, self._end], len(asked) + len(encode(begun).ids)


def problems_for(
    model: AnyModel, rng: random.Random, weights: Mapping[str, float] | None = None
) -> Iterator[TrainingText]:
    """Yield the questions that a model learns from, each with the text that it is given, for ever.

    ``weights``: of families that do not come as often as the others.
    """
    if model == "wordings-small" or model == "wordings-large":  # noqa: PLR1714  (a type checker reads no "in")
        for lesson in wordings.lesson_stream(model, "train", rng):
            yield lesson.problem.question, lesson.text, lesson.begun
    elif model in foreign.MODELS:
        for problem, text in foreign.training_stream(model, "train", rng, weights):
            yield problem.question, text
    else:
        for problem, text in training_stream(model, "train", rng, weights=weights):
            yield problem.question, text


def _block(rows: list[tuple[list[int], int]], fill: int) -> Block:
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), longest - 1), fill)
    labels = torch.full((len(rows), longest - 1), IGNORE)
    for index, (row, num_asked) in enumerate(rows):
        ids[index, : len(row) - 1] = torch.tensor(row[:-1])
        labels[index, num_asked - 1 : len(row) - 1] = torch.tensor(row[num_asked:])
    return Block(ids, labels, sum(len(row) for row, _ in rows))
