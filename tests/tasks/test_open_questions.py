"""Questions without a right answer: enough of each kind, in both splits, and no two of them alike.

What two models write differently is measured on them, so that a template asked fifty times would count one text fifty
times.
"""

import itertools
import re
from collections import Counter

from cases import each_of

from hybrid.tasks.assistant import QUESTIONS

OPEN = [question for question in QUESTIONS if not question.graded]
MINIMA = dict.fromkeys(("advice", "explanations", "lists", "rewriting", "summaries"), 45) | {"code": 40, "letters": 40}
MOST_SHARED = 0.6


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def trigrams(text):
    found = words(text)
    return set(itertools.pairwise(itertools.pairwise(found))) or {tuple(found)}


def shared(first, second):
    """The share of the shorter text's word 3-grams that the longer one holds too."""
    return len(first & second) / min(len(first), len(second))


def test_every_kind_has_its_number_and_a_third_of_it_in_either_split():
    kinds = Counter(question.kind for question in OPEN)
    assert kinds.keys() == MINIMA.keys()
    assert all(kinds[kind] >= minimum for kind, minimum in MINIMA.items()), kinds
    assert len(OPEN) >= 300
    splits = Counter((question.kind, question.split) for question in OPEN)
    for kind, split in each_of(itertools.product(kinds, ("calibration", "test"))):
        assert splits[kind, split] >= kinds[kind] / 3, (kind, splits)


def test_no_two_questions_share_most_of_their_wording():
    grams = [(question.text, trigrams(question.text)) for question in OPEN]
    alike = [(a, b) for (a, one), (b, other) in itertools.combinations(grams, 2) if shared(one, other) > MOST_SHARED]
    assert not alike


def test_no_opening_is_a_template():
    """Three words at the beginning are had by four questions at most, whatever their kinds."""
    openings = Counter(" ".join(words(question.text)[:3]) for question in OPEN)
    assert max(openings.values()) <= 4, openings.most_common(3)


def test_wanted_answers_and_prompts_are_short_and_long():
    assert {question.max_tokens for question in OPEN} == {24, 32, 48, 64, 96}
    lengths = sorted(len(question.text.split()) for question in OPEN)
    assert lengths[len(lengths) // 4] < 20
    assert sum(length >= 75 for length in lengths) >= 30
    assert lengths[-1] >= 200
