"""What earlier versions kept in files of their own is read as it was, and moved by the next change: nothing is lost.

``old_files`` were written by the version before (2026-11-27) with a bundled model, two pairs and two experts.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from hybrid.cloud.probe_result import ProbeCache
from hybrid.engine import template_trial
from hybrid.engine.identity import identify
from hybrid.engine.noise import LocalNoise, NoiseCache
from hybrid.pairs.profile import JudgedTokens, PairRecord
from hybrid.run.experts import ExpertRecord
from hybrid.settings.names import MODELS
from hybrid.settings.sources import cache_file, counts_file
from hybrid.store.json_store import JsonStore

OLD = Path(__file__).parent / "old_files"
LOCAL, THERE = "ab" * 16, "http://there"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folders of a user of the version before, as copies."""
    for kind in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))
        shutil.copytree(OLD / kind, tmp_path / kind / "hybrid-llm")


def entries(name):
    """What an old file holds."""
    return json.loads((OLD / name).read_text())[Path(name).stem]


def test_what_probes_found_is_read_and_moved(tmp_path):
    found = ProbeCache(cache_file(), "words")
    for _ in range(2):
        for dialect, context in (("vllm", 4096), ("openai", 8192)):
            assert found.read(THERE, "large", dialect).max_context == context
        assert [each.to_json() for each in found.read_all(THERE, None)] == [*entries("cache/endpoints.json").values()]
        assert found.damage is None
        assert found.write(found.read(THERE, "large", "openai"))
    assert not cache_file().with_name("endpoints.json").exists()


def test_what_was_measured_of_a_model_and_a_template_is_read_and_moved(monkeypatch):
    monkeypatch.setattr(template_trial, "_tried", lambda *_: pytest.fail("it was tried before"))
    noise, small = NoiseCache(cache_file()), MODELS / "small.gguf"
    assert template_trial._verdict(template_trial.digest_of("{{ x }}"), "{{ x }}", lambda: False).endswith("too long")
    assert noise.read(small, 0) == LocalNoise(0.25, 0.125)
    assert noise.write(small, 1, LocalNoise(0.5))
    assert (noise.read(small, 0), noise.read(small, 1)) == (LocalNoise(0.25, 0.125), LocalNoise(0.5))
    assert not cache_file().with_name("models.json").exists()
    assert cache_file().with_name("templates.json").exists(), "nothing of it was changed"


def test_digests_of_files_are_found_out_anew_and_the_file_of_before_goes(tmp_path):
    model = Path(shutil.copy(MODELS / "small.gguf", tmp_path))
    (settled := JsonStore(cache_file(), "identities")).change(lambda kept: kept)
    assert not cache_file().with_name("identities.json").exists()
    assert settled.read_entries() == entries("cache/identities.json")
    assert identify(model, cache_file()) == identify(model)


def test_what_was_counted_of_pairs_is_read_and_added_to():
    record = PairRecord(counts_file(), LOCAL, THERE)
    assert record.models() == ["org/other model", "large"]
    assert record.read("large") == {"kl:0.7": JudgedTokens(3, 60), "kl:0.5": JudgedTokens(5, 9)}
    assert record.add("large", "kl:0.7", JudgedTokens(1, 2))
    assert record.read("large")["kl:0.7"] == JudgedTokens(4, 62)
    assert record.read("org/other model") == {"greedy": JudgedTokens(1, 2)}
    assert not counts_file().with_name("pairs.json").exists()


def test_what_was_counted_of_experts_is_read_and_added_to():
    async def counted():
        record = ExpertRecord(counts_file(), "models cloud", 2)
        record.add((7,), 0)
        await record.aclose()

    before = entries("state/experts.json")["models cloud"]
    asyncio.run(counted())
    now = JsonStore(counts_file(), "experts").read_entries()["models cloud"]
    assert now == {**before, "7": [before["7"][0] + 1, before["7"][1]]}
    assert not counts_file().with_name("experts.json").exists()


def test_a_damaged_file_of_before_is_told_used_as_far_as_it_goes_and_put_aside():
    old = counts_file().with_name("pairs.json")
    old.write_text(damaged := old.read_text().replace("60", "61"))
    record = PairRecord(counts_file(), LOCAL, THERE)
    assert str(old) in record.damage
    assert (record.read("large"), record.models()) == ({}, ["org/other model"])
    assert record.add("large", "greedy", JudgedTokens(1, 1))
    assert record.damage is None
    assert record.models() == ["org/other model", "large"]
    assert old.with_name("pairs.json.1.aside").read_text() == damaged
