"""``hybrid models``: scores for people and for programs, a card beside the files, and files that are not its own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.models import card as room
from hybrid.models import evaluation
from hybrid.models.card_page import page
from hybrid.tasks import BY_NAME

SMALL = Path(hybrid.__file__).parent / "models" / "small.gguf"


def invoke(*args):
    return CliRunner().invoke(app, ["models", *map(str, args)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def carded(tmp_path_factory):
    """The small model four times, with the card that the command made of it."""
    where = tmp_path_factory.mktemp("models")
    for name in room.NAMES:
        shutil.copy(SMALL, where / f"{name}.gguf")
    done = invoke("card", "--dir", where, "--n", 1)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [str(where / "card.json"), str(where / "README.md")]
    return where


@pytest.fixture
def folder(carded, tmp_path):
    """A copy of it that a test may change."""
    return shutil.copytree(carded, tmp_path / "copy")


# ---- eval ----------------------------------------------------------------------------------------------------------


def test_scores_as_json_are_one_object_and_what_is_done_is_told_elsewhere():
    done = invoke("eval", "small", "--n", 1, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found) == ["model", "overall", "families"]
    assert found["model"] == "small"
    assert list(found["families"]) == list(BY_NAME)
    for said in found["families"].values():
        assert list(said) == ["n", "correct", "low", "high"]
        assert said["n"] == 1
        assert said["correct"] in {0, 1}
        assert 0 <= said["low"] < said["high"] <= 1
    shares = [said["correct"] for said in found["families"].values()]
    assert found["overall"] == pytest.approx(sum(shares) / len(shares), abs=1e-4)
    assert done.stderr.splitlines() == [f"hybrid: {name}" for name in BY_NAME]


def test_a_file_is_evaluated_as_the_name_that_means_it():
    by_name, by_path = (json.loads(invoke("eval", said, "--n", 1, "--json").stdout) for said in ("small", SMALL))
    assert by_path == by_name | {"model": str(SMALL)}


def test_a_file_may_have_any_name(tmp_path):
    """rich would read "[/b]" as the end of a bold stretch that never began."""
    path = tmp_path / "a[" / "b].gguf"
    path.parent.mkdir()
    shutil.copy(SMALL, path)
    done = invoke("eval", path, "--n", 1)
    assert done.exit_code == 0
    assert path.name in "".join(done.stdout.split())


def test_the_table_has_a_line_for_every_family_and_one_for_all():
    figures = json.loads(invoke("eval", "small", "--n", 2, "--json").stdout)
    done = invoke("eval", "small", "--n", 2)
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    for name, said in figures["families"].items():
        share = f"{said['correct'] / 2:.0%}"
        assert [name, str(said["correct"]), "2", share, f"{said['low']:.0%}", "to", f"{said['high']:.0%}"] in lines
    assert ["all", f"{figures['overall']:.1%}"] in lines


def test_split_and_number_choose_the_problems(monkeypatch):
    chosen = []
    drawn = evaluation.problems_of
    monkeypatch.setattr(evaluation, "problems_of", lambda *given: chosen.append(given) or drawn(*given))
    done = invoke("eval", "small", "--split", "calibration", "--n", 2, "--json")
    assert chosen == [("calibration", 2)]
    assert {said["n"] for said in json.loads(done.stdout)["families"].values()} == {2}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["eval", "medium"], 2, "no model medium: large, mid, small, alien, or the path of a GGUF file"),
        (["eval", "small", "--n", "1000"], 2, "distinct test problems, not 1000"),
        (["eval", "small", "--n", "0"], 2, "--n"),
        (["eval", "small", "--split", "exam"], 2, "exam"),
        (["eval"], 2, "NAME"),
        (["evil"], 2, "evil"),
        (["eval", "none.gguf"], 3, "there is no model file none.gguf"),
        (["eval", "./none"], 3, "there is no model file none"),
        (["eval", str(SMALL.parent)], 3, "is not a file"),
        (["eval", __file__], 3, "is not a GGUF file"),
    ],
)
def test_what_cannot_be_evaluated_is_a_sentence_and_an_exit_code(args, code, words):
    done = invoke(*args)
    assert done.exit_code == code
    assert words in done.stderr
    assert done.stdout == ""


# ---- card ----------------------------------------------------------------------------------------------------------


def test_a_card_is_written_for_programs_and_for_people(carded):
    card = room.load(carded)
    assert (card.split, card.num_problems, list(card.models)) == ("test", 1, list(room.NAMES))
    assert (carded / "README.md").read_text(encoding="utf-8") == page(card)
    assert {path.name for path in carded.iterdir()} == {"card.json", "README.md", *(f"{n}.gguf" for n in room.NAMES)}


def test_a_card_as_json_is_the_same_card_and_writes_no_file(folder):
    expected = room.load(folder)
    for name in ("card.json", "README.md"):
        (folder / name).unlink()
    done = invoke("card", "--dir", folder, "--n", 1, "--json")
    assert done.exit_code == 0
    assert room.ModelCards.model_validate_json(done.stdout) == expected
    assert {path.suffix for path in folder.iterdir()} == {".gguf"}


def test_a_card_is_of_the_problems_that_were_asked_for(carded, monkeypatch):
    """As many as are published, and the models that ship, where nothing else is said."""
    from hybrid.assemble import MODELS

    chosen = []

    def measured(where, _tell, num):
        chosen.append((where, num))
        return room.load(carded)

    monkeypatch.setattr(room, "measure_models", measured)
    assert invoke("card", "--json").exit_code == 0
    assert invoke("card", "--dir", carded, "--n", 7, "--json").exit_code == 0
    assert chosen == [(MODELS, room.NUM_PROBLEMS), (carded, 7)]


def test_a_folder_without_models_gets_no_card(tmp_path):
    done = invoke("card", "--dir", tmp_path, "--n", 1)
    assert done.exit_code == 3
    assert f"there is no model file {tmp_path}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_more_problems_than_a_family_has_make_no_card(carded, monkeypatch):
    monkeypatch.setattr(evaluation, "FAMILIES", (BY_NAME["facts"],))
    done = invoke("card", "--dir", carded, "--n", 1000, "--json")
    assert done.exit_code == 2
    assert "distinct test problems, not 1000" in done.stderr


def refused_unmeasured(where, monkeypatch):
    """What is said of a folder that takes no card; nothing may be measured before."""
    monkeypatch.setattr(room, "measure_models", lambda *_: pytest.fail("measured for nothing"))
    done = invoke("card", "--dir", where)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"hybrid: --dir {where}")
    return done.stderr


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path, monkeypatch):
    assert "No such file or directory" in refused_unmeasured(tmp_path / "none", monkeypatch)


def test_a_folder_where_the_card_should_be_is_told_at_once(folder, monkeypatch):
    (folder / "card.json").unlink()
    (folder / "card.json").mkdir()
    assert "not a file" in refused_unmeasured(folder, monkeypatch)


def test_a_folder_where_the_page_should_be_is_told_at_once_and_the_card_stays(folder, monkeypatch):
    before = (folder / "card.json").read_bytes()
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()
    assert "not a file" in refused_unmeasured(folder, monkeypatch)
    assert (folder / "card.json").read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_write_protected_folder_is_told_at_once(folder, monkeypatch):
    folder.chmod(0o500)
    assert "Permission denied" in refused_unmeasured(folder, monkeypatch)
    folder.chmod(0o700)


# ---- verify --------------------------------------------------------------------------------------------------------


def test_files_that_are_what_the_card_says_pass(carded):
    done = invoke("verify", "--dir", carded)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"{name}.gguf: as the card says" for name in room.NAMES]
    as_json = invoke("verify", "--dir", carded, "--json")
    assert as_json.exit_code == 0
    assert json.loads(as_json.stdout) == {"models": {name: {"ok": True, "why": None} for name in room.NAMES}}


def test_files_that_changed_are_named_and_do_not_pass(folder):
    content = bytearray((folder / "mid.gguf").read_bytes())
    content[-1] ^= 1
    (folder / "mid.gguf").write_bytes(content)
    (folder / "alien.gguf").unlink()
    done = invoke("verify", "--dir", folder)
    assert done.exit_code == 3
    large, mid, small, alien = done.stdout.splitlines()
    assert (large, small) == ("large.gguf: as the card says", "small.gguf: as the card says")
    assert mid.startswith("mid.gguf: SHA-256 ")
    assert alien == "alien.gguf: No such file or directory"


def test_files_that_changed_are_named_to_programs_and_do_not_pass(folder):
    content = (folder / "small.gguf").read_bytes()
    (folder / "small.gguf").write_bytes(content[:-1])
    done = invoke("verify", "--dir", folder, "--json")
    assert done.exit_code == 3
    found = json.loads(done.stdout)["models"]
    assert found.pop("small") == {"ok": False, "why": f"{len(content) - 1} bytes, not {len(content)}"}
    assert [said["ok"] for said in found.values()] == [True] * 3


def test_a_model_that_the_card_does_not_know_does_not_pass(folder):
    shutil.copy(folder / "small.gguf", folder / "other.gguf")
    done = invoke("verify", "--dir", folder)
    assert done.exit_code == 3
    assert done.stdout.splitlines()[-1] == "other.gguf: the card does not know it"


@pytest.mark.parametrize("content", [None, "{}"])
def test_without_a_card_nothing_is_verified(tmp_path, content):
    if content is not None:
        (tmp_path / "card.json").write_text(content)
    done = invoke("verify", "--dir", tmp_path)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"hybrid: {tmp_path / 'card.json'}: ")
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["eval", "card", "verify"])
def test_help_has_examples_and_exit_codes(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.stdout
    assert f"hybrid models {command}" in done.stdout
    assert "Exit codes: 0 " in done.stdout
