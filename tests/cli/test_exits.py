"""How commands end: a sentence and a code for everything, a traceback for nothing that is foreseen."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cases import each

from hybrid.__main__ import main
from hybrid.cli.command import exit_codes
from hybrid.errors import AccessDenied, ContextOverflow, EngineError, Unreachable, UsageError


@each(
    ("error", "code"),
    [
        (UsageError("said"), 2),
        (ContextOverflow("said"), 2),
        (EngineError("said"), 3),
        (AccessDenied("said"), 4),
        (Unreachable("said"), 4),
    ],
)
def test_what_is_raised_on_purpose_is_one_sentence_and_a_code(capsys, error, code):
    with pytest.raises(typer.Exit) as found, exit_codes():
        raise error
    assert found.value.exit_code == code
    assert capsys.readouterr() == ("", "hybrid: said\n")


def test_an_interruption_is_130_and_no_sentence(capsys):
    with pytest.raises(typer.Exit) as found, exit_codes():
        raise KeyboardInterrupt
    assert found.value.exit_code == 130
    assert capsys.readouterr() == ("", "")


@each(
    ("error", "said"),
    [(OSError(errno.ENOSPC, "No space left on device"), "hybrid: No space left on device\n"), (BrokenPipeError(), "")],
    ids=["full", "left"],
)
def test_an_output_that_fails_is_1_and_what_is_still_to_be_written_goes_nowhere(
    capsys, monkeypatch, tmp_path, error, said
):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(typer.Exit) as found, exit_codes():
            raise error
        out.write("the rest")
    assert found.value.exit_code == 1
    assert capsys.readouterr().err == said
    assert (tmp_path / "out").read_text() == ""


def test_a_terminal_that_cannot_show_a_character_shows_another_one(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with exit_codes():
            sys.stdout.write("é")
    assert (tmp_path / "out").read_text() == "?"


def test_a_mistake_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError), exit_codes():
        1 / 0  # noqa: B018  (it raises)


@pytest.mark.slow
@each(
    ("command", "code", "said"),
    [
        ("hybrid ask hello >&-", 1, "standard output is closed"),
        ("hybrid demo >&-", 1, "standard output is closed"),
        ("hybrid ask - <&-", 2, "standard input is closed"),
    ],
)
def test_a_closed_stream_is_told_before_anything_is_asked(command, code, said):
    """An answer that nobody can read is not paid for."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PATH": path},
    )
    assert (done.returncode, done.stderr) == (code, f"hybrid: {said}\n")


def test_a_second_signal_ends_it_at_once():
    """The first one settles what is under way; whoever insists does not want to wait for it."""
    program = (
        "import os, signal, sys, types\n"
        "def app():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n"
        "        print('settling', flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('still here', flush=True)\n"
        "sys.modules['hybrid.cli'] = types.SimpleNamespace(app=app)\n"
        "from hybrid.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "settling\n", "")


@pytest.mark.parametrize(("told", "code"), [((15,), 143), ((1,), 129), ((), 130)])
def test_a_signal_that_comes_while_the_command_is_loading_is_its_exit_code(monkeypatch, told, code):
    def interrupted():
        raise KeyboardInterrupt(*told)

    monkeypatch.setattr("hybrid.__main__._catch_endings", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code


@each("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_a_class_is_made_of_text_has_its_own_exit_code(tmp_path, number):
    """Python itself ended by SIGINT then, and a supervisor that had sent SIGTERM saw another signal."""
    raising = f"raise KeyboardInterrupt({int(number)})"
    (tmp_path / "begun.py").write_text(
        "import sys, types\n"
        "from hybrid.__main__ import main\n"
        f"sys.modules['hybrid.cli'] = types.SimpleNamespace(app=lambda: exec({raising!r}))\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "begun"], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 128 + number
