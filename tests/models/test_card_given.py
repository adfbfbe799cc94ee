"""What the page says that specialists and a student were given."""

from __future__ import annotations

from card_page import _given

from hybrid.tasks import BY_NAME
from hybrid.tasks.families import MIXES


def told(name):
    return next(line for line in _given().split("\n\n") if line.startswith(f"`{name}` "))


def test_specialists_have_disjoint_families_and_are_given_every_level_of_them():
    numbers, words = (MIXES[name].families for name in ("numbers", "words"))
    assert numbers | words == set(BY_NAME)
    assert not numbers & words
    assert told("words").startswith(f"`words` is given every level of {len(words)} families and nothing else: ")
    assert told("words").endswith(", ".join(name for name in BY_NAME if name in words) + ".")


def test_a_student_is_given_its_teachers_rows():
    assert MIXES["student"] == MIXES["large"]
    assert told("student") == (
        "`student` is given what `large` is given, and learns the rows of `large` in the place of the answers' tokens."
    )
