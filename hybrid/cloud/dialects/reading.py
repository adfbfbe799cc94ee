"""Checks that the readers of all dialects share. A reply of another shape is BadReply, whatever it trips over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

from hybrid.cloud.port import REFUSED, Chunk
from hybrid.cloud.statuses import status_error
from hybrid.errors import BadReply, MissingCapability, to_one_line
from hybrid.prob import NotADistribution, TopK
from hybrid.types import CloudUsage, Ids

P = ParamSpec("P")
R = TypeVar("R")
# More tokens than any request holds: 128 answers, the most that services take, to the longest context that is published
# (10 million tokens) are fewer. A higher number counts no tokens.
MOST_TOKENS = 2**31
# What services call how much of a prompt they wrote to their cache: OpenAI from GPT-5.6 on and OpenRouter; LiteLLM;
# Anthropic, and Alibaba's compatible mode.
CACHE_WRITES = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
NO_ROWS = "the endpoint wrote without log-probabilities; hybrid probe tells which policies can do without"
NO_SCORES = "the endpoint answered without log-probabilities: it cannot score a draft"
NO_LIST = "the endpoint gave a token without a top-k list: missing, not certain"
NO_ROW = "the endpoint gave no row (null) for a drafted token"
OTHER_TOKENS = "the endpoint's rows are not those of its tokens"


def guarded(read: Callable[P, R]) -> Callable[P, R]:
    """Make a reading function total: a reply of any other shape is BadReply, whatever it trips over."""

    @wraps(read)
    def total(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        except NotADistribution as error:
            msg = f"the endpoint gave {error}"
            raise BadReply(msg) from error
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            msg = "the endpoint's reply is not shaped as the protocol says"
            raise BadReply(msg) from error

    return total


def number(value: object) -> float:
    """Take a JSON number as a log-probability; minus infinity and its stand-ins stay what they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = "not a number"
        raise TypeError(msg)
    return float(value) if not math.isinf(float(value)) else -math.inf if value < 0 else math.nan


def count(value: object) -> int:
    """Take a JSON number as a count of tokens."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = "not a count"
        raise TypeError(msg)
    return value


def id_list(value: object) -> Ids:
    """Take a JSON list as token ids. Raises BadReply."""
    if not isinstance(value, list) or not all(isinstance(i, int) and i >= 0 and i is not True for i in value):
        msg = "the endpoint's token ids are not a list of numbers"
        raise BadReply(msg)
    return tuple(value)


def choice_of(reply: Any, index: int = 0) -> Mapping[str, Any]:
    """Return one choice of an OpenAI-style reply. Raises BadReply, and what ``raise_error_in`` does."""
    raise_error_in(reply)
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    if not isinstance(choices, list) or len(choices) <= index or not isinstance(choices[index], dict):
        msg = "the endpoint's reply has no choices"
        raise BadReply(msg)
    choice: Mapping[str, Any] = choices[index]
    return choice


def finish_of(reason: object) -> Literal["stop", "length"] | None:
    """Take a finish reason. Raises BadReply for one that no plain continuation ends with."""
    if reason in (None, ""):
        return None
    if reason in {"stop", "eos"}:  # Together's name for a model that ended by itself
        return "stop"
    if reason == "length":
        return "length"
    msg = f"the endpoint ended with finish_reason {reason!r}"
    raise BadReply(msg)


def raise_error_in(reply: Any) -> None:
    """Raise the error that a reply holds in the place of an answer, or inside one.

    A refusal becomes what its status would mean outside, and counts as not sent. Any other error is BadReply.
    """
    error = reply.get("error") if isinstance(reply, Mapping) else None
    if error:
        said = error if isinstance(error, Mapping) else {"message": error}
        detail, status = to_one_line(said.get("message", error)), _status(said)
        msg = f"the endpoint broke off: {detail}"
        raise status_error(status, msg, detail) if status and status in REFUSED else BadReply(msg)


def _status(error: Mapping[str, Any]) -> int | None:
    """Return the status that an error object names; None: it names none, and the answer may have been computed."""
    code = error.get("code")
    if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()):
        return int(code)
    return 400 if error.get("type") == "invalid_request_error" else None  # OpenAI's codes are words


Written: TypeAlias = tuple[Ids, Sequence[TopK | None], str]
"""What some event of a continuation says was written: tokens, their rows, and their text."""


@guarded
def read_event(read: Callable[[Mapping[str, Any]], Written], reply: Any, most: CloudUsage | None = None) -> Chunk:
    """Read an OpenAI-style event, or a whole reply: what ``read`` takes from its choice, if it has one, and its usage.

    ``most``: as in ``read_usage``. Raises BadReply for an error inside it.
    """
    raise_error_in(reply)
    usage = read_usage(reply, most) if reply.get("usage") else None
    if not reply.get("choices"):
        return Chunk(usage=usage)
    choice = choice_of(reply)
    ids, rows, text = read(choice)
    return Chunk(ids, tuple(rows), text, finish_of(choice.get("finish_reason")), usage)


def one_token(ids: Ids) -> Ids:
    """Return the one token that was asked for. Raises BadReply."""
    if len(ids) != 1:
        msg = f"the endpoint wrote {len(ids)} tokens where 1 was asked for"
        raise BadReply(msg)
    return ids


def row_of(listed: dict[int, float], token: int, own: float, top_k: int, named: Mapping[int, float] | None) -> TopK:
    """Build the row of a written token. In a list of more than ``top_k`` entries the token was appended."""
    if not listed:
        raise BadReply(NO_LIST)
    if len(listed) > top_k and token in listed:
        listed = {i: lp for i, lp in listed.items() if i != token}
    return TopK.from_lists(listed, (token, own), named)


def known_rows(rows: Iterable[TopK | None]) -> tuple[TopK, ...]:
    """Return the rows up to the first that is missing."""
    known: list[TopK] = []
    for row in rows:
        if row is None:
            break
        known.append(row)
    return tuple(known)


def rows_for(rows: object, ids: Ids) -> list[Any]:
    """Take the log-probabilities of some tokens, as many as there are. Raises MissingCapability for none at all."""
    if not isinstance(rows, list):
        raise MissingCapability(NO_ROWS)
    if len(rows) != len(ids):
        msg = f"the endpoint gave {len(rows)} rows for {len(ids)} tokens"
        raise BadReply(msg)
    return rows


@guarded
def read_tokens(reply: Mapping[str, Any]) -> Ids:
    """Read the ids of a tokenised text."""
    tokens = reply.get("tokens")
    if not isinstance(tokens, list):
        msg = "the endpoint's tokenizer gave no tokens"
        raise BadReply(msg)
    return tuple(tokens)


def usage_of(
    prompt: object, completion: object, cached: object = 0, *, cache_writes: object = None, reasoning: object = 0
) -> CloudUsage:
    """Build a usage from what a server tells. A value that cannot be a count was not told: 0 (``cloud.port``).

    A count above ``MOST_TOKENS`` is none, so that what is charged for it is the most that it can be.
    """
    whole, kept, written, thought = map(_count_or_none, (prompt, cached, completion, reasoning))
    told_writes = _count_or_none(cache_writes)
    whole, kept, written = whole or 0, kept or 0, written or 0
    kept = kept if kept <= whole else 0
    writes = None if told_writes is None else min(told_writes, whole - kept)
    usage = CloudUsage(whole, written, kept)
    return replace(usage, cache_write_tokens=writes, reasoning_tokens=min(thought or 0, written))


def _count_or_none(value: object) -> int | None:
    """Take what may be a count of tokens; None for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None


