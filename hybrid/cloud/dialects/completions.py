"""Completions with echo, by text: OpenAI's legacy ``/v1/completions`` and those that copied it, and plain text.

Where the shapes come from: openai/openai-openapi (CreateCompletionRequest, CreateCompletionResponse). What bites:

- The first entry of an echo is null, and keys are texts: two tokens of one text are one entry.
- Where the draft begins is read from ``text_offset``, which counts in the echoed text: one that begins otherwise than
  what was sent (an opening token that is shown, no echo at all) tells nothing of where that is.
- A server that splits the text elsewhere than the local model has no row for the draft, and rows end where the two
  splits part.
- What it does not document (top-k, min-p) it refuses or ignores; sampling that needs it is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid.cloud.dialects import ways
from hybrid.cloud.dialects.dialect import Altering, Asked, Asking, Json, OpenAiUsage, Reading, Setup, Way
from hybrid.cloud.dialects.reading import (
    NO_ROWS,
    choice_of,
    event_of,
    fields_of,
    finish_of,
    first_of,
    guarded,
    read_usage,
    shown,
)
from hybrid.cloud.dialects.spelled import (
    bytes_worst,
    named_tokens,
    only_documented,
    read_written,
    row_by_text,
    spelled,
)
from hybrid.cloud.dialects.spelling import Spelling
from hybrid.cloud.dialects.vllm import COMPLETIONS
from hybrid.cloud.port import Ability, Chunk, Question, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids, Sampling

# OpenAI's own limit on the legacy route; others give more, and are asked for it by the probe.
MOST_K = 5


@dataclass(frozen=True)
class Completions(OpenAiUsage):
    """The dialect of the legacy route. ``rows`` False: text alone, and then nothing can be scored."""

    setup: Setup
    way: Way | None = "one request"
    name: str = "openai-completions"
    ways: tuple[Way, ...] = ("one request", "prefixes", "compare")
    rows: bool = True
    rows_altered_by: frozenset[Altering] = frozenset()
    candidates: bool = False
    most_k: int | None = MOST_K
    keeps_cache: bool | None = None

    @property
    def abilities(self) -> frozenset[Ability]:
        """A text can be continued; whether it can be scored depends on the way."""
        found: set[Ability] = {"write", "open"}
        return frozenset(found | ({"score"} if self.rows and self.way else set()))

    def score(self, question: ScoreQuestion) -> Asking[Scores]:
        """Ask in the way this server was found to answer."""
        if self.way == "prefixes":
            return ways.prefixes(self, question)
        return ways.compare(self, question) if self.way == "compare" else self._echo(question)

    def worst(self, question: Question) -> CloudUsage:
        """One token per byte."""
        if isinstance(question, ScoreQuestion) and self.way != "one request":
            return ways.worst_of(self.way, question, tokens=lambda ids: len(self.setup.words.bytes_of(ids)) + 1)
        return bytes_worst(self.setup.words, question, requests=1)

    def least(self, question: Question) -> CloudUsage:
        """Return the tokens that are sent, spelled."""
        return ways.least_of(self.way, question)

    def write(self, question: WriteQuestion) -> tuple[Asked, Reading] | None:
        """Ask for a streamed continuation."""
        text = self.setup.words.text_of(question.prefix)
        if text is None:
            return None
        body = self._body(text, question) | {"stream": True, "stream_options": {"include_usage": True}}
        read = partial(read_event, self.setup.words, top_k=self._k(question.top_k))
        return Asked(COMPLETIONS, body, stream="to done"), read

    def whole(self, questions: Sequence[WriteQuestion]) -> Asked:
        """Ask for several continuations."""
        texts = [self.setup.words.text_of(question.prefix) or "" for question in questions]
        return Asked(COMPLETIONS, self._body(texts[0] if len(texts) == 1 else texts, questions[0]))

    def read_whole(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Read them; the charge, which is told once for all, stands with the first."""
        words, usage = self.setup.words, read_usage(reply)
        chunks = []
        for i, question in enumerate(questions):
            alone = {"choices": [choice_of(reply, i)], "usage": reply.get("usage")}
            chunk = read_written(words, alone, top_k=self._k(question.top_k))
            charged = usage if i == 0 else NO_USAGE
            chunks.append(Chunk(chunk.ids, chunk.rows, chunk.text, chunk.finish, charged))
        return chunks

    def _k(self, top_k: int) -> int:
        return 0 if not self.rows else top_k if self.most_k is None else min(top_k, self.most_k)

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
        return body | ({"logprobs": self._k(question.top_k)} if self.rows else {})

    def _echo(self, question: ScoreQuestion) -> Asking[Scores]:
        words = self.setup.words
        prefix, text = words.text_of(question.prefix), words.text_of(question.prefix + question.span)
        if prefix is None or text is None:
            return Scores((), NO_USAGE)  # it ends inside a character: nothing can be asked about it
        write = WriteQuestion(question.prefix, 1, question.top_k, Sampling(), question.request_id)
        reply = yield Asked(COMPLETIONS, self._body(text, write) | {"echo": True})
        return _echoed(words, question, prefix, reply, self._k(question.top_k))

    def charged(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Return what is told, and no fewer tokens than are listed after the text that was sent."""
        text, told = self.setup.words.text_of(question.prefix + question.span), shown(reply)
        offsets = fields_of(first_of(reply), "logprobs").get("text_offset")
        if self.way != "one request" or text is None or not isinstance(offsets, list):
            return told
        written = sum(isinstance(offset, int) and offset >= len(text) for offset in offsets)
        return told.at_least(CloudUsage(0, written))


@guarded
def _echoed(words: Spelling, question: ScoreQuestion, prefix: str, reply: Any, top_k: int) -> Scores:
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


def due_row(words: Spelling, top: object, piece: str, top_k: int) -> TopK | None:
    """Return a row; None where what it hides is likelier than what it shows."""
    if not isinstance(top, dict) or not top:
        msg = "the endpoint gave no row (null) for a drafted token"
        raise BadReply(msg)
    row, hidden = row_by_text(words, top, piece, top_k)
    return row if row is not None and hidden <= float(row.probs[0]) else None


@guarded
def read_event(words: Spelling, reply: Json, top_k: int) -> Chunk:
    """Read one event of a stream: its text as local tokens, with the rows of those that it names."""
    choice, usage = event_of(reply)
    if choice is None:
        return Chunk(usage=usage)
    text, logprobs = str(choice.get("text") or ""), choice.get("logprobs")
    if text and top_k and logprobs is None:
        raise MissingCapability(NO_ROWS)
    ids, rows, read = named_tokens(words, text, logprobs or {} if top_k else {}, top_k)
    rest: Ids = spelled(words, text[read:])
    every = (*rows, *[None] * len(rest))
    return Chunk(ids + rest, every, text, finish_of(choice.get("finish_reason")), usage)
