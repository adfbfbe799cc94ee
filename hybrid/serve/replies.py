"""Answers in OpenAI's shapes, whole and in chunks: dictionaries, from values. Nothing here waits or sends.

https://github.com/openai/openai-openapi: CreateChatCompletionResponse, CreateChatCompletionStreamResponse,
CreateCompletionResponse. Beside them: ``reasoning_content`` (DeepSeek's and vLLM's name for thoughts), ``usage.cost``
in USD (OpenRouter's), and what is our own under ``hybrid``.
"""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from hybrid.prob import Dense, TopK
from hybrid.record.answer import Answer
from hybrid.record.events import Event, RecordingStarted, Rows, TokenEmitted
from hybrid.record.rows import RowsAtPlace
from hybrid.spend.price import NANOUSD_PER_USD

# The log-probabilities of an answer's tokens, from the rows that were read for it: those of whoever wrote each token.
#
# They are the model's own, at temperature 1 and before anything is cut off. A token that an endpoint does not list has
# OpenAI's -9999.0, which means "not among the listed".

NOT_LISTED = -9999.0


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's bytes and log-probability, and the likeliest ones in its place, best first.

    ``at``: the place in the text of the first character that ends in it or after it.
    """

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    at: int

    def chat(self) -> dict[str, Any]:
        """Return it as the chat route has it."""
        return _named(self.piece, self.logprob) | {"top_logprobs": [_named(*each) for each in self.top]}


class RowKeeper:
    """Hears an answer's events; keeps the rows of the position that comes next, and says what they hold of a token."""

    def __init__(self, num_top: int) -> None:
        """``num_top``: how many tokens are wanted in the place of each."""
        self._num_top = num_top
        self._pieces: tuple[bytes, ...] = ()
        self._rows = RowsAtPlace()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_read = 0

    def observe(self, event: Event) -> TokenLogprobs | None:
        """Take an event; return what is known of the token that came with it, if it is part of the answer itself."""
        match event:
            case RecordingStarted(pieces=pieces):
                self._pieces = pieces
            case Rows(at, local, cloud):
                self._rows.read(at, local, cloud)
            case TokenEmitted(token=token):
                row = self._rows.write(token).get(token.source)
                return None if token.thought else self._scored(token.id, row)
            case _:
                pass
        return None

    def _scored(self, token: int, row: Dense | TopK | None) -> TokenLogprobs:
        listed = _listed(row, token, self._num_top)
        top = sorted(listed.items(), key=lambda each: -each[1])[: self._num_top]
        said, piece, at = listed.get(token, NOT_LISTED), self._piece(token), self._num_read
        self._num_read += len(self._decoder.decode(piece))
        return TokenLogprobs(piece, said, tuple((self._piece(each), value) for each, value in top), at)

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""


def _listed(row: Dense | TopK | None, token: int, num_top: int) -> dict[int, float]:
    """Return tokens with their log-probabilities: the likeliest, and the one that was written where it is known."""
    if isinstance(row, Dense):
        return dict(row.top(num_top)) | {token: float(row.logprobs_of(np.array([token]))[0])}
    if isinstance(row, TopK):
        return dict(zip(row.ids.tolist(), row.logprobs.tolist(), strict=True))
    return {}


def _named(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _word(piece), "logprob": _told(logprob), "bytes": list(piece)}


