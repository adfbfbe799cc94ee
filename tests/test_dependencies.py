"""What is imported is declared: a dependency of a dependency may leave with its next release."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = {"hybrid", "server_stub"}
# Where a release may change what is used below the documented surface, the next major one is not taken unseen.
BOUNDED = {"h11", "httpcore", "httpx", "llama-cpp-python", "starlette", "uvicorn"}


def name_of(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement)[0].lower().replace("_", "-")


def imported() -> set[str]:
    """Every module outside the standard library that the product imports, at the top of a file or later."""
    found = set()
    for folder in OWN:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - OWN


@pytest.mark.slow
def test_every_import_is_of_a_declared_distribution():
    declared = {name_of(each) for each in PROJECT["dependencies"]}
    declared |= {name_of(each) for extra in PROJECT["optional-dependencies"].values() for each in extra}
    distributions = packages_distributions()
    modules = imported()
    assert {"numpy", "h11"} <= modules
    missing = {
        module
        for module in modules
        if module in distributions and not {name_of(name) for name in distributions[module]} & declared
    }
    assert missing == set()


def test_what_is_used_below_its_surface_has_an_upper_end():
    unbounded = {name_of(each) for each in PROJECT["dependencies"] if "<" not in each}
    assert not BOUNDED & unbounded
    assert {name_of(each) for each in PROJECT["dependencies"]} >= BOUNDED


def test_both_commands_are_one():
    """``uvx`` and ``pipx run`` look for a command of the distribution's own name."""
    assert PROJECT["scripts"][PROJECT["name"]] == PROJECT["scripts"]["hybrid"]
