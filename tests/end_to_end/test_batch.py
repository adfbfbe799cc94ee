"""``hybrid batch`` as a user meets it: real processes, killed, interrupted, twice at once, on a full disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-P", "-m", "hybrid", "batch"]
QUESTIONS = [f"What is {12 + 7 * i} + {91 - 2 * i}?" for i in range(28)]


@pytest.fixture
def start(bundled, tmp_path):
    """Start a batch from ``in`` to ``out``; what a failed test has left is killed."""
    started = []

    def run(*flags, source="in", before=(), **files):
        command = [*before, *COMMAND, source, "out", *flags]
        files = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | files
        started.append(subprocess.Popen(command, cwd=tmp_path, text=True, **files))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def questions(tmp_path):
    """An input with two lines that cannot be answered."""
    lines = [json.dumps({"id": i, "prompt": text}) for i, text in enumerate(QUESTIONS)]
    lines[9:9], lines[20:20] = ['"nope'], ['{"prompt": ""}']
    (tmp_path / "in").write_text("\n".join(lines))
    return lines


def ordered(path):
    """The lines of an output by their number."""
    return sorted(map(json.loads, path.read_bytes().splitlines()), key=lambda line: line["line"])


@pytest.fixture
def until_out_holds(tmp_path):
    """Wait until the output has so many lines, for as long as somebody writes it."""

    def wait(process, num_lines):
        path, deadline = tmp_path / "out", time.monotonic() + 60
        while not (path.exists() and path.read_bytes().count(b"\n") >= num_lines):
            assert time.monotonic() < deadline
            if process.poll() is not None:
                return
            time.sleep(0.002)

    return wait


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["1", "4"])
def test_killed_again_and_again_it_answers_every_line_once(stub, start, questions, until_out_holds, tmp_path, parallel):
    """Up to eight times, at moments nobody has chosen: while it loads, asks, decodes or writes; and the cap holds."""
    rng, num_kills, out = random.Random(0), 0, tmp_path / "out"
    flags = ("--local", "small", "--cloud", stub.url, "--price", "1/0.1/4", "--max-tokens", "48", "--json")
    flags += ("--ledger", "ledger", "--cap", "0.0025", "--parallel", parallel)
    for _ in range(8):
        kept = out.read_bytes().rpartition(b"\n")[0] if out.exists() else b""
        process = start(*flags)
        until_out_holds(process, kept.count(b"\n") + bool(kept) + rng.randint(0, 3))
        time.sleep(rng.random() * 0.1)
        process.kill()
        num_kills += process.wait() == -signal.SIGKILL  # a fast machine may have finished before
        assert out.read_bytes().startswith(kept)
    assert num_kills >= 3
    process = start(*flags)
    summary = json.loads(process.communicate(timeout=60)[0])
    found = ordered(out)
    assert process.returncode == 5
    assert [line["line"] for line in found] == list(range(1, len(questions) + 1))
    assert [line["id"] for line in found if "text" in line] == list(range(len(QUESTIONS)))
    assert [line["line"] for line in found if "error" in line] == [10, 21]
    assert (summary["answered"], summary["failed"]) == (len(QUESTIONS), 2)
    assert summary["kept"] > 0
    assert summary["bill"]["nanousd"] == sum(line["bill"]["nanousd"] for line in found if "bill" in line)
    assert summary["degraded"] > 0, "the cap has no room for all lines"
    shown = [*COMMAND[:-1], "budget", "show", "--ledger", "ledger", "--json"]
    caps = json.loads(subprocess.run(shown, cwd=tmp_path, capture_output=True, check=True).stdout)["caps"]
    [total] = [cap for cap in caps if cap["level"] == "total"]
    assert summary["bill"]["nanousd"] <= total["spent_nanousd"] + total["reserved_nanousd"] <= 2_500_000
    assert summary["open_nanousd"] == total["reserved_nanousd"], "what cut off requests may have cost is told"


# What differs between two runs: times, and what was noted of the pair by then.
NOT_COMPARED = ("timing", "notes")


def compared(path):
    """The lines of an output, but for what differs between two runs."""
    return [{name: value for name, value in line.items() if name not in NOT_COMPARED} for line in ordered(path)]


@pytest.mark.slow
def test_killed_at_random_with_four_lines_at_once_it_ends_in_the_lines_of_one_at_a_time_uninterrupted(
    own_stub, start, tmp_path
):
    """Forty lines, some of them sampled, over 20 ms; every run is killed soon after it has finished two lines."""
    rng, num_kills, out = random.Random(1), 0, tmp_path / "out"
    policies = ["kl", "doubt", "cloud", "local"]
    (tmp_path / "in").write_text(
        "".join(
            json.dumps(
                {
                    "prompt": f"What is {17 + 5 * i} + {83 - i}?",
                    "policy": policies[i % 4],
                    "temperature": 0.7 * (i % 3 == 0),
                }
            )
            + "\n"
            for i in range(40)
        )
    )
    flags = (
        "--local",
        "small",
        "--cloud",
        own_stub("--latency-ms", "20").url,
        "--price",
        "1/0.1/4",
        "--max-tokens",
        "24",
        "--json",
    )
    alone = start(*flags, "--ledger", "none")
    summary = json.loads(alone.communicate(timeout=120)[0])
    expected = compared(out)
    out.unlink()
    flags += ("--ledger", "ledger", "--cap", "1", "--parallel", "4")

    def finished():
        stored = out.read_bytes() if out.exists() else b""
        return {line for line in stored.splitlines(keepends=True) if line.endswith(b"\n")}

    for _ in range(20):
        before, process = finished(), start(*flags)
        while len(finished()) <= len(before) + 1 and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.1)
        process.kill()
        num_kills += process.wait() == -signal.SIGKILL
        assert before <= finished(), "what was finished stays"
        if process.returncode != -signal.SIGKILL:
            break
    assert num_kills >= 3
    process = start(*flags)
    said, wrong = process.communicate(timeout=60)
    assert (process.returncode, wrong) == (0, "")
    resumed = json.loads(said)
    assert compared(out) == expected
    assert {**resumed, "kept": 0, "open_nanousd": 0} == summary


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(start, tmp_path, until_out_holds):
    """It waits for a line of a pipe when it is interrupted, so that the moment is known."""
    process = start("--offline", source="-", stdin=subprocess.PIPE)
    process.stdin.write('"What is 47 + 86?"\n')
    process.stdin.flush()
    until_out_holds(process, 1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == "hybrid: 1 line is answered; the same command goes on from there\n"
    assert json.loads((tmp_path / "out").read_text())["text"]


@pytest.mark.slow
def test_ctrl_c_is_obeyed_while_a_named_pipe_is_silent(start, tmp_path, until_out_holds):
    """As with the shell's <(command)."""
    os.mkfifo(tmp_path / "in")
    process = start("--offline", "--parallel", "2")
    with (tmp_path / "in").open("w") as pipe:
        pipe.write('"What is 47 + 86?"\n')
        pipe.flush()
        until_out_holds(process, 1)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert process.stderr.read() == "hybrid: 1 line is answered; the same command goes on from there\n"


