"""An unknown chat template is rendered in a process of its own first, once ever, and what takes too much is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cases import each, each_of
from chat_templates import OWN

import hybrid.models
from hybrid.assemble import local_models
from hybrid.engine import template_trial
from hybrid.engine.llama import Weights
from hybrid.engine.port import Interrupted
from hybrid.errors import UsageError
from hybrid.types import Message

LONG = "{{ 1 }}" * 20_000
ENDLESS = "{% for i in range(9999) %}{% for j in range(9999) %}{{ j }}{% endfor %}{% endfor %}"
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The commands of the processes that are started; nothing is remembered from other tests."""
    monkeypatch.setattr(template_trial, "user_cache_path", lambda _: tmp_path)
    commands, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **k: commands.append(command) or popen(command, **k))
    template_trial._verdicts.clear()
    yield commands
    template_trial._verdicts.clear()


def test_the_bundled_models_templates_start_no_process(started):
    files = sorted(Path(hybrid.models.__file__).parent.glob("*.gguf"))
    assert files
    for file in each_of(files):
        weights = Weights(file)
        assert weights.render([Message("user", "Hi")])
        weights.close()
    assert started == []


def test_an_unknown_template_starts_one_process_ever(started):
    for template in (OWN["thinks"], OWN["thinks"], "{% broken", "{% broken"):
        template_trial._verdicts.clear()  # as in another run
        template_trial.check_template(template, "tiny.gguf")
    assert len(started) == 2


def test_what_takes_too_much_is_refused_by_its_files_name_and_not_tried_again(started, tiny_file):
    weights = Weights(tiny_file(template=ENDLESS))
    for _ in range(2):
        template_trial._verdicts.clear()
        with pytest.raises(UsageError, match=r"^the chat template of attention-\d+\.gguf is not used: .*--raw"):
            weights.render([Message("user", "Hi")])
        assert weights.template_names == frozenset()
    weights.close()
    assert len(started) == 1


def test_a_process_that_cannot_be_started_is_no_verdict(started, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    template_trial.check_template(ENDLESS, "tiny.gguf")
    assert not (tmp_path / "cache.json").exists()


def test_a_long_template_is_refused_without_a_process(started):
    with pytest.raises(UsageError, match="it has more than 100,000 characters itself"):
        template_trial.check_template(LONG, "tiny.gguf")
    assert started == []


def test_whoever_leaves_ends_the_child_and_the_next_one_tries_again(started, monkeypatch, tmp_path, tiny_file):
    """So does who leaves while a model is loaded, where the first context is opened."""
    children, popen = [], subprocess.Popen
    command = [sys.executable, "-c", SLEEPS]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **k: children.append(popen(command, **k)) or children[-1])
    with pytest.raises(Interrupted):
        template_trial.check_template(ENDLESS, "tiny.gguf", lambda: True)
    weights = Weights(tiny_file(template=ENDLESS))
    with pytest.raises(Interrupted):
        local_models._open_context(weights, 0, 1, lambda: True)
    weights.close()
    assert [child.poll() for child in children] == [-signal.SIGKILL] * 2
    assert not (tmp_path / "cache.json").exists()


TAKES_MUCH = """
import psutil, resource, sys
from hybrid.engine import template, template_trial
if sys.argv[1] == "machine":
    most = psutil.Process().memory_info().vms + (200 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
template_trial._render = lambda *_: template._guarded(lambda: bytearray(600 << 20))
template_trial.main()
"""


@each(("whose", "said"), [("machine", b""), ("wall", b'"there is no memory for what it makes"\n')])
def test_that_the_machine_lacks_memory_is_no_verdict(whose, said):
    done = subprocess.run([sys.executable, "-c", TAKES_MUCH, whose], input=b'""', capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (said, 0), done.stderr.decode()


@pytest.mark.slow
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
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert said in template_trial._watched(child, lambda: False)
        finally:
            child.kill()
