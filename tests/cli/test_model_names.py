"""A local model's name is the same in every command, and one that no model has ends each of them before it begins."""

from __future__ import annotations

import json

import pytest
from cases import each
from gguf_mutants import Gguf
from model_trees import split_model, write
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.errors import EngineError, UsageError
from hybrid.settings.names import MODELS

QUESTION, SMALL = "What is 47 + 86?", MODELS / "small.gguf"
NOWHERE = "http://127.0.0.1:9"  # where nobody listens
UNKNOWN = "there is no model none:1b: no such file, and none of this name in "


@pytest.fixture
def kept(home):
    """The small model, as Ollama, Hugging Face's cache and LM Studio keep it; and a model with an adapter."""
    home.pull("registry.ollama.ai/library/tiny/1b", raw := SMALL.read_bytes())
    home.download("Some/Body-GGUF", "body-F16.gguf", content=raw)
    write(home.lm_studio / "Pub/Lish-GGUF/lish-F16.gguf", raw)
    layers = [{"mediaType": "application/vnd.ollama.image.adapter", "digest": f"sha256:{'0' * 64}"}]
    home.pull("registry.ollama.ai/library/adapted/latest", raw, layers)
    write(home.path.parent / "questions.jsonl", json.dumps(QUESTION).encode())
    return home


def invoke(*args):
    return CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "200"})


def test_a_named_model_answers_as_its_file_does(kept):
    texts = set()
    for name in ("tiny:1b", "Some/Body-GGUF:f16", "Pub/Lish-GGUF", SMALL):
        done = invoke("ask", QUESTION, "--local", name, "--policy", "local", "--max-tokens", 4, "--json")
        assert done.exit_code == 0, done.stderr
        texts.add(json.loads(done.stdout)["text"])
    assert len(texts) == 1
    with hybrid.open(local="tiny:1b", policy="local") as client:
        assert {client.generate(QUESTION, max_tokens=4).text} == texts


@pytest.mark.slow
def test_every_command_takes_the_name(kept):
    priced = invoke("price", QUESTION, "--local", "tiny:1b", "--price", "1/0.1/4", "--json")
    assert (priced.exit_code, json.loads(priced.stdout)["prompt_tokens"]) == (
        0, json.loads(invoke("price", QUESTION, "--price", "1/0.1/4", "--json").stdout)["prompt_tokens"],
    )  # fmt: skip
    done = invoke("batch", "questions.jsonl", "out.jsonl", "--local", "Pub/Lish-GGUF", "--policy", "local")
    assert done.exit_code == 0, done.stderr
    assert (kept.path.parent / "out.jsonl").exists()
    graded = invoke("models", "eval", "Some/Body-GGUF", "--n", 1, "--json")
    assert json.loads(graded.stdout)["model"] == "Some/Body-GGUF"


@each(
    ("command", "at_once"),
    [
        (("ask", QUESTION, "--policy", "local"), True),
        (("ask", QUESTION, "--cloud", NOWHERE), True),
        (("batch", "questions.jsonl", "none.jsonl", "--cloud", NOWHERE, "--policy", "kl"), True),
        (("price", QUESTION, "--price", "1/0.1/4"), True),
        (("probe", NOWHERE), True),
        (("calibrate", "--cloud", NOWHERE, "--cap", "0.1", "--price", "1/0.1/4"), True),
        (("models", "eval"), False),
    ],
)
def test_a_name_that_no_model_has_ends_every_command_before_it_begins(kept, command, at_once):
    """Nothing is sent, and no file begun; a model that is there and cannot be used is exit 3."""
    flag = ["--local"] if at_once else []
    done = invoke(*command, *flag, "none:1b")
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert UNKNOWN in done.stderr
    done = invoke(*command, *flag, "adapted")
    assert (done.exit_code, done.stdout) == (3, ""), done.stderr
    assert "adapted (Ollama) cannot be used: it is a model with an adapter" in done.stderr
    assert not (kept.path.parent / "none.jsonl").exists()


def test_a_client_is_not_even_prepared_over_a_name_that_no_model_has(kept, tmp_path):
    with pytest.raises(UsageError, match=f"^{UNKNOWN}"):
        hybrid.open(local="none:1b")
    with pytest.raises(EngineError, match="with an adapter"):
        hybrid.open(local="adapted", policy="local")
    missing, *others = split_model(Gguf.read(SMALL), tmp_path / "split")
    missing.unlink()
    with pytest.raises(EngineError, match=f"{missing.name} is missing"):
        hybrid.open(local=str(others[0]))


def test_the_file_of_settings_that_names_it_is_named(kept, tmp_path):
    (tmp_path / "mine.toml").write_text('local = "none:1b"\n')
    (tmp_path / "mine.toml").chmod(0o600)
    done = invoke("ask", QUESTION, "--config", "mine.toml")
    assert done.exit_code == 2
    assert UNKNOWN in done.stderr
    assert "mine.toml" in done.stderr


def test_a_server_takes_the_name_and_serves_it_under_it(kept, start_server, refused_start):
    """A blob is called by its digest; nobody asks for that."""
    server = start_server(model="tiny:1b")
    assert server.client.get("/v1/models").json()["data"][0]["id"] == "tiny:1b"
    refused = refused_start(model="none:1b")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"server_stub: {UNKNOWN}")
