"""``hybrid serve`` behind LiteLLM's proxy: whoever asks the gateway is answered, as far as it passes things on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from kept_servers import serving_kept
from server_environments import Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(900)]

KEY = "sk-of-the-gateway"
SAID = [{"role": "user", "content": "What is 47 + 86?"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A proxy whose models are ours: one through each of its two drivers for such servers."""
    folder = tmp_path_factory.mktemp("gateway")
    process = subprocess.Popen(
        [sys.executable, "-m", "hybrid", "serve", "--port", "0", "--threads", "1"], stdout=subprocess.PIPE, text=True
    )
    url = process.stdout.readline().removeprefix("export OPENAI_BASE_URL=").strip()
    models = [
        {
            "model_name": f"{driver} {model}",
            "litellm_params": {"model": f"{driver}/{model}", "api_base": url, "api_key": "none"},
        }
        for driver in ("openai", "hosted_vllm")
        for model in ("hybrid", "hybrid:local", "nothing")
    ]
    models.append(models[0] | {"model_name": "large"})  # what is asked to see whether it is there
    kept = {"model_list": models, "general_settings": {"master_key": KEY}}
    (folder / "config.yaml").write_text(json.dumps(kept))
    try:
        with serving_kept("litellm", folder / "config.yaml", folder / "log.txt", key=KEY) as server:
            yield server.url
    except Unavailable as why:
        pytest.skip(str(why))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stdout.close()


def asked(gateway, **fields):
    """Return the status and the body of an answer through the gateway."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    body = json.dumps({"messages": SAID, **fields}).encode()
    request = urllib.request.Request(f"{gateway}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("driver", ["openai", "hosted_vllm"])
@pytest.mark.parametrize("model", ["hybrid", "hybrid:local"])
def test_an_answer_comes_through_whole_and_streamed(gateway, driver, model):
    status, whole = asked(gateway, model=f"{driver} {model}")
    assert status == 200, whole
    text = json.loads(whole)["choices"][0]["message"]["content"]
    status, raw = asked(gateway, model=f"{driver} {model}", stream=True, stream_options={"include_usage": True})
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    streamed = "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"])
    assert (status, streamed) == (200, text)
    assert "Answer: 133." in text or model == "hybrid:local"
    assert [each["usage"]["completion_tokens"] for each in events if each.get("usage")]


@pytest.mark.parametrize("driver", ["openai", "hosted_vllm"])
def test_what_is_our_own_comes_through(gateway, driver):
    _, whole = asked(gateway, model=f"{driver} hybrid", logprobs=True, top_logprobs=2)
    found = json.loads(whole)
    assert found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert found["hybrid"]["mode"] == "hybrid"
    assert found["usage"]["hybrid"]["local_tokens"] + found["usage"]["hybrid"]["cloud_tokens"] > 0
    assert found["usage"]["cost"] == 0


@pytest.mark.parametrize("driver", ["openai", "hosted_vllm"])
def test_a_refusal_keeps_its_status_and_its_sentence(gateway, driver):
    status, said = asked(gateway, model=f"{driver} nothing")
    assert status == 404
    assert "there is no model called" in said
    status, said = asked(gateway, model=f"{driver} hybrid", response_format={"type": "json_object"})
    assert status == 400
    assert "can honour it" in said
