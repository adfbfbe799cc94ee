"""``hybrid experiment`` as real processes: killed at random, and against an endpoint that charges, under a cap."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.lab.experiments.grid import read_parts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DESIGN = """
sections = ["threshold"]
seeds = [0, 1]
[pairs.mine]
local = "small"
cloud = "large"
[questions]
split = "test"
n = 6
[[arms]]
policy = "kl"
threshold = [0.3, 3.0]
"""


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a command in a folder of its own, with a ledger of its own."""
    monkeypatch.setenv("HYBRID_LEDGER", str(tmp_path / "ledger.sqlite"))
    begun = []

    def start(*words, design=DESIGN):
        (tmp_path / "my.toml").write_text(design)
        command = [sys.executable, "-P", "-m", "hybrid", *words]
        begun.append(subprocess.Popen(command, cwd=tmp_path, text=True, stdout=-1, stderr=-1))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def finish(process):
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return out


def killed_until_it_ends(begin, tmp_path, folder, design, rng, num_kills):
    """Run a design, killed at any moment after its first or second new row, so many times; then let it end."""
    for _ in range(num_kills):
        process = begin("experiment", "run", "my.toml", "--out", folder, design=design)
        aim = len(read_parts(tmp_path / folder)) + rng.choice((1, 2))
        while process.poll() is None and len(read_parts(tmp_path / folder)) < aim:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(begin("experiment", "run", "my.toml", "--out", folder, design=design))


def test_killed_at_random_and_taken_up_a_run_has_the_rows_of_one_that_was_not(begin, tmp_path):
    whole = finish(begin("experiment", "run", "my.toml", "--out", "whole", "--json"))
    killed_until_it_ends(begin, tmp_path, "killed", DESIGN, random.Random(1), 2)
    rows, killed = read_parts(tmp_path / "whole"), read_parts(tmp_path / "killed")
    assert sum("texts" not in each for each in rows.values()) == 12
    assert killed == rows
    again = json.loads(CliRunner().invoke(app, ["experiment", "report", str(tmp_path / "killed"), "--json"]).stdout)
    assert {**again, "command": ""} == {**json.loads(whole), "command": ""}
    assert again["against_the_client"]["other_text"] == again["against_the_client"]["other_requests"] == 0


def answers_bought(folder):
    """Return how often each answer was bought, by its key."""
    lines = [json.loads(line) for path in folder.glob("answers-*.jsonl") for line in path.read_text().splitlines()]
    return Counter(key for line in lines for key in line)


def test_an_endpoint_that_charges_stays_below_its_cap_and_sells_nothing_twice(begin, tmp_path, own_stub):
    one_seed = DESIGN.replace("[0, 1]", "[0]")
    design = one_seed.replace('cloud = "large"', f'cloud = "{own_stub().url}"\nprice = "1/0.1/4"')

    def spent():
        log = json.loads(finish(begin("budget", "log", "--n", "10000", "--json")))
        return sum(entry["charged_nanousd"] or entry["reserved_nanousd"] or 0 for entry in log["entries"])

    poor = begin("experiment", "run", "my.toml", "--out", "kept", design=f"cap = 0.003\n{design}")
    out, told = poor.communicate(timeout=300)
    assert poor.returncode == 3, (out, told)
    assert "the cap of 0.003 USD does not allow another request" in told
    assert "raise it (cap in the design's file, or by hybrid budget) and run the command again to go on" in told
    assert 0 < spent() <= 3_000_000
    log = json.loads(finish(begin("budget", "log", "--n", "10000", "--json")))
    assert {entry["state"] for entry in log["entries"]} <= {"settled"}, "the other process was ended in a request"
    bought = answers_bought(tmp_path / "kept")
    assert bought

    killed_until_it_ends(begin, tmp_path, "kept", f"cap = 1\n{design}", random.Random(2), 1)
    answers = answers_bought(tmp_path / "kept")
    assert answers.keys() > bought.keys()
    assert set(answers.values()) == {1}
    assert len(answers) == 6 * 4
    assert {
        path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "kept").iterdir() if path.stat().st_mode & 0o077
    } == {}
    # An endpoint's records are those of a world: texts, and requests as they are counted there.
    finish(begin("experiment", "run", "my.toml", "--out", "world", design=one_seed))
    here, there = (
        # Without the texts that are read twice for the noise floor.
        {each["text"]: each["arms"] for each in read_parts(tmp_path / name).values() if "texts" not in each}
        for name in ("world", "kept")
    )
    assert here.keys() == there.keys()
    for text, arms in each_of(here.items()):
        for name, arm in each_of(arms.items()):
            for what in ("answer", "right", "requests", "nanousd"):
                assert arm[what] == there[text][name][what], (text, name, what)


def test_an_answer_that_two_sections_share_is_bought_once_and_the_report_says_what_all_cost(begin, tmp_path, own_stub):
    questions = [{"question": f"What is {n} + 8?", "grader": "number", "answer": n + 8} for n in range(5)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(each | {"max_tokens": 24}) + "\n" for each in questions))
    pair = f'local = "small"\ncloud = "{own_stub().url}"\nprice = "1/0.1/4"\n'
    asked = '.questions]\nkind = "file"\npath = "own.jsonl"\nn = '
    design = (
        'sections = ["threshold", "adaptive"]\nseeds = [0]\ncap = 1\ntariffs = ["1/0.1/4 U"]\n'
        f"[pairs.mine]\n{pair}[pairs.mine{asked}3\n[pairs.other]\n{pair}[pairs.other{asked}2\n"
        '[[arms]]\npolicy = "kl"\nthreshold = [0.3, 3.0]\n[options]\nstreams = 2\nanswers = 20\n'
    )
    found = json.loads(finish(begin("experiment", "run", "my.toml", "--out", "kept", "--json", design=design)))
    assert set(answers_bought(tmp_path / "kept").values()) == {1}
    log = json.loads(finish(begin("budget", "log", "--n", "10000", "--json")))
    assert found["spent_nanousd"] == {"mine, other": sum(entry["charged_nanousd"] for entry in log["entries"])}
    assert len(answers_bought(tmp_path / "kept")) == 3 * (2 + 2 + 7)
    # Greedily, a question that is asked in another place, by another seed, is the same.
    moved = design.replace(f"{asked}3", f"{asked}5").replace("seeds = [0]", "seeds = [3]")
    finish(begin("experiment", "run", "my.toml", "--out", "kept", design=moved))
    bought = answers_bought(tmp_path / "kept")
    assert (len(bought), set(bought.values())) == (5 * (2 + 2 + 7), {1})


CHILD = """
import multiprocessing, pathlib, time
from hybrid.lab.experiments import grid

def child(tasks):
    print("up", flush=True)
    grid._child(grid.GridRun((), {}, pathlib.Path(__file__).parent), tasks, None)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    tasks = context.Queue()
    context.Process(target=child, args=(tasks,)).start()
    time.sleep(100)
"""


def test_a_worker_ends_with_a_parent_that_was_killed(tmp_path):
    """The next run would buy what it is buying. Both hold the pipe, so it ends where both have."""
    (tmp_path / "parent.py").write_text(CHILD)
    with subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], text=True, stdout=-1) as parent:
        assert parent.stdout.readline() == "up\n"
        parent.kill()
        assert parent.communicate(timeout=60)[0] == ""