def read_usage(reply: Any, most: CloudUsage | None = None) -> CloudUsage:
    """Read an OpenAI-style usage, whatever stands there, and if nothing does.

    Thoughts are charged as completion. Where a service leaves them out of it, they are added: it tells more thoughts
    than completion, or a total of more than prompt and completion (as Gemini's compatible route). What only a total
    tells is no more than ``most``, the most that may be charged. Where it tells no prompt, prompt and completion are
    assumed, each as much of the total as it can be.
    """
    usage, details = fields_of(reply, "usage"), fields_of(reply, "usage", "prompt_tokens_details")
    thought = _count_or_none(fields_of(reply, "usage", "completion_tokens_details").get("reasoning_tokens")) or 0
    prompt, written, total = [
        _count_or_none(usage.get(name)) or 0 for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    ]
    written += thought if thought > written else 0
    if prompt:
        limit = (most and most.completion_tokens) or MOST_TOKENS
        written = max(written, min(total - prompt, limit))
    told_writes = [details.get(name) for name in CACHE_WRITES] + [usage.get(CACHE_WRITES[-1])]  # there through LiteLLM
    most_writes = max([writes for each in told_writes if (writes := _count_or_none(each)) is not None], default=None)
    told = usage_of(prompt, written, details.get("cached_tokens"), cache_writes=most_writes, reasoning=thought)
    return told if prompt or not total or most is None else _with_total(told, total, most)


def _with_total(told: CloudUsage, total: int, most: CloudUsage) -> CloudUsage:
    """Return a usage without a prompt, with as much of the total in each count as it can hold."""
    completion = told.completion_tokens or min(total, most.completion_tokens)
    prompt = max(0, min(total - told.completion_tokens, most.prompt_tokens))
    return told.at_least(CloudUsage(prompt, completion).assumed)


def fields_of(reply: Any, *path: str | int) -> Mapping[str, Any]:
    """Return an object inside a reply, by names and places in lists; one without fields where there is none.

    >>> fields_of({"choices": [{"logprobs": {"content": []}}]}, "choices", 0, "logprobs")
    {'content': []}
    >>> fields_of({"choices": []}, "choices", 0)
    {}
    """
    found = reply
    for step in path:
        if isinstance(step, int):
            found = found[step] if isinstance(found, list) and step < len(found) else None
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
