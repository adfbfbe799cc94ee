"""``hybrid ask --explain`` over the bundled pair."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

QUESTION = "What is 47 + 86?"


@pytest.fixture
def invoke(bundled):
    """Run the command in this process, against the session's server."""
    from hybrid.cli import app

    return lambda *args: CliRunner().invoke(app, ["ask", *args])


@pytest.mark.slow
def test_each_plan_of_an_answer_is_explained_after_its_text_or_in_its_json(invoke):
    """Behind the text and on standard error: a pipe holds the text alone."""
    flags = (QUESTION, "--policy", "auto", "--price", "1/0.1/4", "--worth", "50", "--explain")
    done, plain = invoke(*flags), invoke(*flags[:-1])
    assert (done.exit_code, done.stdout) == (0, plain.stdout)
    first = done.stderr.splitlines().index(
        next(line for line in done.stderr.splitlines() if "draft of tokens 0" in line)
    )
    assert "expected: to keep it may lose 0.0" in done.stderr.splitlines()[first + 1]
    plans = json.loads(invoke(*flags, "--json").stdout)["plans"]
    assert plans[0]["position"] == 0
    assert plans[0]["unit"] == "nanousd"
    assert set(plans[0]["costs"]) == {"keep", "check", "write", "spans"}
    assert "plans" not in json.loads(invoke(*flags[:-1], "--json").stdout)
