"""``hybrid tasks``: what is published about the families, and drawn problems, for people and for programs."""

import json

import pytest
from cases import each, each_of
from typer.main import get_command
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.tasks import BY_NAME, FAMILIES, distinct, wordings
from hybrid.tasks.assistant import KINDS, QUESTIONS


def invoke(*args):
    return CliRunner().invoke(app, ["tasks", *args], env={"COLUMNS": "200"})


def test_the_list_names_every_family_level_and_share():
    done = invoke("list")
    assert done.exit_code == 0
    for family in each_of(FAMILIES):
        assert family.name in done.stdout
        for level in each_of(family.levels):
            assert f"{level.share:.0%}" in done.stdout
            assert level.holds.split(",")[0] in done.stdout


def test_the_list_as_json_says_what_each_model_is_given():
    found = json.loads(invoke("list", "--json").stdout)["families"]
    assert [family["name"] for family in found] == list(BY_NAME)
    sorting = next(family for family in found if family["name"] == "sorting")
    assert sorting["group"] == "reasoning"
    given = {"large": [1, 2, 3], "mid": [1, 2], "small": [1, 2], "alien": [1, 2]}
    assert sorting["given"] == given | {"numbers": [], "words": [1, 2, 3], "student": [1, 2, 3]}
    assert [level["level"] for level in sorting["levels"]] == [1, 2, 3]
    assert sum(level["share"] for level in sorting["levels"]) == pytest.approx(1)


def test_the_families_of_the_wordings_pair_are_listed_and_shown():
    listed = invoke("list").stdout
    assert all(family.name in listed and family.levels[-1].holds in listed for family in wordings.FAMILIES)
    found = json.loads(invoke("list", "--json").stdout)["wordings"]
    assert [family["name"] for family in found] == [family.name for family in wordings.FAMILIES]
    problem = distinct(wordings.FAMILIES[1], "test", 1, 0)[0]
    assert problem.question in invoke("show", "gift", "--num", "1").stdout


def test_shown_are_test_problems_with_their_worked_answers():
    done = invoke("show", "gcd")
    assert done.exit_code == 0
    for problem in each_of(distinct(BY_NAME["gcd"], "test", 3, 0)):
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


def test_a_number_of_things_is_n_and_num_in_every_command():
    """It was one in some commands, the other in others."""
    num_found = 0
    for command, names in each_of(options_of(get_command(app))):
        assert ("--n" in names) == ("--num" in names), command
        num_found += "--n" in names
    assert num_found > 5


def options_of(command, path="hybrid"):
    """Yield the option names of a command and of all below it."""
    yield path, {name for each in command.params for name in each.opts}
    for name, below in getattr(command, "commands", {}).items():
        yield from options_of(below, f"{path} {name}")


def test_the_list_names_the_kinds_of_questions_to_an_assistant_and_how_many_there_are():
    found = {kind["kind"]: kind for kind in json.loads(invoke("list", "--json").stdout)["assistant"]}
    assert tuple(found) == KINDS
    for kind, entry in each_of(found.items()):
        of_kind = [question for question in QUESTIONS if question.kind == kind]
        assert entry["calibration"] + entry["test"] == len(of_kind)
        assert entry["graded"] == of_kind[0].graded
    shown = invoke("list").stdout
    assert all(kind in shown and f"{entry['test']} " in shown for kind, entry in found.items())


@each("split", ["calibration", "test"])
def test_kind_split_number_and_seed_choose_the_questions(split):
    args = ("show", "assistant", "--kind", "extraction", "--split", split, "--num", "9")
    found = json.loads(invoke(*args, "--json").stdout)["questions"]
    asked = {question.text: question for question in QUESTIONS}
    assert len({entry["text"] for entry in found}) == 9
    for entry in each_of(found):
        question = asked[entry["text"]]
        assert (question.kind, question.split) == ("extraction", split)
        assert question.grade(entry["right"])
        assert not any(question.grade(wrong) for wrong in entry["wrong"])
    assert found == json.loads(invoke(*args, "--json").stdout)["questions"]
    assert found != json.loads(invoke(*args, "--json", "--seed", "1").stdout)["questions"]


def test_a_question_is_shown_with_what_is_right_and_an_open_one_says_that_it_is_not_graded():
    shown = invoke("show", "assistant", "--kind", "facts", "--num", "2")
    assert shown.exit_code == 0
    assert shown.stdout.count("(right: ") == 2
    assert "(not graded)" in invoke("show", "assistant", "--kind", "letters", "--num", "1").stdout


@each(
    ("args", "words"),
    [
        (["show", "algebra"], "no family algebra: arithmetic, multiplication"),
        (["show", "gcd", "--level", "4"], "gcd has the levels 1 to 3, not 4"),
        (["show", "facts", "--num", "1000"], "distinct test problems, not 1000"),
        (["show", "gcd", "--split", "exam"], "exam"),
        (["show", "gcd", "--num", "0"], "--num"),
        (["show", "assistant", "--kind", "riddles"], "no kind riddles: advice, classification"),
        (["show", "assistant", "--level", "1"], "have kinds (--kind), no levels"),
        (["show", "assistant", "--split", "train"], "nothing is trained on"),
        (["show", "assistant", "--kind", "facts", "--num", "900"], "there are only"),
        (["show", "gcd", "--kind", "facts"], "have levels (--level), no kinds"),
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
