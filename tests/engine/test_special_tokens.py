"""A long text is split in parts: its tokens are those of the whole, and no part that can be cut is long."""

from __future__ import annotations

import re

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.engine.llama import Weights
from hybrid.engine.native import ll
from hybrid.engine.vocabulary import SpecialTokens
from hybrid.types import Message

# Names that begin or end with others, that overlap themselves and each other, and one that begins with a space.
OWN, CONTROL = gguf.TokenType.USER_DEFINED, gguf.TokenType.CONTROL
ODD = [("<turn><", OWN), ("n>b", CONTROL), ("aba", OWN), ("abab", CONTROL), (" <end>", OWN), ("urn", CONTROL)]
PARTS = ["<turn>", "<end>", " ", "\n", "he", "h", "é", "<", "turn", *(name for name, _ in ODD), "ab", "x"]


def test_the_tokens_of_the_parts_are_those_of_the_whole(tiny_file):
    vocabulary, cut = Weights(tiny_file(padding=ODD)), 0

    @settings(max_examples=150)
    @given(st.lists(st.sampled_from(PARTS), min_size=8, max_size=30), st.booleans(), st.integers(1, 6))
    def law(texts, parse_special, size):
        nonlocal cut
        text = "".join(texts)
        parts = list(vocabulary._specials[parse_special].parts(text, size))
        assert "".join(parts) == text
        assert all(len(part) >= size for part in parts[:-1])
        whole, *ids = (
            vocabulary._split_part(part, add_special=False, parse_special=parse_special) for part in (text, *parts)
        )
        assert sum(ids, ()) == whole
        cut += len(parts) > 2

    law()
    assert cut > 15
    vocabulary.close()


NAMES = st.dictionaries(st.text("ab< ", min_size=1, max_size=6), st.booleans(), min_size=1, max_size=6)


@given(NAMES, st.text("ab<c ", max_size=40), st.integers(1, 4))
def test_a_text_is_cut_wherever_it_may_be(names, text, size):
    def stands(name, place):
        return text.startswith(name, place)

    def is_cut(at):
        here = [name for name in names if stands(name, at)]
        end = at + max(map(len, here), default=0)
        others = [(place, place + len(name)) for name in names for place in range(len(text)) if stands(name, place)]
        own = here and not any(names[name] or name[0] == " " for name in here)
        return own and all(place == at or place >= end or done <= at for place, done in others)

    parts = list(SpecialTokens(names).parts(text, size))
    assert "".join(parts) == text
    cuts, cut = [0], 0
    while (cut := next((at for at in range(cut + size, len(text)) if is_cut(at)), 0)) and len(text) - cuts[-1] > size:
        cuts.append(cut)
    assert parts == [text[a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True)]


def test_a_pattern_is_made_once_for_a_vocabulary_and_not_for_each_name(monkeypatch):
    """Vocabularies of 6,400 special tokens are published."""
    made, compiled, found = [], re.compile, re.finditer
    monkeypatch.setattr(re, "compile", lambda *given: made.append(given) or compiled(*given))
    monkeypatch.setattr(re, "finditer", lambda *given: made.append(given) or found(*given))
    tokens = SpecialTokens({f"<unused{i}>": False for i in range(600)})
    assert len(list(tokens.parts("word <unused7>" * 50, 20))) > 10
    assert len(made) == 1
    assert sum(map(len, made[0])) < 200, "each character of a text is compared with few texts"


def test_a_token_that_takes_the_space_before_it_is_no_place_to_cut():
    """So is a name that begins with one: what stands before may take it."""
    text = "a <x><y>b<y>c <x>"
    assert list(SpecialTokens({"<x>": True, "<y>": False}).parts(text, 1)) == ["a <x>", "<y>b", "<y>c <x>"]
    assert list(SpecialTokens({" <x>": False}).parts(text, 1)) == [text]
    assert list(SpecialTokens({"": False}).parts(text, 1)) == [text]


@pytest.mark.parametrize("parse_special", [False, True])
def test_what_llama_cpp_is_given_at_a_time_does_not_grow_with_a_conversation(weights, monkeypatch, parse_special):
    """It takes the square of it. ``False``: somebody's text spells a mark, and each turn's text is split alone."""
    bundled, given, split = weights["bundled"], [], ll.llama_tokenize
    monkeypatch.setattr(
        ll, "llama_tokenize", lambda v, raw, size, *rest: given.append(size) or split(v, raw, size, *rest)
    )
    turns = [Message("user", f"word {i}" + ("" if parse_special else "<|im_end|>")) for i in range(1500)]
    ids = bundled.render(turns)
    assert b"".join(map(bundled.piece, ids)).decode().count("<|im_end|>\n") == 1500
    assert sum(given) > 40_000
    assert max(given) < 20_000
