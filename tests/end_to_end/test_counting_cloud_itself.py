"""The cloud that counts, looked at without any client: what it writes is the model's, what it charges is what it wrote.

Everything else that is measured with it is worth what these tests are worth.
"""

from __future__ import annotations

import ast
import http.client
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import counting_cloud
import llama_cpp
import numpy as np
import pytest
from arithmetic import tolerance
from cases import each, each_of
from counted_account import MODES, STATUSES, read_account
from counted_model import LARGE
from counting_cloud import CountingCloud

PROMPT, CACHED, COMPLETION = 1000, 100, 4000  # nano-USD a token at 1/0.1/4
QUESTION = "<|im_start|>user\nWhat is 47 + 86?<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"prompt": QUESTION, "temperature": 0}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
CHAT = {"messages": [{"role": "user", "content": "What is 47 + 86?"}], "temperature": 0}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def one():
    """One cloud for all tests that look at the last request only."""
    with CountingCloud() as cloud:
        yield cloud


@pytest.fixture
def cloud(one):
    one.set(mode="honest", run_ahead=4, token_s=0.0, tokens_per_event=1, charge_errors=False, retry_after=None)
    return one


def post(cloud, body, path="/v1/completions", name="a"):
    """Status and body of a reply; of a stream, its events."""
    headers = {"content-type": "application/json", "x-request-id": name}
    request = urllib.request.Request(cloud.url + path, json.dumps(body).encode(), headers)
    try:
        with OPENER.open(request, timeout=30) as reply:
            status, said = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        status, said = error.code, error.read().decode()
    if not said.startswith("data: "):
        return status, json.loads(said)
    events = [line.removeprefix("data: ") for line in said.split("\n\n") if line]
    return status, [event if event == "[DONE]" else json.loads(event) for event in events]


def last(cloud):
    return cloud.account()["requests"][-1]


def ids_of(events):
    return [i for event in events if event != "[DONE]" and event["choices"] for i in event["choices"][0]["token_ids"]]


def test_the_greedy_text_is_llama_cpps_own(cloud):
    """Its ``generate`` evaluates the prompt as a batch: another path through the same library."""
    llama = llama_cpp.Llama(str(LARGE), n_ctx=1024, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False)
    for question in ("What is 47 + 86?", "Sort 42 17 99 23.", "Give 1978-04-24 07:12 in words."):
        prompt = QUESTION.replace("What is 47 + 86?", question)
        ids = llama.tokenize(prompt.encode(), add_bos=False, special=True)
        expected = []
        for token in llama.generate(ids, temp=0.0):
            expected.append(token)
            if token == llama.token_eos():
                break
        body = GREEDY | {"prompt": prompt, "max_tokens": 200, "return_token_ids": True}
        _, said = post(cloud, body)
        _, events = post(cloud, body | STREAMED)
        choice = said["choices"][0]
        assert choice["prompt_token_ids"] == ids
        assert choice["token_ids"] == expected == ids_of(events)
        assert choice["text"] == llama.detokenize(expected[:-1]).decode()
        assert choice["text"] == "".join(event["choices"][0]["text"] for event in events[:-2])
        assert choice["finish_reason"] == "stop"
    llama.close()


