"""A question over real HTTP by a client that waits for nothing long, and what a reply of the stub holds."""

from __future__ import annotations

import time

import hybrid

# Small was never asked for downwards and sorts upwards: the two part at the first token.
QUESTION = "Sort downwards: 42 17 99 23 68."
MAX_TOKENS = 48
READ_TIMEOUT_S = 2.0


def first_choice(reply):
    body = reply.json()
    return body, body["choices"][0]


def ask(url, **choices):
    with hybrid.open(
        local="small",
        cloud=url,
        max_tokens=MAX_TOKENS,
        first_byte_timeout_s=READ_TIMEOUT_S,
        read_timeout_s=READ_TIMEOUT_S,
        connect_timeout_s=1.0,
        retries=0,  # what is asked again is tested in test_fault_matrix.py
        **choices,
    ) as client:
        began = time.monotonic()
        answer = client.generate(QUESTION)
        return answer, time.monotonic() - began
