"""Other people's words in ours: nothing in them is obeyed by a terminal, and nothing is hidden from a reader."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import Unreachable, UsageError, escape_controls, to_one_line

# The property Bidi_Control of the Unicode Character Database, PropList.txt.
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
OTHERS = {char for char in map(chr, range(0x110000)) if unicodedata.category(char) in {"Cc", "Zl", "Zp"}}
OBEYED = (OTHERS | set(BIDI)) - {"\n", "\t"}


def test_every_character_that_a_terminal_obeys_is_written_out_and_no_other_changes():
    for char in map(chr, range(0x110000)):
        if char in OBEYED:
            assert re.fullmatch(rf"\\x{ord(char):02x}|\\u{ord(char):04x}", escape_controls(char))
        else:
            assert escape_controls(char) == char


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J", "\\x9b2J"),
        ("one\n\ttwo", "one\n\ttwo"),
        ("\U0001f468\u200d\U0001f373", "\U0001f468\u200d\U0001f373"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
    ],
)
def test_what_is_written_out_is_its_number(text, shown):
    assert escape_controls(text) == shown


@given(st.text(max_size=400))
def test_one_line_is_one_line_of_printable_characters(text):
    assert to_one_line(text).isprintable()


def test_one_line_hides_nothing_that_would_be_obeyed():
    """A control character became a space, so that nobody saw that somebody had tried."""
    assert to_one_line(" bad\r\n\u202eday\x1b[2J ") == "bad \\u202eday\\x1b[2J"


@pytest.mark.parametrize("kind", [UsageError, Unreachable])
def test_an_error_that_quotes_somebody_says_it_visibly(kind):
    assert str(kind("no policy is called '\u202elk\x1b[2J'")) == "no policy is called '\\u202elk\\x1b[2J'"
