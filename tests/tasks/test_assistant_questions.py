"""The questions to an assistant: read from their tables, refused where a grader is wrong about what is known."""

import itertools
import tomllib
from collections import Counter

import pytest
from cases import each, each_of

from hybrid.tasks.assistant import KINDS, QUESTIONS, parse_questions

GRADED = [question for question in QUESTIONS if question.graded]
CLASSIFIED = [question for question in GRADED if question.kind == "classification"]


def parsed(entry, kind="facts"):
    return list(parse_questions(kind, tomllib.loads(f"max_tokens = 24\n[[question]]\n{entry}")))


def test_every_grader_accepts_its_own_answer_in_any_case_and_rejects_what_is_stated_wrong():
    """Loading has checked it; here by another hand, and with the words of a chat around it."""
    assert GRADED
    for question in each_of(GRADED):
        reference = question.answer.reference
        for right in (reference, reference.upper(), f"{reference}.", f"**{reference}**", f"It is {reference}."):
            assert question.grade(right), (question.text, right)
        for wrong in (*question.answer.counterexamples, "", "I do not know.", "As an AI, I cannot.", question.text):
            assert not question.grade(wrong), (question.text, wrong)


def test_naming_every_label_is_wrong_whatever_their_order():
    for question in each_of(CLASSIFIED):
        labels = (question.answer.reference, *question.answer.wrong)
        for some in each_of(itertools.islice(itertools.permutations(labels), 24)):
            assert not question.grade(", ".join(some)), question.text


def test_there_are_enough_questions_of_every_kind_in_both_splits():
    """A right share of 0.5 on half of 300 has a standard error of 0.04."""
    assert len(QUESTIONS) >= 600
    assert len(GRADED) >= 300
    for kind in each_of(KINDS):
        split = Counter(question.split for question in QUESTIONS if question.kind == kind)
        assert min(split["calibration"], split["test"]) >= 15, kind
        assert split.total() >= (100 if kind in {question.kind for question in GRADED} else 40), kind


def test_a_question_of_classification_names_its_labels():
    for question in each_of(CLASSIFIED):
        for label in each_of(question.answer.wrong):
            assert label.casefold() in question.text.casefold()


def test_no_opening_is_that_of_more_than_three_graded_questions():
    """Questions that differ in one word measure one thing."""
    openings = Counter(" ".join(question.text.split()[:4]).casefold() for question in GRADED)
    assert max(openings.values()) <= 3


def test_no_question_is_asked_twice_and_every_text_is_trimmed():
    assert len({" ".join(question.text.lower().split()) for question in QUESTIONS}) == len(QUESTIONS)
    assert all(question.text == question.text.strip() != "" for question in QUESTIONS)


def test_the_split_depends_on_the_canonical_text_alone():
    """Fifty phrasings of one question, all in one split; without it they fall into both."""
    texts = [f"Capital of France, {number}?" for number in range(50)]
    twins = [parsed(f'any_of = ["Paris"]\ncanonical = "the  capital of France"\ntext = "{text}"')[0] for text in texts]
    assert {twin.canonical for twin in twins} == {"the capital of france"}
    assert len({twin.split for twin in twins}) == 1
    assert len({parsed(f'any_of = ["Paris"]\ntext = "{text}"')[0].split for text in texts}) == 2
    first, same = (parsed(f'text = "{text}"')[0] for text in ("Capital  of France?", "capital of FRANCE?"))
    assert first.canonical == same.canonical


def test_open_questions_have_no_right_answer():
    question = parsed('text = "Give me advice."\nmax_tokens = 96', "advice")[0]
    assert not question.graded
    assert question.max_tokens == 96
    with pytest.raises(ValueError, match="not graded"):
        question.grade("Sleep.")


@each(
    ("entry", "message"),
    [
        ('text = "Who?"\nany_of = ["Ann"]\nwrong = ["ANN"]', "would be graded right"),
        ('text = "Who?"\nfields = ["Ann", "Ann"]', "would be graded wrong"),
        ('text = "Say Ann."\nany_of = ["Ann"]', "would be graded right"),
        ('text = "Say 7."\nnumber = 7', "would be graded right"),
        ('text = "Good?"\nlabel = "mixed"\nlabels = ["good", "bad"]', "not among the labels"),
        ('text = "Who?"\nany_of = ["Ann"]\nnumber = 7', "clashing keys"),
        ('text = "Who?"\nany_off = ["Ann"]', "unknown"),
        ('text = "Who?"\nlabel = "a"', "labels"),
        ('answer = "Who?"', "text"),
    ],
)
def test_an_entry_that_breaks_a_law_is_refused_with_its_question(entry, message):
    with pytest.raises(ValueError, match=message):
        parsed(entry)


def test_every_kind_is_graded_as_a_whole_or_not_at_all():
    for kind in each_of(KINDS):
        assert len({question.graded for question in QUESTIONS if question.kind == kind}) == 1
