"""A run says what it skipped, and is red where a skip is not on the list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import listed_skips
import pytest

TEST = "import pytest\ndef test_it(): pass\ndef test_that(): pytest.skip({reason!r})\n"


def run(folder: Path, reason: str, *flags: str) -> subprocess.CompletedProcess:
    (folder / "test_here.py").write_text(TEST.format(reason=reason))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        folder,
        "-p",
        "listed_skips",
        *flags,
    ]
    path = os.pathsep.join([str(Path(listed_skips.__file__).parent), *sys.path])
    return subprocess.run(
        [*command, folder],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-p", "no:xdist"), ("-n", "2")])
def test_a_skip_is_told_and_only_a_listed_one_leaves_the_run_green(tmp_path, flags):
    for reason, code in (("Chromium is missing: apt-get install chromium", 0), ("just so", 1)):
        done = run(tmp_path, f"{reason}\ninput 3: a case", *flags)
        assert done.returncode == code, done.stdout
        unlisted = " (a reason that tests/skips.toml does not list)" if code else ""
        assert f"skipped 1: {reason}{unlisted}" in done.stdout.splitlines()
        assert "1 passed, 1 skipped" in done.stdout


def test_every_listed_reason_says_enough_to_be_no_other():
    found = listed_skips.listed()
    assert len(set(found)) == len(found) > 10
    assert all(len(reason) >= 15 for reason in found)
    assert not [one for one in found for other in found if one != other and one.startswith(other)]
