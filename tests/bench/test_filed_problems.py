"""Problems from a file: read whole or not at all, graded exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid.errors import UsageError
from hybrid.lab.experiments.questions import ProblemRow, read_problems


def line(split: str = "test", kind: str = "sum", question: str = "1 + 1?", answer: Any = "2") -> str:
    return json.dumps({"split": split, "kind": kind, "question": question, "answer": answer})


def filed(folder: Path, *lines: str) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_kinds_take_turns_each_question_stands_once_and_the_other_split_is_not_seen(tmp_path: Path) -> None:
    lines = [line(question=f"{i} + 1?") for i in (1, 2, 3, 1)]
    lines += [line("calibration", question="9 + 9?"), "", line(kind="sort", question="2 1?", answer=" 1 2 ")]
    path = filed(tmp_path, *lines)
    assert [each.text for each in read_problems(path, "test")] == ["1 + 1?", "2 1?", "2 + 1?", "3 + 1?"]
    assert [each.text for each in read_problems(path, "test", 1)] == ["1 + 1?", "2 1?"]
    assert [each.text for each in read_problems(path, "calibration")] == ["9 + 9?"]
    assert read_problems(path, "test")[1].grade("1 2")


def test_only_the_result_is_graded_and_all_of_it() -> None:
    problem = ProblemRow("test", "sum", "How many are left?", "12.")
    graded = {
        "12.": True,
        "The answer is 12.": True,
        "The answer is 11. No, the answer is 12.": True,
        "The answer is 12": False,
        "12. 13.": False,
        "The answer is 112.": False,
        "": False,
    }
    assert {text: problem.grade(text) for text in graded} == graded


def test_the_closings_of_a_line_say_where_its_answer_may_stand(tmp_path: Path) -> None:
    told = json.loads(line(answer="2")) | {"closings": ["Result:", "So it is"]}
    [problem] = read_problems(filed(tmp_path, json.dumps(told)), "test")
    graded = {"1 + 1 = 2. Result: 2.": True, "So it is 3. So it is 2": True, "2": True, "Result: 3.": False}
    assert {text: problem.grade(text) for text in graded} == graded


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        "3",
        '"text"',
        "{}",
        line("train"),
        line(answer=2),
        line(kind=None),
        line()[:-1] + ', "closings": [2]}',
        line()[:-1] + ', "closings": "So"}',
        '{"split": ["test"]}',
        "[" * 9999,
    ],  # type: ignore[arg-type]
)
def test_a_line_that_is_no_problem_is_named(tmp_path: Path, broken: str) -> None:
    with pytest.raises(UsageError, match=r"problems\.jsonl, line 2: no problem"):
        read_problems(filed(tmp_path, line(), broken), "test")


def test_a_file_without_problems_of_the_split_and_one_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no problem of the split calibration"):
        read_problems(filed(tmp_path, line()), "calibration")
    with pytest.raises(UsageError, match="cannot be read"):
        read_problems(tmp_path / "none.jsonl", "test")
