"""How far a local model is from itself is measured, and kept by what the file is and not by where it lies."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from arithmetic import rounds_by_shape, tolerance
from cases import each
from scripted_engine import ScriptedEngine

from hybrid.engine.identity import MEASURED, LocalNoise, NoiseCache, measure
from hybrid.prob import UNMEASURED, kl_shift

TEXT = tuple(range(5))


class Noisy(ScriptedEngine):
    """Computes otherwise where more than one token is decoded: a likely token by ``by`` nats, another by 3."""

    def __init__(self, by, num_context=1000):
        super().__init__("abcde", lambda _: [4.0, 3.0, 0.0, 0.0, -9.0], num_context=num_context)
        self.by, self.longest = by, 0

    def extend(self, ids, num_rows=1, cancelled=lambda: False):
        rows = super().extend(ids, num_rows, cancelled)
        self.longest = max(self.longest, len(self.ids))
        return rows + (np.array([0, self.by, 0, 0, 3.0], dtype=np.float32) if len(ids) > 1 else 0)


def test_the_noise_is_what_decoding_together_changes_at_a_likely_token():
    engine = Noisy(-0.5)
    alone, together = np.array([4.0, 3.0, 0.0, 0.0, -9.0]), np.array([4.0, 2.5, 0.0, 0.0, -6.0])
    apart = np.abs((alone - np.log(np.exp(alone).sum())) - (together - np.log(np.exp(together).sum())))
    rows = [row - np.log(np.exp(row).sum()) for row in (alone, together)]
    found = measure(engine, TEXT)
    assert found.nats == pytest.approx(apart[:4].max(), abs=1e-6)
    assert found.shift == pytest.approx(kl_shift(*rows), abs=1e-6)
    assert apart[4] > 2
    assert engine.longest == MEASURED
    assert engine.ids == ()


def test_where_it_makes_no_difference_there_is_none():
    assert measure(ScriptedEngine("ab", lambda _: [1.0, 0.0]), (0, 1)) == LocalNoise(0.0, 0.0)


def test_a_context_that_holds_fewer_tokens_is_measured_over_those():
    engine = Noisy(-0.5, num_context=7)
    assert measure(engine, TEXT).nats > 0.3
    assert engine.longest == 7


def test_where_no_token_is_ever_likely_it_is_assumed():
    assert measure(ScriptedEngine([str(i) for i in range(5000)], lambda _: [0.0] * 5000), (1,)) == LocalNoise(
        UNMEASURED
    )


@each("kind", ["bundled", "attention", "sliding", "recurrent", "hybrid"])
def test_a_real_engine_has_some_hundredths_of_a_nat_and_is_left_as_it_was(opened, kind):
    with opened(kind) as engine:
        found = measure(engine, engine.tokenize("What is 47 + 86? Sort 42 17 99."))
        assert 0.0 <= min(found.nats, found.shift) <= max(found.nats, found.shift) <= tolerance().nats
        assert found.shift > 1e-4 or kind != "bundled" or not rounds_by_shape()
        assert engine.ids == ()


# ---- what is kept --------------------------------------------------------------------------------------------------


QUARTER = LocalNoise(0.25, 0.125)
CONTENT = b"GGUF" + b"\0" * (3 << 20) + b"end"


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture
def notebook(tmp_path):
    return NoiseCache(tmp_path / "cache" / "cache.json")


def test_what_was_measured_of_a_file_is_read_again_wherever_it_lies(notebook, model, tmp_path):
    assert notebook.read(model, 0) is None
    assert notebook.write(model, 0, QUARTER)
    assert notebook.write(model, -1, LocalNoise(0.5))
    moved = tmp_path / "other.gguf"
    shutil.move(model, moved)
    assert (notebook.read(moved, 0), notebook.read(moved, -1), notebook.read(moved, 3)) == (
        QUARTER,
        LocalNoise(0.5),
        None,
    )


@each("change", [lambda raw: raw + b"x", lambda raw: b"GGUG" + raw[4:], lambda raw: raw[:-1] + b"x"])
def test_another_file_is_another_model(notebook, model, change):
    model.write_bytes(CONTENT)
    notebook.write(model, 0, QUARTER)
    assert notebook.read(model, 0) == QUARTER
    model.write_bytes(change(CONTENT))
    assert notebook.read(model, 0) is None


NO_NOISE = ["0.1", None, -0.1, float("nan"), float("inf"), True, []]


def keep(tmp_path, entry):
    """Put this in the place of every entry, as a program without checksums wrote it."""
    file = tmp_path / "cache" / "cache.json"
    names = [name for name in json.loads(file.read_text())["entries"] if name.startswith("models ")]
    file.write_text(json.dumps({"version": 1, "entries": dict.fromkeys(names, entry)}))


@each("entry", [*NO_NOISE, {}, *({"nats": number, "shift": 0.1} for number in NO_NOISE)])
def test_an_entry_that_is_no_noise_is_none(notebook, model, tmp_path, entry):
    notebook.write(model, 0, QUARTER)
    keep(tmp_path, entry)
    assert notebook.read(model, 0) is None


def test_what_an_earlier_program_measured_is_read_and_stays_until_it_is_measured_again(notebook, model, tmp_path):
    """It kept the nats alone: they hold as they did."""
    notebook.write(model, 0, QUARTER)
    keep(tmp_path, 0.5)
    assert notebook.read(model, 0) == LocalNoise(0.5)
    other = tmp_path / "other.gguf"
    other.write_bytes(CONTENT + b"x")
    notebook.write(other, 0, QUARTER)
    assert (notebook.read(model, 0), notebook.read(other, 0)) == (LocalNoise(0.5), QUARTER)


@each("shift", NO_NOISE)
def test_a_shift_that_is_none_leaves_the_nats(notebook, model, tmp_path, shift):
    notebook.write(model, 0, QUARTER)
    keep(tmp_path, {"nats": 0.5, "shift": shift})
    assert notebook.read(model, 0) == LocalNoise(0.5)
