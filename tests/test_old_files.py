"""What earlier versions kept in files of their own is read as it was, and moved by the next change: nothing is lost.

``old_files`` were written by the version before (2026-11-27) with a bundled model, two pairs and two experts.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from cases import each

from hybrid.cloud.probe_result import ProbeCache
from hybrid.engine import template_trial
from hybrid.engine.identity import LocalNoise, NoiseCache, identify
from hybrid.pairs.profile import JudgedTokens, PairRecord
from hybrid.pairs.store import MeasuredBill, PairStore, calibration_for, keep_calibration
from hybrid.run.experts import ExpertRecord
from hybrid.settings.names import MODELS
from hybrid.settings.sources import cache_file, counts_file, scores_folder
from hybrid.store import json_store
from hybrid.store.json_store import JsonStore

OLD = Path(__file__).parent / "old_files"
LOCAL, THERE = "ab" * 16, "http://there"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folders of a user of the version before, as copies."""
    for kind in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))
        shutil.copytree(OLD / kind, tmp_path / kind / "hybrid-llm")
    for second, end in enumerate(("kl-0.7", "kl-0.2", "kl-0.7-critic-c1")):  # the order in which they were kept
        os.utime(scores_folder() / f"ee5958b5765ef3d8-{end}.calibration.json", (second, second))


def restore(folder):
    """Put the state of before in place again."""
    shutil.rmtree(folder)
    shutil.copytree(OLD / "state", folder)


def entries(name):
    """What an old file holds."""
    return json.loads((OLD / name).read_text())[Path(name).stem]


def test_what_probes_found_is_read_and_moved(tmp_path):
    found = ProbeCache(cache_file(), "words")
    for _ in range(2):
        for dialect, context in (("vllm", 4096), ("openai", 8192)):
            assert found.read(THERE, "large", dialect).max_context == context
        assert [each.to_json() for each in found.read_all(THERE, None)] == [*entries("cache/endpoints.json").values()]
        assert found.store.damage is None
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


def test_what_an_earlier_version_counts_after_the_move_is_put_aside():
    store, former = JsonStore(counts_file(), "pairs"), counts_file().with_name("pairs.json")
    key, counts = next(iter(entries("state/pairs.json").items()))
    assert store.keep("other", counts)
    assert store.keep(key, {"another": "count"})
    assert not [*former.parent.glob("pairs.json*")]
    shutil.copy(OLD / "state/pairs.json", former)
    assert store.keep("other", counts)
    assert store.read_entries()[key] == {"another": "count"}
    (aside,) = former.parent.glob("pairs.json*")
    assert aside.name == "pairs.json.1.aside"
    assert aside.read_bytes() == (OLD / "state/pairs.json").read_bytes()


def test_a_damaged_file_of_before_is_told_used_as_far_as_it_goes_and_put_aside():
    old = counts_file().with_name("pairs.json")
    old.write_text(damaged := old.read_text().replace("60", "61"))
    record = PairRecord(counts_file(), LOCAL, THERE)
    assert str(old) in record.store.damage
    assert (record.read("large"), record.models()) == ({}, ["org/other model"])
    assert record.add("large", "greedy", JudgedTokens(1, 1))
    assert record.store.damage is None
    assert record.models() == ["org/other model", "large"]
    assert old.with_name("pairs.json.1.aside").read_text() == damaged


def worths(store):
    """The user's own calibrations in force, the newest first, by what each of them has as its worth."""
    return [each.worth for each in store.in_force()]


