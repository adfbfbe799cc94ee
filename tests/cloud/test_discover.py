"""What stands behind an address: by what it answers, never by its name; and one sentence for everything that is wrong.

Routes answer as the families do; the wire is the real one over a transport in memory.
"""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from cases import each

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.discover import DIALECTS, discover, read_models, render_chat
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.errors import (
    AccessDenied,
    BadReply,
    HybridError,
    ModelNotFound,
    NotAnApi,
    Unreachable,
    UsageError,
    VocabularyMismatch,
)
from hybrid.types import Message

PROBE = ("a b", (1, 2))
MODELS = {"data": [{"id": "m", "max_model_len": 512}]}
WEB = httpx.Response(200, html="<html><body>welcome</body></html>")
NONE = httpx.Response(404, json={"detail": "Not Found"})
REFUSED = httpx.Response(400, json={"error": {"message": "prompt: Field required"}})
PROPS = {"default_generation_settings": {"n_ctx": 256}}
INFO = {"model_path": "m", "is_generation": True}


def over(routes, otherwise, use):
    """Use a wire to a server of these routes; what is no Response is JSON. Return what came of it, and what was asked.

    An error is raised in the place of an answer.
    """
    asked = []

    def handle(request):
        asked.append((request.method, request.url.path, json.loads(request.content or b"null")))
        answer = routes.get(request.url.path, otherwise)
        if isinstance(answer, Exception):
            raise answer
        answer = answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)
        return httpx.Response(answer.status_code, headers=answer.headers, content=unread(answer.content))

    async def unread(content):
        yield content

    async def run():
        wire = Wire("http://there", None, Timeouts())
        await wire._client.aclose()
        wire._client = httpx.AsyncClient(base_url="http://there", transport=httpx.MockTransport(handle))
        try:
            return await use(wire)
        finally:
            await wire.aclose()

    return asyncio.run(run()), asked


def look(routes, *, model="", wanted=None, otherwise=NONE, connect=False):
    """Look at a server of these routes, or connect to it."""

    async def use(wire):
        if not connect:
            return await discover(wire, DialectConfig(model), wanted, PROBE)
        endpoint = Endpoint(wire)
        await endpoint.connect(*PROBE)
        return endpoint.knowledge.dialect

    dialect, asked = over(routes, otherwise, use)
    return dialect, dialect.can, asked


def rendered(routes, turns, dialect="vllm"):
    """Have a server of these routes, spoken to in a dialect, render a conversation."""

    async def use(wire):
        return await render_chat(wire, DIALECTS[dialect].build(DialectConfig("m")), turns)

    return over(routes, NONE, use)[0]


VLLM = {"/v1/models": MODELS, "/version": {"version": "0.33.0"}, "/tokenize": {"tokens": [1, 2]}}
SERVERS = {
    "vllm": VLLM,
    "sglang": {"/v1/models": MODELS, "/get_model_info": INFO},
    "llama-server": {"/v1/models": MODELS, "/props": PROPS, "/tokenize": {"tokens": [0, 1, 2]}},
    "llama-cpp-python": {"/v1/models": MODELS, "/extras/tokenize": {"tokens": [0, 1, 2]}},
    "ollama": {"/api/version": {"version": "0.33.0"}, "/api/tags": {"models": [{"model": "m"}]}},
    "openai-completions": {"/v1/models": MODELS, "/v1/completions": REFUSED},
    "openai-chat": {"/v1/models": MODELS, "/v1/chat/completions": REFUSED},
}


@each("name", SERVERS)
def test_a_family_is_known_by_its_routes(name):
    dialect, can, _ = look(SERVERS[name])
    assert (dialect.name, can.dialect, can.model) == (name, name, "m")
    assert dialect.setup.model == "m"


def test_no_name_is_believed():
    """A proxy may call its model, its owner and its server what it likes."""
    called = {"data": [{"id": "vllm/sglang-llama-server", "owned_by": "vllm"}]}
    assert look({"/v1/models": called, "/v1/chat/completions": REFUSED})[0].name == "openai-chat"


