"""Bytes to tokens and back, whatever the vocabulary does to text, and wherever it was cut."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cloud.translation import ExactSplitter, whole_characters
from hybrid.engine.vocabulary import VocabularyFile
from hybrid.errors import VocabularyMismatch
from hybrid.settings.names import MODELS
from tests.oracles.vocabularies import Pieces

BYTES = [bytes([byte]) for byte in range(256)]
PLAIN = Pieces([*BYTES, " the", "the", "re", "é", "中"], ends=frozenset({0}))
SPACED = Pieces([*BYTES, " the", "the", " é"], space_first=True)
texts = st.text(st.sampled_from("ab the re é中<|im_end|>\n"), max_size=12) | st.text(max_size=8)


@pytest.fixture(scope="module")
def alien():
    with closing(VocabularyFile(MODELS / "alien.gguf")) as words:
        yield ExactSplitter(words)


@given(texts, st.integers(0, 40), st.integers(0, 40))
@pytest.mark.parametrize("words", [PLAIN, SPACED], ids=["plain", "space first"])
def test_wherever_a_text_is_cut_its_tokens_spell_it(words, text, start, end):
    splitter = ExactSplitter(words)
    data = text.replace("\0", "").encode()[start:end]
    assert b"".join(map(words.piece, splitter.split(data))) == data


@given(text=texts, start=st.integers(0, 40), end=st.integers(0, 40))
def test_so_do_those_of_a_model_file(alien, text, start, end):
    data = text.encode()[start:end]
    ids = alien.split(data)
    assert b"".join(map(alien.words.piece, ids)) == data
    assert not alien.words.end_ids & {*ids}, "a text that spells an end token ends nothing"


def test_a_space_that_is_put_before_every_text_is_told_from_one_of_its_own():
    assert b"".join(map(SPACED.piece, SPACED.tokenize("the"))) == b" the"
    splitter = ExactSplitter(SPACED)
    assert [SPACED.piece(token) for token in splitter.split(b"the")] == [b"the"]
    assert [SPACED.piece(token) for token in splitter.split(b" the")] == [b" the"]


def test_what_is_left_of_cut_characters_changes_nothing_of_the_text_between():
    """A model reads a text as its own tokenizer splits it; the longest tokens are only for what is no character."""

    class OneByOne(Pieces):
        def tokenize(self, text, *, special=False):
            return tuple(text.encode())

    splitter = ExactSplitter(OneByOne([*BYTES, "the"]))
    data = "é the 中".encode()[1:-1]
    assert splitter.split(data) == tuple(data)
    assert splitter.split("é".encode()[1:]) == (0xA9,)


def test_a_byte_that_nothing_spells_is_a_sentence():
    with pytest.raises(VocabularyMismatch, match=r"no token of the model spells b'z'"):
        ExactSplitter(Pieces(["a", "b"])).split(b"abz")


@given(texts, st.integers(0, 40))
def test_whole_characters_end_before_one_that_was_cut(text, cut):
    data = text.encode()[:cut]
    whole = whole_characters(data)
    assert data[:whole].decode() == data.decode("utf-8", "ignore")
    assert len(data) - whole < 4
