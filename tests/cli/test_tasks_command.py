"""``hybrid tasks``: what is published about the families, and drawn problems, for people and for programs."""

import json

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.tasks import BY_NAME, FAMILIES, distinct


def invoke(*args):
    return CliRunner().invoke(app, ["tasks", *args], env={"COLUMNS": "200"})


def test_the_list_names_every_family_level_and_share():
    done = invoke("list")
    assert done.exit_code == 0
    for family in FAMILIES:
        assert family.name in done.stdout
        for level in family.levels:
            assert f"{level.share:.0%}" in done.stdout
            assert level.holds.split(",")[0] in done.stdout


def test_the_list_as_json_says_what_each_model_is_given():
    found = json.loads(invoke("list", "--json").stdout)["families"]
    assert [family["name"] for family in found] == list(BY_NAME)
    sorting = next(family for family in found if family["name"] == "sorting")
    assert sorting["group"] == "reasoning"
    assert sorting["given"] == {"large": [1, 2, 3], "mid": [1, 2], "small": [1, 2], "alien": [1, 2]}
    assert [level["level"] for level in sorting["levels"]] == [1, 2, 3]
    assert sum(level["share"] for level in sorting["levels"]) == pytest.approx(1)


def test_shown_are_test_problems_with_their_worked_answers():
    done = invoke("show", "gcd")
    assert done.exit_code == 0
    for problem in distinct(BY_NAME["gcd"], "test", 3, 0):
        assert problem.question in done.stdout
        assert problem.worked in done.stdout


@each("split", ["train", "calibration", "test"])
def test_level_split_number_and_seed_choose_the_problems(split):
    done = invoke("show", "facts", "--level", "3", "--split", split, "--num", "7", "--seed", "2", "--json")
    found = json.loads(done.stdout)
    expected = distinct(BY_NAME["facts"], split, 7, 2, level=3)
    assert found["family"] == "facts"
    assert [problem["question"] for problem in found["problems"]] == [problem.question for problem in expected]
    assert {problem["level"] for problem in found["problems"]} == {3}
    assert set(found["problems"][0]) == {"family", "level", "question", "worked", "final", "canonical", "mistake"}


@each(
    ("args", "words"),
    [
        (["show", "algebra"], "no family algebra: arithmetic, multiplication"),
        (["show", "gcd", "--level", "4"], "gcd has the levels 1 to 3, not 4"),
        (["show", "facts", "--num", "1000"], "distinct test problems, not 1000"),
        (["show", "gcd", "--split", "exam"], "exam"),
        (["show", "gcd", "--num", "0"], "--num"),
        (["show"], "FAMILY"),
        (["shew"], "shew"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence_and_exit_code_2(args, words):
    done = invoke(*args)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.output


@each("command", ["list", "show"])
def test_help_has_examples(command):
    assert f"hybrid tasks {command}" in invoke(command, "--help").stdout
