"""What a server keeps, charges and is: its cache, its bill, its process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from arithmetic import tolerance
from asking import cached, choice, cold, complete
from cases import each_of

import hybrid
from server_stub.__main__ import listen

SMALL = Path(hybrid.__file__).parent / "models" / "small.gguf"
pytestmark = pytest.mark.slow


@pytest.fixture
def first_line():
    """Start a server with these flags; return the first line it prints."""

    def start(*flags: str) -> str:
        command = [sys.executable, "-m", "server_stub", "--model", str(SMALL), "--port", "0", "--threads", "1", *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                return process.stdout.readline()
            finally:
                process.kill()

    return start


def blocks(num_tokens: int) -> int:
    """So many tokens in whole blocks of vLLM's cache."""
    return num_tokens - num_tokens % 16


class TestCache:
    """The cache changes the bill, and never an answer."""

    def test_the_second_of_two_equal_requests_is_cached(self, server, prompt):
        fields = {"prompt": prompt, "max_tokens": 10} | cold()
        first, second = complete(server, **fields), complete(server, **fields)
        assert (cached(first), cached(second)) == (0, blocks(len(prompt) - 1))
        assert first["choices"] == second["choices"]

    def test_scoring_computes_everything_anew_by_default(self, server, prompt):
        fields = {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 2} | cold()
        assert [cached(complete(server, **fields)) for _ in range(2)] == [0, 0]

    def test_scoring_may_keep_its_cache_and_says_the_same(self, keeping, server, oracle, prompt):
        longer = prompt + oracle.ids(" And 3 more: 78.")
        fields = {"max_tokens": 1, "prompt_logprobs": 5} | cold()
        first, second, third = (complete(keeping, prompt=ids, **fields) for ids in (prompt, prompt, longer))
        assert [cached(body) for body in (first, second)] == [0, len(prompt) - 1]
        assert len(prompt) - 1 <= cached(third) <= len(prompt)
        assert second["choices"][0]["prompt_logprobs"] == first["choices"][0]["prompt_logprobs"]
        whole = choice(server, prompt=longer, **fields)["prompt_logprobs"]
        for found, expected in each_of(zip(third["choices"][0]["prompt_logprobs"][1:], whole[1:], strict=True)):
            for token in each_of(found.keys() & expected.keys()):
                if expected[token]["logprob"] > np.log(1e-3):
                    assert abs(found[token]["logprob"] - expected[token]["logprob"]) <= tolerance().nats

    def test_another_next_token_is_scored_and_not_guessed(self, keeping, oracle, prompt):
        """The kept row knows its top 20 only; what is not among them must be computed."""
        unlikely = [int(np.argmin(oracle.row(prompt).logprobs)), prompt[0]]
        fields = {"max_tokens": 1, "prompt_logprobs": 1} | cold()
        complete(keeping, prompt=prompt, **fields)
        row = choice(keeping, prompt=prompt + unlikely, **fields)["prompt_logprobs"][len(prompt)]
        assert row[str(unlikely[0])]["rank"] > 20

    @pytest.mark.parametrize("scoring", [{}, {"prompt_logprobs": 1}])
    def test_salts_do_not_share_a_cache(self, keeping, prompt, scoring):
        fields = {"prompt": prompt, "max_tokens": 1} | scoring
        mine, other = cold(), cold()
        held = len(prompt) - 1 if scoring else blocks(len(prompt) - 1)
        assert [cached(complete(keeping, **fields, **salt)) for salt in (mine, mine, other, other)] == [
            0,
            held,
            0,
            held,
        ]


