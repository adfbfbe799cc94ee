"""OpenAI's legacy ``/v1/completions`` and its copies: text in, rows by text out, the prompt echoed; and plain text.

Shapes: openai/openai-openapi (CreateCompletionRequest, CreateCompletionResponse). Seen running: vLLM 0.32's copy; no
server of OpenAI's. Traps:

- The first entry of an echo is null. Keys are texts: two tokens of one text are one entry.
- ``text_offset`` tells where the draft begins. It counts in the echoed text: an echo that begins otherwise than the
  text sent (a visible opening token, no echo at all) tells nothing.
- A server that splits the text in another way than the local model has no row for the draft from there on.
- Sampling that is not documented (top-k, min-p) is refused or ignored there, so it is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hybrid.cloud.dialects import scoring_methods
from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, OpenAi, Post, ScoreFlow
from hybrid.cloud.dialects.reading import NO_ROWS, choice_of, event_of, fields_of, finish_of, guarded, read_usage
from hybrid.cloud.dialects.text_tokens import (
    TextVocabulary,
    max_usage_in_bytes,
    named_tokens,
    only_documented,
    read_written,
    row_by_text,
    split_text,
)
from hybrid.cloud.dialects.vllm import COMPLETIONS
from hybrid.cloud.port import Capabilities, Chunk, ModelQuestion, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids, Sampling


@dataclass(frozen=True)
class Completions(OpenAi):
    """The dialect of the legacy route. ``most_k`` is OpenAI's own limit; others give more, as a probe finds out."""

    can: Capabilities = Capabilities(
        dialect="openai-completions", ids=False, scoring_methods=("one request", "prefixes", "generate"), most_k=5
    )

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        if self.can.scoring_method == "prefixes":
            return scoring_methods.prefixes(self, question)
        return (
            scoring_methods.generate(self, question) if self.can.scoring_method == "generate" else self._echo(question)
        )

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """One token per byte."""
        if isinstance(question, ScoreQuestion) and self.can.scoring_method != "one request":
            most = self.setup.text_tokens.max_tokens
            return scoring_methods.max_usage_by(self.can.scoring_method, question, tokens=most)
        return max_usage_in_bytes(self.setup.text_tokens, question, requests=1)

    def min_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the tokens that are sent, spelled."""
        return scoring_methods.min_usage_by(self.can.scoring_method, question)

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        text = self.setup.text_tokens.text_of(question.prefix)
        if text is None:
            return None
        read = partial(read_event if self.can.streams else read_written, self.setup.text_tokens, top_k=question.top_k)
        return ContinuationRequest(self._continuation(COMPLETIONS, self._body(text, question)), read)

    def post_completions(self, questions: Sequence[WriteQuestion]) -> Post:
        """Ask for several continuations."""
        texts = [self.setup.text_tokens.text_of(question.prefix) or "" for question in questions]
        return Post(COMPLETIONS, self._body(texts[0] if len(texts) == 1 else texts, questions[0]))

    def read_completions(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Read them; the charge, which is told once for all, stands with the first."""
        words, usage = self.setup.text_tokens, read_usage(reply)
        chunks = []
        for i, question in enumerate(questions):
            alone = {"choices": [choice_of(reply, i)], "usage": reply.get("usage")}
            chunk = read_written(words, alone, top_k=question.top_k)
            charged = usage if i == 0 else NO_USAGE
            chunks.append(Chunk(chunk.ids, chunk.rows, chunk.text, chunk.finish, charged))
        return chunks

    def _body(self, prompt: str | list[str], question: WriteQuestion) -> dict[str, Any]:
        only_documented(question, "top_k", "min_p")
        body: dict[str, Any] = {
            "model": self.setup.model,
            "prompt": prompt,
            "max_tokens": question.limit,
            "temperature": question.sampling.temperature,
            "top_p": question.sampling.top_p,
            "seed": question.sampling.seed,
        }
        return body | ({"logprobs": question.top_k} if question.top_k else {})

    def _echo(self, question: ScoreQuestion) -> ScoreFlow:
        words = self.setup.text_tokens
        prefix, text = words.text_of(question.prefix), words.text_of(question.prefix + question.span)
        if prefix is None or text is None:
            return Scores((), NO_USAGE)  # it ends inside a character: nothing can be asked about it
        write = WriteQuestion(question.prefix, 1, question.top_k, Sampling())
        reply = yield Post(COMPLETIONS, self._body(text, write) | {"echo": True})
        return _echoed(words, question, prefix, reply, question.top_k)

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Return what is told, and no fewer tokens than are listed after the text that was sent."""
        told = super().check_usage(question, reply)
        text = self.setup.text_tokens.text_of(question.prefix + question.span)
        offsets = fields_of(reply, "choices", 0, "logprobs").get("text_offset")
        if self.can.scoring_method != "one request" or text is None or not isinstance(offsets, list):
            return told
        written = sum(isinstance(offset, int) and offset >= len(text) for offset in offsets)
        return told.at_least(CloudUsage(0, written).known)


SPEC = DialectSpec("openai-completions", Completions, (COMPLETIONS, {}))
# The same route without log-probabilities: it cannot score, and only a reply shows the difference.
TEXT_SPEC = DialectSpec(
    "text-completions",
    partial(
        Completions,
        can=replace(Completions.can, dialect="text-completions", rows=False, scoring_method=None, scoring_methods=()),
    ),
)


@guarded
def _echoed(words: TextVocabulary, question: ScoreQuestion, prefix: str, reply: Any, top_k: int) -> Scores:
    """Read the rows of the draft from its first character on, up to where the server splits it in another way."""
    choice = choice_of(reply)
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        msg = "the endpoint answered without log-probabilities: it cannot score a draft"
        raise MissingCapability(msg)
    tokens, tops, offsets = logprobs["tokens"], logprobs["top_logprobs"], logprobs["text_offset"]
    if not str(choice.get("text") or "").startswith(prefix) or len(offsets) != len(tokens):
        msg = "the endpoint does not echo what it was asked to score"
        raise MissingCapability(msg)
    rows: list[TopK] = []
    first = offsets.index(len(prefix)) if len(prefix) in offsets else len(tokens)
    for i, (piece, top) in enumerate(zip(tokens[first:], tops[first:], strict=True)):
        if i == question.num_rows:
            break
        row = due_row(words, top, piece, top_k)
        if row is None:
            break
        rows.append(row)
        if i < len(question.span) and piece.encode() != words.bytes_of(question.span[i : i + 1]):
            break  # from here on the two splits part
    return Scores(tuple(rows), read_usage(reply))


def due_row(words: TextVocabulary, top: object, piece: str, top_k: int) -> TopK | None:
    """Return a row; None where what it hides is likelier than what it shows."""
    if not isinstance(top, dict) or not top:
        msg = "the endpoint gave no row (null) for a drafted token"
        raise BadReply(msg)
    row, hidden = row_by_text(words, top, piece, top_k)
    return row if row is not None and hidden <= float(row.probs[0]) else None


@guarded
def read_event(words: TextVocabulary, reply: Json, top_k: int) -> Chunk:
    """Read one event of a stream: its text as local tokens, with the rows of those that it names."""
    choice, usage = event_of(reply)
    if choice is None:
        return Chunk(usage=usage)
    text, logprobs = str(choice.get("text") or ""), choice.get("logprobs")
    if text and top_k and logprobs is None:
        raise MissingCapability(NO_ROWS)
    ids, rows, read = named_tokens(words, text, logprobs or {} if top_k else {}, top_k)
    rest: Ids = split_text(words, text[read:])
    every = (*rows, *[None] * len(rest))
    return Chunk(ids + rest, every, text, finish_of(choice.get("finish_reason")), usage)
