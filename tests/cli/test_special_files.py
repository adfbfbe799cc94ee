"""What is no file is refused before it is read: a pipe waits for a writer, a device may have no end."""

from __future__ import annotations

import os

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.errors import UsageError
from hybrid.settings.sources import CONFIG_FILE, load
from hybrid.store.files import APP


@each("command", [["replay"], ["trace", "show"]])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_trace_that_is_no_file_is_a_sentence(command, kind, tmp_path):
    if kind == "pipe" and not (tmp_path / "pipe").exists():
        os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir(exist_ok=True)
    path = "/dev/zero" if kind == "device" else tmp_path / kind
    done = CliRunner().invoke(app, [*command, str(path)])
    assert (done.exit_code, done.stderr) == (2, f"hybrid: {path}: not a file\n")


@each("command", [["replay"], ["trace", "show"]])
def test_one_that_is_not_there_is_a_sentence(command, tmp_path):
    done = CliRunner().invoke(app, [*command, str(tmp_path / "none")])
    assert (done.exit_code, done.stderr) == (2, f"hybrid: {tmp_path}/none: No such file or directory\n")


def test_a_long_file_of_the_working_directory_is_a_sentence_and_ones_own_may_be_long(tmp_path, monkeypatch):
    """A stranger's of some megabytes takes seconds of every command; TOML is read in Python."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.chdir(tmp_path)
    here, own = tmp_path / CONFIG_FILE, tmp_path / "configuration" / APP / CONFIG_FILE
    here.write_text("policy = 'local'\n".ljust(16_384, "#"))
    assert load().policy == "local"
    here.write_text("policy = 'local'\n".ljust(16_385, "#"))
    with pytest.raises(
        UsageError, match=rf"^\./{CONFIG_FILE} is longer than 16 KiB, which no choice of how to decode needs$"
    ):
        load()
    here.unlink()
    own.parent.mkdir(parents=True)
    own.write_text("policy = 'local'\n".ljust(100_000, "#"))
    own.chmod(0o600)
    assert load().policy == "local"
