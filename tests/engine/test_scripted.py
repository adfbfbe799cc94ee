"""The scripted engine's own words; what it shares with every engine is in ``test_port.py``."""

from __future__ import annotations

import pytest
from scripted_engine import ScriptedEngine

from hybrid.types import Message


@pytest.fixture
def engine():
    table = {(1,): [0.0, 1.0, 2.0], (1, 2): [3.0, 4.0, 5.0]}
    return ScriptedEngine(["?", "one", "two"], table.__getitem__, end_ids=frozenset({2}))


def test_rows_come_from_the_table(engine):
    assert engine.extend((1, 2), 2).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_words_are_tokens_and_unknown_words_are_token_zero(engine):
    assert engine.tokenize("one two three one") == (1, 2, 0, 1)
    assert b"".join(map(engine.piece, (1, 2))) == b"one two "
    assert engine.num_tokens == 3


def test_a_conversation_is_the_words_of_its_turns(engine):
    assert engine.render([Message("user", "one"), Message("assistant", "two one")]) == (1, 2, 1)


def test_decoded_tokens_are_counted_whatever_is_forgotten(engine):
    engine.extend((1, 2), 0)
    engine.rewind(1)
    engine.extend((2,), 0)
    engine.close()
    assert engine.num_decoded == 3
