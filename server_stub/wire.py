"""What several families say alike: refusals, OpenAI's legacy arrays, vLLM's rows of a prompt, usage.

Written from the published definitions (``MANUAL.md`` names them), apart from the client's own reading of them: the wire
exists twice, and each side tests the other (``tests/server_stub/test_golden.py``). Only shapes stand here; what a
family reads, and what it sends around these shapes, stands in ``dialects``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from server_stub.ask import Row
from server_stub.completion import Charge

Json = dict[str, Any]

# What vLLM and OpenAI send for a probability of zero, which JSON has no number for.
LOWEST = -9999.0


class WireError(Exception):
    """A request that is answered with an error object; ``streamed``: as the only event of a stream, with status 200."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        """Take the HTTP status and what goes into the object."""
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param
        self.streamed = False

    def body(self) -> Json:
        """Return the error object as OpenAI and vLLM shape it; all four keys, always."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


@contextmanager
def refusing(*, streams: bool) -> Iterator[None]:
    """Refuse what is refused here where it is noticed: once the headers of a stream are out, inside of it."""
    try:
        yield
    except WireError as error:
        error.streamed = streams
        raise


class Killed(Exception):
    """A request that the family's own server does not survive; says why."""


def number(logprob: float) -> float:
    """Return a log-probability as JSON can hold it; what is no number at all stays so."""
    return logprob if math.isnan(logprob) else max(logprob, LOWEST)


def prompt_row(row: Row, k: int, actual: int, text: Mapping[int, str]) -> Json:
    """Return one position of vLLM's ``prompt_logprobs``: the top k, and the actual token whatever its rank."""
    ranked = {actual: row.actual(actual)} | {i: (lp, rank) for rank, (i, lp) in enumerate(row.top[:k], start=1)}
    return {str(i): {"logprob": number(lp), "rank": rank, "decoded_token": text[i]} for i, (lp, rank) in ranked.items()}


def logprobs(
    rows: list[Row | None], ids: list[int], k: int, text: Mapping[int, str], *, as_ids: bool, offset: int
) -> Json:
    """Return the legacy log-probability arrays: up to k + 1 entries, the actual token among them."""

    def key(token: int) -> str:
        return f"token_id:{token}" if as_ids else text[token]

    offsets = []
    for token in ids:
        offsets.append(offset)
        offset += len(key(token))
    tops: list[dict[str, float] | None] = []
    for row, token in zip(rows, ids, strict=True):
        if row is None:
            tops.append(None)
            continue
        shown = dict(row.top[:k]) | {token: row.actual(token)[0]}
        tops.append({key(i): number(lp) for i, lp in shown.items()})
    return {
        "tokens": [key(token) for token in ids],
        "token_logprobs": [
            None if row is None else number(row.actual(token)[0]) for row, token in zip(rows, ids, strict=True)
        ],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def usage(charge: Charge) -> Json:
    """Return what was charged."""
    return {
        "prompt_tokens": charge.prompt_tokens,
        "completion_tokens": charge.completion_tokens,
        "total_tokens": charge.prompt_tokens + charge.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": charge.cached_tokens},
    }
