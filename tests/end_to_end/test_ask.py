"""``hybrid ask`` as a user meets it: real processes, flags, exit codes, JSON, Ctrl-C."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.record.answer import Token
from hybrid.types import Divergence

SPAN = "span: between 1 and 256, from one to another as in 4..32, auto or cheap"
QUESTION = "What is 47 + 86?"
COMMAND = [sys.executable, "-P", "-m", "hybrid", "ask"]
# Beside an endpoint the local model is named.
LOCAL = ("--local", "small")
slow = partial(pytest.param, marks=pytest.mark.slow)


def ask(*args: str, stdin: str = "", cwd=None, **env: str) -> subprocess.CompletedProcess:
    """Run the command as a process of its own."""
    return subprocess.run(
        [*COMMAND, *(LOCAL if "--cloud" in args else ()), *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env=os.environ | env,
    )


@pytest.fixture
def cleanup():
    """End processes that a failed test has left."""
    started = []
    yield started.append
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def invoke(bundled):
    """Run the command in this process, which is faster, against the session's server."""
    from hybrid.cli import app

    return lambda *args, **kwargs: CliRunner().invoke(app, ["ask", *LOCAL, *args], **kwargs)


def test_the_readme_command_answers(bundled):
    done = ask(QUESTION)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_the_json_object_has_exactly_the_promised_shape(invoke, stub):
    done = invoke(QUESTION, "--cloud", stub.url, "--json", "--price", "1/0.1/4", "--threshold", "0.01")
    answer = json.loads(done.stdout)
    assert list(answer) == [
        "text", "finish_reason", "tokens", "usage", "bill", "handoffs", "degraded", "degraded_kind", "notes", "timing",
        "seed", "policy", "guarantee", "thoughts", "experts", "degraded_cap",
    ]  # fmt: skip
    assert list(answer["tokens"][0]) == [
        "id", "text", "source", "how", "kl", "certificate", "thought", "thought_text", "model", "concept_kl",
    ]  # fmt: skip
    assert list(answer["usage"]) == [
        "local_tokens", "cloud_tokens", "drafted", "rejected", "checks", "cloud_requests", "cloud_prompt_tokens",
        "cloud_cached_tokens", "cloud_completion_tokens", "certified", "thought_tokens", "bytes_sent", "written_by",
        "wording", "cloud_cache_write_tokens", "cloud_reasoning_tokens", "cloud_told_prompt_tokens",
        "cloud_told_completion_tokens", "cloud_known_prompt_tokens", "cloud_known_completion_tokens",
        "cloud_assumed_prompt_tokens", "cloud_assumed_completion_tokens",
    ]  # fmt: skip
    for count in ("prompt_tokens", "completion_tokens"):
        by_source = [answer["usage"][f"cloud_{source}_{count}"] for source in ("told", "known", "assumed")]
        assert sum(by_source) == answer["usage"][f"cloud_{count}"]
    assert list(answer["bill"]) == ["nanousd", "cloud_only_nanousd", "cloud_only_cached_nanousd", "price_source"]
    assert all(list(handoff) == ["position", "reason", "tokens"] for handoff in answer["handoffs"])
    assert list(answer["timing"]) == ["ttft_ms", "total_ms", "critic_ms"]
    assert "".join(token["text"] for token in answer["tokens"]) == answer["text"]
    assert "<|im_end|>" not in answer["text"]
    found = [token["kl"] for token in answer["tokens"] if token["kl"]]
    assert all(list(kl) == ["estimate", "lower", "upper", "noise"] for kl in found)
    assert answer["degraded"] is None


def test_an_infinite_divergence_is_null():
    token = Token(7, "x", "local", "accepted", Divergence(1.0, 1.0, math.inf))
    assert token.to_json()["kl"] == {"estimate": 1.0, "lower": 1.0, "upper": None, "noise": 0.0}


def test_a_cap_of_zero_gives_the_local_text_and_says_so(invoke, stub):
    for price in ([], ["--price", "1/0.1/4"]):
        done = invoke(QUESTION, "--cloud", stub.url, "--policy", "kl", "--cap", "0", "--json", *price)
        answer = json.loads(done.stdout)
        assert done.exit_code == 0
        assert "cap of 0 USD" in answer["degraded"]
        assert answer["usage"]["cloud_requests"] == 0
        assert answer["text"] == json.loads(invoke(QUESTION, "--policy", "local", "--json").stdout)["text"]


def test_a_dead_endpoint_still_answers_and_exits_0(invoke):
    done = invoke(QUESTION, "--cloud", "http://127.0.0.1:9")
    assert done.exit_code == 0
    assert "goes on alone: cannot reach http://127.0.0.1:9" in done.stderr
    assert done.stdout.strip()