def test_rows_of_a_prompt_are_llama_cpps_log_probabilities(cloud):
    """Up to what batches of another shape do to float16 sums; here the batch is the oracle's."""
    llama = llama_cpp.Llama(str(LARGE), n_ctx=1024, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False)
    ids = llama.tokenize(QUESTION.encode(), add_bos=False, special=True)
    llama.eval(ids)
    logits = llama.scores[: len(ids)].astype(float)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    _, said = post(cloud, GREEDY | {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 5})
    first, *rows = said["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(rows) == len(ids) - 1
    for row, law, token in each_of(zip(rows, expected, ids[1:], strict=False)):
        assert next(iter(row)) == str(token)
        assert 5 <= len(row) <= 6
        for told, entry in each_of(row.items()):
            if law[int(told)] > np.log(1e-3):
                assert abs(entry["logprob"] - law[int(told)]) < tolerance().nats
        best = [each["logprob"] for each in row.values() if each["rank"] <= 5]
        assert sorted(best, reverse=True) == best or next(iter(row.values()))["rank"] > 1
    llama.close()


@pytest.mark.slow
def test_the_same_request_is_answered_to_the_last_bit_whatever_came_before(cloud):
    body = GREEDY | {"max_tokens": 12, "logprobs": 20, "prompt_logprobs": 20}
    _, first = post(cloud, body)
    post(cloud, {"prompt": list(range(20, 200)), "max_tokens": 3})
    post(cloud, GREEDY | {"prompt": QUESTION + "b4"})
    with CountingCloud() as another:
        _, elsewhere = post(another, body)
    assert elsewhere["choices"] == first["choices"] == post(cloud, body)[1]["choices"]


@each("stream", [{}, STREAMED], ids=["whole", "streamed"])
def test_honest_usage_is_what_was_charged(cloud, stream):
    _, said = post(cloud, GREEDY | {"max_tokens": 9} | stream, name="b7")
    usage, charged = (said[-2] if stream else said)["usage"], last(cloud)
    assert usage["prompt_tokens"] == charged["prompt_tokens"] == len(cloud.model.tokenize(QUESTION)) == 18
    assert usage["completion_tokens"] == charged["completion_tokens"] == 9
    assert charged["nanousd"] == 18 * PROMPT + 9 * COMPLETION
    assert (charged["id"], charged["finished"], charged["closed_early"]) == ("b7", True, False)


# What each mode claims of 18 prompt and 9 completion tokens: prompt, completion, and what was really written.
CLAIMED = {
    "honest": (18, 9, 9), "zero": (0, 0, 9), "tenth": (1, 0, 9), "ten-times": (180, 90, 9), "negative": (-18, -9, 9),
    "absurd": (10**30, 10**30, 9), "completion-null": (18, None, 9), "fractional": (18.5, 9.5, 9),
    "as-text": ("18", "9", 9), "as-bool": (True, True, 9), "max-tokens-ignored-told": (18, 14, 14),
    "max-tokens-ignored-untold": (18, 9, 14), "preamble": (18, 9, 9), "preamble-untold": (18, 9, 9),
    "end-told": (18, 9, 9), "end-untold": (18, 9, 9), "usage-per-chunk": (18, 9, 9), "usage-twice": (0, 0, 9),
}  # fmt: skip


@each("mode", CLAIMED)
def test_each_mode_claims_what_it_should_and_charges_the_truth(cloud, mode):
    prompt, completion, written = CLAIMED[mode]
    cloud.set(mode=mode)
    _, events = post(cloud, GREEDY | {"max_tokens": 9, "return_token_ids": True} | STREAMED)
    usage, charged = events[-2]["usage"], last(cloud)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
    assert type(usage["completion_tokens"]) is type(completion)
    assert (charged["prompt_tokens"], charged["completion_tokens"]) == (18, written)
    assert len(ids_of(events)) == written
    assert charged["nanousd"] == 18 * PROMPT + written * COMPLETION


def test_modes_that_leave_usage_out_leave_it_out(cloud):
    for mode, told in [("absent", "none"), ("usage-null", None), ("completion-absent", {"prompt_tokens": 18})]:
        cloud.set(mode=mode)
        _, said = post(cloud, GREEDY | {"max_tokens": 9})
        _, events = post(cloud, GREEDY | {"max_tokens": 9} | STREAMED)
        expected = told | {"prompt_tokens_details": None} if isinstance(told, dict) else told
        assert said.get("usage", "none") == expected
        assert next((event["usage"] for event in events[:-1] if "usage" in event), "none") == expected
    cloud.set(mode="usage-first")
    _, events = post(cloud, GREEDY | {"max_tokens": 9} | STREAMED)
    assert [event["usage"]["completion_tokens"] for event in events[:-1] if "usage" in event] == [1]


@each(("mode", "told"), [("end-told", 42), ("end-untold", 41)])
@each("stream", [{}, STREAMED], ids=["whole", "streamed"])
def test_an_end_that_is_kept_back_is_charged(cloud, mode, told, stream):
    cloud.set(mode=mode)
    _, said = post(cloud, GREEDY | {"max_tokens": 99, "return_token_ids": True, "logprobs": 1} | stream)
    choices = [event["choices"][0] for event in said[:-2]] if stream else said["choices"]
    ids = [i for choice in choices for i in choice["token_ids"]]
    assert (said[-2] if stream else said)["usage"]["completion_tokens"] == told
    assert choices[-1]["finish_reason"] == "stop"
    assert cloud.model.end_id not in ids
    assert len(ids) == sum(len(choice["logprobs"]["tokens"]) for choice in choices) == 41
    assert last(cloud)["completion_tokens"] == 42


@each(("run_ahead", "charged_beyond"), [(0, 0), (4, 4), (-1, None)])
def test_what_is_written_after_the_client_has_closed_is_charged(cloud, run_ahead, charged_beyond):
    cloud.set(mode="usage-per-chunk", run_ahead=run_ahead, token_s=0.05)
    connection = http.client.HTTPConnection(cloud.url.removeprefix("http://"), timeout=30)
    connection.request(
        "POST", "/v1/completions", json.dumps(GREEDY | {"max_tokens": 200, "ignore_eos": True} | STREAMED)
    )
    reply = connection.getresponse()
    lines = [reply.readline() for _ in range(6)]
    running = [json.loads(line.removeprefix(b"data: ")) for line in lines[::2]]
    read = len(running)
    reply.close()
    connection.close()
    charged = last(cloud)
    assert charged["closed_early"]
    assert charged["completion_tokens"] > running[-1]["usage"]["completion_tokens"] == read == 3
    if charged_beyond is None:
        assert charged["completion_tokens"] == 200
    else:
        assert read + charged_beyond <= charged["completion_tokens"] < 200
    assert charged["nanousd"] == 18 * PROMPT + charged["completion_tokens"] * COMPLETION


@each("status", STATUSES)
@each("charge", [False, True])
def test_an_error_charges_only_if_it_is_told_to_and_something_was_computed(cloud, status, charge):
    cloud.set(mode=f"status={status}", charge_errors=charge, retry_after="0")
    seen, said = post(cloud, GREEDY | {"max_tokens": 9})
    assert seen == status == said["error"]["code"]
    computed = charge and status in {408, 409, 425, 499, 500, 502, 503, 504}
    assert last(cloud)["nanousd"] == (18 * PROMPT + 9 * COMPLETION if computed else 0)


def test_a_refusal_inside_a_stream_charges_nothing_and_a_failure_there_charges_what_was_written(cloud):
    cloud.set(mode="refusal-in-stream")
    status, (event, done) = post(cloud, GREEDY | STREAMED)
    assert (status, event["error"]["code"], done) == (200, 400, "[DONE]")
    assert last(cloud)["nanousd"] == 0
    assert post(cloud, GREEDY)[0] == 400
    cloud.set(mode="failure-in-stream")
    _, events = post(cloud, GREEDY | {"max_tokens": 30} | STREAMED)
    assert events[-2]["error"]["code"] == 500
    assert last(cloud)["completion_tokens"] == 2 + 1 + 4  # sent, computed by then, run ahead


def test_a_request_that_vllm_refuses_is_refused_in_its_way_and_costs_nothing(cloud):
    for body, late in [
        ({"logprobs": 21}, True), ({"logprobs": -1}, True), ({"prompt": [1, 384]}, True), ({"prompt": []}, False),
        ({"model": "other"}, False), ({"max_tokens": 0}, False), ({"prompt": [5] * 1024}, False),
        ({"logprobs": "3"}, False),
    ]:  # fmt: skip
        assert post(cloud, GREEDY | body)[0] == (404 if "model" in body else 400)
        status, said = post(cloud, GREEDY | body | STREAMED)
        assert (status == 200) is late
        assert (said[0] if late else said)["error"]["code"] in {400, 404}
        assert last(cloud)["nanousd"] == 0


def test_a_cut_stream_ends_without_an_end_and_is_charged(cloud):
    cloud.set(mode="cut")
    with pytest.raises(http.client.IncompleteRead) as cut:
        post(cloud, GREEDY | {"max_tokens": 30} | STREAMED)
    assert cut.value.partial.count(b"data: ") == 2
    assert b"[DONE]" not in cut.value.partial
    assert last(cloud)["completion_tokens"] == 7


@pytest.mark.slow
def test_a_limit_beyond_the_context_is_lowered(cloud):
    _, said = post(cloud, {"prompt": [65] * 1020, "max_tokens": 100, "ignore_eos": True})
    assert (said["usage"]["completion_tokens"], said["choices"][0]["finish_reason"]) == (4, "length")


def test_stops_biases_and_allowed_ids_are_heeded_and_leave_the_rows_as_they_are(cloud):
    plain = post(cloud, GREEDY | {"max_tokens": 6, "logprobs": 3, "return_token_ids": True})[1]["choices"][0]
    first, _, third = plain["token_ids"][:3]
    stopped = post(cloud, GREEDY | {"stop_token_ids": [third], "return_token_ids": True})[1]["choices"][0]
    assert stopped["token_ids"] == plain["token_ids"][:3]
    assert (stopped["stop_reason"], stopped["finish_reason"]) == (third, "stop")
    assert plain["text"].startswith(stopped["text"])
    word = post(cloud, GREEDY | {"max_tokens": 60, "stop": [";"]} | STREAMED)[1]
    assert "".join(event["choices"][0]["text"] for event in word[:-2]) == "b4+8 a7+6"
    for change in ({"logit_bias": {"50": 100}}, {"allowed_token_ids": [50]}):
        body = GREEDY | change | {"max_tokens": 1, "logprobs": 3, "return_token_ids": True}
        forced = post(cloud, body)[1]["choices"][0]
        assert forced["token_ids"] == [50] != [first]
        assert plain["logprobs"]["top_logprobs"][0].items() <= forced["logprobs"]["top_logprobs"][0].items()


def test_drawn_texts_depend_on_the_seed_alone(cloud):
    def drawn(seed):
        return post(cloud, {"prompt": "What", "max_tokens": 12, "temperature": 1.5, "seed": seed})[1]["choices"][0][
            "text"
        ]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.slow
def test_a_chat_is_charged_its_preamble_told_or_not(cloud):
    for mode, prompt in [("preamble", 93), ("preamble-untold", 18)]:
        cloud.set(mode=mode)
        _, said = post(cloud, CHAT | {"logprobs": True, "top_logprobs": 2}, "/v1/chat/completions")
        _, events = post(cloud, CHAT | STREAMED, "/v1/chat/completions")
        assert said["usage"]["prompt_tokens"] == events[-2]["usage"]["prompt_tokens"] == prompt
        assert last(cloud)["prompt_tokens"] == 75 + 18
        text = said["choices"][0]["message"]["content"]
        assert text == "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-2])
        assert text == "".join(each["token"] for each in said["choices"][0]["logprobs"]["content"])
        assert text.endswith("Answer: 133.")


def test_a_mode_may_be_set_over_http_for_some_requests(cloud):
    assert post(cloud, {"mode": "zero", "times": 2}, "/mode")[0] == 200
    told = [post(cloud, GREEDY)[1]["usage"]["completion_tokens"] for _ in range(3)]
    assert told == [0, 0, 16]
    for wrong in ({"mode": "nonsense"}, {"nonsense": 1}, {"mode": "status=x"}):
        assert post(cloud, wrong, "/mode")[0] == 400
    assert json.load(OPENER.open(cloud.url + "/account")) == cloud.account()


def test_a_service_of_openais_kind_has_no_other_routes():
    with CountingCloud(service="openai", model="none") as cloud:
        for path in ("/version", "/health"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                OPENER.open(cloud.url + path)
        assert post(cloud, GREEDY)[0] == post(cloud, {"prompt": "a"}, "/tokenize")[0] == 404
        assert post(cloud, CHAT, "/v1/chat/completions")[0] == 200
        assert [each["route"] for each in cloud.account()["requests"]] == ["/v1/chat/completions"]


def test_cached_tokens_are_charged_at_their_price_in_whole_blocks_and_per_salt():
    with CountingCloud(model="none", block=8, tell_cached=True, price="1/0.1/4/0.002") as cloud:
        body = {"prompt": list(range(5, 24)), "max_tokens": 1, "temperature": 0}
        seen = [post(cloud, body | more)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for more in (
            {}, {}, {"cache_salt": "x"}, {"prompt_logprobs": 1}, {"prompt": list(range(5, 21))},
        )]  # fmt: skip
        assert seen == [0, 16, 0, 0, 8]
        charges = [each["nanousd"] for each in cloud.account()["requests"]]
        assert charges[:2] == [2_000_000 + 19 * 1000 + 4000, 2_000_000 + 3 * 1000 + 16 * 100 + 4000]


def test_prices_below_a_nanousd_a_token_are_rounded_up_once_a_request():
    with CountingCloud(model="none", price="0.0001/0/0.0003") as cloud:
        post(cloud, {"prompt": [5] * 4, "max_tokens": 3, "temperature": 0})
        assert cloud.account()["total_nanousd"] == 2  # 4 of 0.1 and 3 of 0.3 are 1.3


def test_the_tables_texts_end_and_its_rows_are_distributions():
    with CountingCloud(model="none") as cloud:
        ids = cloud.model.tokenize(QUESTION)
        assert np.allclose(np.exp(cloud.model.rows(ids)).sum(-1), 1)
        choice = post(cloud, GREEDY | {"max_tokens": 99, "return_token_ids": True})[1]["choices"][0]
        assert choice["finish_reason"] == "stop"
        for place, token in each_of(enumerate(choice["token_ids"])):
            assert cloud.model.row([*ids, *choice["token_ids"][:place]]).argmax() == token


@pytest.mark.slow
def test_the_account_survives_the_cloud_being_killed_in_the_middle_of_an_answer(tmp_path):
    file = tmp_path / "account.jsonl"
    command = [sys.executable, counting_cloud.__file__, "--account", file, "--model", "none", "--token-s", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        class Cloud:
            url = process.stdout.readline().strip()

        post(Cloud, GREEDY | {"max_tokens": 3}, name="before")
        connection = http.client.HTTPConnection(Cloud.url.removeprefix("http://"), timeout=30)
        body = GREEDY | {"max_tokens": 90, "ignore_eos": True} | STREAMED
        connection.request("POST", "/v1/completions", json.dumps(body), {"x-request-id": "during"})
        reply = connection.getresponse()
        read = [reply.readline() for _ in range(8)][::2]
        process.send_signal(signal.SIGKILL)
        reply.close()
        connection.close()
    first, second = read_account(file)["requests"]
    assert (first["id"], first["completion_tokens"], first["finished"]) == ("before", 3, True)
    assert (second["id"], second["prompt_tokens"], second["finished"]) == ("during", 18, False)
    assert len(read) <= second["completion_tokens"] < 90
    assert second["nanousd"] == 18 * PROMPT + second["completion_tokens"] * COMPLETION


@pytest.mark.slow
def test_every_mode_is_known_by_name():
    with CountingCloud(model="none", delay_s=0.01) as cloud:
        for mode in each_of(MODES):
            cloud.set(mode=mode)
            status, _ = post(cloud, GREEDY | {"max_tokens": 2})
            assert status == (400 if mode == "refusal-in-stream" else 200)
    with pytest.raises(ValueError, match="no mode"):
        CountingCloud("nonsense")


def test_the_oracles_know_nothing_of_the_client():
    folder = Path(counting_cloud.__file__).parent
    for file in each_of([*folder.glob("count*.py"), *folder.glob("raw_*.py")]):
        tree = [*ast.walk(ast.parse(file.read_text()))]
        names = [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in tree if isinstance(node, ast.ImportFrom)]
        assert not {name.split(".")[0] for name in names} & {"hybrid", "server_stub"}, file
