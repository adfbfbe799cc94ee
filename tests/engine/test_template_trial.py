"""An unknown chat template is rendered in a process of its own first, once ever, and what takes too much is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cases import each
from chat_templates import OWN

import hybrid.models
from hybrid.engine import template_trial
from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.types import Message

LONG = "{{ 1 }}" * 20_000


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The commands of the processes that are started; nothing is remembered from other tests."""
    monkeypatch.setattr(template_trial, "user_cache_path", lambda _: tmp_path)
    commands, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **k: commands.append(command) or popen(command, **k))
    template_trial._verdict.cache_clear()
    yield commands
    template_trial._verdict.cache_clear()


def test_the_bundled_models_templates_start_no_process(started):
    files = sorted(Path(hybrid.models.__file__).parent.glob("*.gguf"))
    assert files
    for file in files:
        weights = Weights(file)
        assert weights.render([Message("user", "Hi")])
        weights.close()
    assert started == []


def test_an_unknown_template_starts_one_process_ever(started):
    for template in (OWN["thinks"], OWN["thinks"], "{% broken", "{% broken"):
        template_trial._verdict.cache_clear()  # as in another run
        template_trial.check_template(template, "tiny.gguf")
    assert len(started) == 2


def test_what_takes_too_much_is_refused_by_its_files_name_and_not_tried_again(started, tiny_file):
    weights = Weights(tiny_file(template=LONG))
    for _ in range(2):
        template_trial._verdict.cache_clear()
        with pytest.raises(UsageError, match=r"^the chat template of attention-\d+\.gguf is not used: .*--raw"):
            weights.render([Message("user", "Hi")])
        assert weights.template_names == frozenset()
    weights.close()
    assert len(started) == 1


def test_a_process_that_cannot_be_started_is_no_verdict(started, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    template_trial.check_template(LONG, "tiny.gguf")
    assert not (tmp_path / "templates.json").exists()


@each(
    ("program", "said"),
    [
        ("while True: pass", "processor time"),
        ("import time; held = bytearray(300 << 20); time.sleep(600)", "MiB"),
        ("import os; os.abort()", "ends the process"),
    ],
)
def test_a_child_that_takes_too_much_is_ended_by_whoever_watches(monkeypatch, program, said):
    """So it is where the system bounds nothing: on Windows."""
    monkeypatch.setattr(template_trial, "MOST_CPU_S", 1)
    monkeypatch.setattr(template_trial, "MOST_BYTES", 200 << 20)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert said in template_trial._watched(child, b"")
        finally:
            child.kill()