class TestBill:
    """The server keeps its own account; the client's is checked against it."""

    def test_the_charge_of_a_request_is_its_usage(self, server, prompt):
        asked = {
            "plain": {"max_tokens": 7},
            "scoring": {"max_tokens": 1, "prompt_logprobs": 3},
            "again": {"max_tokens": 7},
            "echo": {"max_tokens": 0, "echo": True},
            "stream": {"max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}},
        }
        told = {}
        for name, fields in asked.items():
            request = {"prompt": prompt, "temperature": 0, "cache_salt": "bill"} | fields
            reply = server.client.post("/v1/completions", json=request, headers={"x-request-id": f"bill-{name}"})
            text = reply.text.split("data: ")[-2] if name == "stream" else reply.text
            told[f"bill-{name}"] = json.loads(text)["usage"]
            assert json.loads(text)["id"] == f"cmpl-bill-{name}"
        charges = charges_of(server)
        for name, usage in each_of(told.items()):
            assert charges[name] == {
                "id": name,
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "completion_tokens": usage["completion_tokens"],
            }
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    def test_a_refused_request_is_not_charged(self, server):
        headers = {"x-request-id": "refused"}
        server.client.post("/v1/completions", json={"prompt": [10**6]}, headers=headers)
        assert "refused" not in charges_of(server)

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_leaves_stops_the_work(self, keeping, prompt, no_end, stream):
        """Nobody pays for an answer that nobody reads; the only slot must be free for the next."""
        name = f"left-{uuid.uuid4().hex}"
        asked = {"prompt": prompt, "max_tokens": 16_000, "temperature": 0, "logit_bias": no_end, "stream": stream}
        with sent(keeping, asked, name):
            wait_for(lambda: charges_of(keeping).get(name, {}).get("completion_tokens", 0) > 10)
        written = [0]
        wait_for(lambda: written.append(charges_of(keeping)[name]["completion_tokens"]) or written[-1] == written[-2])
        assert 10 < written[-1] < 16_000
        complete(keeping, prompt=prompt, max_tokens=1)
        assert charges_of(keeping)[name]["completion_tokens"] == written[-1]


def charges_of(server) -> dict[str, dict]:
    return {entry["id"]: entry for entry in server.client.get("/v1/charges").json()["data"]}


def wait_for(happened) -> None:
    for _ in range(200):
        if happened():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen")


def sent(server, body: dict, name: str) -> socket.socket:
    """Send a request and read nothing; closing the socket is leaving."""
    raw, address = json.dumps(body).encode(), httpx.URL(server.url)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection = socket.create_connection((address.host, address.port))
    connection.sendall(head.encode() + raw)
    return connection


class TestProcess:
    """Starting, answering several, ending."""

    def test_health_and_the_model_are_told(self, server, strict):
        assert server.client.get("/health").status_code == 200
        assert strict.client.get("/health").status_code == 200
        [model] = server.client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("small", 1024)

    def test_an_answer_takes_at_least_the_latency_it_was_told(self, strict):
        started = time.monotonic()
        body = {"prompt": [5], "max_tokens": 1}
        reply = strict.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {strict.key}"})
        assert reply.status_code == 200
        assert time.monotonic() - started >= 0.15

    def test_replies_are_sent_at_once(self):
        """With Nagle's algorithm a reply on a kept connection waits 40 ms, and every measured cloud is slower."""
        with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_requests_at_once_are_all_answered_as_if_alone(self, server, oracle, no_end):
        """Three for two slots: two threads compute, one waits in line."""
        prompts = [oracle.ids(f"What is {n} + {n}? ") for n in (17, 48, 92)]

        def ask(ids: list[int]) -> str:
            fields = {"max_tokens": 60, "logit_bias": no_end, "temperature": 1, "seed": 1}
            return choice(server, prompt=ids, **fields, **cold())["text"]

        alone = [ask(ids) for ids in prompts]
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(ask, prompts)) == alone

    def test_the_process_ends_when_its_standard_input_does(self, start_server, no_end):
        """Whoever started it is gone; it must not stay behind, not even in the middle of an answer."""
        server = start_server("--until-stdin-closes", "--ctx", "16384")
        with sent(server, {"prompt": [5], "max_tokens": 16_000, "logit_bias": no_end}, "running"):
            wait_for(lambda: charges_of(server).get("running", {}).get("completion_tokens", 0) > 0)
            server.process.stdin.close()
            assert server.process.wait(30) == 0
        assert server.stderr == ""

    def test_an_interrupt_ends_it_quietly(self, start_server):
        """Ctrl-C, while a thread waits for standard input to close."""
        server = start_server("--until-stdin-closes")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        assert server.stderr == ""

    def test_a_start_that_fails_is_one_sentence(self, refused_start, tmp_path):
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(b"GGUF and then nothing")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            ends = {
                "in use": refused_start("--port", str(port)),
                "bad.gguf": refused_start(model=bad),
                "there is no model file": refused_start(model=tmp_path / "none.gguf"),
                "port must be 0-65535": refused_start("--port", "70000"),
            }
        for said, ended in ends.items():
            assert ended.returncode == 1
            assert ended.stdout == ""
            assert ended.stderr.startswith("server_stub: ")
            assert said in ended.stderr
            assert ended.stderr.count("\n") == 1

    @pytest.mark.parametrize("host", ["0.0.0.0", "", "0"])
    def test_other_machines_are_let_in_by_a_flag_alone(self, refused_start, host):
        """It computes for whoever comes, without a limit; an address that means all was enough to invite everybody."""
        ended = refused_start("--host", host)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.count("\n") == 1
        assert "add --beyond-loopback if that is meant" in ended.stderr

    def test_with_that_flag_it_listens_beyond(self, first_line):
        assert first_line("--host", "0.0.0.0", "--beyond-loopback").startswith("listening on http://0.0.0.0:")

    @pytest.mark.parametrize("host", ["localhost", "127.8.9.10"])
    def test_every_name_of_this_machine_alone_needs_no_flag(self, first_line, host):
        assert first_line("--host", host).startswith(f"listening on http://{host}:")

    @pytest.mark.parametrize("flag", [("--parallel", "0"), ("--parallel", "x"), ("--ctx", "many")])
    def test_a_bad_flag_is_explained(self, refused_start, flag):
        ended = refused_start(*flag)
        assert ended.returncode == 2
        assert flag[0] in ended.stderr.splitlines()[-1]

    def test_nothing_above_made_the_servers_complain(self, server, keeping, strict):
        """A traceback on standard error is an answer of 500 that no test looked at."""
        assert [each.stderr for each in (server, keeping, strict)] == ["", "", ""]
        assert [each.process.poll() for each in (server, keeping, strict)] == [None, None, None]
