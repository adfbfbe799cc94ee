"""``hybrid demo`` as a user meets it: a real process, its JSON, page and picture, Ctrl-C, wrong flags."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cases import each, each_of
from typer.testing import CliRunner

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-P", "-m", "hybrid", "demo"]
HYBRIDS = ("auto", "kl", "doubt")
ARMS = ("small", *HYBRIDS, "large")
NUM = 28  # of 14 problems the gap between the models cannot be told from zero, so that there would be no RPI
LINES = "".join(
    f"hybrid: {name} has answered {NUM} problems ({number} of 5)\n" for number, name in enumerate(ARMS, start=1)
)


def demo(*args: str, cwd=None, **env: str) -> subprocess.CompletedProcess:
    """Run the command as a process of its own."""
    return subprocess.run(
        [*COMMAND, *args], capture_output=True, text=True, timeout=100, check=False, cwd=cwd, env=os.environ | env
    )


@pytest.fixture(scope="module")
def made(bundled, tmp_path_factory):
    """One run with everything it can make: the process, and the folder of its files."""
    folder = tmp_path_factory.mktemp("made")
    done = demo("--json", "--tasks", str(NUM), "--seed", "3", "--html", "page.html", "--svg", "picture.svg", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture
def invoke(bundled):
    """Run the command in this process."""
    from hybrid.cli import app

    return lambda *args: CliRunner().invoke(app, ["demo", *args])


def test_standard_output_is_one_json_object_of_the_promised_shape(made):
    done, _ = made
    found = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert done.stderr == LINES
    assert list(found) == [
        "tasks", "seed", "correct", "rpi", "cloud_token_share", "requests", "bill", "models", "scoring_keeps_cache",
        "settings", "degraded",
    ]  # fmt: skip
    for name in ("correct", "cloud_token_share", "requests", "degraded"):
        assert tuple(found[name]) == ARMS
    for name in HYBRIDS:
        assert list(found["rpi"][name]) == ["value", "low", "high"]
        assert list(found["bill"][name]) == ["nanousd", "ratio", "low", "high"]
    assert list(found["bill"]) == [*HYBRIDS, "cloud_nanousd"]
    assert {name: model["file"] for name, model in found["models"].items()} == {
        "small": "small.gguf",
        "large": "large.gguf",
    }
    assert (found["tasks"], found["seed"], found["scoring_keeps_cache"]) == (NUM, 3, False)


def test_the_figures_obey_what_the_arms_are(made):
    """Floor: the small model alone asks nothing. Ceiling: the large one writes all, in a request each."""
    found = json.loads(made[0].stdout)
    assert set(found["degraded"].values()) == {0}
    assert (found["requests"]["small"], found["cloud_token_share"]["small"]) == (0, 0.0)
    assert (found["requests"]["large"], found["cloud_token_share"]["large"]) == (NUM, 1.0)
    assert all(0 <= right <= NUM for right in found["correct"].values())
    small, large = found["correct"]["small"], found["correct"]["large"]
    for name in HYBRIDS:
        bill = found["bill"][name]
        assert found["requests"][name] > 0
        assert 0 < found["cloud_token_share"][name] < 1
        assert bill["ratio"] == pytest.approx(bill["nanousd"] / found["bill"]["cloud_nanousd"], abs=5e-5)
        rpi = found["rpi"][name]
        assert rpi["value"] == pytest.approx((found["correct"][name] - small) / (large - small), abs=5e-5)
        assert rpi["low"] <= rpi["value"] <= rpi["high"]


def test_the_same_seed_gives_the_same_json_wherever_it_is_run(made, tmp_path):
    """Byte for byte: no times in it, and neither the environment nor the folder has a say."""
    (tmp_path / "hybrid.toml").write_text('policy = "local"\ncap = 0\n')
    proxy = dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    again = demo("--json", "--tasks", str(NUM), "--seed", "3", cwd=tmp_path, HYBRID_OFFLINE="1", **proxy)
    assert again.stdout == made[0].stdout


def test_the_pages_answers_are_the_ones_that_were_graded(made):
    """Read back from the markup, every token in its span, each hybrid's answers are graded as the JSON says."""
    from hybrid.lab.arms import GRADERS, draw_balanced

    text = (made[1] / "page.html").read_text()
    for name in HYBRIDS:
        (block,) = re.findall(
            rf"<details><summary>{name}: \d+ of {NUM} right</summary>(.*?)</details>", text, re.DOTALL
        )
        found = re.findall(r'<b>(.*?)</b><span class="faint">(\w+)</span><p class="text">(.*?)</p>', block, re.DOTALL)
        verdicts, num_tokens = [], 0
        for problem, (question, verdict, marked) in each_of(zip(draw_balanced(NUM, "test", 3), found, strict=True)):
            tokens = re.findall(r'<span class="\w+" title="[^"]+">(.*?)</span>', marked, re.DOTALL)
            assert html.unescape(question) == problem.question
            assert tokens
            num_tokens += len(tokens)
            right = GRADERS[problem.family](problem, html.unescape("".join(tokens)))
            verdicts.append(right)
            assert verdict == ("right" if right else "wrong")
        assert num_tokens >= 5 * NUM
        assert sum(verdicts) == json.loads(made[0].stdout)["correct"][name]


