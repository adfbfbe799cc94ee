"""The cursors of several models as one: who decodes, whose row it is, and who was the nearest."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each
from scripted_engine import ScriptedEngine

from hybrid.engine import Cursor
from hybrid.engine.port import never
from hybrid.run.experts import ExpertCursor

NAMES = ("one", "other")
PROMPT = (0, 1, 2)


def engine(name):
    return ScriptedEngine("abcdefghijkl", lambda ids: np.random.default_rng([len(name), *ids]).normal(0.0, 2.0, 12))


def expert_cursor(mixing, **known):
    engines = {name: engine(name) for name in NAMES}
    cursors = {name: Cursor(engines[name], *known.get(name, ())) for name in NAMES}
    together = ExpertCursor(cursors, mixing)
    together.begin(PROMPT, never)
    return together, engines


def own(name, text):
    return Cursor(engine(name)).row(text)


@each("named", [0, 1])
def test_under_select_the_model_that_writes_decodes_alone_and_its_row_is_its_own(named):
    cursor, engines = expert_cursor("select")
    cursor.choose(named)
    before = {name: engine.num_decoded for name, engine in engines.items()}
    row = cursor.row((*PROMPT, 3), never)
    following = cursor.follow(1, never)
    assert row.logits.tolist() == own(NAMES[named], (*PROMPT, 3)).logits.tolist()
    assert following.logits.tolist() == own(NAMES[named], (*PROMPT, 3, 1)).logits.tolist()
    assert row.chosen == following.chosen == named
    assert row.parts[1 - named] is None
    decoded = {name: engine.num_decoded - before[name] for name, engine in engines.items()}
    assert decoded == {NAMES[named]: 2, NAMES[1 - named]: 0}
    cursor.rewind(len(PROMPT) + 1)
    assert [len(engines[name].ids) for name in (NAMES[named], NAMES[1 - named])] == [4, 3], "each as far as it has read"


def test_under_mix_all_decode_and_the_row_is_their_even_sum_at_first():
    cursor, _ = expert_cursor("mix")
    row = cursor.row((*PROMPT, 3), never)
    expected = sum(own(name, (*PROMPT, 3)).probs for name in NAMES) / 2
    assert row.probs == pytest.approx(expected)
    assert cursor.weights == {"one": 0.5, "other": 0.5}


def test_it_is_off_by_as_much_as_the_worst_of_them_and_a_shift_that_one_lacks_is_not_known():
    cursor, _ = expert_cursor("mix", one=(0.1, 0.02), other=(0.05, 0.03))
    assert (cursor.noise, cursor.shift) == (0.1, 0.03)
    assert expert_cursor("mix", one=(0.1, 0.02))[0].shift is None


@each("mixing", ["mix", "select"])
def test_the_nearest_is_told_once_it_is_clearly_that(mixing):
    cursor, _ = expert_cursor(mixing)
    rows = cursor.completed((*PROMPT, 3), {4: None}, never)
    assert cursor.is_complete(rows[4])
    assert not cursor.is_complete(None)
    assert cursor.nearest is None, "nothing was said yet"
    surprise = [-part.logprobs for part in rows[4].parts]
    gains = surprise[0] - surprise[1]
    little, much = int(np.argmin(np.abs(gains))), int(np.argmax(gains))
    assert abs(gains[little]) < 0.5 < gains[much]
    cursor.learn(little, rows[4])
    assert cursor.nearest is None
    for _ in range(3):
        cursor.learn(much, rows[4])
    assert cursor.nearest == 1
    assert cursor.weights["other"] > cursor.weights["one"]
    assert cursor.choose() == (mixing == "select")
