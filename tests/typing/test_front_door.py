"""The types of the front door are checked: right lines pass, and every line that must be wrong is found to be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IGNORE = re.compile(r"  # type: ignore\[([a-z-]+)\]")


@pytest.mark.slow
def test_mypy_finds_every_wrong_line_and_no_other(tmp_path):
    """A copy without its ignores: so an ignore that hides nothing, and a wrong line that is missed, are both told."""
    text = (HERE / "front_door.py").read_text()
    expected = {n: found[1] for n, line in enumerate(text.splitlines(), start=1) if (found := IGNORE.search(line))}
    assert len(expected) > 8
    copy = tmp_path / "front_door.py"
    copy.write_text(IGNORE.sub("", text))
    config = f"--config-file={HERE.parent.parent / 'pyproject.toml'}"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", config, "--no-error-summary", str(copy)],
        cwd=HERE.parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = re.findall(r"front_door\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)
    assert {int(number): code for number, code in told} == expected, done.stdout + done.stderr
