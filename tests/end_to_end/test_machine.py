"""What ``hybrid ask`` says of the machine on standard error, before an answer; of most machines it says nothing."""

from __future__ import annotations

import json

from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.engine.local_memory import GpuDevice

QUESTION = "What is 47 + 86?"


def ask(*words):
    done = CliRunner().invoke(app, ["ask", QUESTION, "--offline", "--json", *words])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["text"]
    return done.stderr


def test_layers_that_were_asked_for_and_lie_nowhere_are_told(bundled):
    none = "no layer of the local model lies on a GPU (gpu_layers is 2): llama.cpp finds none here"
    assert ask("--gpu-layers", "2") == f"hybrid: {none}\n"
    assert (ask(), ask("--gpu-layers", "0"), ask("--kv-type", "bf16")) == ("", "", "")
    with hybrid.open(policy="local", gpu_layers=2) as client:
        assert client.notes == (none,)


def test_where_a_model_of_ones_own_lies_is_told_and_of_the_bundled_ones_nobody_needs_to_know(bundled, monkeypatch):
    monkeypatch.setattr("hybrid.engine.llama.gpu_devices", lambda: (GpuDevice("CUDA0", "a card"),))
    assert ask() == ""
    assert ask("--gpu-layers", "1") == "hybrid: 1 of 4 layers of the local model lie on CUDA0 (a card)\n"
    monkeypatch.setattr("hybrid.assemble.local_models.MEASURED_AT_ONCE", 0)
    assert ask() == "hybrid: 4 of 4 layers of the local model lie on CUDA0 (a card)\n"
    assert ask("--gpu-layers", "0") == "hybrid: no layer of the local model lies on CUDA0 (a card): gpu_layers is 0\n"
