"""A sound file with numbers that are none: the model is told to be unusable as soon as that shows, and writes nothing.

NaN spreads through every sum it enters; unnoticed it reads as token 0, for ever.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import each
from gguf_mutants import Gguf
from typer.testing import CliRunner

import hybrid
from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.engine.llama import Weights
from hybrid.errors import EngineError

NAN, INF = b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f"
QUESTION = "What is 47 + 86?"


@pytest.fixture
def damaged(tmp_path):
    """Write a model with other numbers in a tensor."""

    def write(name, at, raw, base=BUNDLED_LOCAL):
        path = tmp_path / "damaged.gguf"
        path.write_bytes(Gguf.read(base).poke(name, at, raw).dump())
        return path

    return write


@pytest.fixture
def late(weights, damaged):
    """A model and a prompt whose first token can be written, and whose second cannot: the first one's vector is NaN."""
    tiny = weights["attention"]
    engine = tiny.context(64, threads=1)
    first = int(engine.extend(tiny.tokenize("Hello"))[0].argmax())
    engine.close()
    assert first not in tiny.tokenize("Hello")
    return damaged("token_embd.weight", 4 * 32 * first, NAN, base=tiny.path)


@pytest.fixture(scope="module")
def cloud(start_server):
    return start_server(model=BUNDLED_CLOUD).url


def ask(path, *args):
    return CliRunner().invoke(app, ["ask", QUESTION, "--local", str(path), "--offline", *args])


def is_one_sentence(done, path):
    assert done.exit_code == 3
    assert done.stderr.startswith(f"hybrid: {path} is damaged: after ")
    assert done.stderr.endswith("its scores are no numbers\n")
    assert done.stderr.count("\n") == 1


@each("raw", [NAN, INF])
@each("args", [(), ("--json",), ("--temperature", "1"), ("--policy", "local")])
def test_a_model_of_no_numbers_is_one_sentence_and_exit_3(damaged, raw, args):
    path = damaged("output_norm.weight", 8, raw)
    done = ask(path, *args)
    is_one_sentence(done, path)
    assert done.stdout == ""


def test_what_shows_after_a_token_is_told_after_a_token(late):
    done = CliRunner().invoke(app, ["ask", "Hello", "--raw", "--local", str(late), "--offline"])
    is_one_sentence(done, late)
    assert "after 6 tokens" in done.stderr
    assert len(done.stdout.strip()) == 1


def test_a_batch_keeps_what_was_answered_and_ends_with_the_sentence(tmp_path, late):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "Hello", "max_tokens": 1}, {"prompt": "Hello"}, {"prompt": "Hello", "max_tokens": 1}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["batch", str(source), str(out), "--raw", "--local", str(late), "--offline"])
    assert done.exit_code == 3
    assert "1 line is answered; the same command goes on from there" in done.stderr
    assert f"hybrid: {late} is damaged: after 6 tokens" in done.stderr
    assert len(out.read_text().splitlines()) == 1


@each(("policy", "overlap"), [("kl", True), ("kl", False), ("doubt", True), ("greedy-exact", True), ("paper", False)])
def test_it_is_raised_whatever_reads_the_local_model(damaged, cloud, monkeypatch, policy, overlap):
    check_it_is_raised(damaged, cloud, monkeypatch, policy, overlap)


@pytest.mark.slow
@each(("policy", "overlap"), [("doubt", False), ("greedy-exact", False), ("paper", True)])
def test_it_is_raised_with_and_without_overlap(damaged, cloud, monkeypatch, policy, overlap):
    check_it_is_raised(damaged, cloud, monkeypatch, policy, overlap)


def check_it_is_raised(damaged, cloud, monkeypatch, policy, overlap):
    """Drafts, rows read along with what the cloud writes, and what is read ahead while a check is waited for.

    Small models are measured when a client opens, which would find it there; large ones are not.
    """
    monkeypatch.setattr("hybrid.assemble.local_models.MEASURED_AT_ONCE", 0)
    path = damaged("output_norm.weight", 8, NAN)
    with (
        hybrid.open(local=path, cloud=cloud, policy=policy, overlap=overlap, max_tokens=24, price="free") as client,
        pytest.raises(EngineError, match="its scores are no numbers"),
    ):
        client.generate(QUESTION)


def test_a_token_that_cannot_be_is_no_damage(tmp_path, weights, monkeypatch):
    """Models mask tokens by -inf; only a row of nothing else is none."""
    engine = weights["attention"].context(64, threads=1)
    rows = np.zeros((1, engine.num_tokens), dtype=np.float32)
    monkeypatch.setattr("hybrid.engine.llama.ll.llama_get_logits", lambda _: np.ctypeslib.as_ctypes(rows.ravel()))
    rows[0, 1:] = -np.inf
    assert engine.extend((1,))[0].argmax() == 0
    rows[:] = -np.inf
    with pytest.raises(EngineError, match="after 2 tokens its scores are no numbers"):
        engine.extend((2,))
    engine.close()


def test_a_row_that_is_not_asked_for_is_not_judged(damaged):
    weights = Weights(damaged("output_norm.weight", 8, NAN))
    engine = weights.context(64, threads=1)
    assert engine.extend((1, 2), 0).shape == (0, weights.num_tokens)
    assert engine.ids == (1, 2)
    engine.close()
    weights.close()


@each(("num", "code"), [(2**31, 2), (2**32, 2), (2**32 + 512, 2), (10**30, 2), (2**31 - 1, 2)])
def test_a_context_that_no_memory_holds_is_one_sentence(num, code):
    """2**32 was 0 to llama.cpp, and 2**32 + 512 was 512; a context that almost fits would end in the system's hands."""
    done = CliRunner().invoke(app, ["ask", QUESTION, "--offline", "--ctx", str(num)])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith("hybrid: ")
    assert done.stderr.count("\n") == 1


@each("num", [-1, 2**31, 2**32 + 64])
def test_a_context_that_is_none_is_refused_by_the_engine(weights, num):
    with pytest.raises(EngineError, match=f"^no model has a context of {num} tokens$"):
        weights["bundled"].context(num)


def test_a_context_beyond_the_free_memory_is_refused_with_both_sizes(weights, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 2**20}))
    assert weights["bundled"]._bytes_per_token == 2 * 3 * 4 * (16 + 16)
    with pytest.raises(EngineError, match=r"a context of 1366 tokens over .* takes 0\.0 GiB in f16, and 0\.0 GiB are"):
        weights["bundled"].context(1366)
    weights["bundled"].context(1365, threads=1).close()


def test_a_short_context_is_full_where_it_says_so(weights):
    """llama.cpp rounds a cache up to 256 tokens and a batch down to the context: a longer batch ended the process."""
    engine = weights["attention"].context(3, threads=1)
    assert engine.num_context == 3
    engine.extend((1, 2, 3))
    with pytest.raises(hybrid.errors.ContextOverflow, match="do not fit the context of 3"):
        engine.extend((4,))
    engine.close()
