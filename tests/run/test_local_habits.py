"""The local model's side of a comparison of habits."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from cases import each_of

from hybrid.assemble.probing import local_habits, render_or_text
from hybrid.cloud.probe_result import CHATS, QUESTIONS
from hybrid.engine import Cursor
from hybrid.engine.identity import LocalNoise
from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.settings.names import MODELS
from hybrid.types import Message

NOISE = LocalNoise(0.02, 0.01)


@pytest.fixture(scope="module")
def weights():
    with closing(Weights(MODELS / "small.gguf")) as opened:
        yield opened


def with_rows(found):
    return [chat for chat in found.chats if chat.row is not None]


def test_every_question_has_the_row_that_the_model_gives_after_its_own_template(weights):
    found = local_habits(weights, 1, NOISE)
    *asked, last = found.chats
    assert [chat.turns[0].content for chat in asked] == [*QUESTIONS]
    assert (last.turns, last.row, with_rows(found)) == (CHATS[-1], None, asked)
    for chat in each_of(found.chats):
        assert (chat.ids, chat.rendered) == (weights.render(chat.turns), True)
    with closing(weights.context(64, 1)) as engine:
        alone = Cursor(engine).row(asked[-1].ids)
    assert np.array_equal(asked[-1].row.logits, alone.logits)
    assert (asked[0].row.noise, asked[0].row.shift) == (NOISE.nats, NOISE.shift)
    assert len({chat.row.logits.tobytes() for chat in asked}) == len(QUESTIONS), "none was overwritten"


def test_a_question_that_does_not_fit_into_the_model_has_no_row(weights):
    longest = sorted(len(weights.render((Message("user", text),))) for text in QUESTIONS)[3]
    short = SimpleNamespace(
        longest_context=longest,
        render=weights.render,
        tokenize=weights.tokenize,
        piece=weights.piece,
        context=weights.context,
    )
    assert len(with_rows(local_habits(short, 1, NOISE))) == 3
    short.longest_context = 1
    assert with_rows(local_habits(short, 1, NOISE)) == []


def test_without_a_template_the_text_stands_as_it_is_and_that_is_said(weights):
    def refuses(turns):
        raise UsageError("no template")

    bare = SimpleNamespace(render=refuses, tokenize=weights.tokenize)
    assert render_or_text(bare, CHATS[-1]) == (weights.tokenize(QUESTIONS[0]), False)
