"""Every fault of a real server, over real HTTP: the answer is finished, says why, and is there within the deadline."""

from __future__ import annotations

import os
import signal
import time

import pytest
from acting import acting
from cases import each
from short_patience import MAX_TOKENS, QUESTION, READ_TIMEOUT_S, ask, first_choice

import hybrid
from hybrid.run import TokenEmitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def null_row(reply):
    body, choice = first_choice(reply)
    choice["prompt_logprobs"][-1] = None
    reply.replace(body)


def nan(reply):
    body, choice = first_choice(reply)
    next(iter(choice["prompt_logprobs"][-1].values()))["logprob"] = float("nan")
    reply.replace(body)


def too_few_rows(reply):
    body, choice = first_choice(reply)
    del choice["prompt_logprobs"][-1]
    reply.replace(body)


def above_one(reply):
    body, choice = first_choice(reply)
    for entry in choice["prompt_logprobs"][-1].values():
        entry["logprob"] = -0.1
    reply.replace(body)


def no_top_list(reply):
    """What llama-server says of its own speculated tokens: probability 1 and nothing beside it."""
    body, choice = first_choice(reply)
    choice["logprobs"]["top_logprobs"] = [{}]
    choice["logprobs"]["token_logprobs"] = [0.0]
    reply.replace(body)


def no_usage(reply):
    body = reply.json()
    del body["usage"]
    reply.replace(body)


def status_500(reply):
    reply.status, reply.body = 500, b'{"error": {"message": "out of memory"}}'


def status_429(reply):
    reply.status, reply.body = 429, b'{"error": {"message": "slow down"}}'


def cut_in_the_middle(reply):
    reply.cut = len(reply.body) // 2


def garbage(reply):
    reply.body = b"\x00\xff nonsense"


def empty(reply):
    reply.body = b""


def a_list(reply):
    reply.body = b"[1, 2]"


def stalled(reply):
    reply.delay_s = 2 * READ_TIMEOUT_S


SCORING = [null_row, nan, too_few_rows, above_one, no_top_list]
ANY = [status_500, status_429, cut_in_the_middle, garbage, empty, a_list, stalled]
WORDS = {
    null_row: "null",
    nan: "not a number",
    too_few_rows: "rows for a prompt of",
    above_one: "above one",
    no_top_list: "without a top-k list",
    status_500: "500: out of memory",
    status_429: "429: slow down",
    cut_in_the_middle: "broke off",
    garbage: "not JSON",
    empty: "not JSON",
    a_list: "no choices",
    stalled: "in time",
}


@each("fault", SCORING + ANY, ids=lambda fault: fault.__name__)
def test_a_check_that_cannot_be_believed_leaves_the_local_text_and_the_reason(proxy, small_text, fault):
    between = proxy(lambda reply, _, n: fault(reply) if n >= 1 else None)
    answer, seconds = ask(between.url, policy="greedy-exact", price="1/0.1/4")
    assert answer.text == small_text
    assert WORDS[fault] in answer.degraded
    assert seconds < READ_TIMEOUT_S + 3
    assert between.completions == 1


def test_checks_that_tell_no_usage_are_charged_for_what_is_known(proxy, stub):
    """Their rows can be believed; what was sent and written is known without being told."""
    between = proxy(lambda reply, _, n: no_usage(reply) if n >= 1 else None)
    told, _ = ask(stub.url, policy="greedy-exact", price="1/1/4")
    answer, _ = ask(between.url, policy="greedy-exact", price="1/1/4")
    assert (answer.text, answer.degraded) == (told.text, None)
    assert answer.bill.nanousd == told.bill.nanousd > 0


@each("policy", ["greedy-exact", "kl", "paper"])
@each("fault", [status_500, cut_in_the_middle], ids=lambda fault: fault.__name__)
def test_a_fault_after_some_text_is_survived_too(proxy, policy, fault):
    between = proxy(lambda reply, _, n: fault(reply) if n >= 2 else None)
    answer, _ = ask(between.url, **acting(policy, span=3, lead=3, threshold=0.0))
    assert between.completions == 2
    assert WORDS[fault] in answer.degraded
    assert answer.finish_reason in {"stop", "length"}
    assert answer.tokens[0].source == "cloud"
    assert answer.tokens[-1].source == "local"


