"""Scoring a draft on endpoints that only write: three methods.

- ``prefixes``: send the prefix and each longer one, with one new token each. Every row is exact, every prefix paid for.
- ``forced``: force the model to write the draft (by a grammar, ``llama_server.py``). One prefix, one round trip.
- ``generate``: let the model write on, and take its rows up to the first token that differs from the draft: fewer rows
  than were asked for, at the price of one continuation.

The law: the rows of each method are those of scoring in one request, for as many positions as it answers
(``tests/cloud/test_scoring_methods.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from hybrid.cloud.dialects.dialect import DialectConfig, Post, ScoreFlow
from hybrid.cloud.dialects.reading import NO_ROWS
from hybrid.cloud.port import Chunk, ModelQuestion, ScoreQuestion, Scores, WriteQuestion, min_usage, num_written
from hybrid.errors import MissingCapability
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids, Sampling

GREEDY = Sampling()


class MultiPromptDialect(Protocol):
    """A dialect that writes whole continuations, of several prompts in one request if the server takes that."""

    @property
    def setup(self) -> DialectConfig:
        """Model, vocabulary and salt."""
        ...

    def post_completions(self, questions: Sequence[WriteQuestion]) -> Post:
        """Return the request for the continuations of some prompts, all under the limit of the first."""
        ...

    def read_completions(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Return one chunk per prompt, with its usage."""
        ...


def _write(question: ScoreQuestion, prefix: Ids, limit: int) -> WriteQuestion:
    return WriteQuestion(prefix, limit, question.top_k, GREEDY)


def prefixes(writer: MultiPromptDialect, question: ScoreQuestion) -> ScoreFlow:
    """Ask for one token after each prefix, all in one request."""
    asked = [_write(question, question.prefix + question.span[:i], 1) for i in range(question.num_rows)]
    chunks = writer.read_completions(asked, (yield writer.post_completions(asked)))
    rows: list[TopK] = []
    for chunk in chunks:
        if not (chunk.rows and chunk.rows[0]):
            break  # it ended without saying by which token
        rows.append(chunk.rows[0])
    return _scores(writer, rows, asked, chunks)


def generate(writer: MultiPromptDialect, question: ScoreQuestion) -> ScoreFlow:
    """Let the model write on; take its rows up to the first token that differs from the draft."""
    asked = [_write(question, question.prefix, question.num_rows)]
    chunks = writer.read_completions(asked, (yield writer.post_completions(asked)))
    written, rows = chunks[0], list[TopK]()
    for i, row in enumerate(written.rows[: question.num_rows]):
        if row is None or written.ids[:i] != question.span[:i]:
            break
        rows.append(row)
    return _scores(writer, rows, asked, chunks)


def _scores(
    writer: MultiPromptDialect, rows: list[TopK], asked: Sequence[WriteQuestion], chunks: Sequence[Chunk]
) -> Scores:
    if not rows and any(chunk.ids for chunk in chunks) and not any(any(chunk.rows) for chunk in chunks):
        raise MissingCapability(NO_ROWS)
    return Scores(tuple(rows), sum_usage(writer, asked, chunks))


def sum_usage(writer: MultiPromptDialect, asked: Sequence[WriteQuestion], chunks: Sequence[Chunk]) -> CloudUsage:
    """Add up the usages of continuations in one request: at least the tokens written. One may tell for all."""
    told, written, ends = NO_USAGE, 0, writer.setup.text_tokens.end_ids
    for question, chunk in zip(asked, chunks, strict=True):
        told += chunk.usage or NO_USAGE
        written += num_written(chunk.ids, chunk.finish, ends, question.limit)
    return replace(told, requests=1).at_least(CloudUsage(0, written).known)


def min_usage_by(method: str | None, question: ModelQuestion) -> CloudUsage:
    """Return the least that an answer by a method is charged: the tokens sent, one written after each prompt."""
    if not isinstance(question, ScoreQuestion) or method in {None, "one request"}:
        return min_usage(question)
    most = max_usage_by(method, question)
    return CloudUsage(most.prompt_tokens, most.completion_tokens if method == "prefixes" else 1)


def max_usage_by(method: str | None, question: ScoreQuestion, tokens: Callable[[Ids], int] = len) -> CloudUsage:
    """Return the most that scoring by a method is charged; ``tokens``: the most tokens that a prefix may be there."""
    prefix, rows = tokens(question.prefix), question.num_rows
    if method == "prefixes":
        return CloudUsage(sum(tokens(question.prefix + question.span[:i]) for i in range(rows)), rows)
    if method in {"forced", "generate"}:
        return CloudUsage(prefix, rows)
    return CloudUsage(prefix + len(question.span), 1)
