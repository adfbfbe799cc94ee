"""``hybrid policies`` and ``hybrid replay``: what they print, and one sentence for what cannot be done."""

from __future__ import annotations

import json

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.policy import PRESETS
from hybrid.policy.compose import GATES, JUDGES
from hybrid.record.events import TRACE_VERSION, key_of

run = CliRunner()


def test_the_policies_are_listed_for_programs_and_for_people():
    found = json.loads(run.invoke(app, ["policies", "--json"]).stdout)
    assert [policy["name"] for policy in found["policies"]] == list(PRESETS)
    assert (found["gates"], found["judges"]) == (list(GATES), list(JUDGES))
    needs = {policy["name"]: policy["needs"] for policy in found["policies"]}
    assert (needs["local"], needs["doubt"], needs["greedy-exact"]) == ([], ["write"], ["score"])
    assert needs["exact"] == ["ids", "score", "write"], "sampled, it leaves tokens to the cloud"
    said = run.invoke(app, ["policies"], env={"COLUMNS": "1000"}).stdout
    assert all(preset.summary in said and preset.guarantee in said for preset in PRESETS.values())
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in (
        "needs no endpoint",
        "needs an endpoint that can continue a partial answer",
        "needs an endpoint that can score a draft",
        "A rule of the literature is this project's implementation of it.",
        "entropy:0.5 an entropy in nats",
        "always",
        "number kl:0.5, a threshold in nats",
    ):
        assert line in lines
    numbered = [name for name, found in PRESETS.items() if found.number.default is not None]
    assert [line.split()[1].partition(":")[0] for line in lines if line.startswith("number ")] == numbered


def test_the_policies_fit_the_terminal_and_lose_no_word():
    """A line had 339 characters."""

    def listed(columns):
        return run.invoke(app, ["policies"], env={"COLUMNS": str(columns)}).stdout

    for columns in (60, 80, 132):
        assert max(map(len, listed(columns).splitlines())) <= columns
        assert listed(columns).split() == listed(1000).split()
    behind = [line for line in listed(80).splitlines() if line.startswith("   ")]
    assert behind
    assert all(line.startswith(" " * 12) for line in behind), "further lines stand under the first"


def trace(path, *events):
    """A trace of a text of one token that only the local model was asked about."""
    sampling = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "min_p": 0.0}
    recording = {
        "event": "recording_started",
        "pieces": ["61", "62"],
        "end_ids": [],
        "sampling": sampling,
        "max_tokens": 1,
    }
    recording["choices"] = {}
    started = {"event": "started", "prompt": [0], "policy": "local"}
    lines = [{"trace": TRACE_VERSION}, started, recording, *events]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


ROW = {
    "event": "rows",
    "position": 0,
    "key": key_of(()),
    "local": "AAAAAAAAgD8=",  # two float32: 0 and 1
    "cloud": None,
    "written": None,
    "banned": [],
}


@pytest.fixture
def recorded(tmp_path):
    return trace(tmp_path / "trace.jsonl", ROW)


def test_a_trace_is_decoded_again(recorded):
    done = run.invoke(app, ["replay", recorded])
    assert (done.exit_code, done.stdout) == (0, "b\n")
    answer = json.loads(run.invoke(app, ["replay", recorded, "--json"]).stdout)
    assert (answer["text"], answer["finish_reason"]) == ("b", "length")


def test_a_missing_row_is_one_sentence_and_an_exit_code_of_its_own(recorded):
    done = run.invoke(app, ["replay", recorded, "--policy", "cloud"])
    assert done.exit_code == 1
    assert "hybrid: the trace does not hold the cloud model's row at position 0 of this text" in done.output
    done = run.invoke(app, ["replay", recorded, "--policy", "cloud", "--json"])
    assert json.loads(done.stdout) == {"missing": "the cloud model's row", "position": 0, "after": []}
    assert done.exit_code == 1


@each(
    ("flags", "said"),
    [
        (["--policy", "klx"], "no policy is called 'klx'"),
        (["--gate", "entropy:x"], "is no number"),
        (["--span", "0"], "span: between 1 and 256, from one to another as in 4..32, auto or cheap"),
        (["--policy", "exact", "--gate", "entropy"], "exact promises"),
        (["--policy", "kl:x"], "'x' is no number"),
        (["--policy", "local", "--hold", "3"], "hold changes nothing in the policy local: it acts in kl, concepts"),
        (["--threshold", "2"], "threshold changes nothing in the policy local: it acts in auto, kl"),
        (["--policy", "kl:1", "--threshold", "2"], "two numbers for one policy"),
        (["--policy", "kl:adaptive", "--threshold", "2"], "threshold beside kl:adaptive: it chooses threshold, span"),
        (["--policy", "kl:adaptive:1"], "'adaptive' is no number"),
    ],
)
def test_what_cannot_be_replayed_is_a_sentence(recorded, flags, said):
    done = run.invoke(app, ["replay", recorded, *flags])
    assert done.exit_code == 2
    assert said in done.output


def test_a_file_that_is_no_trace_is_a_sentence(tmp_path):
    done = run.invoke(app, ["replay", str(tmp_path / "none.jsonl")])
    assert (done.exit_code, "No such file" in done.output) == (2, True)
    (tmp_path / "text").write_text("hello\n")
    done = run.invoke(app, ["replay", str(tmp_path / "text")])
    assert done.exit_code == 2
    assert "is no trace: record one with --trace" in done.output
