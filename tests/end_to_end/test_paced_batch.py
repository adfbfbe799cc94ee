"""A batch under a day's cap that runs out: real commands, the bundled pair, and the questions of its test split."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hybrid.lab.arms import draw_balanced

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROBLEMS = draw_balanced(40, "test", 0)
PAIR = ("--local", "small", "--price", "1/0.1/4", "--policy", "auto", "--no-learn")


@pytest.fixture
def hybrid(tmp_path):
    """Run a command of the user's; return it when it has ended."""
    (tmp_path / "in").write_text("".join(json.dumps({"prompt": each.question}) + "\n" for each in PROBLEMS))

    def run(*args):
        command = [sys.executable, "-P", "-m", "hybrid", *args, "--ledger", "ledger"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)

    return run


@pytest.fixture
def lines(tmp_path):
    return lambda name: [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


def test_lines_that_a_cap_changed_are_marked_and_all_repaired_once_it_is_raised(hybrid, lines, stub):
    """The total's cap holds the same amount, so that lines are marked at any hour, and over midnight, too."""
    pair = (*PAIR, "--cloud", stub.url)
    assert hybrid("ask", "What is 12 + 30?", *pair, "--policy", "cloud").returncode == 0
    assert hybrid("budget", "reconcile", "1", "--charged", "0.9968").returncode == 0
    assert hybrid("budget", "set", "--day", "1", "--total", "1").returncode == 0
    capped = hybrid("batch", "in", "out", *pair)
    marked = [line for line in lines("out") if line["degraded"] is not None]
    assert capped.returncode == 6
    assert marked
    assert {line["degraded_kind"] for line in marked} <= {"paced", "budget"}
    assert f"in {len(marked)} lines less was asked of the cloud than is due" in capped.stderr
    assert "hybrid batch in out --again degraded" in capped.stderr.splitlines()[-1]

    assert hybrid("budget", "set", "--day", "none", "--total", "none").returncode == 0
    again = hybrid("batch", "in", "out", *pair, "--again", "degraded", "--json")
    assert again.returncode == 0
    summary = json.loads(again.stdout)
    assert (summary["asked_again"], summary["better"], summary["degraded"]) == (len(marked), len(marked), 0)
    newest = {line["line"]: line for line in lines("out")}
    assert len(newest) == len(PROBLEMS)
    assert all(line["degraded"] is None for line in newest.values())
