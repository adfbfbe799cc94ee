"""Tokens by their text: what names no token is missing, never guessed; what is hidden is a mass."""

from __future__ import annotations

import math

import pytest
from cases import each
from vocabularies import AB, ACCENT, END, HALF, OTHER_HALF, WORDS, X1, A, B, C, D, E, Pieces

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.llama_cpp_python import LlamaCppPython
from hybrid.cloud.dialects.text_tokens import TextVocabulary, only_documented, read_arrays, row_by_text, split_text
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import CloudUsage, Sampling

TEXT_TOKENS = TextVocabulary(WORDS)


def test_a_text_names_the_one_token_it_is_the_text_of():
    assert [TEXT_TOKENS.id_of(text) for text in ("a", "ab", " e", "é!", b"\xc3")] == [A, AB, E, ACCENT, HALF]


@each("text", ["x", "", "nothing", "é", "\ufffd", " a"])
def test_a_text_of_two_tokens_or_of_none_names_none(text):
    assert TEXT_TOKENS.id_of(text) is None


def test_a_control_token_is_named_by_its_name_and_plain_text_is_never_split_into_it():
    """``<end>`` in an answer is text; only a server that means the token lists it."""
    assert TEXT_TOKENS.id_of("<end>") == END
    assert TEXT_TOKENS.split("<end>") is None


def test_what_ends_inside_a_character_cannot_be_said():
    assert TEXT_TOKENS.text_of((A, HALF)) is None
    assert TEXT_TOKENS.text_of((A, HALF, OTHER_HALF)) == "aé"
    assert TEXT_TOKENS.bytes_of((A, HALF)) == b"a\xc3"


def test_a_tokeniser_that_puts_a_space_first_does_not_spell_the_rest_of_a_text():
    """SentencePiece: what comes back must spell what was said, to the byte, also in the middle of a word."""
    vocabulary = TextVocabulary(Pieces([" a", "b", " ", "a", "<s>", "ab"], opening=(4,), space_first=True))
    assert vocabulary.opening == (4, *vocabulary._words.tokenize(""))
    assert vocabulary.split("ab") == (5,)
    assert vocabulary.split("ba") == (1, 3)
    assert vocabulary.split(" ab") == (0, 1)
    assert vocabulary.split("") == ()


def test_what_the_vocabulary_cannot_spell_is_refused():
    assert TEXT_TOKENS.split("xyz") is None
    with pytest.raises(BadReply, match="cannot spell"):
        split_text(TEXT_TOKENS, "xyz")


# ---- rows by text --------------------------------------------------------------------------------------------------


def logs(**probs):
    return {text: math.log(prob) for text, prob in probs.items()}


def test_a_full_list_of_nameable_texts_hides_nothing():
    row, hidden = row_by_text(TEXT_TOKENS, logs(a=0.5, b=0.25), "a", 2)
    assert (row.ids.tolist(), hidden) == ([A, B], 0.0)
    assert row.tail_max == pytest.approx(0.25)


def test_a_text_of_two_tokens_is_hidden_mass_and_becomes_the_cap():
    """Any of the two may hold all of it, so the cap is no longer the last entry's."""
    row, hidden = row_by_text(TEXT_TOKENS, logs(a=0.3, x=0.6, b=0.01), "b", 2)
    assert row.ids.tolist() == [A, B]
    assert hidden == pytest.approx(0.6)
    assert row.tail_max == pytest.approx(0.6)


def test_a_list_that_is_shorter_than_asked_for_hides_all_that_it_does_not_show():
    """Tokens of one text were one entry before they were sent: nobody says whose the missing one was."""
    row, hidden = row_by_text(TEXT_TOKENS, logs(a=0.5, b=0.2), "a", 3)
    assert hidden == pytest.approx(0.3)
    assert row.tail_max == pytest.approx(0.3)


def test_a_list_that_is_full_only_because_the_actual_token_was_appended_is_short():
    row, _ = row_by_text(TEXT_TOKENS, logs(a=0.5, x=0.2, d=1e-6), "d", 3)
    assert row.tail_max == pytest.approx(0.5, abs=1e-5)


def test_the_appended_token_does_not_lower_the_cap():
    row, _ = row_by_text(TEXT_TOKENS, logs(a=0.5, b=0.3, d=1e-6), "d", 2)
    assert row.ids.tolist() == [A, B, D]
    assert row.tail_max == pytest.approx(0.3)


def test_a_list_that_names_no_token_at_all_is_no_row():
    row, hidden = row_by_text(TEXT_TOKENS, logs(x=0.9), "x", 1)
    assert (row, hidden) == (None, 1.0)


def test_tokens_are_named_up_to_the_first_text_that_is_nobodys():
    tops = [logs(a=0.9, b=0.05), logs(x=0.9, b=0.05), logs(b=0.9, a=0.05)]
    logprobs = {"tokens": ["a", "x", "b"], "top_logprobs": tops}
    ids, rows, _ = read_arrays(TEXT_TOKENS, "axb", logprobs, 2)
    assert (ids[0], TEXT_TOKENS.bytes_of(ids)) == (A, b"axb")
    assert [row is None for row in rows] == [False, True, True], "the rest is split here, and has no rows"


def test_a_token_whose_text_is_not_the_texts_ends_what_is_named():
    ids, rows, _ = read_arrays(TEXT_TOKENS, "ac", {"tokens": ["a", "b"], "top_logprobs": [logs(a=0.9)] * 2}, 1)
    assert (ids, [row is None for row in rows]) == ((A, C), [False, True])


def test_an_empty_list_is_missing_and_not_certain():
    with pytest.raises(BadReply, match="missing, not certain"):
        read_arrays(TEXT_TOKENS, "a", {"tokens": ["a"], "top_logprobs": [{}]}, 1)


# ---- what it may cost, and what has no word ------------------------------------------------------------------------


def test_the_worst_case_is_a_token_per_byte_and_one_that_opens_the_text():
    """The letter with its accent has three bytes where it is decomposed, half a character at an end as many."""
    score = ScoreQuestion((A, ACCENT), (E, X1), True, 5)
    once, again = (dialect(DialectConfig("m", TEXT_TOKENS)) for dialect in (Completions, LlamaCppPython))
    assert once.max_usage(score) == CloudUsage(1 + 4 + 2 + 1 + 1, 1)
    assert again.max_usage(score) == CloudUsage(27, 3, requests=3)
    for dialect in (once, again):
        assert dialect.max_usage(WriteQuestion((ACCENT,), 7, 5, Sampling())) == CloudUsage(5, 7)
    assert TEXT_TOKENS.max_tokens((A, HALF)) == 1 + 3 + 1


@each(
    ("question", "word"),
    [
        (WriteQuestion((A,), 1, 5, Sampling(1.0, top_k=3)), "--top-k"),
        (WriteQuestion((A,), 1, 5, Sampling(1.0, min_p=0.1)), "--min-p"),
        (WriteQuestion((A,), 1, 5, Sampling(), ban=frozenset({C})), "kept from a token"),
    ],
)
def test_a_way_of_drawing_that_has_no_word_is_refused_and_not_dropped(question, word):
    with pytest.raises(MissingCapability, match=word):
        only_documented(question, "top_k", "min_p")
