"""Whole replies and streams of the cloud that counts: a completion as vLLM tells it, a chat as OpenAI does.

It must never import ``hybrid`` or ``server_stub``, nor be fitted to what a client can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from counted_account import Job
from counted_model import Model, Token
from counted_shapes import CREATED, chat_logprobs, claim, legacy_logprobs, prompt_rows


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as vLLM and OpenAI word it."""
    kind = {401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}.get(status)
    kind = kind or ("BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


@dataclass
class CompletionReply:
    """The reply to one request on ``/v1/completions``."""

    model: Model
    job: Job
    tell_cached: bool
    _offset: int = 0

    whole_object = event_object = "text_completion"
    prefix = "cmpl"

    def _usage(self) -> dict[str, Any]:
        return claim(self.job.manner.mode, self.job.charged(), tell_cached=self.tell_cached)

    def _shell(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        name = f"{self.prefix}-{self.job.entry.id}"
        return {"id": name, "object": kind, "created": CREATED, "model": self.model.name, "choices": choices}

    def _sent(self, tokens: Sequence[Token]) -> list[Token]:
        """What is told of the tokens: all but an end that is kept back."""
        hidden = self.job.hidden_end
        return [token for token in tokens if not (hidden and token.id == self.model.end_id and token.finish)]

    def _choice(self, tokens: Sequence[Token], *, first: bool) -> dict[str, Any]:
        wanted, prompt = self.job.wanted, self.job.wanted.order.prompt
        sent = [] if wanted.only_echo else self._sent(tokens)
        rows: list[tuple[int, np.ndarray | None]] = [(token.id, token.row) for token in sent]
        text = "".join(token.text for token in tokens if not wanted.only_echo)
        if first and wanted.echo:
            known = self.model.rows(prompt)[:-1] if wanted.k is not None else [None] * (len(prompt) - 1)
            rows = [*zip(prompt, [None, *known], strict=True), *rows]
            text = ("" if wanted.with_ids else b"".join(map(self.model.piece, prompt)).decode(errors="replace")) + text
        told = None if wanted.k is None else legacy_logprobs(self.model, rows, wanted, self._offset)
        self._offset += len(text)
        choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": tokens[-1].finish}
        choice["stop_reason"] = tokens[-1].stop_reason
        choice["prompt_token_ids"] = list(prompt) if wanted.with_ids and first else None
        choice["token_ids"] = [token.id for token in self._sent(tokens)] if wanted.with_ids else None
        return choice

    def whole(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        wanted, choice = self.job.wanted, self._choice(tokens, first=True)
        if wanted.prompt_k is not None:
            choice["prompt_logprobs"] = prompt_rows(self.model, wanted.order.prompt, wanted.prompt_k)
        else:
            choice["prompt_logprobs"] = None
        return self._shell(self.whole_object, [choice]) | self._usage()

    def events(self, tokens: Sequence[Token], first: bool) -> list[Any]:
        """The events that tell these tokens."""
        event = self._shell(self.event_object, [self._choice(tokens, first=first)])
        return [self._with_running(event, first=first)]

    def _with_running(self, event: dict[str, Any], *, first: bool) -> dict[str, Any]:
        mode = self.job.manner.mode
        always = self.job.wanted.usage_always or mode == "usage-per-chunk" or (mode == "usage-first" and first)
        return event | (self._usage() if always else {})

    def last(self) -> list[Any]:
        """What comes after the last token: usage, where it was asked for and the mode says it."""
        mode = self.job.manner.mode
        if not self.job.wanted.usage_at_end or mode in {"absent", "usage-first"}:
            return []
        events = [self._shell(self.event_object, []) | self._usage()]
        if mode == "usage-twice":
            zero = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
            events.append(self._shell(self.event_object, []) | {"usage": zero})
        return events


@dataclass
class ChatReply(CompletionReply):
    """The reply to one request on ``/v1/chat/completions``."""

    whole_object, event_object = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    def _choice(self, tokens: Sequence[Token], *, first: bool) -> dict[str, Any]:
        k = self.job.wanted.k
        told = None if k is None else chat_logprobs(self.model, self._sent(tokens), k)
        return {"index": 0, "logprobs": told, "finish_reason": tokens[-1].finish}

    def whole(self, tokens: Sequence[Token]) -> dict[str, Any]:
        said = {"role": "assistant", "content": "".join(token.text for token in tokens), "refusal": None}
        choice = self._choice(tokens, first=True) | {"message": said}
        return self._shell(self.whole_object, [choice]) | self._usage() | {"system_fingerprint": "fp_counted"}

    def events(self, tokens: Sequence[Token], first: bool) -> list[Any]:
        deltas: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if first:
            opening = {"role": "assistant", "content": "", "refusal": None}
            deltas.append((opening, {"index": 0, "logprobs": None, "finish_reason": None}))
        choice = self._choice(tokens, first=first)
        text = "".join(token.text for token in tokens)
        if text or (choice["logprobs"] or {}).get("content"):
            deltas.append(({"content": text}, choice | {"finish_reason": None}))
        if choice["finish_reason"]:
            deltas.append(({}, {"index": 0, "logprobs": None, "finish_reason": choice["finish_reason"]}))
        silent = {"usage": None} if self.job.wanted.usage_at_end else {}
        shells = [self._shell(self.event_object, [said | {"delta": delta}]) | silent for delta, said in deltas]
        return [self._with_running(shell, first=first) for shell in shells]
