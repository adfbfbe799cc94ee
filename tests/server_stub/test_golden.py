"""Whole bodies, key by key, as the named sources publish them: a key more or less is another wire.

A model of four words whose rows are three plain distributions in turn, so that every number can be checked by hand: ln
of 1/2, 1/4 and 1/8 are -0.693147, -1.386294 and -2.079442.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from cases import each
from scripted_engine import ScriptedEngine

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))
PROBS = [[1 / 2, 1 / 4, 1 / 8, 1 / 8], [1 / 8, 1 / 2, 1 / 4, 1 / 8], [1 / 4, 1 / 8, 1 / 8, 1 / 2]]
# What a clock says.
VOLATILE = {"created": 0, "created_at": "", "total_duration": 0, "eval_duration": 0}


@pytest.fixture
def scripted():
    def scores(ids) -> list[float]:
        return [math.log(p) for p in PROBS[(len(ids) + ids[-1]) % 3]]

    return lambda: ScriptedEngine(["a", "b", "c", "d"], scores, num_context=4000)


def settled(body):
    """The body, without what a clock says, and with six digits."""
    if isinstance(body, dict):
        return {key: VOLATILE.get(key, settled(value)) for key, value in body.items()}
    if isinstance(body, list):
        return [settled(value) for value in body]
    return round(body, 6) if isinstance(body, float) else body


@each("path", GOLDEN, ids=lambda path: path.stem)
def test_an_answer_is_the_golden_one(spoken, path):
    golden = json.loads(path.read_text())
    assert golden["source"]
    client = spoken(golden["dialect"], **golden.get("flags", {}))
    reply = client.post(golden["path"], json=golden["request"], headers={"x-request-id": "r"})
    assert reply.status_code == 200
    assert settled(reply.json()) == golden["answer"]


def test_every_dialect_that_generates_has_a_golden_answer():
    from server_stub.dialects import DIALECTS

    assert {json.loads(path.read_text())["dialect"] for path in GOLDEN} == set(DIALECTS)
