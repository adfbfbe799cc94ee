"""``hybrid serve`` as it is started: what is refused before anything listens, what is said, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.cli.serve import KEY_ENV, _options, _with_defaults
from hybrid.serve.guard import allowed_host, allowed_origin

CANARY = "sk-canary-77"


def refused(*words, **variables):
    done = CliRunner().invoke(app, ["serve", *words], env={KEY_ENV: "", **variables})
    return done.exit_code, done.stderr


@each("host", ["0.0.0.0", "::", "192.168.1.5", "laptop.lan"])
def test_others_than_this_machine_need_a_key(host):
    code, said = refused("--host", host)
    assert code == 2
    assert KEY_ENV in said
    assert said.count("\n") == 1


def test_a_variable_that_is_named_and_not_set_is_no_key():
    code, said = refused("--key-env", "MY_KEY", MY_KEY="")
    assert (code, said) == (2, "hybrid: --key-env MY_KEY: the variable is not set, so there would be no key\n")


@each(
    ("flag", "named", "meant"),
    [
        ("--allow-host", "laptop.lan:8088", "like laptop.lan\n"),
        ("--allow-host", "http://Laptop.lan:8088/v1", "like laptop.lan\n"),
        ("--allow-host", "[fe80::1]:80", "without scheme, port and path"),
        ("--allow-host", "laptop.lan/", "like laptop.lan\n"),
        ("--allow-host", "", "without scheme, port and path\n"),
        ("--allow-host", "a b", "without scheme, port and path\n"),
        ("--allow-host", "http://[", "without scheme, port and path\n"),
        ("--allow-origin", "http://localhost:3000/", "like http://localhost:3000\n"),
        ("--allow-origin", "localhost:3000", "like http://localhost:3000\n"),
        ("--allow-origin", "HTTP://LocalHost:80", "like http://localhost\n"),
        ("--allow-origin", "https://me@chat.lan:443/x?y#z", "like https://chat.lan\n"),
        ("--allow-origin", "*", "like http://localhost:3000\n"),
        ("--allow-origin", "http://*.lan", "like http://localhost:3000\n"),
        ("--allow-origin", "http://[::1]:80", "like http://[::1]\n"),
        ("--allow-origin", "http://[", "like http://localhost:3000\n"),
        ("--allow-origin", "", "like http://localhost:3000\n"),
    ],
)
def test_a_name_that_no_request_could_have_is_refused_with_the_one_that_was_meant(flag, named, meant):
    code, said = refused(flag, named)
    assert code == 2, said
    assert said.startswith(f"hybrid: {flag} {named}: give ")
    assert meant in said
    assert said.count("\n") == 1


@each(
    ("named", "kept"),
    [("Laptop.lan", "laptop.lan"), ("fe80::1", "fe80::1"), ("[FE80::1]", "fe80::1"), ("10.0.0.5", "10.0.0.5")],
)
def test_a_name_is_kept_as_a_host_header_is_compared_with_it(named, kept):
    assert allowed_host(named) == kept


@each(
    "origin", ["http://localhost:3000", "https://chat.lan", "http://[::1]:81", "null", "app://obsidian.md", "file://"]
)
def test_an_origin_that_browsers_send_is_taken_as_it_is(origin):
    assert allowed_origin(origin) == origin


def test_a_key_is_kept_without_the_spaces_around_it_and_one_that_no_header_holds_is_refused(monkeypatch):
    """A line's end in a secret's file would lock everybody out: headers lose it."""
    monkeypatch.setenv(KEY_ENV, f" {CANARY}\n")
    assert _options("127.0.0.1", 0, KEY_ENV, [], [], shows_texts=False).key.get_secret_value() == CANARY
    code, said = refused("--host", "0.0.0.0", **{KEY_ENV: "  "})
    assert (code, KEY_ENV in said) == (2, True)
    for key in ("schlüssel", "a\nb"):
        code, said = refused(**{KEY_ENV: key})
        assert (code, said.count("\n")) == (2, 1)
        assert "nobody could show this key" in said
        assert key not in said


def test_the_help_tells_the_commands_own_defaults():
    """It said 512 tokens and one question at once, which are those of ``ask``."""
    found = re.sub(r"\s+", " ", CliRunner().invoke(app, ["serve", "--help"]).stdout)
    usual = _with_defaults({})
    assert f"each in a context of its own ({usual['parallel']})." in found
    assert f"0: the rest of the context ({usual['max_tokens']})." in found
    assert usual["learn"] is False
    assert "Learn from what the cloud says of drafts (off)." in found


def test_a_port_that_is_taken_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = refused("--port", str(taken.getsockname()[1]))
    assert code == 2
    assert re.fullmatch(
        r"hybrid: cannot listen on 127.0.0.1:\d+: Address already in use; another --port may be free\n", said
    )


@each(
    ("words", "code"),
    [
        (["--host", "no.such.host.invalid"], 2),
        (["--local", "no-such-model.gguf"], 3),
        (["--policy", "klingon"], 2),
        (["--worth", "2", "--policy", "kl"], 2),
        (["--cloud", "http://gpu:8000"], 2),
    ],
)
def test_what_ask_refuses_is_refused_before_anything_listens(words, code):
    found, said = refused("--port", "0", *words, **{KEY_ENV: "k"})
    assert found == code, said
    assert said.splitlines()[-1].startswith("hybrid: ")
    assert "Traceback" not in said


@pytest.fixture
def started(tmp_path):
    """Start the command in a process of its own; return it, its address, and the file of its standard error."""
    running = []

    def start(*words, **variables):
        errors = tmp_path / f"stderr{len(running)}"
        command = [sys.executable, "-m", "hybrid", "serve", "--port", "0", "--threads", "1", *words]
        with errors.open("w") as told:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=told, text=True, env={**os.environ, **variables}
            )
        running.append(process)
        url = process.stdout.readline().removeprefix("export OPENAI_BASE_URL=").strip().removesuffix("/v1")
        return process, url, errors

    yield start
    for process in running:
        process.kill()
        process.communicate()


def asked(url, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def test_it_answers_and_a_signal_ends_it_with_0(started):
    """The list of models is there at once; the first question waits for the weights."""
    process, url, errors = started("--offline", **{KEY_ENV: CANARY})
    key = {"authorization": f"Bearer {CANARY}"}
    assert asked(f"{url}/v1/models", **key)["data"][0]["id"] == "hybrid"
    question = {"role": "user", "content": "Sort 42 17 canaryprompt."}
    told = asked(f"{url}/v1/chat/completions", {"model": "hybrid", "messages": [question], "max_tokens": 8}, **key)
    assert told["usage"]["completion_tokens"] == 8
    assert process.stdout.readline() == "export OPENAI_API_KEY=$HYBRID_SERVE_KEY\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, errors.read_text()
    said = errors.read_text()
    assert f"hybrid serves {url}/v1, and its monitor {url}/?once=" in said
    assert "tools, response_format and images are refused" in said
    assert CANARY not in said
    assert "canaryprompt" not in said


@pytest.mark.slow
def test_what_it_prints_where_it_listens_on_every_address_can_be_asked(started):
    _, url, _ = started("--offline", "--host", "0.0.0.0", **{KEY_ENV: CANARY})
    assert asked(f"{url}/v1/models", authorization=f"Bearer {CANARY}")["data"]


@pytest.mark.slow
@each("damaged", [b"", b"GGUF" + bytes(100)])
def test_a_model_that_cannot_be_opened_ends_it_with_its_sentence(started, tmp_path, damaged):
    (tmp_path / "x.gguf").write_bytes(damaged)
    process, _, errors = started("--local", str(tmp_path / "x.gguf"), "--offline")
    assert process.wait(20) == 3
    assert errors.read_text().splitlines()[-1].startswith("hybrid: ")
    assert "Traceback" not in errors.read_text()
