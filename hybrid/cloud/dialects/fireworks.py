"""Fireworks' ``/v1/completions``: token ids in, the rows of the last few of them echoed.

Shapes: fireworks-ai's Python client, ``types/completion_create_params.py`` (echo_last, logprobs as a flag, top_logprobs
of at most 5) and ``types/shared/new_log_probs_content.py``. No server of theirs was asked, only ``server_stub``. Each
reply is checked for what the documents leave open: ``token_id`` in every alternative, as many entries as asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, OpenAi, Post, ScoreFlow
from hybrid.cloud.dialects.reading import (
    NO_ROWS,
    choice_of,
    count,
    event_of,
    fields_of,
    finish_of,
    guarded,
    id_list,
    number,
    read_usage,
    row_of,
)
from hybrid.cloud.dialects.vllm import BAN, COMPLETIONS
from hybrid.cloud.port import Capabilities, Chunk, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import CloudUsage, Sampling


@dataclass(frozen=True)
class Fireworks(OpenAi):
    """The dialect of Fireworks' completions."""

    can: Capabilities = Capabilities(dialect="fireworks", most_k=5)

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """Echo the span, and one token for the row after it."""
        prompt = WriteQuestion(question.prefix + question.span, 1, question.top_k, Sampling())
        body = self._body(prompt)
        if question.span:
            body["echo_last"] = len(question.span)  # with ``echo`` it would echo everything
        return read_scores(question, (yield Post(COMPLETIONS, body)))

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Return what is told, and no fewer tokens than are shown after the echo."""
        content = fields_of(reply, "choices", 0, "logprobs").get("content")
        written = len(content) - len(question.span) if isinstance(content, list) else 0
        return super().check_usage(question, reply).at_least(CloudUsage(0, written).known)

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        asked = self._continuation(COMPLETIONS, self._body(question))
        return ContinuationRequest(asked, partial(read_chunk, top_k=question.top_k))

    def _body(self, question: WriteQuestion) -> dict[str, Any]:
        sampling = question.sampling
        body: dict[str, Any] = {
            "model": self.setup.model,
            "prompt": list(question.prefix),
            "max_tokens": question.limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
        }
        # Ids come with the log-probabilities; without these they are asked for by name.
        top_k = question.top_k
        body |= {"logprobs": True, "top_logprobs": top_k} if top_k else {"return_token_ids": True}
        return body | ({"logit_bias": {str(i): BAN for i in sorted(question.ban)}} if question.ban else {})


# Hosted services have no route of their own that answers for nothing: this one is named.
SPEC = DialectSpec("fireworks", Fireworks)


@guarded
def read_scores(question: ScoreQuestion, reply: Json) -> Scores:
    """Read the rows that were due, counted from the end. Raises BadReply, MissingCapability."""
    told = _content(choice_of(reply))
    if len(told) != len(question.span) + 1:
        msg = f"the endpoint gave {len(told)} rows for {len(question.span)} tokens and the one after"
        raise BadReply(msg)
    if tuple(entry["token_id"] for entry in told[:-1]) != question.span:
        msg = "the endpoint's rows are not those of the draft"
        raise BadReply(msg)
    rows = [_row(entry, question.top_k) for entry in told[: question.num_rows]]
    return Scores(tuple(rows), read_usage(reply))


@guarded
def read_chunk(reply: Json, top_k: int) -> Chunk:
    """Read one event of a continuation."""
    choice, usage = event_of(reply)
    if choice is None:
        return Chunk(usage=usage)
    text, told = str(choice.get("text") or ""), (choice.get("logprobs") or {}).get("content") or []
    if not top_k:
        ids = id_list(choice.get("token_ids") or [])
        return Chunk(ids, (None,) * len(ids), text, finish_of(choice.get("finish_reason")), usage)
    if text and not told:
        raise MissingCapability(NO_ROWS)
    ids = tuple(count(entry["token_id"]) for entry in told)
    return Chunk(ids, tuple(_row(e, top_k) for e in told), text, finish_of(choice.get("finish_reason")), usage)


def _content(choice: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    told = (choice.get("logprobs") or {}).get("content")
    if told is None:
        msg = "the endpoint answered without log-probabilities: it cannot score a draft"
        raise MissingCapability(msg)
    listed: Sequence[Mapping[str, Any]] = told
    return listed


def _row(entry: Mapping[str, Any], top_k: int) -> TopK:
    listed = {count(other["token_id"]): number(other["logprob"]) for other in entry["top_logprobs"]}
    return row_of(listed, count(entry["token_id"]), number(entry["logprob"]), top_k, None)