def test_the_more_a_family_can_do_the_earlier_it_is_looked_for():
    assert look(VLLM | {"/v1/completions": REFUSED, "/v1/chat/completions": REFUSED})[0].name == "vllm"
    assert look(VLLM | {"/props": PROPS})[0].name == "llama-server"


def test_looking_costs_nothing():
    """No route that generates is asked for more than the refusal of an empty question."""
    _, _, asked = look(SERVERS["openai-chat"])
    assert {json.dumps(body) for method, path, body in asked if "completions" in path} == {"{}"}


def test_another_answer_on_a_familys_route_is_another_family():
    assert look(SERVERS["openai-chat"] | {"/version": {"name": "other"}, "/props": [1]})[0].name == "openai-chat"


@each("name", DIALECTS)
def test_a_dialect_that_is_named_is_not_looked_for(name):
    dialect, can, asked = look(VLLM | {"/api/tags": MODELS}, wanted=name)
    assert (dialect.name, can.model) == (name, "m")
    assert not {"/version", "/props", "/get_model_info", "/v1/completions"} & {path for _, path, _ in asked}


def test_a_dialect_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="no dialect is called 'nonsense'; there are llama-server, sglang, vllm"):
        look(VLLM, wanted="nonsense")


# ---- models and vocabularies ---------------------------------------------------------------------------------------


@each(
    ("reply", "models"),
    [
        (MODELS, {"m": 512}),
        ({"data": [{"id": "m"}, {"id": "n"}]}, {"m": None, "n": None}),
        ({"models": [{"model": "m:latest", "name": "m:latest"}]}, {"m:latest": None}),
        ([{"id": "m", "context_length": 4096}], {"m": 4096}),
        ({"data": []}, {}),
    ],
)
def test_lists_of_models_are_read_as_families_have_them(reply, models):
    assert read_models(reply) == models


@each("reply", [{}, {"data": None}, {"data": [1]}, {"data": [{}]}, {"data": [{"id": "m", "max_model_len": "long"}]}])
def test_a_list_of_another_shape_is_refused(reply):
    with pytest.raises(BadReply):
        read_models(reply)


def test_the_model_is_the_only_one_or_the_one_that_is_named():
    two = VLLM | {"/v1/models": {"data": [{"id": "m"}, {"id": "n"}]}}
    assert look(two, model="n")[1].model == "n"
    with pytest.raises(ModelNotFound, match="serves 2 models: choose one with --cloud-model"):
        look(two)
    with pytest.raises(ModelNotFound, match="does not serve 'o'; it serves m, n"):
        look(two, model="o")
    with pytest.raises(ModelNotFound, match="it lists none"):
        look(VLLM | {"/v1/models": {"data": []}})
    assert look({**VLLM, "/v1/models": NONE}, model="o")[1].model == "o", "without a list the user is believed"


@each(
    ("routes", "context"),
    [(VLLM, 512), (SERVERS["llama-server"] | {"/v1/models": {"data": [{"id": "m"}]}}, 256), (SERVERS["ollama"], None)],
)
def test_how_long_a_text_may_be_is_what_the_list_or_the_familys_own_route_tells(routes, context):
    assert look(routes)[1].max_context == context


@each(
    ("tokens", "same"),
    [([1, 2], True), ([0, 1, 2], True), ([1, 3], False), ([1], False), ([0, 0, 1, 2], False), ([2, 1], False)],
)
def test_vocabularies_are_the_same_if_they_split_the_probe_alike_but_for_an_opening_token(tokens, same):
    assert look(VLLM | {"/tokenize": {"tokens": tokens}})[1].same_words is same


def test_an_endpoint_of_another_vocabulary_is_not_connected_to():
    """Its token ids would be taken for ours, and the text would read well."""
    assert look(VLLM, connect=True)[1].same_words is True
    with pytest.raises(VocabularyMismatch, match="m at http://there and the local model do not share a vocabulary"):
        look(VLLM | {"/tokenize": {"tokens": [1, 3]}}, connect=True)


