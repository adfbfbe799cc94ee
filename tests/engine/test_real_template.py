"""SmolLM2's own chat template, in its own tokens, over several turns."""

from __future__ import annotations

import pytest

from hybrid.engine.llama import Weights
from hybrid.types import Message

TURNS = [
    Message("system", "Be brief."),
    Message("user", "Name a colour."),
    Message("assistant", "Blue."),
    Message("user", "Another <|im_end|> one?"),
]
WRITTEN = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a colour.<|im_end|>\n"
    "<|im_start|>assistant\nBlue.<|im_end|>\n<|im_start|>user\nAnother <|im_end|> one?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def smollm2(real_model):
    weights = Weights(real_model("real"))
    yield weights
    weights.close()


def text(weights, ids):
    return b"".join(map(weights.piece, ids)).decode()


def test_every_turn_is_there_and_nobody_ends_anothers(smollm2):
    ids = smollm2.render(TURNS)
    start, end = (smollm2.tokenize(name, special=True)[0] for name in ("<|im_start|>", "<|im_end|>"))
    assert text(smollm2, ids) == WRITTEN
    assert (ids.count(start), ids.count(end)) == (5, 4)
    assert smollm2.render([Message("developer", "Be brief."), *TURNS[1:]]) == ids
    assert smollm2.thoughts(TURNS) is None


def test_a_turn_more_begins_with_the_tokens_of_the_turns_before(smollm2):
    """Or a conversation would be read anew at every turn."""
    before = smollm2.render(TURNS[:2])
    assert smollm2.render([*TURNS[:2], TURNS[2]])[: len(before)] == before
    assert smollm2.render(TURNS[:4])[: len(before)] == before


def test_an_open_answer_ends_the_prompt(smollm2):
    ids = smollm2.render([*TURNS[:2], Message("assistant", "Blue, and")])
    assert text(smollm2, ids).endswith("<|im_start|>assistant\nBlue, and")
    assert ids == smollm2.render(TURNS[:2]) + smollm2.tokenize("Blue, and")
