"""The served model over real HTTP, against the same file evaluated directly."""

from __future__ import annotations

import json
import signal
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import numpy as np
import pytest

from server_stub.__main__ import listen

pytestmark = pytest.mark.slow

TEXT = "What is 27 + 48? Add the tens, then the ones: 20 + 40 = 60 and 7 + 8 = 15. So 75."


@pytest.fixture(scope="session")
def prompt(oracle) -> list[int]:
    return oracle.ids(TEXT)


def cold() -> dict[str, str]:
    """A field that no earlier request shares a cache with."""
    return {"cache_salt": uuid.uuid4().hex}


def complete(server, **fields) -> dict:
    reply = server.client.post("/v1/completions", json={"temperature": 0} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def choice(server, **fields) -> dict:
    [only] = complete(server, **fields)["choices"]
    return only


def streamed(server, **fields) -> list[dict]:
    """Return every event of a stream; the last one must be the promised mark."""
    body = {"temperature": 0, "stream": True} | fields
    with server.client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def cached(body: dict) -> int:
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def by_id(row: dict) -> dict[int, float]:
    """``token_id:7`` and ``7`` to 7."""
    return {int(key.removeprefix("token_id:")): value for key, value in row.items()}


def assert_row(shown: dict[int, float], dense, k: int, actual: int) -> None:
    """A row shows the best k and the actual token, with the oracle's values (within 0.02 where p is at least 1e-3)."""
    assert actual in shown
    listed = set(shown) - {actual}
    assert k - 1 <= len(listed) <= k
    assert len(shown) >= k
    least = dense.top(k)[-1][1] if k else 0.0
    for token in listed:
        assert dense.logprobs[token] >= least - 0.03
    for token, logprob in shown.items():
        assert abs(logprob - dense.logprobs[token]) <= (0.02 if dense.probs[token] >= 1e-3 else 0.5)


def assert_greedy(oracle, prefix: list[int], written: list[int], banned=()) -> None:
    """Every token is the oracle's best of those allowed, or within 0.03 nats of it."""
    for n, token in enumerate(written):
        logprobs = oracle.row([*prefix, *written[:n]]).logprobs.copy()
        logprobs[list(banned)] = -np.inf
        assert logprobs[token] >= logprobs.max() - 0.03


class TestScores:
    """Rows of the prompt: what the client's whole arithmetic stands on."""

    @pytest.mark.parametrize("k", [0, 1, 20])
    def test_prompt_rows_are_the_models(self, server, oracle, prompt, k):
        rows = choice(server, prompt=prompt, max_tokens=1, prompt_logprobs=k)["prompt_logprobs"]
        assert len(rows) == len(prompt)
        assert rows[0] is None
        for row, dense, actual in zip(rows[1:], oracle.rows(prompt), prompt[1:], strict=False):
            assert_row({int(key): entry["logprob"] for key, entry in row.items()}, dense, k, actual)
            for token, entry in row.items():
                assert entry["decoded_token"] == oracle.text([int(token)])
                value = dense.logprobs[int(token)]
                assert (dense.logprobs > value + 0.05).sum() < entry["rank"] <= (dense.logprobs > value - 0.05).sum()
            ranks = sorted(entry["rank"] for entry in row.values())
            assert ranks[:k] == list(range(1, k + 1))

    def test_rows_are_raw_whatever_is_sampled(self, server, prompt):
        """A client that computes a divergence from warped rows computes nonsense."""
        plain = choice(server, prompt=prompt, max_tokens=1, prompt_logprobs=5, logprobs=5)
        warped = choice(
            server,
            prompt=prompt,
            max_tokens=1,
            prompt_logprobs=5,
            logprobs=5,
            temperature=3,
            top_k=1,
            logit_bias={"5": -50},
            return_tokens_as_token_ids=True,
        )
        assert warped["prompt_logprobs"] == plain["prompt_logprobs"]

    def test_generated_rows_are_raw_too(self, server, oracle, prompt, no_end):
        fields = {"temperature": 1.5, "top_k": 20, "seed": 5, "logit_bias": no_end}
        found = choice(
            server,
            prompt=prompt,
            max_tokens=12,
            logprobs=4,
            return_token_ids=True,
            return_tokens_as_token_ids=True,
            **fields,
        )
        written, rows = found["token_ids"], found["logprobs"]
        assert rows["tokens"] == [f"token_id:{token}" for token in written]
        for n, (token, top) in enumerate(zip(written, rows["top_logprobs"], strict=True)):
            assert_row(by_id(top), oracle.row([*prompt, *written[:n]]), 4, token)
            assert rows["token_logprobs"][n] == top[f"token_id:{token}"]

    def test_keys_are_texts_unless_ids_are_asked_for(self, server, oracle, prompt):
        found = choice(server, prompt=prompt, max_tokens=3, logprobs=0, return_token_ids=True)
        assert found["logprobs"]["tokens"] == [oracle.text([token]) for token in found["token_ids"]]

    def test_echo_gives_the_prompts_rows_with_none_for_the_first(self, server, oracle, prompt):
        found = choice(server, prompt=prompt, max_tokens=0, echo=True, logprobs=3, return_tokens_as_token_ids=True)
        assert found["text"] == TEXT
        assert found["finish_reason"] == "length"
        rows = found["logprobs"]
        assert rows["tokens"] == [f"token_id:{token}" for token in prompt]
        assert rows["token_logprobs"][0] is None
        assert rows["top_logprobs"][0] is None
        for row, dense, actual in zip(rows["top_logprobs"][1:], oracle.rows(prompt), prompt[1:], strict=False):
            assert_row(by_id(row), dense, 3, actual)
        starts = [*rows["text_offset"], len(TEXT)]
        assert [TEXT[a:b] for a, b in pairwise(starts)] == [oracle.text([token]) for token in prompt]

    def test_echo_goes_on_with_what_is_written(self, server, oracle, prompt, no_end):
        found = choice(
            server, prompt=prompt, max_tokens=5, echo=True, logprobs=2, return_token_ids=True, logit_bias=no_end
        )
        assert found["text"] == TEXT + oracle.text(found["token_ids"])
        assert len(found["logprobs"]["tokens"]) == len(prompt) + 5
        assert found["logprobs"]["token_logprobs"][0] is None
        assert None not in found["logprobs"]["token_logprobs"][1:]
        assert_greedy(oracle, prompt, found["token_ids"], oracle.end_ids)


class TestText:
    """What is written: greedy is the model's, everything else keeps its promise."""

    def test_greedy_is_direct_greedy(self, server, oracle, prompt):
        found = choice(server, prompt=prompt, max_tokens=40, return_token_ids=True)
        assert_greedy(oracle, prompt, found["token_ids"])
        shown = [token for token in found["token_ids"] if token not in oracle.end_ids]
        assert found["text"] == oracle.text(shown)

    def test_a_text_prompt_is_tokenized_as_tokenize_does(self, server, oracle, prompt):
        body = server.client.post("/tokenize", json={"prompt": TEXT, "add_special_tokens": False}).json()
        assert body == {"count": len(prompt), "max_model_len": 1024, "tokens": prompt}
        found = choice(server, prompt=TEXT, max_tokens=1, return_token_ids=True, add_special_tokens=False)
        assert found["prompt_token_ids"] == prompt
        [control] = server.client.post("/tokenize", json={"prompt": oracle.text([oracle.control])}).json()["tokens"]
        assert control == oracle.control

    def test_a_seed_repeats_and_others_differ(self, server, prompt, no_end):
        fields = {"prompt": prompt, "max_tokens": 20, "temperature": 1.5, "logit_bias": no_end}
        texts = [choice(server, seed=seed, **fields, **cold())["text"] for seed in (1, 1, 2, 3, -1, -1)]
        assert texts[0] == texts[1]
        assert texts[4] == texts[5]
        assert len(set(texts)) > 2

    def test_top_k_and_top_p_keep_to_the_best(self, server, oracle, prompt):
        """20 draws each; the two laws exclude each other's extra tokens nearly always, and never are left."""
        row = oracle.row(prompt)
        order = np.argsort(-row.logprobs)
        mass = np.cumsum(row.probs[order])

        def drawn(**fields) -> set[int]:
            asked = {"prompt": prompt, "max_tokens": 1, "temperature": 1, "return_token_ids": True} | fields
            return {choice(server, seed=seed, **asked)["token_ids"][0] for seed in range(20)}

        assert drawn(top_k=3) <= set(order[:4].tolist())
        nucleus = int((mass < 0.5).sum()) + 1
        assert drawn(top_p=0.5) <= set(order[: nucleus + 1].tolist())
        assert drawn(top_k=1) == {int(order[0])}

    def test_a_banned_token_is_not_written(self, server, oracle, prompt):
        [best] = choice(server, prompt=prompt, max_tokens=1, return_token_ids=True)["token_ids"]
        found = choice(server, prompt=prompt, max_tokens=30, return_token_ids=True, logit_bias={str(best): -100})
        assert best not in found["token_ids"]
        assert_greedy(oracle, prompt, found["token_ids"], [best])

    def test_the_end_token_is_among_the_ids_and_not_in_the_text(self, server, oracle, prompt):
        found = complete(
            server, prompt=prompt, max_tokens=9, return_token_ids=True, logit_bias={str(oracle.control): 200}
        )
        [only] = found["choices"]
        assert (only["token_ids"], only["text"]) == ([oracle.control], "")
        assert (only["finish_reason"], only["stop_reason"]) == ("stop", None)
        assert only["prompt_token_ids"] == prompt
        assert found["usage"]["completion_tokens"] == 1

    @pytest.mark.parametrize(("start", "end"), [(0, 1), (3, 6), (9, 18)])
    def test_a_stop_string_cuts_wherever_the_tokens_end(self, server, prompt, no_end, start, end):
        fields = {"prompt": prompt, "max_tokens": 40, "logit_bias": no_end}
        text = choice(server, **fields)["text"]
        stop = text[start:end]
        found = complete(server, stop=["\u2603", stop], **fields)
        [only] = found["choices"]
        assert only["text"] == text[: text.find(stop)]
        assert (only["finish_reason"], only["stop_reason"]) == ("stop", stop)
        assert 1 <= found["usage"]["completion_tokens"] <= 40
        assert (
            "".join(c["text"] for event in streamed(server, stop=stop, **fields) for c in event["choices"])
            == (only["text"])
        )

    def test_text_held_back_for_a_stop_string_is_shown_in_the_end(self, server, prompt, no_end):
        fields = {"prompt": prompt, "max_tokens": 20, "logit_bias": no_end}
        text = choice(server, **fields)["text"]
        almost = text[-3:] + "\u2603"
        assert choice(server, stop=almost, **fields)["text"] == text
        events = [event["choices"][0]["text"] for event in streamed(server, stop=almost, **fields)]
        assert "".join(events) == text


class TestStreams:
    """A stream is the whole answer in pieces."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"max_tokens": 12, "temperature": 1.2, "seed": 3},
            {"max_tokens": 12, "echo": True},
            {"max_tokens": 0, "echo": True},
            {"max_tokens": 12, "stop": "e"},
            {"max_tokens": 1},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("logprobs", [None, 2])
    def test_the_pieces_of_a_stream_are_the_whole_answer(self, server, prompt, fields, logprobs):
        fields = fields | {"prompt": prompt, "return_token_ids": True, "return_tokens_as_token_ids": True}
        if logprobs is not None:
            fields["logprobs"] = logprobs
        whole = complete(server, **fields, **cold())
        *events, closing = streamed(server, stream_options={"include_usage": True}, **fields, **cold())
        assert all("usage" not in event for event in events)
        assert (closing["choices"], closing["usage"]) == ([], whole["usage"])
        [expected] = whole["choices"]
        pieces = [event["choices"][0] for event in events]
        assert "".join(piece["text"] for piece in pieces) == expected["text"]
        assert [token for piece in pieces for token in piece.get("token_ids", [])] == expected["token_ids"]
        assert [piece["prompt_token_ids"] for piece in pieces if "prompt_token_ids" in piece] == [prompt]
        assert pieces[0].get("prompt_token_ids") == prompt
        for key in ("finish_reason", "stop_reason"):
            assert pieces[-1][key] == expected[key]
            assert all(piece[key] is None for piece in pieces[:-1])
        if logprobs is None:
            assert all("logprobs" not in piece for piece in [*pieces, expected])
            return
        for key, values in expected["logprobs"].items():
            assert [value for piece in pieces for value in piece["logprobs"][key]] == values

    def test_usage_is_told_only_where_it_was_asked_for(self, server, prompt):
        events = streamed(server, prompt=prompt, max_tokens=3)
        assert all(event["choices"] and "usage" not in event for event in events)

    def test_ids_and_names_stay_the_same_along_a_stream(self, server, prompt):
        events = streamed(server, prompt=prompt, max_tokens=3)
        assert len({event["id"] for event in events}) == 1
        assert {event["model"] for event in events} == {"small"}


class TestCache:
    """The cache changes the bill, and never an answer."""

    def test_the_second_of_two_equal_requests_is_cached(self, server, prompt):
        fields = {"prompt": prompt, "max_tokens": 10} | cold()
        first, second = complete(server, **fields), complete(server, **fields)
        assert (cached(first), cached(second)) == (0, len(prompt) - 1)
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
        for found, expected in zip(third["choices"][0]["prompt_logprobs"][1:], whole[1:], strict=True):
            for token in found.keys() & expected.keys():
                if expected[token]["logprob"] > np.log(1e-3):
                    assert abs(found[token]["logprob"] - expected[token]["logprob"]) <= 0.02

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
        assert [cached(complete(keeping, **fields, **salt)) for salt in (mine, mine, other, other)] == [
            0,
            len(prompt) - 1,
            0,
            len(prompt) - 1,
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
        for name, usage in told.items():
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

    @pytest.mark.parametrize("flag", [("--parallel", "0"), ("--parallel", "x"), ("--ctx", "many")])
    def test_a_bad_flag_is_explained(self, refused_start, flag):
        ended = refused_start(*flag)
        assert ended.returncode == 2
        assert flag[0] in ended.stderr.splitlines()[-1]

    def test_nothing_above_made_the_servers_complain(self, server, keeping, strict):
        """A traceback on standard error is an answer of 500 that no test looked at."""
        assert [each.stderr for each in (server, keeping, strict)] == ["", "", ""]
        assert [each.process.poll() for each in (server, keeping, strict)] == [None, None, None]