def _word(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _told(logprob: float) -> float:
    """Return a log-probability as JSON can hold it: minus infinity it cannot."""
    return max(logprob, NOT_LISTED)


def legacy(scored: list[TokenLogprobs], num_top: int) -> dict[str, Any]:
    """Return tokens as ``/v1/completions`` has them."""
    tops = [{_word(piece): _told(value) for piece, value in each.top} for each in scored]
    return {
        "tokens": [_word(each.piece) for each in scored],
        "token_logprobs": [_told(each.logprob) for each in scored],
        "top_logprobs": tops if num_top else None,
        "text_offset": [each.at for each in scored],
    }


Mode = Literal["hybrid", "local", "relay"]
# Where the tokens that are billed come from: told by the cloud, counted here beyond that, or assumed beyond both.
SOURCES = tuple(
    f"{source}_{count}" for source in ("told", "known", "assumed") for count in ("prompt_tokens", "completion_tokens")
)


@cache
def fingerprint() -> str:
    """Return what wrote the answer: this program's version."""
    return f"hybrid-{version('hybrid-llm')}"


@dataclass(frozen=True)
class Bills:
    """What the answers of one request cost together, in nano-dollars; None: not known."""

    cost: int | None
    cloud_only: int | None

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Bills:
        """Add up the bills of answers."""
        return cls(
            _sum([answer.bill.nanousd for answer in answers]),
            _sum([answer.bill.cloud_only_nanousd for answer in answers]),
        )


def usage_of(answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
    """Return what a request took. The prompt counts once, as it was asked once; the answers add up.

    ``cached_tokens``: those of the prompt that the cloud read from its cache, as far as it tells.
    """
    bills, used = Bills.of(answers), [answer.usage for answer in answers]
    completion = sum(len(answer.tokens) for answer in answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": min(prompt_tokens, sum(each.cloud_cached_tokens for each in used))},
        "completion_tokens_details": {"reasoning_tokens": sum(each.thought_tokens for each in used)},
        "cost": as_usd(bills.cost),
        "hybrid": {
            "local_tokens": sum(each.local_tokens for each in used),
            "cloud_tokens": sum(each.cloud_tokens for each in used),
            "checks": sum(each.checks for each in used),
            "cloud_only_cost": as_usd(bills.cloud_only),
            "bytes_sent": sum(getattr(each, "bytes_sent", 0) for each in used),
            "cloud": {name: sum(getattr(each, f"cloud_{name}", 0) for each in used) for name in SOURCES},
        },
    }


def own_of(answers: Sequence[Answer], mode: Mode) -> dict[str, Any]:
    """Return what the hybrid says of a request: how it was answered, its cost, and what went wrong."""
    degraded = next((answer.degraded for answer in answers if answer.degraded), None)
    notes = list(dict.fromkeys(note for answer in answers for note in answer.notes))
    said = {"mode": mode, "cost": as_usd(Bills.of(answers).cost), "degraded": degraded}
    return said | ({"notes": notes} if notes else {})


def as_usd(nanousd: int | None) -> float | None:
    """Return an amount in USD; None where it is not known."""
    return None if nanousd is None else nanousd / NANOUSD_PER_USD


def _sum(costs: Sequence[int | None]) -> int | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


@dataclass(frozen=True)
class ChatFormat:
    """The shapes of one request's reply. ``num_top`` None: no log-probabilities are wanted."""

    model: str
    num_top: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    token: str = field(default_factory=lambda: secrets.token_hex(12))
    prefix = "chatcmpl-"
    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    @property
    def request_id(self) -> str:
        """What the reply is called."""
        return f"{self.prefix}{self.token}"

    def whole(
        self, answers: Sequence[Answer], scored: Sequence[list[TokenLogprobs]], prompt_tokens: int
    ) -> dict[str, Any]:
        """Return a whole reply."""
        choices = [self._choice(i, answer, scored[i]) for i, answer in enumerate(answers)]
        return self._head(self.whole_name) | {"choices": choices, "usage": usage_of(answers, prompt_tokens)}

    def chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """Return a chunk of one choice."""
        return self._head(self.chunk_name) | {"choices": [{"index": index, **delta, "finish_reason": finish}]}

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk that holds the usage, and no choice."""
        return self._head(self.chunk_name) | {"choices": [], "usage": usage}

    def opening(self) -> dict[str, Any] | None:
        """Return the delta that begins a choice."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def text(self, text: str, thoughts: str, scored: list[TokenLogprobs]) -> dict[str, Any]:
        """Return the delta of some text."""
        delta = ({"content": text} if text or not thoughts else {}) | (
            {"reasoning_content": thoughts} if thoughts else {}
        )
        return {"delta": delta, "logprobs": self._chat_logprobs(scored)}

    def closing(self) -> dict[str, Any]:
        """Return the delta that ends a choice."""
        return {"delta": {}, "logprobs": None}

    def _choice(self, index: int, answer: Answer, scored: list[TokenLogprobs]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.thoughts:
            message["reasoning_content"] = answer.thoughts
        logprobs = self._chat_logprobs(scored)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finish_reason}

    def _chat_logprobs(self, scored: list[TokenLogprobs]) -> dict[str, Any] | None:
        if self.num_top is None:
            return None
        return {"content": [each.chat() for each in scored], "refusal": None}

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
        }


@dataclass(frozen=True)
class CompletionFormat(ChatFormat):
    """The shapes of ``/v1/completions``: a text that goes on."""

    prefix = "cmpl-"
    whole_name = "text_completion"
    chunk_name = "text_completion"

    def opening(self) -> dict[str, Any] | None:
        """Return nothing: a text begins with itself."""
        return None

    def text(self, text: str, thoughts: str, scored: list[TokenLogprobs]) -> dict[str, Any]:
        """Return some text. A text that is continued as it stands holds its thoughts, if there are any."""
        return {"text": thoughts + text, "logprobs": self._logprobs(scored)}

    def closing(self) -> dict[str, Any]:
        """Return an empty text."""
        return {"text": "", "logprobs": None}

    def _choice(self, index: int, answer: Answer, scored: list[TokenLogprobs]) -> dict[str, Any]:
        text, logprobs = answer.thoughts + answer.text, self._logprobs(scored)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": answer.finish_reason}

    def _logprobs(self, scored: list[TokenLogprobs]) -> dict[str, Any] | None:
        return None if self.num_top is None else legacy(scored, self.num_top)
