"""Every command block of the README, of the rooms' pages and of the manual is executed as it stands there.

``sh`` blocks run in a folder that holds the bundled pair in ``hybrid/models``; ``python`` blocks run as programs. The
installation commands, which need a machine of their own, are run by ``.ci/run`` from the same text.
Not collected by a plain ``pytest``: ``tests/check.py`` runs it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hybrid

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(language, block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in [
        ROOT / "README.md",
        *sorted(ROOT.glob("hybrid/**/*.md")),
        *sorted(ROOT.glob("examples/**/README.md")),
    ]
    for number, (language, block) in enumerate(FENCE.findall(path.read_text()), start=1)
    if "pip install" not in block and "train.py" not in block
]
# A block that takes so many seconds hangs. The longest, a whole study, takes one on a quiet machine.
HANGS_S = 900
OF_REAL_MODELS = re.compile(r"\breal\b")


def test_there_are_blocks():
    assert BLOCKS


@pytest.mark.parametrize(("language", "block"), BLOCKS)
def test_a_block_runs_as_it_stands(tmp_path, language, block, request):
    if OF_REAL_MODELS.search(block):
        request.getfixturevalue("real_model")  # skips without the package
    models = Path(hybrid.__file__).parent / "models"
    (tmp_path / "hybrid").mkdir()
    (tmp_path / "hybrid" / "models").symlink_to(models)
    command = ["bash", "-euo", "pipefail", "-c", block] if language == "sh" else [sys.executable, "-c", block]
    here = str(Path(sys.executable).parent)
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        process.wait(HANGS_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a server that a block has started
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "Traceback" not in output
