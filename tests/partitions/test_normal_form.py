"""What may be merged by its text, and what never is."""

from __future__ import annotations

import unicodedata

import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.partitions.normal_form import NEGATIONS, TokenKind, normal_form

FORBIDDEN = "()[]{}<>+-*/=%^&|~!@#$\\_`\u2212\u00d7\u00f7\u2260\u2264"


def form(text: str) -> str | None:
    wording = normal_form(text.encode())
    return wording and wording.form


@pytest.mark.parametrize(
    "spellings",
    [
        (" the", "The", "THE", "\u2581the", "\u0120The"),
        (" \u201c", '"', "\u201d", ' "'),
        ("\u2019s", "'s", "'S"),
        (" \u2014", "\u2013", "\u2014"),
        ("\u2026", "...", " ..."),
        ("\n", "\n\n", "\r\n", " \n "),
        (" ", "  ", "\t"),
        ("\uff0c", ",", " ,"),
        ("caf\u00e9", "cafe\u0301", " CAF\u00c9"),
    ],
)
def test_spellings_of_one_form(spellings):
    assert len({form(text) for text in spellings}) == 1
    assert form(spellings[0]) is not None


def test_other_words_white_space_and_quotes_keep_their_form():
    """Each pair would be one if a step of the normalisation went too far."""
    for one, other in [
        (" the", "then"),
        ("\n", " "),
        ('"', "'"),
        (",", "."),
        ("\u2014", ","),
        ("resume", "r\u00e9sum\u00e9"),
    ]:
        assert form(one) != form(other), (one, other)


def test_control_characters_are_no_spaces_though_python_calls_them_white():
    controls = [chr(code) for code in range(0x110000) if chr(code).isspace() and not chr(code).isprintable()]
    separators = {each for each in controls if unicodedata.category(each) != "Zs"} - {"\t", "\n", "\r"}
    assert {"\x0b", "\x0c", "\x1c", "\x85", "\u2028"} <= separators
    for each in each_of(separators):
        assert form(each) is None
        assert form(f" {each}") is None
    assert form("\u00a0") == form(" ")


@given(st.text(min_size=1, max_size=8), st.characters(categories=["Nd", "Nl", "No"]), st.integers(0, 8))
def test_a_digit_of_any_script_is_never_merged(text, digit, at):
    assert form(text[:at] + digit + text[at:]) is None


@given(st.text(max_size=6), st.sampled_from(FORBIDDEN), st.integers(0, 6))
def test_brackets_and_operators_are_never_merged(text, sign, at):
    """A hyphen may be a minus: it is no dash."""
    assert form(text[:at] + sign + text[at:]) is None


@given(
    st.sampled_from(sorted(NEGATIONS)),
    st.sampled_from(["", " ", "\u2581", "\u0120"]),
    st.sampled_from([str.lower, str.upper, str.title]),
)
def test_a_negation_is_never_merged(word, space, case):
    assert form(space + case(word)) is None


@given(st.sampled_from(["n't", "n\u2019t", "'t", "\u2019t", " isn't", "DON\u2019T", " wouldn't"]))
def test_what_ends_in_a_negation_is_never_merged(text):
    assert form(text) is None


@given(st.binary(min_size=1, max_size=6))
def test_what_has_a_wording_is_letters_harmless_marks_or_white_space(piece):
    if (wording := normal_form(piece)) is None:
        return
    text = piece.decode().strip(" \u2581\u0120")
    match wording.token_class:
        case TokenKind.WORD:
            assert sum(unicodedata.category(each)[0] == "L" for each in text) >= 1
        case TokenKind.SPACE:
            assert piece.decode().isspace()
        case TokenKind.MARK:
            assert not any(unicodedata.category(each)[0] in "LMNZC" for each in text)


@pytest.mark.parametrize(
    "piece", [b"", b"\xe2\x80", b"\xff", b" A", b"x", "\u2122".encode(), b"a.b", b"don-t", b"$", b"\x00"]
)
def test_bytes_labels_and_what_nobody_listed_say_nothing_but_themselves(piece):
    assert normal_form(piece) is None
