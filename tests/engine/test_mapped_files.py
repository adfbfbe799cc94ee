"""A model file that is changed while it is mapped is refused before it is read on: a fault would end the process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cases import each

import hybrid
from hybrid.engine.llama import Weights
from hybrid.engine.native import MappedFiles
from hybrid.errors import EngineError

BUNDLED = Path(hybrid.__file__).parent / "models" / "small.gguf"


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copy(BUNDLED, tmp_path / "copy.gguf"))


def shrink(path):
    os.truncate(path, path.stat().st_size - 1)  # within its last page: no fault, whoever reads it


def grow(path):
    with path.open("ab") as file:
        file.write(b"x")


def write_into(path):
    with path.open("r+b") as file:
        file.write(b"GGUF")
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))


def test_each_question_is_preceded_by_a_look_at_the_file(copy):
    with hybrid.open(local=str(copy), offline=True, ledger="none", max_tokens=2) as client:
        assert client.generate("What is 47 + 86?").text
        shrink(copy)
        said = f"^the model file {copy} was changed while it was in use: start again, and replace it by a rename$"
        for _ in range(2):
            with pytest.raises(EngineError, match=said):
                client.generate("What is 47 + 86?")


@each("change", [shrink, grow, write_into])
def test_a_change_in_place_is_seen(change, tmp_path):
    path = tmp_path / f"{change.__name__}.gguf"
    shutil.copy(BUNDLED, path)
    weights = Weights(path)
    weights.check_files()
    change(path)
    with pytest.raises(EngineError, match="was changed while it was in use"):
        weights.check_files()
    weights.close()


@each("how", ["replaced", "removed"])
def test_a_file_that_another_has_replaced_is_still_there_for_who_mapped_it(how, tmp_path):
    path = tmp_path / f"{how}.gguf"
    shutil.copy(BUNDLED, path)
    weights = Weights(path)
    if how == "replaced":
        shutil.copy(BUNDLED, tmp_path / "other")
        (tmp_path / "other").replace(path)
    else:
        path.unlink()
    weights.check_files()
    weights.close()


def test_a_file_that_is_replaced_while_it_is_loaded_is_refused(copy, tmp_path):
    """Which of the two llama.cpp opened is not known."""
    files = MappedFiles([copy])
    files.check_named()
    shutil.copy(BUNDLED, tmp_path / "other")
    (tmp_path / "other").replace(copy)
    with pytest.raises(EngineError, match="was replaced while it was loaded"):
        files.check_named()
    files.close()
    with pytest.raises(EngineError, match="cannot be read: No such file"):
        MappedFiles([copy, tmp_path / "none"])
