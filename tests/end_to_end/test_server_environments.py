"""The script that makes and keeps the environments of real servers, tried with packages of one line."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import replace

import pytest
import server_environments
from server_environments import Recipe, Unavailable, make, python_of

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
    for name, reason in {"absent": "no-such-package-of-ours", "broken": "No module named 'lower.part'"}.items():
        with pytest.raises(Unavailable, match=rf"^{name} cannot be installed here: .*{reason}.* \(all that was said: "):
            make(name)
        with pytest.raises(Unavailable, match="is missing"):
            python_of(name)
