"""The graders of a user's own questions, each over what models write, and what is refused before anything runs."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import UsageError
from hybrid.lab.study.own_questions import OwnQuestion, read_own_questions

CASES = [
    ("exact", "in  Paris", ["in Paris", " in\nParis "], ["In Paris", "in Paris.", ""]),
    ("contains", "Paris", ["It is paris.", "PARIS"], ["Parisian", "comparis", ""]),
    ("contains", "new york", ["New\n York!"], ["newyork"]),
    ("regex", r"^\d{3}$", ["123"], ["1234", "a123"]),
    ("regex", r"(?i)yes\b", ["Yes, so it is"], ["yesterday"]),
    (
        "number",
        "1,234.5",
        ["1,234.5", "It is 1234.50 USD.", "First 7, then **1,234.5**"],
        ["1234", "1,234.5 of 2", "x1234.5", ""],
    ),
    ("number", -2, ["5 - 7 = -2", "minus 2", "\u22122"], ["2", "3-2"]),
    ("number", "2", ["3-2", "two", "h2 is 2"], ["h2", "-2"]),
    ("number", 0.5, [".5", "0.50"], ["5", "1.5"]),
    (
        "choice",
        "B",
        ["B", "(B)", "B.", "B) since A is wrong", "The answer is B.", "A is wrong, so the answer is **B**", "I pick B"],
        ["", "A", "A or B", "The answer is A, not B", "b", "The answer is B. No, the answer is C.", "Because"],
    ),
    ("choice", "A", ["Answer: A", "answer is: (A)"], ["A dog, so B"]),
    (
        "json",
        {"a": [1, {"b": None}], "c": "x"},
        ['{"c": "x", "a": [1.0, {"b": null}]}', 'Here:\n```json\n{"a": [1, {"b": null}], "c": "x"}\n```\nDone.'],
        ['{"a": [1], "c": "x"}', '{"a": [{"b": null}, 1], "c": "x"}', "{", ""],
    ),
    ("json", "1", ["1", "1.0", "1e0"], ["true", '"1"', "[1]"]),
    ("json", "true", ["true"], ["1", "True"]),
]


@pytest.mark.parametrize(("grader", "answer", "right", "wrong"), CASES)
def test_a_grader_takes_what_is_right_and_nothing_else(grader, answer, right, wrong):
    asked = OwnQuestion(question="?", grader=grader, answer=answer)
    assert [text for text in right if not asked.grade(text)] == []
    assert [text for text in wrong if asked.grade(text)] == []
    assert pickle.loads(pickle.dumps(asked)) == asked


@given(st.integers(-10_000, 10_000), st.integers(-10_000, 10_000), st.integers(0, 500))
def test_a_number_is_right_up_to_its_tolerance(wanted, said, tolerance):
    asked = OwnQuestion(question="?", grader="number", answer=str(wanted), tolerance=tolerance)
    assert asked.grade(f"7 of them, so {said:,}.") == (abs(wanted - said) <= tolerance)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=4,
)


@given(JSON, JSON)
def test_json_is_right_where_the_values_are_equal_and_of_one_kind(one, other):
    """Python's own equality, but that its true is 1."""

    def typed(value):
        if isinstance(value, dict):
            return {key: typed(each) for key, each in value.items()}
        return [typed(each) for each in value] if isinstance(value, list) else (type(value), value)

    asked = OwnQuestion(question="?", grader="json", answer=json.dumps(one))
    assert asked.grade(json.dumps(other)) == (typed(one) == typed(other))


REFUSED = [
    ('{"question": "x", "grader": "numbr", "answer": "1"}', "grader must be 'exact', 'number'"),
    ('{"question": "x", "grader": "number", "answer": "one"}', "number cannot grade by the answer 'one'"),
    (
        '{"question": "x", "grader": "number", "answer": "NaN"}',
        "number cannot grade by the answer 'NaN': it is no number",
    ),
    (
        '{"question": "x", "grader": "regex", "answer": "("}',
        "regex cannot grade by the answer '(': missing ), unterminated subpattern",
    ),
    (
        '{"question": "x", "grader": "choice", "answer": "AB"}',
        "choice cannot grade by the answer 'AB': a choice is one capital letter",
    ),
    ('{"question": "x", "grader": "json", "answer": "{"}', "json cannot grade by the answer '{'"),
    ('{"question": "x", "grader": "exact", "answer": ["x"]}', "exact cannot grade by the answer ['x']"),
    ('{"question": "x", "grader": "exact", "answer": "x", "tolerance": 1}', "tolerance is of the grader number"),
    ('{"question": "x", "answer": "1"}', "grader and answer stand together"),
    ('{"question": "x", "grader": "contains", "answer": ""}', "grader and answer stand together"),
    ('{"question": "x", "anser": "1"}', "anser is not known: did you mean answer?"),
    ('{"question": "x", "max_tokens": 0}', "max_tokens must be at least 1 (it is 0)"),
    ('{"question": ""}', "question must not be empty"),
    ('{"question": "6 * 7?", "kind": "other"}', "this question was asked before, with another answer"),
    ("no JSON", "Invalid JSON"),
    ("[]", "must be names with values"),
]


@pytest.mark.parametrize(("line", "told"), REFUSED, ids=[told[-30:] for _, told in REFUSED])
def test_a_line_that_is_no_question_is_refused_with_its_number(tmp_path, line, told):
    path = tmp_path / "q.jsonl"
    path.write_text(f'{{"question": "6 * 7?"}}\n\n{line}\n')
    with pytest.raises(UsageError) as refused:
        read_own_questions(path)
    assert f"{path}, line 3: {told}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_without_questions_is_refused_and_one_without_a_grader_is_asked(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text("\n")
    with pytest.raises(UsageError, match="holds no question"):
        read_own_questions(path)
    path.write_text('{"question": "Why?", "max_tokens": 9}')
    [asked] = read_own_questions(path)
    assert (asked.text, asked.kind, asked.max_tokens, asked.graded) == ("Why?", "own", 9, False)
    with pytest.raises(ValueError, match="are not graded"):
        asked.grade("x")
