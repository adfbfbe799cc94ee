"""Words that are near in every embedding and say another thing."""

from __future__ import annotations

import pytest
from cases import each_of

from hybrid.partitions.normal_form import is_turned, on_two_sides, sides_of


@pytest.mark.parametrize(
    ("one", "other"),
    [("increases", "decreased"), ("small", "larger"), ("monday", "tuesday"), ("twelve", "twenty"), ("he", "she"),
     ("north", "southern"), ("teaspoons", "tablespoon"), ("more", "less"), ("buy", "sold"), ("second", "third")],
)  # fmt: skip
def test_two_sides_of_a_contrast_are_told_either_way_round(one, other):
    assert on_two_sides(sides_of(one), sides_of(other))
    assert on_two_sides(sides_of(other), sides_of(one))


@pytest.mark.parametrize(
    ("one", "other"), [("big", "large"), ("start", "begin"), ("quick", "rapidly"), ("purchase", "buy")]
)
def test_wordings_of_one_side_are_no_contrast(one, other):
    assert not on_two_sides(sides_of(one), sides_of(other))
    assert not is_turned(one, other)


def test_no_word_contradicts_itself():
    """A word on two sides of one set could join neither of them, and would say that the set is wrong."""
    for line in ("fall", "lower", "right", "second", "open", "king", "last", "short", "mother", "may", "march"):
        by_set = {}
        for number, side in each_of(sides_of(line)):
            assert by_set.setdefault(number, side) == side, line


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("possible", "impossible"),
        ("able", "unable"),
        ("correctly", "incorrect"),
        ("like", "dislikes"),
        ("useful", "useless"),
    ],
)
def test_a_prefix_or_an_ending_that_turns_a_word_round_is_seen_either_way_round(one, other):
    assert is_turned(one, other)
    assert is_turned(other, one)


def test_words_that_only_share_letters_are_not_turned():
    assert not any(
        is_turned(*pair)
        for pair in [
            ("run", "running"),
            ("come", "became"),
            ("big", "bigger"),
            ("answer", "answers"),
            ("bless", "blessed"),
            ("endless", "infinite"),
            ("careless", "carelessly"),
        ]
    )
