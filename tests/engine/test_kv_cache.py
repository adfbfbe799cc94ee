"""The KV cache's types: their sizes against what llama.cpp keeps, and that every law of a context holds under each."""

from __future__ import annotations

from contextlib import closing
from typing import get_args

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each

import hybrid
from hybrid.engine.identity import USUAL_KV_TYPE
from hybrid.engine.llama import Weights
from hybrid.engine.local_memory import BIG_CACHE, DEFAULT_KV_TYPE, KV_TYPES, KvCacheSize, LocalMemory, Placement
from hybrid.engine.native import ll
from hybrid.errors import EngineError, UsageError
from hybrid.prob import Dense, kl
from hybrid.settings.config import KvTypeName
from hybrid.settings.names import MODELS

LARGE = MODELS / "large.gguf"  # a head has 32 numbers: one block of every packed type
TEXT = "What is 475 * 86? 47500 + 86 * 75 is 40850. Sort 42 17 99 23 68."
# The largest KL of eight rows to those of an f16 cache, in nats; measured: 0, 0.0002, 0.004, 0.05, 0.09, 0.5 and 0.25.
MOST_KL = {"f16": 0.0, "f32": None, "bf16": 1e-3, "q8_0": 0.02, "q5_1": 0.2, "q5_0": 0.4, "q4_1": 2.0, "q4_0": 1.0}


def test_the_setting_has_the_types_that_the_engine_has():
    assert set(get_args(KvTypeName)) == KV_TYPES.keys()
    assert DEFAULT_KV_TYPE == USUAL_KV_TYPE == hybrid.settings.config.Settings().kv_type


@pytest.fixture(scope="module")
def plain_rows():
    with closing(Weights(LARGE)) as weights, closing(weights.context(256, threads=1)) as engine:
        return engine.extend(weights.tokenize(TEXT), 8)


@each("name", KV_TYPES)
def test_what_is_told_of_a_tokens_size_is_what_llama_cpp_keeps(name, plain_rows):
    """A saved state holds the cache's rows and, for each token, the same few bytes under every type."""
    with closing(Weights(LARGE, kv_type=name)) as weights, closing(weights.context(256, threads=1)) as engine:
        ids, sizes = weights.tokenize(TEXT), []
        for _ in range(3):
            engine.extend(ids[:10], 0)
            sizes.append(ll.llama_state_seq_get_size(engine._ctx, 0))
        per_token = (sizes[2] - sizes[1]) / 10
        assert per_token - weights._bytes_per_token == pytest.approx(12, abs=4)
        assert weights._bytes_per_token == weights.cache_size.bytes_per_token
        engine.rewind(0)
        rows = engine.extend(ids, 8)
        worst = max(
            kl(Dense.from_logits(one), Dense.from_logits(other)) for one, other in zip(plain_rows, rows, strict=True)
        )
        most = MOST_KL[name]
        assert worst <= (tolerance().nats ** 2 if most is None else most)
        assert (worst > 0.0) is (name != "f16") or name == "f32", "the type reaches llama.cpp"


@each("name", ["q8_0", "q4_0"])
def test_a_rewind_is_exact_under_a_packed_type(name):
    """A token's numbers are packed by themselves, so what is cut off leaves no trace in what stays."""
    with closing(Weights(LARGE, kv_type=name)) as weights, closing(weights.context(256, threads=1)) as engine:
        ids = weights.tokenize(TEXT)
        assert engine.has_exact_rewind
        engine.extend(ids[:20], 0)
        first = engine.extend(ids[20:30], 10)
        engine.rewind(20)
        assert np.array_equal(engine.extend(ids[20:30], 10), first)


def test_a_type_that_a_head_does_not_fill_is_refused_in_a_sentence_that_names_those_that_fit():
    said = "^kv_type q8_0 packs 32 numbers, and a head of this model has 16: it can have f16, f32, bf16$"
    with closing(Weights(MODELS / "small.gguf", kv_type="q8_0")) as weights, pytest.raises(UsageError, match=said):
        weights.context(64)
    with pytest.raises(UsageError, match=said), hybrid.open(policy="local", kv_type="q8_0"):
        pass


def test_what_llama_cpp_refuses_by_itself_is_a_sentence_with_what_mends_it(monkeypatch):
    """Attention that has no flash form cannot read packed values; no model here is of that kind."""
    monkeypatch.setattr(ll, "llama_init_from_model", lambda *_: None)
    with closing(Weights(LARGE, kv_type="q8_0")) as weights, pytest.raises(EngineError, match=r"or leave kv_type f16$"):
        weights.context(64)


def test_a_smaller_type_fits_a_longer_context_in_the_same_memory(monkeypatch):
    f16, q8 = KvCacheSize(5, 5, 32, 32), KvCacheSize(5, 5, 32, 32, "q8_0")
    assert (f16.bytes_per_token, q8.bytes_per_token) == (3200, 1700)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 2**20}))
    with closing(Weights(LARGE)) as weights, pytest.raises(EngineError, match=r"smaller --kv-type \(q8_0\)$"):
        weights.context(600)
    with closing(Weights(LARGE, kv_type="q8_0")) as weights:
        weights.context(600, threads=1).close()
        assert (weights.contexts_that_fit(300, 4), weights.contexts_that_fit(100, 4)) == (2, 4)


def test_a_big_cache_is_told_and_a_small_one_is_not():
    cpu = Placement.of(0, 32, (), None)
    size = KvCacheSize(32, 8, 128, 128)
    assert LocalMemory(cpu, size, 8191).notes == ()
    assert LocalMemory(cpu, size, 8192).cache_bytes == BIG_CACHE
    assert LocalMemory(cpu, size, 8192, 4).notes == (
        "the local model's KV cache takes 4.0 GiB for 4 x 8192 tokens in f16",
    )
    assert LocalMemory(cpu, None, 8192).notes == ()