@each("fault", ANY, ids=lambda fault: fault.__name__)
def test_a_stream_that_breaks_leaves_a_finished_answer(proxy, small_text, fault):
    between = proxy(lambda reply, _, n: fault(reply) if n >= 1 else None)
    answer, seconds = ask(between.url, policy="cloud")
    assert answer.degraded
    assert answer.finish_reason in {"stop", "length"}
    assert seconds < READ_TIMEOUT_S + 3
    if fault is not cut_in_the_middle:
        assert answer.text == small_text


def test_a_stream_without_done_keeps_what_was_shown(proxy):
    def drop_the_end(reply, _, n):
        if n:
            reply.body = b"".join(reply.body.splitlines(keepends=True)[:8])

    answer, _ = ask(proxy(drop_the_end).url, policy="cloud")
    assert "cut" in answer.degraded
    assert [token.source for token in answer.tokens[:4]] == ["cloud"] * 4
    assert answer.tokens[-1].source == "local"


@each("body", [b"data: [DONE]\n\n", b": ping\n\ndata: [DONE]\n\n", b"", b"data: [DONE]"], ids=ascii)
def test_an_empty_stream_is_no_answer_the_local_model_answers_and_says_so(proxy, small_text, body):
    def empty(reply, _, n):
        if n:
            reply.body = body

    answer, _ = ask(proxy(empty).url, policy="cloud")
    assert answer.text == small_text
    assert "stream" in answer.degraded


def test_a_cloud_that_has_nothing_to_say_has_answered(proxy):
    def stop(reply, _, n):
        if n:
            reply.body = b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    answer, _ = ask(proxy(stop).url, policy="cloud")
    assert (answer.text, answer.finish_reason, answer.degraded) == ("", "stop", None)


def test_an_error_inside_a_stream_is_read_as_one(proxy):
    def fail_inside(reply, _, n):
        if n:
            first = reply.body.split(b"\n\n")[0]
            reply.body = first + b'\n\ndata: {"error": {"message": "worker died"}}\n\ndata: [DONE]\n\n'

    answer, _ = ask(proxy(fail_inside).url, policy="cloud")
    assert "worker died" in answer.degraded
    assert answer.usage.cloud_tokens == 1


@pytest.mark.parametrize("policy", ["kl", "greedy-exact", "cloud", "paper"])
def test_killing_the_server_in_the_middle_of_an_answer_leaves_a_finished_one(own_stub, policy):
    server = own_stub("--latency-ms", "20")
    shown = 0
    with hybrid.open(
        local="small",
        cloud=server.url,
        **acting(policy, threshold=0.0, span=2, lead=2),
        max_tokens=MAX_TOKENS,
        read_timeout_s=2.0,
    ) as client:
        began = time.monotonic()
        for event in client.stream(QUESTION):
            if isinstance(event, TokenEmitted):
                shown += 1
                if shown == 5:
                    os.kill(server.process.pid, signal.SIGKILL)
        answer = event.answer
    assert answer.finish_reason in {"stop", "length"}
    assert answer.text
    assert answer.degraded or policy == "cloud", "a stream may have been whole in our buffers already"
    assert time.monotonic() - began < READ_TIMEOUT_S + 5


def test_a_server_that_was_never_there_costs_no_time_and_says_so(small_text):
    answer, seconds = ask("http://127.0.0.1:9", policy="kl")
    assert answer.text == small_text
    assert "cannot reach http://127.0.0.1:9" in answer.degraded
    assert seconds < 3


def test_a_name_that_does_not_resolve_is_a_failure_not_a_refusal(small_text):
    answer, _ = ask("http://no-such-host.invalid", policy="kl")
    assert answer.text == small_text
    assert answer.degraded


def test_a_server_that_accepts_and_says_nothing_is_given_up_at_the_deadline(bundled):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer, seconds = ask(f"http://127.0.0.1:{silent.getsockname()[1]}", policy="kl")
    assert "in time" in answer.degraded
    assert READ_TIMEOUT_S <= seconds < READ_TIMEOUT_S + 2
