"""Fireworks' ``/v1/completions``: token ids in, the rows of the last few of them echoed.

Shapes: fireworks-ai's Python client, ``types/completion_create_params.py`` (echo_last, logprobs as a flag, top_logprobs
of at most 5) and ``types/shared/new_log_probs_content.py``. No server of theirs was asked, only ``server_stub``. Each
reply is checked for what the documents leave open: ``token_id`` in every alternative, as many entries as asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, OpenAi, Post, ScoreFlow, biases, drawn
from hybrid.cloud.dialects.reading import (
    NO_ROWS,
    NO_SCORES,
    Written,
    choice_of,
    count,
    fields_of,
    guarded,
    id_list,
    number,
    read_usage,
    row_of,
)
from hybrid.cloud.dialects.vllm import COMPLETIONS
from hybrid.cloud.port import Capabilities, ScoreQuestion, Scores, WriteQuestion
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
        return self._continuation(COMPLETIONS, self._body(question), partial(read_choice, top_k=question.top_k))

    def _body(self, question: WriteQuestion) -> dict[str, Any]:
        prompt, top_k = list(question.prefix), question.top_k
        body: dict[str, Any] = {"model": self.setup.model, "prompt": prompt, "max_tokens": question.limit}
        body |= drawn(question.sampling)
        # Ids come with the log-probabilities; without these they are asked for by name.
        body |= {"logprobs": True, "top_logprobs": top_k} if top_k else {"return_token_ids": True}
        return body | ({"logit_bias": biases(question.ban)} if question.ban else {})


# Hosted services have no route of their own that answers for nothing: this one is named.
SPEC = DialectSpec("fireworks", Fireworks)


@guarded
def read_scores(question: ScoreQuestion, reply: Json) -> Scores:
    """Read the rows that were due, counted from the end. Raises BadReply, MissingCapability."""
    told = (choice_of(reply).get("logprobs") or {}).get("content")
    if told is None:
        raise MissingCapability(NO_SCORES)
    if len(told) != len(question.span) + 1:
        msg = f"the endpoint gave {len(told)} rows for {len(question.span)} tokens and the one after"
        raise BadReply(msg)
    if tuple(entry["token_id"] for entry in told[:-1]) != question.span:
        msg = "the endpoint's rows are not those of the draft"
        raise BadReply(msg)
    rows = [_row(entry, question.top_k) for entry in told[: question.num_rows]]
    return Scores(tuple(rows), read_usage(reply))


def read_choice(choice: Json, top_k: int) -> Written:
    """Read the tokens of a continuation, with their rows if they were asked for."""
    text, told = str(choice.get("text") or ""), (choice.get("logprobs") or {}).get("content") or []
    if not top_k:
        ids = id_list(choice.get("token_ids") or [])
        return ids, [None] * len(ids), text
    if text and not told:
        raise MissingCapability(NO_ROWS)
    return tuple(count(entry["token_id"]) for entry in told), [_row(entry, top_k) for entry in told], text


def _row(entry: Mapping[str, Any], top_k: int) -> TopK:
    listed = {count(other["token_id"]): number(other["logprob"]) for other in entry["top_logprobs"]}
    return row_of(listed, count(entry["token_id"]), number(entry["logprob"]), top_k, None)
