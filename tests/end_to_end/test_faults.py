"""Every fault of a real server, over real HTTP: the answer is finished, says why, and is there within the deadline."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import hybrid
from hybrid.errors import (
    AccessDenied,
    MissingCapability,
    ModelNotFound,
    NotAnApi,
    TlsFailure,
    UsageError,
    VocabularyMismatch,
)
from hybrid.run import Shown

pytestmark = pytest.mark.slow

# Small was never asked for downwards and sorts upwards: the two part at the first token.
QUESTION = "Sort downwards: 42 17 99 23 68."
MAX_TOKENS = 48
READ_TIMEOUT_S = 2.0


def first_choice(reply):
    body = reply.json()
    return body, body["choices"][0]


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


def ask(url, **choices):
    with hybrid.open(
        cloud=url,
        max_tokens=MAX_TOKENS,
        first_byte_timeout_s=READ_TIMEOUT_S,
        read_timeout_s=READ_TIMEOUT_S,
        connect_timeout_s=1.0,
        retries=0,  # what is asked again is tested in test_fault_matrix.py
        **choices,
    ) as client:
        began = time.monotonic()
        answer = client.generate(QUESTION)
        return answer, time.monotonic() - began


@pytest.fixture(scope="module")
def small_text(bundled):
    with hybrid.open(policy="local", max_tokens=MAX_TOKENS) as client:
        return client.generate(QUESTION).text


@pytest.mark.parametrize("fault", SCORING + ANY, ids=lambda fault: fault.__name__)
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


@pytest.mark.parametrize("policy", ["greedy-exact", "kl", "paper"])
@pytest.mark.parametrize("fault", [status_500, cut_in_the_middle], ids=lambda fault: fault.__name__)
def test_a_fault_after_some_text_is_survived_too(proxy, policy, fault):
    between = proxy(lambda reply, _, n: fault(reply) if n >= 2 else None)
    answer, _ = ask(between.url, policy=policy, span=3, lead=3, threshold=0.0)
    assert between.completions == 2
    assert WORDS[fault] in answer.degraded
    assert answer.finish_reason in {"stop", "length"}
    assert answer.tokens[0].source == "cloud"
    assert answer.tokens[-1].source == "local"


@pytest.mark.parametrize("fault", ANY, ids=lambda fault: fault.__name__)
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


@pytest.mark.parametrize("body", [b"data: [DONE]\n\n", b": ping\n\ndata: [DONE]\n\n", b"", b"data: [DONE]"], ids=ascii)
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
        cloud=server.url, policy=policy, threshold=0.0, span=2, lead=2, max_tokens=MAX_TOKENS, read_timeout_s=2.0
    ) as client:
        began = time.monotonic()
        for event in client.stream(QUESTION):
            if isinstance(event, Shown):
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


# ---- refusals: settings that will never work, before any text ----------------------------------------------------


def spoil_all(status, body, content_type="application/json"):
    def spoil(reply, *_):
        reply.status, reply.body, reply.content_type = status, body, content_type

    return spoil


def lying_tokenizer(reply, path, _):
    if path == "/tokenize":
        reply.replace({"tokens": [1, 2, 3]})


def lying_pieces(reply, _, n):
    if n:
        body, choice = first_choice(reply)
        for row in choice["prompt_logprobs"][1:]:
            for entry in row.values():
                entry["decoded_token"] = "zebra"
        reply.replace(body)


def no_prompt_logprobs(reply, _, n):
    if n:
        body, choice = first_choice(reply)
        del choice["prompt_logprobs"]
        reply.replace(body)


def test_a_stream_whose_text_is_not_what_its_ids_mean_here_is_refused(proxy):
    def lie(reply, _, n):
        if n:
            reply.body = reply.body.replace(b'"text": "', b'"text": "zebra')

    with pytest.raises(VocabularyMismatch, match="zebra"):
        ask(proxy(lie).url, policy="cloud")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (spoil_all(401, b'{"error": {"message": "no key"}}'), AccessDenied),
        (spoil_all(403, b'{"error": {"message": "not yours"}}'), AccessDenied),
        (spoil_all(200, b"<html>welcome</html>", "text/html"), NotAnApi),
        (spoil_all(404, b"<html>nothing here</html>", "text/html"), NotAnApi),
        (spoil_all(302, b""), NotAnApi),
        (lying_tokenizer, VocabularyMismatch),
        (lying_pieces, VocabularyMismatch),
        (no_prompt_logprobs, MissingCapability),
    ],
    ids=["401", "403", "page", "404 page", "redirect", "tokenizer", "pieces", "cannot score"],
)
def test_what_will_never_work_is_refused_before_any_text(proxy, spoil, error):
    with pytest.raises(error):
        ask(proxy(spoil).url, policy="kl")


def test_an_unknown_model_is_refused(stub):
    with pytest.raises(ModelNotFound, match=r"gpt-9.*large"):
        ask(stub.url, cloud_model="gpt-9")


def test_more_log_probabilities_than_the_server_gives_is_a_missing_capability(stub):
    with pytest.raises(MissingCapability, match="max allowed: 20"):
        ask(stub.url, cloud_top_k=50)


def test_a_key_is_sent_and_never_told(own_stub, monkeypatch):
    server = own_stub("--api-key", "canary-secret")
    with pytest.raises(AccessDenied) as refused:
        ask(server.url)
    monkeypatch.setenv("MY_KEY", "canary-secret")
    answer, _ = ask(server.url, api_key_env="MY_KEY", policy="greedy-exact")
    assert answer.degraded is None
    monkeypatch.setenv("MY_KEY", "canary-wrong")
    with pytest.raises(AccessDenied) as wrong:
        ask(server.url, api_key_env="MY_KEY")
    assert "canary" not in f"{refused.value!r} {wrong.value!r}"


def test_a_key_that_no_header_can_carry_is_refused_without_being_told(stub, monkeypatch):
    for key in ("canary\nsecret", "canary secret", "canary-\u00fc", "canary\t!"):
        monkeypatch.setenv("MY_KEY", key)
        with pytest.raises(UsageError) as refused:
            ask(stub.url, api_key_env="MY_KEY")
        assert "canary" not in str(refused.value)
    monkeypatch.setenv("MY_KEY", "trailing-newline\n")
    assert ask(stub.url, api_key_env="MY_KEY")[0].degraded is None


def test_a_server_that_echoes_the_key_does_not_make_us_tell_it(proxy, monkeypatch):
    monkeypatch.setenv("MY_KEY", "canary-secret")
    refuse = spoil_all(401, b'{"error": {"message": "Incorrect API key provided: canary-secret"}}')
    with pytest.raises(AccessDenied) as refused:
        ask(proxy(refuse).url, api_key_env="MY_KEY")
    assert "canary" not in str(refused.value)
    assert "[the key]" in str(refused.value)


def test_a_password_in_the_address_is_not_told(small_text):
    answer, _ = ask("http://user:hunter2@127.0.0.1:9", policy="kl")
    assert "127.0.0.1:9" in answer.degraded
    assert "hunter2" not in answer.degraded


def test_a_servers_words_are_shown_as_one_line_that_a_terminal_can_take(proxy):
    said = b'{"error": {"message": "bad\\u001b[31m\\ud800\\nday"}}'
    between = proxy(lambda reply, _, n: spoil_all(500, said)(reply) if n else None)
    answer, _ = ask(between.url, policy="kl")
    assert answer.degraded.isprintable()
    assert "bad" in answer.degraded
    answer.degraded.encode()


def test_a_certificate_that_cannot_be_verified_is_refused(tmp_path, bundled):
    """A self-signed server: TLS done by the standard library, the certificate made by openssl."""
    import shutil
    import socket
    import ssl
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so no certificate can be made")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            try:
                connection, _ = listener.accept()
                with connection, context.wrap_socket(connection, server_side=True):
                    pass
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(TlsFailure, match="certificate"):
            ask(f"https://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(5)
