"""What a command loads before it does anything: modules are counted, never seconds.

The law: the list of commands is the commands' own first paragraphs, and no command is loaded for it; each is loaded
with no room that its help does without, and a local answer without what sends, serves, tries or fits.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from cases import each_of
from typer.testing import CliRunner

from hybrid.cli import COMMANDS, _loaded, app

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What each dependency is imported as.
NAMES = {"llama-cpp-python": "llama_cpp"}
LIBRARIES = {NAMES.get(name, name) for name in (re.split(r"[\s<>=]", each)[0] for each in PROJECT["dependencies"])} | {
    "httpx2",
    "httpcore2",
    "scipy",
    "sklearn",
    "ot",
}
ROOMS = {path.parent.name for path in (ROOT / "hybrid").glob("*/__init__.py")}
# What every command may know: how it is said and shown, and the settings.
FRONT = {"cli", "report", "settings", "store"}
# What sends, what serves, and what fits.
SENDING = {"httpx", "httpcore", "httpx2", "httpcore2", "h11"}
SERVING, FITTING = {"starlette", "uvicorn"}, {"scipy", "sklearn", "ot"}
# What a command line is made with, and what it takes with it.
TYPER = {"typer", "rich"}
BASH = {"_HYBRID_COMPLETE": "complete_bash", "COMP_WORDS": "hybrid ", "COMP_CWORD": "1"}


def loaded(*words, **variables):
    """The modules that are there once the command has ended, and what it printed."""
    program = (
        "import json, sys\n"
        "from hybrid.__main__ import main\n"
        f"sys.argv = ['hybrid', *{words!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | variables,
    )
    return set(json.loads(done.stderr.splitlines()[-1])), done.stdout


def own(modules):
    return {name for name in modules if name.partition(".")[0] == "hybrid"}


def rooms(modules):
    return {name.split(".")[1] for name in own(modules) if name.count(".")} & ROOMS


def libraries(modules):
    return {name for name in modules if "." not in name} & LIBRARIES


# A process each: these by default, all of them among the slow tests.
QUICK = ("serve", "budget", "bench")


@pytest.fixture(scope="module")
def command():
    return typer.main.get_command(app)


def test_there_are_rooms_and_libraries():
    assert FRONT | {"cloud", "engine", "policy", "spend", "serve", "lab", "tune", "batch"} < ROOMS
    assert {"numpy", "pydantic", "llama_cpp", "httpx", "starlette", "typer", "rich"} < LIBRARIES


def test_a_line_of_the_list_is_the_first_paragraph_of_the_command_itself(command):
    assert list(command.commands) == list(COMMANDS)
    for name, line in each_of(COMMANDS.items()):
        itself = _loaded(name)
        assert line == " ".join(itself.help.partition("\n\n")[0].split()), name
        assert (itself.hidden, itself.deprecated) == (False, False), name
        for limit in range(10, 200):
            assert command.commands[name].get_short_help_str(limit) == itself.get_short_help_str(limit), (name, limit)


@pytest.mark.parametrize(
    ("words", "variables", "typers_own"),
    [
        (["--version"], {}, set()),
        (["--help"], {}, set()),
        ([], {}, set()),
        (["--nonsense"], {}, set()),
        (["nonsense"], {}, {"pydantic"}),
        ([], BASH, {"pydantic"}),
        ([], {"_HYBRID_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "hybrid a"}, {"pydantic"}),
    ],
)
def test_what_is_about_no_command_loads_none(words, variables, typers_own):
    modules, _ = loaded(*words, **variables)
    known = {f"hybrid.{name}" for name in ("__main__", "cli", "ending_signals", "errors", "types")}
    assert own(modules) == known | {"hybrid"}
    assert libraries(modules) <= TYPER | typers_own


def test_the_list_and_completion_name_every_command():
    for words, variables in (
        (["--help"], {}),
        ([], BASH),
    ):
        told = loaded(*words, **variables)[1]
        assert all(re.search(rf"^ *{name}\b", told, re.MULTILINE) for name in COMMANDS), words


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_the_help_of_a_command_loads_no_model_no_wire_no_server_and_no_other_command(name):
    modules, told = loaded(name, "--help")
    assert "Usage:" in told
    assert not rooms(modules) & {"assemble", "serve", "lab", "tune", "models"}
    assert not libraries(modules) & (SENDING | SERVING | FITTING | {"llama_cpp", "jinja2"})
    others = {f"hybrid.cli.{each}" for each in COMMANDS} - {f"hybrid.cli.{name}"}
    assert not modules & others - {"hybrid.cli.trace", "hybrid.cli.tasks"}, "these have a part that others take"


def test_the_help_of_ask_loads_no_room_but_those_of_the_front():
    modules, _ = loaded("ask", "--help")
    assert rooms(modules) <= FRONT
    assert libraries(modules) <= TYPER | {"filelock", "platformdirs", "pydantic"}


def test_a_local_answer_loads_nothing_that_sends_serves_tries_or_fits():
    modules, told = loaded("ask", "--offline", "What is 47 + 86?", HYBRID_MAX_TOKENS="2")
    assert told.strip()
    assert {"hybrid.engine.llama", "llama_cpp"} <= modules
    assert not rooms(modules) & {"serve", "lab", "tune", "batch", "models"}
    assert not libraries(modules) & (SENDING | SERVING | FITTING)
    names = ("assemble.probing", "cloud.wire", "cloud.endpoint", "run.relaying", "spend.durable")
    assert not modules & {f"hybrid.{each}" for each in names}
    others = {f"hybrid.cli.{each}" for each in COMMANDS} - {"hybrid.cli.ask", "hybrid.cli.trace"}
    assert not modules & others


def test_an_unknown_command_is_told_and_the_nearest_is_named():
    done = CliRunner().invoke(app, ["aks"])
    assert done.exit_code == 2
    assert "No such command 'aks'" in done.output
    assert "ask" in done.output.partition("'aks'")[2]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
@pytest.mark.parametrize("raising", ["raise KeyboardInterrupt({})", "exec('raise KeyboardInterrupt({})')"])
def test_a_signal_that_comes_while_a_command_is_loaded_is_its_exit_code(tmp_path, number, raising):
    """Typer ends by 130 or in a sentence of its own, whatever the signal was."""
    (tmp_path / "begun.py").write_text(
        "import sys\n"
        "from hybrid.__main__ import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'hybrid.cli.policies':\n"
        f"            {raising.format(int(number))}\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['hybrid', 'policies']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "begun"], cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")
