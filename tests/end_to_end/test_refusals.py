"""Settings that will never work are refused over real HTTP before any text; what is secret is never told."""

from __future__ import annotations

import threading

import pytest
from cases import each
from short_patience import ask, first_choice

from hybrid.errors import (
    AccessDenied,
    MissingCapability,
    ModelNotFound,
    NotAnApi,
    TlsFailure,
    UsageError,
    VocabularyMismatch,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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


@each(
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
