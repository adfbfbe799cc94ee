"""The cloud's rows in a trace: what is read back is what was written, and what is no row is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import each

from hybrid.prob import Dense, TextRow, TokenBytes, TopK
from hybrid.record.rows import row_from_json, row_to_json

WORDS = TokenBytes((b"a", b"ab", b" the", b"\xc3", b"<end>"), frozenset({4}))
DRAFT = Dense.from_probs(np.array([0.4, 0.2, 0.2, 0.1, 0.1]))


def text_row():
    masses = np.array([0.5, 0.2, 0.1])
    return TextRow.listed_as(1, (b"ab", b" th", b"\xc3\xa9"), masses, 0.125, 0.075, WORDS, 0.01)


def told(row):
    return json.loads(json.dumps(row_to_json(row)))


def test_a_row_of_another_vocabulary_is_read_as_it_was_written():
    row, read = text_row(), row_from_json(told(text_row()), WORDS)
    assert isinstance(read, TextRow)
    assert read.kl(DRAFT) == row.kl(DRAFT)
    assert (read.best, read.ids.tolist(), read.noise) == (row.best, row.ids.tolist(), 0.01)


def test_a_row_of_this_vocabulary_is_read_as_it_was_written():
    row = TopK.from_lists({3: -0.5, 1: -1.5}, named={0: -4.0})
    read = row_from_json(told(row), WORDS)
    assert (read.ids.tolist(), read.logprobs.tolist()) == (row.ids.tolist(), row.logprobs.tolist())
    assert (read.tail_max, read.num_listed, read.noise) == (row.tail_max, row.num_listed, row.noise)


@each(
    "wrong",
    [
        {"masses": [0.5, 0.3]},
        {"masses": [0.9, -0.2, 0.1]},
        {"masses": [0.5, float("nan"), 0.1]},
        {"ending": 0.5},
        {"hidden": -0.075, "ending": 0.275},
        {"strings": ["6162", "207", "c3a9"]},
        {"strings": ["6162", "", "c3a9"]},
        {"best": -1},
        {"best": 5},
        {"best": 1.0},
        {"ending": "0.1"},
    ],
)
def test_what_is_no_row_of_another_vocabulary_is_refused(wrong):
    with pytest.raises(ValueError, match=r"no row of another vocabulary|hexadecimal|is no number"):
        row_from_json(told(text_row()) | wrong, WORDS)
