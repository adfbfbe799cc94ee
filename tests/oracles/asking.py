"""Asking a server over HTTP, and holding its rows and texts against the model itself: for ``tests/server_stub``."""

from __future__ import annotations

import json
import uuid

import numpy as np
from arithmetic import LIKELY, tolerance

TEXT = "What is 27 + 48? Add the tens, then the ones: 20 + 40 = 60 and 7 + 8 = 15. So 75."


def cold() -> dict[str, str]:
    """A field that no earlier request shares a cache with."""
    return {"cache_salt": uuid.uuid4().hex}


def complete(server, **fields) -> dict:
    reply = server.client.post("/v1/completions", json={"temperature": 0} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def choice(server, **fields) -> dict:
    [only] = complete(server, **fields)["choices"]
    return only


def streamed(server, **fields) -> list[dict]:
    """Return every event of a stream; the last one must be the promised mark."""
    body = {"temperature": 0, "stream": True} | fields
    with server.client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def cached(body: dict) -> int:
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def by_id(row: dict) -> dict[int, float]:
    """``token_id:7`` and ``7`` to 7."""
    return {int(key.removeprefix("token_id:")): value for key, value in row.items()}


def noise_of(dense, token: int) -> float:
    """Return the nats by which a token may be off: what is unlikely is rounded more."""
    return tolerance().nats if dense.probs[token] >= LIKELY else 0.5


def assert_row(shown: dict[int, float], dense, k: int, actual: int) -> None:
    """A row shows the best k and the actual token, with the oracle's values (to noise where p is at least 1e-3)."""
    assert actual in shown
    listed = set(shown) - {actual}
    assert k - 1 <= len(listed) <= k
    assert len(shown) >= k
    least = dense.top(k)[-1][1] if k else 0.0
    for token in listed:
        assert dense.logprobs[token] >= least - tolerance().nats
    for token, logprob in shown.items():
        assert abs(logprob - dense.logprobs[token]) <= noise_of(dense, token)


def assert_greedy(oracle, prefix: list[int], written: list[int], banned=()) -> None:
    """Every token is the oracle's best of those allowed, or as good as it."""
    for n, token in enumerate(written):
        logprobs = oracle.row([*prefix, *written[:n]]).logprobs.copy()
        logprobs[list(banned)] = -np.inf
        assert logprobs[token] >= logprobs.max() - tolerance().gap
