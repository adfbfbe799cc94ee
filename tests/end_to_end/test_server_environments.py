"""How real servers are kept and ended, tried with packages of one line and a server that only sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import psutil
import pytest
import server_environments
import supervised
from server_environments import Absent, Recipe, Unavailable, make, python_of, shadowed_by

pytestmark = pytest.mark.slow


@pytest.fixture
def wheel(tmp_path):
    """Write a package that says a word, as pip installs it."""

    def write(name: str, word: str) -> str:
        path = tmp_path / f"{name}-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}.py", f"word = {word!r}\n")
            wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            wheel.writestr(
                f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{name}-1.dist-info/RECORD", "")
        return str(path)

    return write


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.setenv("HYBRID_SERVERS", str(tmp_path / "kept"))
    monkeypatch.setattr(server_environments, "RECIPES", recipes := {})
    return recipes


def says(name: str, module: str) -> str:
    command = [python_of(name), "-c", f"import {module}; print({module}.word)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_is_kept_and_one_over_it_sees_its_packages(recipes, wheel, capsys):
    recipes["server"] = Recipe((wheel("lower", "one"),), "little", "lower")
    recipes["more"] = Recipe((wheel("upper", "two"),), "little", "upper, lower", over="server")
    make("more")
    assert (says("more", "upper"), says("more", "lower"), says("server", "lower")) == ("two", "one", "one")
    capsys.readouterr()
    make("server")
    make("more")
    assert capsys.readouterr().out == "", "nothing is made twice"


def test_an_environment_is_made_anew_where_it_was_left_half_made_or_its_recipe_has_changed(recipes, wheel):
    recipes["server"] = Recipe((wheel("lower", "one"),), "little", "lower")
    half = server_environments.kept_in() / "server"
    half.mkdir(parents=True)
    (half / "left.txt").touch()
    with pytest.raises(Unavailable, match=r"missing: python tests/end_to_end/\S+ server"):
        python_of("server")
    make("server")
    assert says("server", "lower") == "one"
    assert not (half / "left.txt").exists()
    recipes["server"] = replace(recipes["server"], packages=(wheel("other", "three"),), imported="other")
    with pytest.raises(Unavailable):
        python_of("server")
    make("server")
    assert says("server", "other") == "three"


def test_what_cannot_be_installed_is_told_in_a_sentence_and_not_called_finished(recipes, wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    recipes["absent"] = Recipe(("no-such-package-of-ours",), "little", "absent")
    recipes["broken"] = Recipe((wheel("lower", "one"),), "little", "lower.part")
    kinds = {"absent": (Absent, "no-such-package-of-ours"), "broken": (Unavailable, "No module named 'lower.part'")}
    for name, (kind, reason) in kinds.items():
        said = rf"^{name} cannot be installed here: .*{reason}.* \(all that was said: "
        with pytest.raises(Unavailable, match=said) as found:
            make(name)
        assert type(found.value) is kind
        with pytest.raises(Unavailable, match="is missing"):
            python_of(name)


@pytest.mark.parametrize(("names", "code"), [(["absent"], 3), (["broken", "absent"], 1), (["absent", "broken"], 1)])
def test_what_pip_could_have_had_and_did_not_make_is_told_from_what_is_not_there(
    recipes, wheel, monkeypatch, names, code
):
    """The first fails tests/check.py; a machine without a network is not refused."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sys, "argv", ["server_environments.py", *names])
    recipes["absent"] = Recipe(("no-such-package-of-ours",), "little", "absent")
    recipes["broken"] = Recipe((wheel("lower", "one"),), "little", "lower.part")
    assert server_environments.main() == code


def test_what_is_compiled_is_built_by_the_recipes_flags_and_stands_before_the_package_of_that_name(recipes, tmp_path):
    """The environment of another processor: with the wheel that lies in pip's cache its tests would show nothing."""
    backend = (
        "import os, zipfile\n"
        "def build_wheel(folder, *_):\n"
        "    with zipfile.ZipFile(os.path.join(folder, 'built-1-py3-none-any.whl'), 'w') as wheel:\n"
        "        wheel.writestr('markupsafe.py', 'word = ' + repr(os.environ['CMAKE_ARGS']))\n"
        "        wheel.writestr('built-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: built\\nVersion: 1\\n')\n"
        "        wheel.writestr('built-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr('built-1.dist-info/RECORD', '')\n"
        "    return 'built-1-py3-none-any.whl'\n"
    )
    source = tmp_path / "built-1"
    source.mkdir()
    (source / "backend.py").write_text(backend)
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    compiled = Recipe((str(source),), "little", "markupsafe; assert markupsafe.word == '-DONE=ON'", compiled="-DONE=ON")
    recipes["built"] = compiled
    with pytest.raises(Unavailable, match="is missing"):
        shadowed_by("built")
    make("built")
    command = [sys.executable, "-c", "import markupsafe, filelock; print(markupsafe.word)"]
    environment = os.environ | shadowed_by("built")
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "-DONE=ON\n"
    recipes["built"] = replace(compiled, compiled="-DTWO=ON")
    with pytest.raises(Unavailable, match="AssertionError"):
        make("built")


NONE = "ERROR: Could not find a version that satisfies the requirement some (from versions: none)"
LOADING = "Collecting other\n  Downloading other-1-py3-none-any.whl (10.0 kB)\n"
BROKEN = "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(9 bytes read, 1 more)')"
RETRIED = (
    "WARNING: Retrying after connection broken by 'NewConnectionError('<...>: No route to host')': /simple/some/\n"
)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (RETRIED + NONE, Absent),
        ("Looking in links: wheels\nProcessing wheels/other-1-py3-none-any.whl\n" + NONE, Absent),
        (LOADING + RETRIED + NONE, Unavailable),
        (LOADING + BROKEN, Unavailable),
        (LOADING + "ERROR: Could not install: [Errno 28] No space left on device", Unavailable),
        ("Processing wheels/some-1-py3-none-any.whl\nERROR: [Errno 28] No space left on device", Unavailable),
    ],
)
def test_only_where_no_index_ever_answered_is_a_package_absent(tmp_path, said, kind):
    """A full disk and a connection that is lost in the middle are no reason to pass; the words are pip's own."""
    with (
        (tmp_path / "some.log").open("w") as log,
        pytest.raises(Unavailable, match="some cannot be installed here: ") as found,
    ):
        server_environments.run_step("some", [sys.executable, "-c", f"print({said!r}); exit(1)"], log)
    assert type(found.value) is kind


def test_a_server_ends_with_whoever_started_it_and_so_does_all_that_came_of_it():
    """Killed without a word, as a test session may be: the server has a child, and neither heeds a polite request."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    server = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn + 'time.sleep(99)'!r}]); "
    starter = (
        "import subprocess, sys, time\n"
        f"server = [sys.executable, '-c', {server + stubborn!r} 'time.sleep(99)']\n"
        f"subprocess.Popen([sys.executable, {supervised.__file__!r}, *server], stdin=subprocess.PIPE)\n"
        "time.sleep(99)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as session:
        assert [session.stdout.readline(), session.stdout.readline()] == [b"up\n"] * 2
        family = psutil.Process(session.pid).children(recursive=True)
        assert len(family) == 3, "the one that watches, the server, its child"
        session.kill()
        _, left = psutil.wait_procs(family, timeout=100)
    assert not left