@pytest.mark.slow
def test_two_at_once_on_one_output_are_refused(start, tmp_path, until_out_holds):
    (tmp_path / "in").write_text('"What is 1 + 1?"\n')
    first = start("--offline", source="-", stdin=subprocess.PIPE)
    first.stdin.write('"What is 47 + 86?"\n')
    first.stdin.flush()
    until_out_holds(first, 1)
    second = start("--offline")
    assert second.communicate(timeout=60) == ("", "hybrid: out: another process is writing it\n")
    assert second.returncode == 2
    first.communicate(timeout=60)
    assert first.returncode == 0


@pytest.mark.slow
def test_a_full_disk_leaves_whole_lines_and_the_next_run_goes_on(start, questions, tmp_path):
    limited = ("bash", "-c", 'ulimit -f 16; exec "$@"', "bash")
    process = start("--offline", before=limited)
    _, said = process.communicate(timeout=60)
    whole = (tmp_path / "out").read_bytes()
    num_lines = whole.count(b"\n")
    assert process.returncode == 1
    assert said == (
        f"hybrid: {num_lines} lines are answered; the same command goes on from there\nhybrid: out: {os.strerror(27)}\n"
    )
    assert 0 < num_lines < len(questions)
    assert whole.endswith(b"\n")
    process = start("--offline")
    process.communicate(timeout=60)
    assert process.returncode == 5
    assert (tmp_path / "out").read_bytes().startswith(whole)
    assert (tmp_path / "out").read_bytes().count(b"\n") == len(questions)


@pytest.mark.slow
def test_a_terminal_shows_how_far_it_is_and_a_file_gets_the_end_alone(on_a_terminal, start, questions, tmp_path):
    seen = on_a_terminal([*COMMAND, str(tmp_path / "in"), str(tmp_path / "out"), "--offline"], "200", exit_code=5)
    assert b" of 30 lines, 0 USD" in seen
    _, said = start("--offline").communicate(timeout=60)
    assert len(said.splitlines()) == 3
    assert said.startswith("hybrid: 28 lines answered, 2 failed (30 by an earlier run), 0 USD")
