"""SGLang's own ``/generate``: token ids in, rows from any position on, with the prefix cache kept up to there.

The server scores a draft without writing a token and tells the log-probabilities of candidates by id. Shapes:
``python/sglang/srt/managers/io_struct.py`` and ``tokenizer_manager.py``. Seen running: 0.5.23. Traps:

- The entry at ``logprob_start_len`` is null: it needs the scores of the position before, which the cache does not keep.
  So the rows of a draft start one token before it. From 0 on, the cache would not be read at all.
- Rows of written tokens are told after the temperature, unless the request is greedy, and after ``logit_bias``: at any
  other temperature than 1, or with a token banned, they are not the model's (``rows_altered_by``).
- A stream repeats all ids, texts and rows so far with every event, unless the server was told not to.
- One list of candidates serves all positions (``token_ids_logprob``).
- With ``max_new_tokens`` 0 nothing is written or charged for, and ``output_top_logprobs`` still holds the row after the
  prompt (``managers/tp_worker.py``: ``compute_logprobs_only``).
- A list longer than the vocabulary, or an id beyond it, ends the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybrid.cloud.dialects.dialect import (
    ContinuationRequest,
    Dialect,
    DialectSpec,
    Json,
    Post,
    ScoreFlow,
    biases,
    drawn,
)
from hybrid.cloud.dialects.reading import (
    NO_ROW,
    NO_ROWS,
    OTHER_TOKENS,
    count,
    fields_of,
    finish_of,
    guarded,
    id_list,
    number,
    raise_error_in,
    rows_for,
    usage_of,
)
from hybrid.cloud.dialects.vllm import TOKENIZE_ROUTE
from hybrid.cloud.port import Capabilities, Chunk, ModelQuestion, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability, to_one_line
from hybrid.prob import TopK
from hybrid.types import CloudUsage, Ids

GENERATE, INFO = "/generate", "/get_model_info"


@dataclass(frozen=True)
class Sglang(Dialect):
    """The dialect of ``/generate``."""

    can: Capabilities = Capabilities(
        dialect="sglang",
        rows_altered_by=frozenset(("temperature", "ban")),
        candidates=True,
        keeps_cache=True,
        tells_cache=True,
    )

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """Ask for the rows from the last token of the prefix on; with them comes the one after the span, unwritten."""
        return read_scores(question, (yield Post(GENERATE, score_body(question, self.setup.salt))))

    def min_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the ids that are sent: nothing is written for a check, though a token more is reserved for it."""
        return replace(super().min_usage(question), completion_tokens=0)

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:  # noqa: ARG002  (others need the question)
        """Return what is told, and no fewer tokens than are shown."""
        told = fields_of(reply, "meta_info")
        written = told.get("output_token_logprobs")
        return _usage(told).at_least(CloudUsage(0, len(written) if isinstance(written, list) else 0).known)

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        return ContinuationRequest(
            Post(GENERATE, write_body(question, self.setup.salt), stream="to done"), _SglangEvents(question)
        )


SPEC = DialectSpec("sglang", Sglang, (INFO, None), "is_generation", TOKENIZE_ROUTE)


def score_body(question: ScoreQuestion, salt: str | None) -> dict[str, Any]:
    """Ask for the rows of a draft."""
    body: dict[str, Any] = {
        "input_ids": list(question.prefix + question.span),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": len(question.prefix) - 1 if question.span else -1,
        "top_logprobs_num": question.top_k,
    }
    if named := sorted({token for row in question.candidates for token in row}):
        body["token_ids_logprob"] = named
    return body | ({"cache_salt": salt} if salt else {})


def write_body(question: WriteQuestion, salt: str | None) -> dict[str, Any]:
    """Ask for a continuation."""
    sampling = {"max_new_tokens": question.limit, **drawn(question.sampling, "temperature", "top_p", "top_k", "min_p")}
    sampling |= {"top_k": question.sampling.top_k or -1, "sampling_seed": question.sampling.seed}
    sampling |= {"logit_bias": biases(question.ban)} if question.ban else {}
    body: dict[str, Any] = {"input_ids": list(question.prefix), "sampling_params": sampling, "stream": True}
    if question.top_k:
        body |= {"return_logprob": True, "top_logprobs_num": question.top_k}
    return body | ({"cache_salt": salt} if salt else {})