def test_without_a_tokenizer_vocabularies_cannot_be_compared():
    assert look(VLLM | {"/tokenize": NONE})[1].same_words is None
    assert look(SERVERS["openai-chat"])[1].same_words is None


def test_a_tokenizer_that_answers_without_tokens_is_refused():
    with pytest.raises(BadReply, match="gave no tokens"):
        look(VLLM | {"/tokenize": {"count": 2}})


# ---- what is wrong with an address ---------------------------------------------------------------------------------

DENIED = httpx.Response(401, json={"error": {"message": "bad key"}})
MOVED = httpx.Response(308, headers={"location": "http://there/v1"})
PLAIN = httpx.Response(405, json={"detail": "Method Not Allowed"})


@each(
    ("routes", "otherwise", "error", "words"),
    [
        ({}, WEB, NotAnApi, "a web page"),
        ({}, MOVED, NotAnApi, "a redirect: give the final address"),
        ({}, NONE, NotAnApi, "answered 404"),
        ({}, DENIED, AccessDenied, "--api-key-env"),
        ({}, httpx.Response(503), Unreachable, "answered 503"),
        ({}, httpx.Response(200, text="ok"), HybridError, "http://there|model list"),
        ({}, PLAIN, NotAnApi, "answered 405"),
        ({"/v1/models": MODELS}, NONE, NotAnApi, "speaks no dialect known here"),
        ({"/v1/models": MODELS}, PLAIN, NotAnApi, "speaks no dialect known here"),
        ({"/v1/models": MODELS}, DENIED, AccessDenied, "bad key"),
        ({"/v1/models": DENIED}, NONE, AccessDenied, "bad key"),
    ],
)
def test_what_is_wrong_with_an_address_is_one_sentence(routes, otherwise, error, words):
    with pytest.raises(error, match=words) as found:
        look(routes, otherwise=otherwise)
    assert "\n" not in str(found.value)


def test_a_web_server_that_takes_no_post_is_no_api():
    """As Python's own does: 404 for what it has not, 501 for what it never takes."""
    page = "<html><body>Error response</body></html>"
    posted = [
        spec.detect_route[0] for spec in DIALECTS.values() if spec.detect_route and spec.detect_route[1] is not None
    ]
    posts = dict.fromkeys(posted, httpx.Response(501, text=page))
    with pytest.raises(NotAnApi, match="answered 404: a web page"):
        look(posts, otherwise=httpx.Response(404, text=page))


@each(("otherwise", "words"), [(WEB, "a web page"), (MOVED, "a redirect"), (NONE, "answered 404")], ids=str)
def test_naming_the_dialect_hides_nothing_of_it(otherwise, words):
    """It used to say that 0 models are served there."""
    with pytest.raises(NotAnApi, match=f"--cloud-model.*{words}"):
        look({}, wanted="vllm", otherwise=otherwise)


def test_a_gateway_that_denies_every_route_it_does_not_know_is_recognised_by_those_it_knows():
    """As API gateways of clouds do, to a key that is good."""
    assert look(SERVERS["openai-chat"], otherwise=httpx.Response(403))[0].name == "openai-chat"
    assert look(SERVERS["vllm"], otherwise=httpx.Response(403))[0].name == "vllm"


# ---- its chat template ---------------------------------------------------------------------------------------------


def test_an_endpoint_is_asked_where_its_dialect_has_a_route_and_a_failure_claims_nothing():
    turns = (Message("user", "Why?"),)
    ids = {"tokens": [4, 5]}
    assert rendered(VLLM | {"/tokenize": ids}, turns) == (4, 5)
    for broken in (NONE, REFUSED, {"tokens": "a"}, {}, httpx.ConnectError("gone")):
        assert rendered(VLLM | {"/tokenize": broken}, turns) is None
    assert rendered({"/tokenize": ids}, turns, dialect="sglang") is None
    told = rendered({"/apply-template": {"prompt": "p"}, "/tokenize": ids}, turns, dialect="llama-server")
    assert told == (4, 5)
    assert rendered({"/apply-template": NONE, "/tokenize": ids}, turns, dialect="llama-server") is None
