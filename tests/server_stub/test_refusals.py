"""Whatever is wrong is told in OpenAI's shape, with all four keys."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from cases import each

from server_stub.app import App, Served
from server_stub.slots import Slots

pytestmark = pytest.mark.slow
ERROR_KEYS = {"message", "type", "param", "code"}


@each(
    "fields",
    [
        {"prompt": ""},
        {"max_tokens": -1},
        {"temperature": -1},
        {"top_p": 0},
        {"logprobs": 21},
        {"prompt_logprobs": 21},
        {"logit_bias": {"x": 1}},
        {"stream": True, "prompt_logprobs": 1},
    ],
    ids=str,
)
def test_a_bad_field_is_named(server, fields):
    reply = server.client.post("/v1/completions", json={"prompt": [1]} | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], set(error)) == (400, 400, ERROR_KEYS)
    assert error["param"] == list(fields)[-1]


@each(("num_prompt", "num_written"), [(1024, 1), (5000, 1), (1, 1025)])
def test_what_does_not_fit_the_context_is_refused(server, num_prompt, num_written):
    reply = server.client.post("/v1/completions", json={"prompt": [5] * num_prompt, "max_tokens": num_written})
    assert (reply.status_code, set(reply.json()["error"])) == (400, ERROR_KEYS)


def test_what_just_fits_the_context_is_answered(strict, no_end):
    body = {"prompt": [5] * 60, "max_tokens": 4, "logit_bias": no_end}
    reply = strict.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {strict.key}"})
    assert reply.json()["usage"]["total_tokens"] == 64


@each("path", ["/v1/completions", "/tokenize"])
def test_another_model_is_not_found(server, path):
    reply = server.client.post(path, json={"prompt": "x", "model": "large"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"], set(error)) == (404, 404, "model", ERROR_KEYS)
    assert server.client.post(path, json={"prompt": "x", "model": "small"}).status_code == 200


@each("raw", [b"", b"[]", b"{}", b'{"prompt": 5}', b"\xff", b"[" * 100_000])
@each("path", ["/v1/completions", "/tokenize"])
def test_a_body_that_cannot_be_read_is_refused(server, path, raw):
    reply = server.client.post(path, content=raw)
    assert (reply.status_code, set(reply.json()["error"])) == (400, ERROR_KEYS)


def test_a_body_without_end_is_refused(server):
    reply = server.client.post("/v1/completions", content=b" " * (16 * 1024 * 1024 + 1))
    assert (reply.status_code, set(reply.json()["error"])) == (413, ERROR_KEYS)


@each("authorization", [None, "Bearer wrong", "Bearer {key}x", "Basic {key}"])
def test_a_wrong_key_is_refused_and_not_repeated(strict, authorization):
    headers = {} if authorization is None else {"authorization": authorization.format(key=strict.key)}
    for path, body in [("/v1/completions", {"prompt": [1]}), ("/tokenize", {"prompt": "x"})]:
        reply = strict.client.post(path, json=body, headers=headers)
        assert (reply.status_code, set(reply.json()["error"])) == (401, ERROR_KEYS)
        assert strict.key not in reply.text
    for path in ("/v1/models", "/v1/charges"):
        assert strict.client.get(path, headers=headers).status_code == 401


def test_the_limit_on_log_probabilities_is_the_servers(strict):
    def status(k: int) -> int:
        body = {"prompt": [5, 6], "max_tokens": 1, "prompt_logprobs": k}
        headers = {"authorization": f"Bearer {strict.key}"}
        return strict.client.post("/v1/completions", json=body, headers=headers).status_code

    assert (status(3), status(4)) == (200, 400)


@each(("method", "path", "status"), [("GET", "/v2/chat", 404), ("GET", "/v1/completions", 405)])
def test_a_route_that_is_not_there_is_told_as_fastapi_does(server, method, path, status):
    reply = server.client.request(method, path)
    assert (reply.status_code, list(reply.json())) == (status, ["detail"])


def test_our_own_fault_is_told_in_the_same_shape(scripted):
    """A vocabulary that breaks stands for any defect of ours."""
    vocabulary = scripted()
    vocabulary.tokenize = lambda *_, **__: 1 / 0
    app = App(Served("w", vocabulary, 100), Slots([])).routes()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post("/tokenize", json={"prompt": "x"})

    reply = asyncio.run(post())
    assert (reply.status_code, set(reply.json()["error"])) == (500, ERROR_KEYS)


def test_a_parameter_that_is_null_takes_its_default(server):
    nulls = dict.fromkeys(("max_tokens", "temperature", "top_p", "top_k", "stream", "echo", "stop", "seed", "logprobs"))
    reply = server.client.post("/v1/completions", json={"prompt": [5], "logit_bias": {"0": -100, "2": -100}} | nulls)
    assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, 16)
