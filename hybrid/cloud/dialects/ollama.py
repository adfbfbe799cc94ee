"""Ollama's ``/api/generate`` with ``raw``: text in, text and rows by text out, as lines of JSON.

Shapes: ollama ``api/types.go`` and ``docs/api``. No Ollama server was ever asked, only ``server_stub``; what its source
says, and what is unseen: ``tests/cloud/recorded/ollama_published.json``. It scores nothing: a draft is compared with
what the model writes by itself (``generate``). Traps:

- Tokens carry no ids and are matched by their bytes. There are at most 20 alternatives.
- Sampling defaults come from the Modelfile, penalties too, so every parameter that changes the law is sent.
- A prompt beyond ``num_ctx``, which nothing tells, is cut in the middle without a word, unless ``truncate`` is false.
- A prompt that is all cached may be counted as 0 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, Post, ReadEvent, WritingScorer, drawn
from hybrid.cloud.dialects.reading import NO_ROWS, finish_of, guarded, raise_error_in, usage_of
from hybrid.cloud.dialects.text_tokens import TextVocabulary, only_documented, read_content
from hybrid.cloud.port import Capabilities, Chunk, ScoreQuestion, WriteQuestion
from hybrid.errors import MissingCapability
from hybrid.types import NO_USAGE, CloudUsage

GENERATE, VERSION, TAGS = "/api/generate", "/api/version", "/api/tags"


@dataclass(frozen=True)
class Ollama(WritingScorer):
    """The dialect of ``/api/generate``."""

    can: Capabilities = Capabilities(
        dialect="ollama",
        ids=False,
        scoring_method="generate",
        scoring_methods=("generate",),
        most_k=20,
        keeps_cache=True,
    )

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:  # noqa: ARG002  (others need the question)
        """Return what is told."""
        return _usage(reply) if isinstance(reply, Mapping) else NO_USAGE

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        if self.setup.text_tokens.text_of(question.prefix) is None:
            return None
        asked = Post(GENERATE, self._body(question) | {"stream": True}, stream="lines")
        return ContinuationRequest(asked, self._reading(question))

    def post_completions(self, questions: Sequence[WriteQuestion]) -> Post:
        """Ask for one continuation."""
        return Post(GENERATE, self._body(questions[0]) | {"stream": False})

    def read_completions(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Read it."""
        return [self._reading(question)(reply) for question in questions]

    def _reading(self, question: WriteQuestion) -> ReadEvent:
        return partial(read_line, self.setup.text_tokens, top_k=question.top_k)

    def _body(self, question: WriteQuestion) -> dict[str, Any]:
        only_documented(question)
        options = {
            "num_predict": question.limit,
            **drawn(question.sampling, "temperature", "top_k", "top_p", "min_p", "seed"),
            "typical_p": 1.0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        prompt = self.setup.text_tokens.text_of(question.prefix)
        body = {"model": self.setup.model, "prompt": prompt, "raw": True, "truncate": False}
        rows = {"logprobs": True, "top_logprobs": question.top_k} if question.top_k else {}
        return body | rows | {"options": options}


SPEC = DialectSpec("ollama", Ollama, (VERSION, None), "version", models_route=TAGS)


@guarded
def read_line(words: TextVocabulary, reply: Json, top_k: int) -> Chunk:
    """Read one line; the last one tells the usage."""
    raise_error_in(reply)
    text, told = str(reply.get("response") or ""), reply.get("logprobs")
    if text and top_k and told is None:
        raise MissingCapability(NO_ROWS)
    ids, rows, _ = read_content(words, text, told or [], top_k)
    if not reply["done"]:
        return Chunk(ids, tuple(rows), text)
    return Chunk(ids, tuple(rows), text, finish_of(reply.get("done_reason")) or "stop", _usage(reply))


def _usage(reply: Json) -> CloudUsage:
    return usage_of(reply.get("prompt_eval_count"), reply.get("eval_count"))