def test_the_files_are_there_whole_and_nothing_else_is(made):
    assert sorted(path.name for path in made[1].iterdir()) == ["page.html", "picture.svg"]
    assert (made[1] / "page.html").read_text().rstrip().endswith("</html>")
    assert (made[1] / "picture.svg").read_text().rstrip().endswith("</svg>")


def test_scoring_from_the_prefix_cache_is_said_and_makes_kl_cheaper(made):
    found = json.loads(demo("--json", "--tasks", str(NUM), "--seed", "3", "--scoring-keeps-cache").stdout)
    before = json.loads(made[0].stdout)
    assert found["scoring_keeps_cache"] is True
    assert found["bill"]["kl"]["nanousd"] < before["bill"]["kl"]["nanousd"]
    assert found["bill"]["cloud_nanousd"] == before["bill"]["cloud_nanousd"]


def test_where_no_colour_can_be_the_text_says_who_wrote_what(invoke):
    done = invoke("--tasks", "14")
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    for words in ("[written by the cloud]", "RPI of kl", " of 14", "Prices: 1/0.1/4 USD", "; kl: "):
        assert words in done.stdout
    assert "has answered" not in done.stdout


def test_a_terminal_sees_progress_and_colours(on_a_terminal):
    seen = on_a_terminal([*COMMAND, "--tasks", "14"], "100")
    assert b"(2 of 5)" in seen
    assert b"\x1b[1;35m" in seen
    assert b"has answered" not in seen


@each(
    ("args", "words"),
    [
        (["--tasks", "13"], "13 tasks: 14, one of each family, are the fewest"),
        (["--tasks", "-60"], "the fewest"),
        (["--tasks", "1000000000000"], "2100 the most"),
        (["--tasks", "many"], "valid integer"),
        (["--seed", "-1"], "--seed"),
        (["--html", "/no/such/folder/page"], "--html /no/such/folder/page: No such file"),
        (["--svg", "/"], "--svg /: not a file"),
        (["--html", "same", "--svg", "./same"], "name the same file"),
        (["--json", "--tasks", "3"], "the fewest"),
        (["--calibrate"], "No such option"),
        (["--no-such-flag"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_flag_is_one_sentence_and_exit_2_before_anything_runs(invoke, monkeypatch, tmp_path, args, words):
    from hybrid.lab import arms

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arms, "bundled_server", None)
    done = invoke(*args)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_cloud_that_fails_is_told_loudly(invoke, monkeypatch):
    from hybrid.lab import arms

    @asynccontextmanager
    async def nobody(*_):
        yield "http://127.0.0.1:9"

    monkeypatch.setattr(arms, "bundled_server", nobody)
    done = invoke("--json", "--tasks", "14")
    found = json.loads(done.stdout)
    assert found["degraded"]["large"] == 14
    assert found["degraded"]["kl"] == 14
    assert found["rpi"]["kl"] == {"value": None, "low": None, "high": None}
    assert "THE CLOUD FAILED" in done.stderr
    assert "THE CLOUD FAILED" in invoke("--tasks", "14").stdout


def test_a_server_that_does_not_start_is_exit_4(invoke, monkeypatch, tmp_path):
    from hybrid.lab import arms

    broken = tmp_path / "broken.gguf"
    broken.write_text("no model")
    monkeypatch.setattr(arms, "BUNDLED_CLOUD", broken)
    done = invoke("--tasks", "14")
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr == "hybrid: the bundled server did not start\n"


def children(pid: int) -> list[Path]:
    """The processes that any of a process's threads has started, as Linux shows them."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [Path("/proc", child) for path in lists for child in path.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to see child processes")
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=" ".join)
def test_ctrl_c_exits_130_and_leaves_neither_server_nor_file(bundled, tmp_path, flags):
    """The next arm is at work when the first one's line has come: there is something to interrupt."""
    process = subprocess.Popen(
        [*COMMAND, "--tasks", "100", *flags, "--html", "page.html", "--svg", "picture.svg"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stderr.readline() == "hybrid: small has answered 100 problems (1 of 5)\n"
        servers = children(process.pid)
        assert len(servers) == 1
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, output, errors) == (130, "", "")
    deadline = time.monotonic() + 10
    while servers[0].exists():
        assert time.monotonic() < deadline, "the server outlived its client"
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_costs_neither_the_page_nor_a_traceback(bundled, tmp_path):
    shell = " ".join(map(shlex.quote, [*COMMAND, "--tasks", "14", "--html", "page.html"]))
    for rest in ("| true", "--json | true", "> /dev/full"):
        done = subprocess.run(
            ["bash", "-c", f"{shell} {rest}"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
        )
        assert "Traceback" not in done.stderr, rest
        assert (tmp_path / "page.html").exists(), rest
        (tmp_path / "page.html").unlink()


def test_help_shows_examples_and_exit_codes_and_loads_neither_model_nor_server():
    done = demo("--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert "Exit codes" in done.stdout
    program = "import sys, hybrid.cli; assert not {'llama_cpp', 'httpx', 'hybrid.lab'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
