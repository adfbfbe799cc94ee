"""What is kept on disk is for its owner alone, whatever the umask, and a folder that the user named keeps its mode."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
from another_user import bound_by_mode_bits, bound_folder
from cases import each

from hybrid.errors import UsageError
from hybrid.settings.config import Settings
from hybrid.settings.sources import (
    CONFIG_FILE,
    cache_file,
    concepts_folder,
    counts_file,
    ledger_file,
    load,
)
from hybrid.spend.durable.file import SqliteFile
from hybrid.store.files import make_folder
from hybrid.store.json_store import JsonStore

UMASKS = [0o000, 0o022, 0o077, 0o177]


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def modes(folder):
    """What stands below a folder, and its modes."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.stat().st_mode) for each in sorted(folder.rglob("*"))}


@each("mask", UMASKS)
def test_a_folder_that_is_made_is_its_owners_alone_with_all_above_it(tmp_path, mask):
    with umask(mask):
        make_folder(tmp_path / f"{mask}" / "b" / "c")
        make_folder(tmp_path / f"{mask}" / "b" / "c")
    assert modes(tmp_path / f"{mask}") == {"b": 0o700, "b/c": 0o700}
    assert stat.S_IMODE((tmp_path / f"{mask}").stat().st_mode) == 0o700


def test_a_folder_of_ours_is_tightened_and_one_that_was_named_is_not(home):
    own, named = home / "state" / "hybrid-llm" / "scores", home / "named"
    for each_folder in (own, named):
        each_folder.mkdir(parents=True)
        each_folder.chmod(0o755)
    own.parent.chmod(0o777)
    for each_folder in (own, named):
        make_folder(each_folder)
    assert modes(home) == {
        "named": 0o755,
        "state": stat.S_IMODE((home / "state").stat().st_mode),
        "state/hybrid-llm": 0o700,
        "state/hybrid-llm/scores": 0o700,
    }
    assert stat.S_IMODE((home / "state").stat().st_mode) & 0o055, "it is other programs', too"


def test_what_is_no_folder_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="File exists"):
        make_folder(tmp_path / "file")
    with pytest.raises(OSError, match="Not a directory"):
        make_folder(tmp_path / "file" / "folder")


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_state_cache_and_their_locks_are_their_owners_alone(home, mask):
    with umask(mask):
        for path in (cache_file(), counts_file(), concepts_folder() / "a.json"):
            assert JsonStore(path, "entries").keep("a", 1)
        ledger = SqliteFile(ledger_file(Settings()))
        with ledger.transaction(flushed=True):
            pass
        found = modes(home)
        files = {name: mode for name, mode in found.items() if (home / name).is_file()}
        ledger.close()
    assert len([name for name in files if name.endswith(".lock")]) >= 3
    assert set(files.values()) == {0o600}
    assert {mode for name, mode in found.items() if name not in files} == {0o700}


def test_a_lock_that_is_there_is_tightened(tmp_path):
    """Earlier versions left it to the umask: whoever may read it may lock it."""
    lock = tmp_path / "a.json.lock"
    lock.touch()
    lock.chmod(0o644)
    assert JsonStore(tmp_path / "a.json", "entries").keep("a", 1)
    assert modes(tmp_path) == {"a.json": 0o600, "a.json.lock": 0o600}


def test_a_ledger_that_others_may_use_has_a_lock_that_they_may_use(tmp_path):
    path = tmp_path / "ledger.sqlite"
    first = SqliteFile(path)
    with first.transaction(flushed=True):
        pass
    first.close()
    path.chmod(0o660)
    second = SqliteFile(path)
    with second.transaction(flushed=True):
        pass
    second.close()
    assert stat.S_IMODE((tmp_path / "ledger.sqlite.lock").stat().st_mode) == 0o660


def test_a_configuration_file_that_may_not_be_read_is_a_sentence(monkeypatch):
    """As another user, where whoever runs the tests may read everything."""
    with bound_folder() as folder, monkeypatch.context() as there:
        there.chdir(folder)
        there.setenv("XDG_CONFIG_HOME", str(folder / "configuration"))
        Path(CONFIG_FILE).write_text("seed = 3")
        assert load().seed == 3, "all is imported by then"
        with bound_by_mode_bits():
            assert load().seed == 3
        Path(CONFIG_FILE).chmod(0)
        with bound_by_mode_bits(), pytest.raises(UsageError) as found:
            load()
    assert str(found.value) == f"{CONFIG_FILE} cannot be read: Permission denied"
