"""The training recipe, on toys: it runs in vLLM's environment, the one that check.py makes and that has torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from server_environments import Unavailable, python_of

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TOYS = ("test_llama_cpp_computes_what_torch_does[common]", "test_one_command_trains_several_models_to_their_files")


def test_toys_are_trained_to_files_that_llama_cpp_runs_as_torch_does(tmp_path):
    """Nothing else ran it: torch is no dependency of the tests. Our packages come behind those of that environment."""
    try:
        python = python_of("vllm")
    except Unavailable as why:
        pytest.skip(str(why))
    (tmp_path / "sitecustomize.py").write_text("import os, sys; sys.path += os.environ['BEHIND'].split(os.pathsep)\n")
    behind = os.pathsep.join(each for each in sys.path if Path(each).name == "site-packages")
    command = [python, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", ""]
    done = subprocess.run(
        [*command, *(f"{ROOT}/tests/examples/test_training.py::{toy}" for toy in TOYS)],
        cwd=ROOT,
        env=os.environ | {"BEHIND": behind, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(TOYS)} passed" in done.stdout
    assert "skipped" not in done.stdout