@guarded
def read_scores(question: ScoreQuestion, reply: Json) -> Scores:
    """Read the rows that were due. Raises BadReply for fewer, null or impossible ones, MissingCapability for none."""
    raise_error_in(reply)
    told = reply["meta_info"]
    rows: list[TopK] = []
    if question.span:
        if told.get("input_top_logprobs") is None:
            msg = "the endpoint answered without input_top_logprobs: it cannot score a draft"
            raise MissingCapability(msg)
        own = told["input_token_logprobs"][-len(question.span) :]
        tops = told["input_top_logprobs"][-len(question.span) :]
        named = (told.get("input_token_ids_logprobs") or [None] * len(question.span))[-len(question.span) :]
        if not len(own) == len(tops) == len(named) == len(question.span):
            msg = f"the endpoint gave {len(tops)} rows for {len(question.span)} tokens"
            raise BadReply(msg)
        rows += [_row(*given) for given in zip(question.span, own, tops, named, strict=True)]
    if question.after:
        if not told.get("output_top_logprobs"):
            raise MissingCapability(NO_ROWS)
        named = told.get("output_token_ids_logprobs") or [None]
        rows.append(TopK.from_lists(_listed(told["output_top_logprobs"][0]), None, _listed(named[0] or ())))
    return Scores(tuple(rows), _usage(told))


def _row(token: int, own: Sequence[Any], top: Sequence[Any] | None, named: Sequence[Any] | None) -> TopK:
    if top is None or own[0] is None:
        raise BadReply(NO_ROW)
    if own[1] != token:
        raise BadReply(OTHER_TOKENS)
    return TopK.from_lists(_listed(top), (token, number(own[0])), _listed(named or ()))


def _listed(entries: Sequence[Any]) -> Mapping[int, float]:
    return {count(entry[1]): number(entry[0]) for entry in entries}


def _written(told: Json, expected: int) -> list[tuple[int, Sequence[Any]]]:
    """Return the written tokens with their own entries."""
    own = told.get("output_token_logprobs")
    if own is None:
        raise MissingCapability(NO_ROWS)
    if len(own) != expected:
        msg = f"the endpoint wrote {len(own)} tokens where {expected} was asked for"
        raise BadReply(msg)
    return [(count(entry[1]), entry) for entry in own]


class _SglangEvents:
    """Reads the events of one stream, each of which may repeat all before it."""

    def __init__(self, question: WriteQuestion) -> None:
        self._told = question.top_k > 0
        self._seen: Ids = ()
        self._text = ""

    @guarded
    def __call__(self, reply: Any) -> Chunk:
        raise_error_in(reply)
        told = reply["meta_info"]
        ids = id_list(reply["output_ids"])
        known, text = self._new(ids, reply.get("text") or "", told.get("completion_tokens"))
        reason = told.get("finish_reason") or {}
        if reason.get("type") == "abort":
            msg = f"the endpoint broke off: {to_one_line(reason.get('message'))}"
            raise BadReply(msg)
        finish = finish_of(reason.get("type"))
        rows = _written_rows(ids, told, known) if ids and self._told else [None] * len(ids[known:])
        return Chunk(ids[known:], tuple(rows), text, finish, _usage(told) if finish else None)

    def _new(self, ids: Ids, text: str, total: object) -> tuple[int, str]:
        """Return how many of these ids were told before, and what of the text is new.

        They repeat those before unless they are others, or the server's count (``total``) says that they come on top.
        """
        known = len(self._seen)
        repeats = ids[:known] == self._seen and total != known + len(ids)
        fresh = text.removeprefix(self._text) if repeats else text
        self._seen, self._text = (ids if repeats else self._seen + ids), self._text + fresh
        return (known if repeats else 0), fresh


def _written_rows(ids: Ids, told: Json, known: int) -> list[TopK]:
    """Return the rows of all but the first ``known`` tokens: those were read when they came first."""
    own, tops = _written(told, len(ids)), rows_for(told.get("output_top_logprobs"), ids)
    return [_row(ids[i], own[i][1], tops[i], None) for i in range(known, len(ids))]


def _usage(told: Json) -> CloudUsage:
    return usage_of(told.get("prompt_tokens"), told.get("completion_tokens"), told.get("cached_tokens"))