@each(
    ("args", "words"),
    [
        (["--policy", "nonsense"], "no policy is called 'nonsense'"),
        (["--price", "cheap"], "P/C/O"),
        (["--price", "-1/0/0"], "P/C/O"),
        (["--cap", "lots"], "amount of USD"),
        (["--threshold", "-1"], "threshold"),
        (["--threshold", "nan"], "threshold"),
        (["--span", "0"], "span"),
        (["--max-tokens", "-1"], "max_tokens"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--policy", "greedy-exact", "--temperature", "1"], "temperature 0"),
        (["--trace", "/no/such/folder/trace"], "--trace"),
        (["--trace-rows"], "add --trace FILE"),
        (["--no-such-flag"], "No such option"),
        (["--span", "many"], f"{SPAN} (it is 'many')"),
        (["--span", "3.5"], f"{SPAN} (it is '3.5')"),
        (["--span", "4..300"], f"{SPAN} (it is '4..300')"),
        (["--span", "8..8"], f"{SPAN} (it is '8..8')"),
        (["--span", "4..8..9"], f"{SPAN} (it is '4..8..9')"),
        (["--cloud", "not a url"], "http://"),
        (["--cloud", "http://"], "a host"),
        (["--cloud", "http://host:abc"], "a host"),
        (["--cloud", "http://exa mple.com"], "a host"),
        (["--cloud", "http://host:99999999"], "a host"),
        (
            ["--ctx", "16"],
            "context holds 16: shorten the text, or raise --ctx to at most what the model was trained with",
        ),
        (["--ctx", "1025"], "ctx: 1025 tokens are more than the 1024 that "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_flag_is_one_sentence_and_exit_2(invoke, args, words):
    done = invoke(QUESTION, *args)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_an_empty_prompt_is_exit_2(invoke):
    assert invoke("").exit_code == 2
    assert invoke("-", input="\n").exit_code == 2


def test_an_unusable_local_model_is_exit_3(invoke, tmp_path, bundled):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(bundled[0].read_bytes()[:5000])
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    for path, words in [(damaged, "is damaged"), (text, "not a GGUF file"), (tmp_path / "none", "no model file")]:
        done = invoke(QUESTION, "--local", str(path))
        assert done.exit_code == 3
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_an_unusable_endpoint_is_exit_4(invoke, stub):
    done = invoke(QUESTION, "--cloud", stub.url, "--cloud-model", "gpt-9")
    assert done.exit_code == 4
    assert done.stdout == ""
    assert "gpt-9" in done.stderr


def test_the_prompt_can_come_from_standard_input(invoke, stub):
    piped = invoke("-", "--cloud", stub.url, input=QUESTION + "\n")
    assert piped.stdout == invoke(QUESTION, "--cloud", stub.url).stdout


def test_system_and_raw_change_what_the_model_reads(invoke, stub, tmp_path):
    def prompt(*args):
        trace = tmp_path / "trace"
        assert invoke(QUESTION, "--cloud", stub.url, "--trace", str(trace), "--max-tokens", "4", *args).exit_code == 0
        return json.loads(trace.read_text().splitlines()[1])["prompt"]

    plain, system, raw = prompt(), prompt("--system", "Be brief."), prompt("--raw")
    assert len(raw) < len(plain) < len(system)


def test_a_trace_holds_every_event_as_json_lines(invoke, stub, tmp_path):
    trace = tmp_path / "trace.jsonl"
    done = invoke(QUESTION, "--cloud", stub.url, "--trace", str(trace), "--json", "--threshold", "0.01")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines[0] == {"trace": 5}
    assert lines[1]["event"] == "started"
    assert lines[-1]["event"] == "finished"
    shown = [line["token"]["text"] for line in lines if line.get("event") == "token_emitted"]
    assert "".join(shown) == json.loads(done.stdout)["text"]
    happened = {"span_drafted", "request_sent", "check_answered", "request_settled", "token_emitted"}
    assert happened <= {line.get("event") for line in lines}


def test_a_full_disk_ends_the_trace_and_not_the_answer(invoke, stub):
    done = invoke(QUESTION, "--cloud", stub.url, "--trace", "/dev/full", "--json")
    assert done.exit_code == 0
    assert done.stderr.count("the trace ends here") == 1
    assert json.loads(done.stdout)["text"]


@pytest.mark.parametrize("rest", ["--json > /dev/full", *map(slow, ("| true", "--json | true", "> /dev/full"))])
def test_a_reader_that_leaves_and_a_full_disk_for_the_answer_are_no_tracebacks(bundled, rest):
    shell = " ".join(map(shlex.quote, [*COMMAND, QUESTION, "--policy", "local"]))
    done = subprocess.run(["bash", "-c", f"{shell} {rest}"], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_a_prompt_that_is_not_text_is_exit_2(invoke):
    done = invoke("-", input=b"\xff\xfe")
    assert done.exit_code == 2
    assert "UTF-8" in done.stderr


def test_flags_win_over_the_environment_and_the_environment_over_the_file(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hybrid.toml").write_text('policy = "local"\nmax_tokens = 3\n')

    def length(*args, **env):
        return len(json.loads(invoke(QUESTION, "--json", *args, env=env).stdout)["tokens"])

    assert length() == 3
    assert length(HYBRID_MAX_TOKENS="2") == 2
    assert length("--max-tokens", "1", HYBRID_MAX_TOKENS="2") == 1
    (tmp_path / "hybrid.toml").write_text("polcy = 'local'\n")
    wrong = invoke(QUESTION)
    assert (wrong.exit_code, wrong.stderr) == (2, "hybrid: there is no setting called polcy (./hybrid.toml, line 1)\n")
    (tmp_path / "hybrid.toml").write_text("policy = \n")
    assert invoke(QUESTION).exit_code == 2


def children(pid: int) -> list[Path]:
    """The processes that any of a process's threads has started, as Linux shows them."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [Path("/proc", child) for path in lists for child in path.read_text().split()]


def runs(process: Path) -> bool:
    """Whether a process is there and not only waiting to be buried."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to see child processes")
@pytest.mark.parametrize("how", [signal.SIGKILL, slow(signal.SIGINT), slow(signal.SIGTERM)])
def test_however_the_client_ends_its_server_ends_too(bundled, cleanup, how):
    program = (
        "import hybrid, time\n"
        "with hybrid.open() as client:\n"
        "    client.generate('What is 1 + 1?')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    cleanup(process)
    assert process.stdout.readline() == "ready\n"
    (server,) = children(process.pid)
    assert runs(server)
    process.send_signal(how)
    process.wait(20)
    deadline = time.monotonic() + 10
    while runs(server):
        assert time.monotonic() < deadline, "the server outlived its client"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_terminal_shows_who_wrote_each_token(on_a_terminal):
    seen = on_a_terminal([*COMMAND, QUESTION, "--threshold", "0.001"], "200")
    assert b"\x1b[" in seen
    assert b"by the cloud" in seen


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_leaves_the_shell_a_line_of_its_own(on_a_terminal, own_stub):
    """In the middle of an answer of 250 ms a token."""
    far = own_stub("--latency-ms", "250")
    there = [*LOCAL, "--cloud", far.url, "--ledger", "none"]
    command = [*COMMAND, QUESTION, *there, "--policy", "greedy-exact", "--span", "1"]
    seen = on_a_terminal(command, "80", 130, interrupted=True)
    assert b"by the cloud" not in seen
    assert seen.endswith(b"\n")


def test_nothing_in_the_working_directory_is_executed(bundled, tmp_path):
    """A folder somebody gave you may hold a module named like one of ours."""
    for name in ("uvicorn.py", "server_stub.py", "httpx.py", "llama_cpp.py"):
        (tmp_path / name).write_text(
            f"open({str(tmp_path / 'executed')!r}, 'w').write('{name}')\nraise SystemExit(9)\n"
        )
    done = ask(QUESTION, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "executed").exists()


def test_a_switch_of_the_file_can_be_undone_by_a_flag(invoke, stub, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(f"policy = 'kl'\noffline = true\ncap = 0.02\nprice = 'free'\ncloud = '{stub.url}'\n")

    def requests(*args):
        done = invoke(QUESTION, "--json", "--config", str(file), *args)
        return json.loads(done.stdout)["usage"]["cloud_requests"]

    assert requests() == 0
    assert requests("--no-offline") > 0


# Nobody listens at port 9: what goes through this proxy does not arrive.
PROXIES = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "NO_PROXY": "", "no_proxy": ""}


def test_a_proxy_of_the_environment_does_not_stand_before_our_own_server(invoke):
    done = invoke(QUESTION, env=PROXIES)
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_proxy_of_the_environment_does_not_stand_before_a_server_on_this_machine(invoke, stub):
    port = stub.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        done = invoke(QUESTION, "--cloud", f"http://{host}:{port}", "--price", "1/0.1/4", env=PROXIES)
        assert (done.exit_code, done.stderr) == (0, ""), host


def test_help_shows_examples_and_exit_codes_without_loading_a_model():
    done = ask("--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert "Exit codes" in done.stdout


def test_importing_hybrid_loads_neither_llama_cpp_nor_httpx():
    program = "import sys, hybrid; assert not {'llama_cpp', 'httpx', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
