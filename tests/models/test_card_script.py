"""The script that writes the card: which files, what it prints, and how it ends where it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import card as script
import pytest
from card_page import page
from cases import each
from made_cards import NAMES, filled, made

from hybrid.models.card import LADDER, ModelCards, load
from hybrid.settings.names import MODELS
from hybrid.tasks import BY_NAME


@pytest.fixture
def run(monkeypatch):
    """Run the script with arguments and return its exit code."""

    def code(*args):
        monkeypatch.setattr(sys, "argv", ["card.py", *map(str, args)])
        try:
            return script.main()
        except SystemExit as stopped:
            return stopped.code

    return code


@pytest.fixture
def folder(tmp_path):
    return filled(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """Which folders and numbers are measured; what is found is a card made by hand."""
    found = []
    monkeypatch.setattr(
        script, "measure_models", lambda where, _, num: found.append((where, num)) or made(mid={"gcd": 7})
    )
    return found


def test_a_card_is_written_for_programs_and_for_people(run, folder, asked, capsys):
    before = load(folder)
    assert run("--dir", folder) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / "card.json"), str(folder / "CARD.md")]
    assert before != load(folder) == made(mid={"gcd": 7})
    assert (folder / "CARD.md").read_text(encoding="utf-8") == page(load(folder))
    assert {path.name for path in folder.iterdir()} == {"card.json", "CARD.md", *(f"{n}.gguf" for n in NAMES)}
    assert asked == [(folder, 150)]


def test_the_card_that_ships_is_in_the_scripts_own_form():
    assert (MODELS / "card.json").read_text() == f"{load(MODELS).model_dump_json(indent=1)}\n"


def test_a_card_as_json_writes_no_file(run, folder, asked, capsys):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run("--dir", folder, "--n", 7, "--json") == 0
    assert ModelCards.model_validate_json(capsys.readouterr().out) == made(mid={"gcd": 7})
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    assert asked == [(folder, 7)]


def test_the_models_that_ship_are_measured_where_no_folder_is_named(run, asked):
    assert run("--json") == 0
    assert asked == [(MODELS, 150)]


def test_a_folder_without_models_gets_no_card(tmp_path):
    """In a process of its own, so that the script is known to start as the page says."""
    done = subprocess.run(
        [sys.executable, script.__file__, "--dir", tmp_path, "--n", "1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"^card: there is no model file {re.escape(str(tmp_path))}", done.stderr, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_more_problems_than_a_family_has_make_no_card(run, folder, monkeypatch, capsys):
    monkeypatch.setattr(script, "GROUPS", (replace(LADDER, families={"facts": BY_NAME["facts"]}),))
    assert run("--dir", folder, "--n", 1000, "--json") == 2
    assert "distinct test problems, not 1000" in capsys.readouterr().err


@each("num", ["0", "-1", "many"])
def test_a_number_of_problems_is_at_least_one(run, asked, capsys, num):
    assert run("--json", "--n", num) == 2
    assert "--n" in capsys.readouterr().err
    assert asked == []


def test_an_interruption_leaves_the_card_as_it_was(run, folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = (folder / "card.json").read_bytes()
    monkeypatch.setattr(script, "measure_models", interrupted)
    assert run("--dir", folder) == 130
    assert (folder / "card.json").read_bytes() == before
    assert not (folder / "CARD.md").exists()


@pytest.mark.parametrize(
    ("spoil", "name", "words"),
    [
        (lambda _: None, "none", "No such file or directory"),
        (lambda folder: ((folder / "card.json").unlink(), (folder / "card.json").mkdir()), "", "not a file"),
        (lambda folder: (folder / "CARD.md").mkdir(), "", "not a file"),
    ],
    ids=["no folder", "a folder for the card", "a folder for the page"],
)
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    run, tmp_path, asked, capsys, spoil, name, words
):
    where = filled(tmp_path)
    spoil(where)
    assert run("--dir", where / name) == 2
    said = capsys.readouterr().err
    assert f"--dir {where / name}" in said
    assert words in said
    assert asked == []
