r"""Paths with drives and backslashes where the product reads text: no separator, no scheme, no escape is found in one.

Text alone: a pathlib of another system cannot be made here. ``end_to_end/test_windows.py`` imitates the rest.
"""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.assemble.local_models import name_of
from hybrid.cli import tally as batch_repair
from hybrid.engine.gguf_header import shard_files
from hybrid.engine.model_folders import _of_quantisation, find_model, parse_name
from hybrid.engine.real_models import check_installed
from hybrid.errors import UsageError
from hybrid.settings.names import complete_address, is_address
from hybrid.settings.sources import CONFIG_FILE, load

PATHS = [
    r"C:\models\x.gguf", "C:/models/x.gguf", r"\\server\share\x.gguf", "//server/share/x.gguf", r"models\x.gguf",
    r"C:models\x.gguf", r"\\?\C:\models\x.gguf", r"D:\real:q3\x.gguf",
]  # fmt: skip


@each("path", PATHS)
def test_a_path_is_no_name_and_no_address(path):
    check_installed(path)
    assert parse_name(path) is None
    assert find_model(path) == Path(path)
    assert not is_address(path)
    assert not is_address(complete_address(path))
    with pytest.raises(UsageError, match="an endpoint's address is http:// or https://"):
        load(cloud=path)


def test_several_paths_are_parted_by_commas_alone(monkeypatch):
    monkeypatch.setenv("HYBRID_EXPERTS", ", ".join(PATHS))
    assert load(drafters=",".join(PATHS)).drafters == load().experts == tuple(map(Path, PATHS))


@each("path", PATHS)
def test_a_models_name_is_its_files_without_folders_and_so_are_the_files_of_its_split(path):
    assert name_of(PureWindowsPath(path)) == "x"
    part = PureWindowsPath(path).with_name("x-00002-of-00002.gguf")
    assert shard_files(part) == (part.with_name("x-00001-of-00002.gguf"), part)


def test_a_quantisation_that_names_a_folder_of_a_repository_is_found():
    r"""The files of a repository are told with ``/`` and were read as ``Q4_K_M\m``, in which no name ended."""
    paths = [*map(PurePosixPath, ("Q4_K_M/m.gguf", "Q8_0/m.gguf", "n-Q4_0-00001-of-00002.gguf"))]
    for quant, path in each_of(zip(("q4_k_m", "Q8_0", "q4_0"), paths, strict=True)):
        assert _of_quantisation(paths, quant) == [path]


@given(st.lists(st.text(st.sampled_from('C:\\ "/a&'), min_size=1), min_size=1))
def test_a_line_for_windows_is_read_as_the_words_that_it_was_made_of(words):
    """Python has the quoting of Windows' C library for words with a space."""
    words = [f"{word} {word}" for word in words]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_repair, "WINDOWS", True)
        assert batch_repair.shell_line(words) == subprocess.list2cmdline(words)


@each("path", [path for path in PATHS if "\\" in path] + [r"C:\temp\new.gguf", r"\\server\temp.gguf"])
@each("listed", [False, True])
def test_in_a_file_a_path_between_double_quotes_is_told_and_between_single_quotes_is_itself(tmp_path, path, listed):
    file, name, form = tmp_path / CONFIG_FILE, "drafters" if listed else "local", "[{0}]" if listed else "{0}"
    file.write_text(f"{name} = " + form.format(f"'{path}'"))
    found = load(config=file)
    assert (found.drafters if listed else (found.local,)) == (Path(path),)
    file.write_text("seed = 1\n" + f"{name} = " + form.format(f'"{path}"'))
    with pytest.raises(UsageError, match=r"line 2.*; a path with backslashes stands between single quotes") as told:
        load(config=file)
    assert str(told.value).isprintable()


def test_in_a_file_what_is_no_path_may_hold_line_breaks(tmp_path):
    (tmp_path / CONFIG_FILE).write_text('stop = ["Q:\\n"]\nsystem = "C:\\tab"')
    assert (load(config=tmp_path / CONFIG_FILE).stop, load(config=tmp_path / CONFIG_FILE).system) == (
        ("Q:\n",),
        "C:\tab",
    )
