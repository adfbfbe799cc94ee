"""Lines of a batch say which endpoint and model they were asked at, and a batch goes on at no other."""

from __future__ import annotations

import pytest

HERE, THERE = "http://here", "http://there"
QUESTIONS = ['"a b c"', '"b c d"', '"c d a"']
CAPPED = ("--price", "1/0.1/4", "--cap", "0.000001")


@pytest.mark.parametrize("again", [("--again", "degraded"), ()], ids=["again", "resumed"])
@pytest.mark.parametrize(
    ("begun_with", "given", "said"),
    [
        (("--cloud", HERE), (), "line 1 there was answered with http://here, and this command names bundled"),
        (("--cloud", HERE), ("--cloud", THERE), "with http://here, and this command names http://there"),
        (("--cloud", HERE, "--cloud-model", "a"), ("--cloud", HERE, "--cloud-model", "b"), "with a, and this"),
    ],
)
def test_lines_of_another_endpoint_or_model_are_not_gone_on_with(
    batch, scripted, tmp_path, begun_with, given, said, again
):
    """Pasted without its flags the command that repairs had the bundled pair answer in the endpoint's place."""
    assert batch(QUESTIONS, *begun_with, *CAPPED).exit_code == 6
    before, scripted.asked = (tmp_path / "out").read_bytes(), 0
    done = batch(QUESTIONS, *given, *again)
    assert (done.exit_code, scripted.asked) == (2, 0)
    assert said in done.stderr
    assert (tmp_path / "out").read_bytes() == before
    assert batch(QUESTIONS, *begun_with, "--again", "degraded").exit_code == 0
    assert scripted.asked == len(QUESTIONS)


@pytest.mark.parametrize(
    ("begun_with", "given"),
    [
        (("--cloud", HERE), ("--offline",)),
        (("--cloud", HERE, "--policy", "local"), ("--cloud", THERE)),
        (("--offline",), ("--cloud", HERE)),
        (("--cloud", HERE), ("--cloud", HERE, "--cloud-model", "a")),
    ],
)
def test_who_names_no_cloud_or_model_goes_on_with_any(batch, begun_with, given):
    batch(QUESTIONS[:2], *begun_with)
    assert batch(QUESTIONS, *given).exit_code == 0


def test_lines_of_before_clouds_were_named_are_gone_on_with(batch, tmp_path):
    batch(QUESTIONS[:2], "--cloud", HERE)
    path = tmp_path / "out"
    path.write_bytes(path.read_bytes().replace(b',"cloud":"http://here","cloud_model":null', b""))
    assert b"http://here" not in path.read_bytes()
    assert batch(QUESTIONS, "--cloud", THERE).exit_code == 0


def test_a_cap_that_decided_a_line_stands_there_by_name(batch, out):
    """The scripted ledger has one cap, of all spending."""
    batch(QUESTIONS, *CAPPED)
    assert {(line["degraded_kind"], line["degraded_cap"]) for line in out()} == {("budget", "total")}