@pytest.mark.parametrize("moved", [False, True])
def test_calibrations_are_read_in_force_as_they_were_and_all_of_them_are_moved(moved):
    """Of kl:0.7 the first was replaced, the second is in force, the third was taken back; one has a critic."""
    store, other = PairStore(LOCAL, "large"), PairStore(LOCAL, "other")
    if moved:
        keep_calibration(calibration_for(LOCAL, "large", "kl:0.2"))
        store = PairStore(LOCAL, "large")
        assert not [*scores_folder().glob("ee5958b5765ef3d8-*.calibration.json*")]
        assert worths(store) == [4.0, 5.0, 2.0]
        assert store.calibrations.read()[1] == []
    else:
        assert worths(store) == [5.0, 4.0, 2.0]
    assert calibration_for(LOCAL, "large", "kl:0.7").worth == 2.0
    assert calibration_for(LOCAL, "large", critic="c1").worth == 5.0
    for left in ([5.0, 2.0], [5.0, 1.0], [5.0]):
        assert store.take_back()
        assert worths(store) == left
    assert store.take_back()
    assert sorted(worths(store)) == [3.0, 4.0, 5.0], "what was taken back comes again"
    assert worths(other) == [6.0]
    assert other.forget() == (1, 1)
    assert worths(PairStore(LOCAL, "other")) == []


def test_what_was_learned_is_read_under_each_judge_and_moved():
    for moved in (False, True):
        store = PairStore(LOCAL, "large")
        for judge, costs in (("kl:0.7", [1, 2]), ("kl:0.2", [3])):
            found, note = store.learned(judge)
            assert note is None
            assert [round(each.whole_cost) for each in found.outcomes] == costs
            assert found.measured == MeasuredBill(3, 10, 1)
        assert store.add("kl:0.5", [])
        assert bool([*scores_folder().glob("ee5958b5765ef3d8-*.learned.json")]) is False, moved
    found, _ = PairStore(LOCAL, "other").learned("kl:0.7")
    assert [round(each.whole_cost) for each in found.outcomes] == [4, 5]
    assert found.measured == MeasuredBill(7, 20, 2)


def test_what_stands_in_both_counts_once():
    """A process that is killed after it has moved the old files, and before it removes them."""
    old = {path: path.read_bytes() for path in scores_folder().glob("ee5958b5765ef3d8-*")}
    PairStore(LOCAL, "large").add("kl:0.7", [])
    keep_calibration(calibration_for(LOCAL, "large", "kl:0.2"))
    for path, raw in old.items():
        path.write_bytes(raw)
    store = PairStore(LOCAL, "large")
    assert [round(each.whole_cost) for each in store.learned("kl:0.7")[0].outcomes] == [1, 2]
    assert worths(store) == [4.0, 5.0, 2.0]


@each("moved_at", range(5))
def test_who_reads_while_another_process_moves_the_old_files_sees_all_of_them(monkeypatch, moved_at):
    """The move is made before the reader's nth file: what it has read by then, and what it reads after, is whole."""
    read, reads = json_store.read_regular, []

    def interrupted(path):
        reads.append(path)
        if len(reads) == moved_at + 1:
            with monkeypatch.context() as patched:
                patched.setattr(json_store, "read_regular", read)
                assert PairStore(LOCAL, "large").add("kl:0.9", [])
                assert PairRecord(counts_file(), LOCAL, THERE).add("m", "greedy", JudgedTokens(1, 1))
        return read(path)

    for what in ("learned", "counted"):
        restore(scores_folder().parent)
        reads.clear()
        monkeypatch.setattr(json_store, "read_regular", interrupted)
        if what == "learned":
            found, note = PairStore(LOCAL, "large").learned("kl:0.7")
            assert [round(each.whole_cost) for each in found.outcomes] == [1, 2]
            assert note is None
        else:
            seen = PairRecord(counts_file(), LOCAL, THERE).read("large")
            assert seen == {"kl:0.7": JudgedTokens(3, 60), "kl:0.5": JudgedTokens(5, 9)}
        monkeypatch.setattr(json_store, "read_regular", read)


def test_an_old_file_that_is_damaged_is_told_and_put_aside_and_the_others_are_moved():
    old = next(scores_folder().glob("ee5958b5765ef3d8-kl-0-7-*.learned.json"))
    old.write_bytes(damaged := old.read_bytes()[:-9])
    store = PairStore(LOCAL, "large")
    assert str(old) in store.learned("kl:0.7")[1]
    assert store.add("kl:0.7", [])
    assert store.learned("kl:0.7")[1] is None
    assert len(store.learned("kl:0.2")[0].outcomes) == 1
    assert old.with_name(f"{old.name}.1.aside").read_bytes() == damaged
