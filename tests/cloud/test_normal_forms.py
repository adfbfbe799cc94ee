"""However a server normalises a text, and in whichever parts: it has no more bytes than the bound."""

from __future__ import annotations

import unicodedata

from cases import each_of
from hypothesis import given
from hypothesis import strategies as st
from normalising import HOW, LONGER, NORMALISERS, TEXTS, normalised, num_tokens

from hybrid.cloud.prompt_bounds import max_bytes

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@given(st.lists(st.tuples(TEXTS, HOW), max_size=4))
def test_no_form_of_any_part_is_longer_than_is_reserved_for_the_whole(parts):
    whole = "".join(text for text, _ in parts)
    assert max_bytes(whole) >= sum(num_tokens(text, how) for text, how in parts)
    for how in each_of((how for _, how in parts), least=0):
        assert max_bytes(whole) >= num_tokens(whole, how)


@given(TEXTS, TEXTS)
def test_the_bounds_of_parts_add_up_so_turns_may_be_joined(one, other):
    assert max_bytes(one + other) == max_bytes(one) + max_bytes(other)
    assert max_bytes(one, escaped=True) >= max_bytes(one)


def test_every_character_is_reserved_as_its_longest_form_and_no_higher():
    """A composition is no longer than its parts, so that joining texts before composing makes no more bytes."""
    cases = (str, str.lower, str.casefold)
    seen, composed, factor = 0, 0, 0.0
    for char in map(chr, range(0x80, 0x30000)):
        if unicodedata.normalize("NFKD", char) == char == char.lower() == char.casefold():
            continue  # no normal form is another
        apart = unicodedata.normalize("NFD", char)
        forms = {unicodedata.normalize(form, case(char)) for form in FORMS for case in cases}
        longest = max(map(num_tokens, {char, *forms, *(case(char) for case in cases)}))
        assert max_bytes(char) == longest
        seen, factor = seen + 1, max(factor, longest / num_tokens(char))
        if apart != char and unicodedata.normalize("NFC", apart) == char:
            assert max_bytes(apart) >= longest
            composed += 1
    assert seen > 15_000
    assert composed > 12_000
    assert factor == 11.0, "UAX 15 names no higher one"


def test_a_character_that_no_unicode_here_knows_counts_as_three():
    unknown = next(char for char in map(chr, range(0x30000, 0x40000)) if unicodedata.category(char) == "Cn")
    assert max_bytes(unknown) == 3 * num_tokens(unknown)


def test_plain_text_counts_its_bytes_and_large_texts_are_cut_where_nothing_is_lost():
    assert max_bytes("") == 0
    assert max_bytes("plain\n\x7f") == 7
    assert max_bytes(LONGER * 20_000) == 20_000 * max_bytes(LONGER)


def test_marks_that_never_end_are_counted_without_a_normal_form():
    """A form of it takes time that grows with its square: 40,000 marks take two seconds, a million would an hour."""
    assert max_bytes("a" + "\u0301\u0316" * 500_000) == 1 + 2_000_000


def test_the_oracle_normalises():
    assert num_tokens("ﷺ", ["NFKC"]) == 33
    assert normalised(" İ ", ["strip", "lower"]) == "i̇"
    assert set(FORMS) < set(NORMALISERS)
