"""OpenAI's legacy ``/v1/completions`` and its copies: text in, rows by text out, the prompt echoed; and plain text.

Shapes: openai/openai-openapi (CreateCompletionRequest, CreateCompletionResponse). Seen running: vLLM 0.32's copy; no
server of OpenAI's. Traps:

- The first entry of an echo is null. Keys are texts: two tokens of one text are one entry.
- ``text_offset`` tells where the draft begins. It counts in the echoed text: an echo that begins otherwise than the
  text sent (a visible opening token, no echo at all) tells nothing.
- A server that splits the text in another way than the local model has no row for the draft from there on.
- Sampling that is not documented (top-k, min-p) is refused or ignored there, so it is refused here.

Together's (togethercomputer/openapi: CompletionRequest, CompletionResponse, PromptPart, LogprobsPart; only
``server_stub`` was asked) gives the prompt back as a part of its own, ``prompt``, its tokens with their ids: the rows
of a draft are those of the last tokens, if these are the draft. Its streams have no lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hybrid.cloud.dialects.dialect import (
    ContinuationRequest,
    DialectSpec,
    Json,
    OpenAi,
    Post,
    ScoreFlow,
    WritingScorer,
    drawn,
)
from hybrid.cloud.dialects.reading import (
    NO_ROW,
    NO_ROWS,
    NO_SCORES,
    Written,
    choice_of,
    fields_of,
    guarded,
    known_rows,
    read_usage,
)
from hybrid.cloud.dialects.text_tokens import TextVocabulary, only_documented, read_arrays, read_written, row_by_text
from hybrid.cloud.dialects.vllm import COMPLETIONS
from hybrid.cloud.port import Capabilities, Chunk, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, CloudUsage, Sampling

NO_ECHO = "the endpoint does not echo what it was asked to score"


@dataclass(frozen=True)
class Completions(WritingScorer, OpenAi):
    """The dialect of the legacy route. ``most_k`` is OpenAI's own limit; others give more, as a probe finds out."""

    can: Capabilities = Capabilities(
        dialect="openai-completions", ids=False, scoring_methods=("one request", "prefixes", "generate"), most_k=5
    )

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        words = self.setup.text_tokens
        text = words.text_of(question.prefix)
        if text is None:
            return None
        body = self._body(text, question)
        if self.can.streams:
            return self._continuation(COMPLETIONS, body, partial(read_choice, words, top_k=question.top_k))
        return ContinuationRequest(Post(COMPLETIONS, body), partial(read_written, words, top_k=question.top_k))

    def post_completions(self, questions: Sequence[WriteQuestion]) -> Post:
        """Ask for several continuations."""
        texts = [self.setup.text_tokens.text_of(question.prefix) or "" for question in questions]
        return Post(COMPLETIONS, self._body(texts[0] if len(texts) == 1 else texts, questions[0]))

    def read_completions(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Read them; the charge, which is told once for all, stands with the first."""
        words, chunks = self.setup.text_tokens, []
        for i, question in enumerate(questions):
            alone = {"choices": [choice_of(reply, i)], "usage": reply.get("usage")}
            chunk = read_written(words, alone, top_k=question.top_k)
            chunks.append(replace(chunk, usage=read_usage(reply) if i == 0 else NO_USAGE))
        return chunks

    def _body(self, prompt: str | list[str], question: WriteQuestion) -> dict[str, Any]:
        only_documented(question, "top_k", "min_p")
        body: dict[str, Any] = {"model": self.setup.model, "prompt": prompt, "max_tokens": question.limit}
        body |= drawn(question.sampling, "temperature", "top_p", "seed")
        return body | ({"logprobs": question.top_k} if question.top_k else {})

    def _score_at_once(self, question: ScoreQuestion) -> ScoreFlow:
        if self.setup.text_tokens.text_of(question.prefix) is None:
            return Scores((), NO_USAGE)  # it ends inside a character: nothing tells where the draft begins
        return (yield from self._echo(question))

    def _echo(self, question: ScoreQuestion) -> ScoreFlow:
        """Echo the text, and write one token for the row after it."""
        whole = WriteQuestion(question.prefix + question.span, 1, question.top_k, Sampling())
        if self.setup.text_tokens.text_of(whole.prefix) is None:
            return Scores((), NO_USAGE)  # it ends inside a character: nothing can be asked about it
        asked = self.post_completions([whole])
        return self._read_echo(question, (yield replace(asked, body={**asked.body, "echo": True})))

    @guarded
    def _read_echo(self, question: ScoreQuestion, reply: Any) -> Scores:
        """Read the rows of the draft from its first character on, up to where the server splits it in another way."""
        words = self.setup.text_tokens
        choice, prefix = choice_of(reply), words.text_of(question.prefix) or ""
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, dict):
            raise MissingCapability(NO_SCORES)
        tokens, tops, offsets = logprobs["tokens"], logprobs["top_logprobs"], logprobs["text_offset"]
        if not str(choice.get("text") or "").startswith(prefix) or len(offsets) != len(tokens):
            raise MissingCapability(NO_ECHO)
        rows: list[TopK] = []
        first = offsets.index(len(prefix)) if len(prefix) in offsets else len(tokens)
        for i, (piece, top) in enumerate(zip(tokens[first:], tops[first:], strict=True)):
            if i == question.num_rows:
                break
            row = _due_row(words, top, piece, question.top_k)
            if row is None:
                break
            rows.append(row)
            if i < len(question.span) and piece.encode() != words.bytes_of(question.span[i : i + 1]):
                break  # from here on the two splits part
        return Scores(tuple(rows), read_usage(reply))

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Return what is told, and no fewer tokens than are listed after the text that was sent."""
        told = super().check_usage(question, reply)
        text = self.setup.text_tokens.text_of(question.prefix + question.span)
        offsets = fields_of(reply, "choices", 0, "logprobs").get("text_offset")
        if self.can.scoring_method != "one request" or text is None or not isinstance(offsets, list):
            return told
        written = sum(isinstance(offset, int) and offset >= len(text) for offset in offsets)
        return told.at_least(CloudUsage(0, written).known)


@dataclass(frozen=True)
class Together(Completions):
    """The dialect of Together's completions; what it does not do in its own way is the legacy route's."""

    can: Capabilities = Capabilities(dialect="together", ids=False, most_k=20, streams=False)
    _score_at_once = Completions._echo  # ids tell where the draft begins
    check_usage = OpenAi.check_usage  # the echo stands apart from what was written

    @guarded
    def _read_echo(self, question: ScoreQuestion, reply: Any) -> Scores:
        """Read the rows that were due; none where the server splits the draft in another way."""
        choice, prompts = choice_of(reply), reply.get("prompt")
        if not prompts:
            raise MissingCapability(NO_ECHO)
        told, after = prompts[0]["logprobs"], choice.get("logprobs")
        if told is None or (question.after and after is None):
            raise MissingCapability(NO_ROWS)
        num = len(question.span)
        if tuple(told["token_ids"][len(told["token_ids"]) - num :]) != question.span:
            return Scores((), read_usage(reply))
        first, words = len(told["tokens"]) - num, self.setup.text_tokens
        due = [(told["tokens"][i], told["top_logprobs"][i]) for i in range(first, len(told["tokens"]))]
        due += list(zip(after["tokens"], after["top_logprobs"], strict=True))[:1] if after else []
        rows = (_due_row(words, top, piece, question.top_k) for piece, top in due[: question.num_rows])
        return Scores(known_rows(rows), read_usage(reply))


SPEC = DialectSpec("openai-completions", Completions, (COMPLETIONS, {}))
# The same route without log-probabilities: it cannot score, and only a reply shows the difference.
TEXT_ONLY = replace(Completions.can, dialect="text-completions", rows=False, scoring_method=None, scoring_methods=())
TEXT_SPEC = DialectSpec("text-completions", partial(Completions, can=TEXT_ONLY))
# Hosted services have no route of their own that answers for nothing: this one is named.
TOGETHER_SPEC = DialectSpec("together", Together)


def _due_row(words: TextVocabulary, top: object, piece: str, top_k: int) -> TopK | None:
    """Return a row; None where what it hides is likelier than what it shows."""
    if not isinstance(top, dict) or not top:
        raise BadReply(NO_ROW)
    row, hidden = row_by_text(words, top, piece, top_k)
    return row if row is not None and hidden <= float(row.probs[0]) else None


def read_choice(words: TextVocabulary, choice: Json, top_k: int) -> Written:
    """Read the text of a stream's event as local tokens, with the rows of those that it names."""
    text, logprobs = str(choice.get("text") or ""), choice.get("logprobs")
    if text and top_k and logprobs is None:
        raise MissingCapability(NO_ROWS)
    return read_arrays(words, text, logprobs or {} if top_k else {}, top_k)
