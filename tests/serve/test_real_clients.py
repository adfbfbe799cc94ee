"""Real clients of OpenAI's API against ``hybrid serve``, in environments of their own; skipped without them.

``client_calls.py`` holds what they do. The cloud is the bundled one, which has no chat route for relays; then a
scripted service (``canned_chat``) has one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from canned_chat import GREETING, canned_chat
from cases import each_of
from server_environments import Unavailable, python_of

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(240)]

CALLS = Path(__file__).with_name("client_calls.py")
ANSWER = "Answer: 133."
# By whether the call's answer is text, is an object that a relay fills, or is refused.
TEXTS = {
    "chat", "stream", "stream_with_usage", "stream_helper", "litellm_chat", "litellm_stream", "langchain_chat",
    "langchain_stream", "pydantic_ai_chat", "pydantic_ai_stream", "llm_chat", "llm_stream",
}  # fmt: skip
OBJECTS = {
    "parse", "tools", "langchain_structured", "instructor_tools", "instructor_schema", "pydantic_ai_output_type",
}  # fmt: skip
REFUSED = {"embeddings": 404, "responses": 404, "agents_responses": 404, "unknown_model": 404}


@pytest.fixture(scope="module", params=["openai2", "openai3"])
def python(request):
    try:
        return python_of(request.param)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Start ``hybrid serve`` with variables; return its URL. Standard error must hold no traceback at the end."""
    running = []

    def start(*words, **variables):
        errors = tmp_path_factory.mktemp("serve") / "stderr"
        command = [sys.executable, "-m", "hybrid", "serve", "--port", "0", "--threads", "1", *words]
        with errors.open("w") as told:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=told, text=True, env={**os.environ, **variables}
            )
        running.append((process, errors))
        return process.stdout.readline().removeprefix("export OPENAI_BASE_URL=").strip().removesuffix("/v1")

    yield start
    for process, errors in running:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stdout.close()
        assert "Traceback" not in errors.read_text()


@pytest.fixture(scope="module")
def alone(serve):
    return serve()


def made(python, url, *names, **variables):
    """Return what came of calls, by name."""
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "none", "LLM_USER_PATH": os.devnull}
    done = subprocess.run(
        [python, CALLS, url, *names], capture_output=True, text=True, check=True, env=os.environ | quiet | variables
    )
    return json.loads(done.stdout.splitlines()[-1])


def metric(url, name):
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        return float(re.search(rf"^{re.escape(name)} (\S+)$", reply.read().decode(), re.MULTILINE)[1])


def test_every_client_gets_its_answers_and_refusals_that_it_can_read(python, alone):
    came = made(python, alone)
    assert came["models"][0] == "hybrid"
    assert len(came) > 18
    for name, found in each_of(came.items()):
        if name in TEXTS:
            assert ANSWER in found["text"], name
        elif name in OBJECTS or name == "tools_answered":
            assert found.get("status") == 400, (name, found)
            assert "can honour it" in found["message"], name
        elif name in REFUSED:
            assert found["status"] == REFUSED[name], name
    assert "/v1/chat/completions" in came["responses"]["message"]
    assert [ANSWER in each["text"] for each in came["asynchronous"]] == [True] * 3
    assert came["unknown_model"]["raised"] == "NotFoundError"
    assert came["tools"]["raised"] == "BadRequestError"
    usage = came["stream_with_usage"]
    assert (usage["cost"], usage["written"]) == (0, usage["tokens"])
    assert came["legacy_completion"]["tokens"] <= 8
    assert came["left_early"] is True
    agents = came.get("agents_chat")
    assert agents is None or agents["text"]


def test_who_left_early_leaves_no_context_taken(python, alone):
    """Whether the short answer was over by then is chance; ``test_load.py`` has those that are not."""
    made(python, alone, "left_early", "models")
    assert metric(alone, "hybrid_contexts_busy") == 0


def test_a_wrong_key_is_each_clients_own_error(python, serve):
    url = serve(HYBRID_SERVE_KEY="right")
    wrong = made(python, url, "chat", "models", CALLS_KEY="wrong")
    assert {name: found["raised"] for name, found in wrong.items()} == dict.fromkeys(wrong, "AuthenticationError")
    assert ANSWER in made(python, url, "chat", CALLS_KEY="right")["chat"]["text"]


def test_what_is_relayed_is_parsed_by_every_client(python, serve):
    with canned_chat() as cloud:
        url = serve(HYBRID_RELAY_URL=cloud.url, HYBRID_RELAY_MODEL="canned", HYBRID_RELAY_PRICE="free")
        came = made(python, url, *made_by(python, OBJECTS | {"tools_answered"}))
        assert came["tools_answered"]["text"] == GREETING
        for name in each_of(OBJECTS & came.keys(), least=0):
            assert came[name] in ({"name": "Ann", "age": 7}, {"a": 7, "b": 7}), (name, came[name])
        assert {body["model"] for *_, body in cloud.requests if body} == {"canned"}
        agents = [headers.get("user-agent", "") for _, _, headers, _ in cloud.requests]
        assert not any("openai" in agent.lower() for agent in agents)


def test_no_money_is_said_once_and_asked_once(python, serve, tmp_path):
    with canned_chat() as cloud:
        caps = {"HYBRID_RELAY_PRICE": "1/0.1/4", "HYBRID_CAP": "0.0000001", "HYBRID_LEDGER": str(tmp_path / "l.sqlite")}
        url = serve(HYBRID_RELAY_URL=cloud.url, HYBRID_RELAY_MODEL="canned", **caps)
        found = made(python, url, "tools")["tools"]
        assert (found["status"], metric(url, "hybrid_answers_begun_total")) == (402, 1)
        assert metric(url, "hybrid_relays_total") == 0, "no request left"
        assert not [body for *_, body in cloud.requests if body]


def test_a_full_queue_is_asked_again_until_there_is_room(python, serve):
    url = serve("--parallel", "1", HYBRID_MAX_QUEUED="1", HYBRID_OFFLINE="true")
    once = made(python, url, "asynchronous", CALLS_RETRIES="0")["asynchronous"]
    assert once["status"] == 503, once
    came = made(python, url, "asynchronous")["asynchronous"]
    assert isinstance(came, list), came
    assert all(each["text"] for each in came)


def made_by(python, names):
    """Return those of the calls that an environment can make."""
    done = subprocess.run([python, CALLS, "--list"], capture_output=True, text=True, check=True)
    return sorted(names & set(json.loads(done.stdout)))
