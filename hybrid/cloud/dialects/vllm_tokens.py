"""vLLM's ``/inference/v1/generate``: token ids in and out, rows by id, and the drafter's own candidates scored.

The server opens this route with ``--enable-scale-out`` (from 0.30 on). Shapes of 0.33:
``vllm/entrypoints/scale_out/token_in_token_out/protocol.py``, ``vllm/sampling_params.py``. Seen running: 0.32. Traps:

- ``prompt_logprob_token_ids`` takes exactly ``prompt length - 1 - start`` lists, padded with -1 to one length. It needs
  the V2 model runner. Where the prefix cache was read past ``start`` the scores are dropped in silence: missing.
- A check reads the prefix cache only where ``skip_reading_prefix_cache`` is false. The V2 runner then tells the rows of
  the tokens that it computed: as many as the prompt has more than were cached, the first null. The V1 runner tells
  memory that nobody wrote, which ends the server. So the field is sent only after the same server has given values of
  candidates, which V1 refuses (``Post.proof``), and never without candidates.
- Blocks are cached whole: where one ends with the prefix or within the draft, first rows are missing.
- The top list of a written token begins with that token and holds k entries in all: only its ranks tell which of them
  are the k likeliest.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypedDict

import numpy as np
from msgspec import Raw

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, OpenAi, Post, ScoreFlow, biases, drawn
from hybrid.cloud.dialects.reading import (
    NO_ROWS,
    Written,
    choice_of,
    count,
    guarded,
    id_list,
    number,
    one_token,
    read_usage,
    rows_for,
)
from hybrid.cloud.dialects.vllm import TOKENIZE_ROUTE, chat_route, due_rows, ranked_row
from hybrid.cloud.port import Capabilities, ModelQuestion, ScoreQuestion, Scores, WriteQuestion, min_usage
from hybrid.errors import BadReply, CloudError, MissingCapability
from hybrid.prob import Floats, TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids

GENERATE = "/inference/v1/generate"
CANDIDATES, NO_TOKEN = "prompt_logprob_token_ids", -1
# The smallest block that a cache keeps by default, on GPUs. After a shorter text there is nothing to read from it.
BLOCK = 16
# What it costs to have candidates' values of two tokens.
PROOF = CloudUsage(2, 1)


class GenerateScoreReply(TypedDict, total=False):
    """What is wanted of the reply to a check: each row of the prompt stays as it came until it is due."""

    prompt_logprobs: list[Raw] | None
    prompt_token_id_logprobs: Any
    choices: Any
    usage: Any
    error: Any


@dataclass(frozen=True)
class VllmTokens(OpenAi):
    """The dialect of ``/inference/v1/generate``."""

    can: Capabilities = Capabilities(dialect="vllm-tokens", candidates=True)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that is charged: a check that is put to the cache may be asked again, and takes a proof."""
        most = super().max_usage(question)
        return most + most + PROOF if self._may_read_cache(question) else most

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """Ask for the rows of the prompt, the candidates' own values, and one token for the row after it."""
        before = NO_USAGE
        if self._may_read_cache(question):
            scores, before = yield from self._from_cache(question)
            if scores is not None:
                return scores
        body = score_body(question, self.setup.model, self.setup.salt)
        scores = read_scores(question, (yield Post(GENERATE, body, GenerateScoreReply, before=before)))
        return replace(scores, usage=before + scores.usage.at_least(min_usage(question).known))

    def _may_read_cache(self, question: ModelQuestion) -> bool:
        """Whether there is something to read, and candidates can be asked about, as V1 is told from V2 by them."""
        asks = isinstance(question, ScoreQuestion) and bool(question.span) and len(question.prefix) > BLOCK
        return asks and self.can.candidates and self.can.same_words is True

    def _from_cache(self, question: ScoreQuestion) -> Generator[Post, Any, tuple[Scores | None, CloudUsage]]:
        """Ask with the cache read; return the rows, None where first ones are missing, and what was charged so far."""
        before = NO_USAGE
        if not _wanted(question):  # V1 refuses every body that holds candidates, the same one with the field too
            question = replace(question, candidates=tuple((token,) for token in question.span))
        body = score_body(question, self.setup.model, self.setup.salt)
        body["sampling_params"]["skip_reading_prefix_cache"] = False
        asked = Post(GENERATE, body, GenerateScoreReply, proof="needs")
        reply = yield asked
        if reply is None:
            proof = proof_body(question, self.setup.model, self.setup.salt)
            reply = yield Post(GENERATE, proof, GenerateScoreReply, proof="gives")
            if reply is not None:
                before = read_proof(reply)
                reply = yield replace(asked, before=before)
        if reply is None:
            return None, before
        if _lacks_rows(question, reply):
            return None, before + read_usage(reply).at_least(min_usage(question).known)
        scores = read_scores(question, reply, from_cache=True)
        return replace(scores, usage=before + scores.usage.at_least(min_usage(question).known)), before

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        body = write_body(question, self.setup.model, self.setup.salt)
        return self._continuation(GENERATE, body, partial(read_choice, top_k=question.top_k))

    def learn_from_error(self, question: ModelQuestion, error: CloudError) -> Self:
        """Learn too that no candidates can be asked about: the V1 model runner refuses the field by its name."""
        if not error.sent and CANDIDATES in str(error) and self.can.candidates:
            return replace(self, can=replace(self.can, candidates=False))
        return super().learn_from_error(question, error)


