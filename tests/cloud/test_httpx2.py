"""The wire over httpx2, httpx's successor: its tests run again as on a machine that has no httpx."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from server_environments import Unavailable, python_of

ROOT = Path(__file__).parents[2]
# Adds packages behind our own, and hides httpx from the product; the tests' own callers need it.
WITHOUT_HTTPX = """
import os, sys
sys.path += os.environ["BEHIND"].split(os.pathsep)
sys.modules["httpx"] = sys.modules["httpcore"] = None
import hybrid.cloud.network
del sys.modules["httpx"], sys.modules["httpcore"]
"""
LIBRARY = "from hybrid.cloud.network import httpcore, httpx; print(httpcore.__name__, httpx.__name__)"


def there(*command: str, folder: Path, behind: Path) -> subprocess.CompletedProcess:
    (folder / "sitecustomize.py").write_text(WITHOUT_HTTPX)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "BEHIND": str(behind)}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


def test_httpx_is_taken_where_it_is_there_whatever_else_is(tmp_path):
    """Two empty modules stand for its successor: a command that took one of them would not start."""
    for name in ("httpx2", "httpcore2"):
        (tmp_path / f"{name}.py").touch()
    path = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", LIBRARY], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["httpcore", "httpx"]


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.timeout(600)
def test_every_test_of_the_wire_passes_with_httpx2(tmp_path):
    try:
        python = python_of("openai3")  # which needs it
    except Unavailable as why:
        pytest.skip(str(why))
    (behind,) = python.parents[1].glob("lib/python*/site-packages")
    assert there("-c", LIBRARY, folder=tmp_path, behind=behind).stdout.split() == ["httpcore2", "httpx2"]
    files = ["tests/cloud/test_wire.py", "tests/cloud/test_epochs.py"]
    command = ["-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-W", "ignore:Module already", *files]
    done = there(*command, folder=tmp_path, behind=behind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