# The same server as vllm's: nothing but its own flags tells whether it takes tokens, so this is named.
SPEC = DialectSpec("vllm-tokens", VllmTokens, tokenize_route=TOKENIZE_ROUTE, chat_route=chat_route)


def score_body(question: ScoreQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for the rows of a draft."""
    sampling: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "logprobs": question.top_k}
    if question.span:
        sampling["prompt_logprobs"] = question.top_k
    if wanted := _wanted(question):
        width = max(map(len, wanted))
        sampling["prompt_logprob_start"] = len(question.prefix) - 1
        sampling[CANDIDATES] = [[*row, *[NO_TOKEN] * (width - len(row))] for row in wanted]
    return _body(model, question.prefix + question.span, sampling, salt)


def proof_body(question: ScoreQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for one candidate's value after one token: the shortest request that V1 refuses and V2 answers."""
    prompt = question.prefix[:2]
    return _body(model, prompt, {"max_tokens": 1, "temperature": 0.0, CANDIDATES: [list(prompt[1:])]}, salt)


def _wanted(question: ScoreQuestion) -> tuple[Ids, ...]:
    """Return the candidates of every drafted token; nothing where there are none: an empty table is refused."""
    wanted = question.candidates[: len(question.span)]
    return wanted if any(wanted) else ()


def write_body(question: WriteQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for a continuation."""
    sampling = {"max_tokens": question.limit} | drawn(question.sampling)
    sampling |= {"logprobs": question.top_k} if question.top_k else {}
    sampling |= {"logit_bias": biases(question.ban)} if question.ban else {}
    return _body(model, question.prefix, sampling, salt)


def _body(model: str, prompt: Ids, sampling: Json, salt: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "token_ids": list(prompt), "sampling_params": sampling}
    return body | ({"cache_salt": salt} if salt else {})


@guarded
def read_proof(reply: Json) -> CloudUsage:
    """Return what a proof was charged. Raises MissingCapability, at that charge alone, where it is none."""
    choice_of(reply)
    charged = read_usage(reply).at_least(PROOF.known)
    if not isinstance(reply.get("prompt_token_id_logprobs"), str):
        msg = f"the endpoint gave no values where it was asked for {CANDIDATES}"
        raise MissingCapability(msg, sent=False, charged=charged)
    return charged


@guarded
def _lacks_rows(question: ScoreQuestion, reply: Json) -> bool:
    """Whether so much was read from the cache that first rows, and with them the candidates' values, are missing."""
    choice_of(reply)
    listed = reply.get("prompt_logprobs") or []
    return len(listed) <= len(question.span) or not isinstance(reply.get("prompt_token_id_logprobs"), str)


@guarded
def read_scores(question: ScoreQuestion, reply: Json, *, from_cache: bool = False) -> Scores:
    """Read the rows that were due. Raises BadReply for fewer, null or impossible ones, MissingCapability for none."""
    choice = choice_of(reply)
    rows: list[TopK] = []
    if question.span:
        due = due_rows(question, reply.get("prompt_logprobs"), from_cache=from_cache)
        named = _named(question, reply.get("prompt_token_id_logprobs"))
        for token, entry, beside in zip(question.span, due, named, strict=True):
            rows.append(ranked_row(token, entry, question.top_k, beside))
    if question.after:
        rows += _rows(one_token(id_list(choice["token_ids"])), choice.get("logprobs"), question.top_k)
    return Scores(tuple(rows), read_usage(reply))


def _named(question: ScoreQuestion, packed: object) -> Sequence[dict[int, float]]:
    """Unpack the candidates' own values; none where none were asked for."""
    wanted = _wanted(question)
    if not wanted:
        return [{}] * len(question.span)
    if not isinstance(packed, str):
        msg = "the endpoint gave no values for the candidates that were asked about"
        raise MissingCapability(msg)
    table: Floats = np.load(io.BytesIO(base64.b64decode(packed, validate=True)), allow_pickle=False)
    if table.ndim != 2 or table.shape[0] != len(question.span):
        msg = f"the endpoint gave values of shape {table.shape} for {len(question.span)} tokens"
        raise BadReply(msg)
    return [dict(zip(ids, map(float, values), strict=False)) for ids, values in zip(wanted, table, strict=True)]


def read_choice(choice: Json, top_k: int) -> Written:
    """Read the tokens of a continuation, with their rows if they were asked for."""
    ids = id_list(choice.get("token_ids") or [])
    return ids, _rows(ids, choice.get("logprobs"), top_k) if ids and top_k else [None] * len(ids), ""


def _rows(ids: Ids, logprobs: object, top_k: int) -> list[TopK]:
    told = logprobs.get("content") if isinstance(logprobs, dict) else None
    if told is None:
        raise MissingCapability(NO_ROWS)
    rows = []
    for token, entry in zip(ids, rows_for(told, ids), strict=True):
        ranked = {
            str(count(e["token_id"])): {"logprob": number(e["logprob"]), "rank": e["rank"]}
            for e in entry["top_logprobs"]
        }
        rows.append(ranked_row(token, ranked, top_k, {}))
    return rows
