"""Files that are kept between runs, damaged by number: what they say is used, or a sentence says that it is not.

What cannot be read is put aside by the next change, byte for byte. Concepts and what is no file at all stand in
``tests/test_damaged_files.py``, calibrations in ``tests/defer/test_packed.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from contextlib import suppress

import pytest
from cases import each, each_of
from damaged_files import mutant
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.cloud.probe_result import ProbeCache, ProbeResult
from hybrid.defer import Calibration, DraftOutcome
from hybrid.defer.online import OnlineLearner
from hybrid.engine import template_trial
from hybrid.engine.identity import identify
from hybrid.engine.model_check import read_facts
from hybrid.errors import UsageError
from hybrid.pairs.knowledge import read_knowledge
from hybrid.pairs.profile import JudgedTokens, PairRecord
from hybrid.pairs.store import SHIPPED, PairStore, keep_calibration
from hybrid.run.experts import ExpertRecord
from hybrid.run.replay import replay
from hybrid.run.replay_trace import MissingRow
from hybrid.serve.monitor import recorded_html, recorded_state
from hybrid.settings.names import MODELS
from hybrid.spend.price_file import PriceFile
from hybrid.store.json_store import JsonStore

SEED, NUM = 20261125, 80
URL = "http://127.0.0.1:9"


def read_or_sentence(read, path):
    """Return what a named file was read as, or the one sentence that refuses it, which names it."""
    try:
        return read(path), None
    except UsageError as refused:
        said = str(refused)
    assert str(path) in said
    assert said.isprintable()
    return None, said


def use_experts(path):
    """Ask two models' counts of words 1 to 3, and count a question of word 1."""

    async def used():
        record = ExpertRecord(path, "models cloud", 2)
        damage, weights = record.store.damage, await record.weights((1, 2, 3))
        record.add((1,), 0)
        await record.aclose()
        return damage, weights

    damage, weights = asyncio.run(used())
    assert len(weights) == 2
    assert all(0.0 < weight < 1.0 for weight in weights)
    return damage


def use_pairs(path):
    record = PairRecord(path, "ab" * 16, URL)
    damage, before = record.store.damage, record.read("m").get("kl:0.7", JudgedTokens())
    assert 0 <= before.kept <= before.judged
    assert record.add("m", "kl:0.7", JudgedTokens(1, 2))
    assert record.read("m")["kl:0.7"] == before + JudgedTokens(1, 2)
    return damage


def use_findings(path):
    cache = ProbeCache(path, "words")
    damage, found = cache.store.damage, cache.read(URL, "m", "vllm")
    for number in [] if found is None else vars(found).values():
        assert not isinstance(number, int | float) or 0 <= number < 2**50
    assert cache.write(ProbeResult(URL, "m", "vllm", max_context=5))
    return damage


def write_experts(path):
    async def written():
        record = ExpertRecord(path, "models cloud", 2)
        for word in (1, 2, 900):
            record.add((word, 7), word % 2)
        await record.aclose()

    asyncio.run(written())


def write_pairs(path):
    for model in ("m", "m2"):
        PairRecord(path, "ab" * 16, URL).add(model, "kl:0.7", JudgedTokens(3, 60))


def write_findings(path):
    times = {"written_ms": 1.5, "scored_ms": 0.5, "check_ms": 10.0, "opening_kl": ((0.1, 0.2), (0.1, None))}
    ProbeCache(path, "words").write(ProbeResult(URL, "m", "vllm", max_context=4096, noise_nats=0.01, **times))


STORES = {
    "experts": (write_experts, use_experts),
    "pairs": (write_pairs, use_pairs),
    "endpoints": (write_findings, use_findings),
}


def is_of_store(raw):
    """Whether bytes are JSON text that such a file may be, whatever its entries."""
    try:
        json.dumps(kept := json.loads(raw.decode()), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(kept, dict) and kept.get("version") == 1 and any(isinstance(each, dict) for each in kept.values())


@each("name", STORES)
def test_a_damaged_store_is_used_as_far_as_it_can_be_read_told_and_put_aside(tmp_path, name):
    write, use = STORES[name]
    path, counts = tmp_path / "kept.json", Counter()
    write(path)
    whole = path.read_bytes()
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number)
        path.write_bytes(raw)
        damage = use(path)
        aside = [each.read_bytes() for each in tmp_path.glob("*.aside")]
        assert aside == ([] if damage is None else [raw]), what
        assert damage is None or (str(path) in damage and damage.isprintable()), what
        assert is_of_store(raw) or damage, what
        assert use(path) is None, what
        for each_aside in tmp_path.glob("*.aside"):
            each_aside.unlink()
        counts[damage is None] += 1
    assert counts.keys() == {False, True}


BAD_ENTRIES = {
    "experts": [{"1": [1, -1]}, {"1": [2**70]}, {"1": [0], "2": []}, {"x": [1, 1]}, {"9" * 5000: [1]}, [1], {"1": 0}],
    "pairs": [{"kl": [5, 3]}, {"kl": [True, 5]}, {"kl": [0, True]}, {"kl": [1, 2**60]}, {"kl": [1]}, {"kl": None}, 7],
}  # fmt: skip


@each("name", BAD_ENTRIES)
def test_an_entry_that_is_none_is_told_and_the_others_stay(tmp_path, name):
    write, use = STORES[name]
    for entry in each_of(BAD_ENTRIES[name]):
        path = tmp_path / "kept.json"
        path.unlink(missing_ok=True)
        write(path)
        before = json.loads(path.read_text())["entries"]
        without_sums = {"version": 1, "entries": {f"{name} other": entry, **before}}
        path.write_text(json.dumps(without_sums))
        assert use(path) is not None, entry
        after = json.loads(path.read_text())["entries"]
        assert after.keys() == before.keys(), entry
    assert entry is not None


def test_a_digit_that_turned_into_another_is_damage_and_the_other_entries_stay(tmp_path):
    store = JsonStore(tmp_path / "kept.json", "numbers")
    entries = {"first": [17, 2.5, "0a1"], "second": {"7": 1}}
    assert store.change(lambda _: entries)
    whole = store.path.read_text()
    assert (store.read_entries(), store.damage) == (entries, None)
    for at in each_of([n for n in range(whole.index("entries"), len(whole)) if whole[n].isdecimal()], least=20):
        store.path.write_text(f"{whole[:at]}{(int(whole[at]) + 1) % 10}{whole[at + 1 :]}")
        left = store.read_entries()
        assert left in ({"first": entries["first"]}, {"second": entries["second"]}), at
        assert store.damage is not None


def test_a_store_from_before_there_were_checksums_is_read_whole_and_has_them_from_the_next_change_on(tmp_path):
    store = JsonStore(tmp_path / "kept.json", "numbers")
    store.path.write_text('{"version": 1, "entries": {"numbers first": 17}}')
    assert (store.read_entries(), store.damage) == ({"first": 17}, None)
    assert store.keep("second", 2)
    store.path.write_text(store.path.read_text().replace("17", "18"))
    assert store.read_entries() == {"second": 2}
    assert [*tmp_path.glob("*.aside")] == [], "nothing was damaged when it was changed"


@pytest.mark.parametrize("what", ["experts", "pairs", "endpoints", "counts", "cache"])
def test_who_opens_a_client_hears_of_a_damaged_store(tmp_path, monkeypatch, what):
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "hybrid-llm").mkdir()
    path = tmp_path / "hybrid-llm" / f"{what}.json"
    path.write_text("{")
    models = {"experts": ["small", "mid"]} if what == "experts" else {"local": "small", "cloud": URL}
    with hybrid.open(**models, ledger="none") as client:
        assert [note for note in client.notes if str(path) in note]
    assert path.read_text() == "{"


# ---- caches: what cannot be is asked anew ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    shutil.copy(MODELS / "small.gguf", path)
    os.utime(path, (1e9, 1e9))
    return path


def test_a_damaged_cache_of_identities_tells_digests_alone(tmp_path, model):
    path = tmp_path / "cache.json"
    right, whole = identify(model, path), path.read_bytes()
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number)
        path.write_bytes(raw)
        assert identify(model, path) == right, what


def test_a_damaged_cache_of_headers_tells_what_a_header_can(tmp_path, model):
    path, counts = tmp_path / "cache.json", Counter()
    right = read_facts(model, path)
    whole = path.read_bytes()
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number)
        path.write_bytes(raw)
        found = read_facts(model, path)
        assert [type(value) for value in vars(found).values()] == [type(value) for value in vars(right).values()], what
        assert min(found.bytes, found.parameters, found.num_tokens) >= 0, what
        counts[found == right] += 1
    assert counts[True] > counts[False]


def test_a_damaged_cache_of_templates_holds_verdicts_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(template_trial, "_tried", lambda *_: "")
    path = tmp_path / "hybrid-llm" / "cache.json"
    digest, source = template_trial.digest_of("{{ x }}"), "{{ x }}"
    assert template_trial._verdict(digest, source, lambda: False) == ""
    whole, num_tried = path.read_bytes(), 0
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number)
        path.write_bytes(raw)
        said = template_trial._verdict(digest, source, lambda: False)
        assert not said or (said.isprintable() and len(said) <= 400), what
        num_tried += path.read_bytes() != raw
    assert num_tried > NUM / 2


# ---- what was learned and bought -------------------------------------------------------------------------------------


def test_a_damaged_file_of_what_was_learned_is_learned_from_or_told_and_put_aside(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    calibration = Calibration.from_json(json.loads((SHIPPED / "bundled.json").read_text()))
    state, counts, judge = PairStore("local", "cloud"), Counter(), calibration.judge
    numbers = tuple(n / 3 for n in range(15))
    outcomes = [
        DraftOutcome(0.3, 1 / 3, True, 0.05, down, "block", (3, 70), numbers, 0.7, cost)
        for cost, down in enumerate([True, False])
    ]
    for each_outcome in outcomes:
        state.add(judge, [each_outcome])
    path = state.outcomes.path
    whole = path.read_bytes()
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number, "json lines")
        path.write_bytes(raw)
        kept, note = state.learned(judge)
        OnlineLearner(calibration.score, kept.outcomes, calibration).add(outcomes)
        assert state.add(judge, outcomes), what
        assert len(state.learned(judge)[0].outcomes) == len(kept.outcomes) + 2, what
        aside = [each.read_bytes() for each in path.parent.glob("*.aside")]
        assert aside == ([] if note is None else [raw]), what
        for each_aside in path.parent.glob("*.aside"):
            each_aside.unlink()
        counts[note is None] += 1
    assert min(counts.values()) > NUM / 20, counts


@pytest.mark.slow
def test_a_damaged_calibration_of_ones_own_is_told_and_put_aside_where_another_takes_its_place(tmp_path, monkeypatch):
    """It was passed over for the package's, without a word: the user had paid for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tree = json.loads((SHIPPED / "bundled.json").read_text())
    own = Calibration.from_json({**tree, "questions": tree["questions"][:4]})
    path, counts = keep_calibration(own), Counter()
    whole = path.read_bytes()
    for number in each_of(range(NUM)):
        what, raw = mutant(whole, SEED, number)
        path.write_bytes(raw)
        found = read_knowledge(own.local, own.cloud, None)
        is_own = found.calibration is not None and len(found.calibration.questions) < len(tree["questions"])
        told = [note for note in found.tell() if str(path) in note]
        assert len(told) == (not is_own), what
        counts[is_own] += 1
    assert min(counts.values()) >= 1, counts
    path.write_bytes(whole[:-9])
    keep_calibration(own)
    assert path.read_bytes() == whole
    assert path.with_name(f"{path.name}.1.aside").read_bytes() == whole[:-9]


# ---- price files and traces, which a user names ----------------------------------------------------------------------

PRICES = """[[price]]
endpoint = "https://api.example.com/v1"
model = "large-1"
prompt = 1
cached_prompt = 0.1
completion = 4
source = "https://example.com/pricing"
cache_write = 1.25
cache_min_tokens = 1024
batch = 0.5
long_context = {above_tokens = 200000, prompt = 2, cached_prompt = 0.2, cache_write = 2.5, completion = 8}
"""


def test_a_damaged_price_file_is_a_sentence_or_prices(tmp_path):
    path, counts = tmp_path / "prices.toml", Counter()
    for number in each_of(range(4 * NUM)):
        what, raw = mutant(PRICES.encode(), SEED, number, "toml")
        path.write_bytes(raw)
        found, said = read_or_sentence(PriceFile.read, path)
        counts["read" if said is None else "refused"] += 1
        for price in each_of(() if found is None else found.prices.values(), least=0):
            assert min(price.prompt, price.cached_prompt, price.completion) >= 0, what
            assert price.written_nanousd >= price.prompt, what
    assert min(counts.values()) > NUM / 10, counts


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "whole.jsonl"
    command = [
        "ask",
        "--trace",
        str(path),
        "--trace-rows",
        "--policy",
        "kl:0.5",
        "--max-tokens",
        "8",
        "--ledger",
        "none",
    ]
    assert CliRunner().invoke(app, [*command, "What is 47 + 86?"]).exit_code == 0
    return path.read_bytes()


def decode_again(path):
    with suppress(MissingRow):
        asyncio.run(replay(path, lambda _: None))


@pytest.mark.slow
def test_a_damaged_trace_is_shown_and_replayed_or_a_sentence(tmp_path, trace):
    path, counts = tmp_path / "trace.jsonl", Counter()
    for number in range(NUM):
        _, raw = mutant(trace, SEED, number, "json lines")
        path.write_bytes(raw)
        for use in (recorded_state, recorded_html, decode_again):
            counts[read_or_sentence(use, path)[1] is None] += 1
    assert min(counts.values()) > NUM / 10, counts


@each("wrong", [3.5, -1, True, None, "3", 2**31, [1]])
def test_a_row_of_tokens_that_there_are_not_is_a_sentence(tmp_path_factory, trace, wrong):
    path = tmp_path_factory.mktemp("row") / "trace.jsonl"
    lines = [json.loads(line) for line in trace.splitlines()]
    at = next(n for n, line in enumerate(lines) if (line.get("cloud") or {}).get("ids"))
    lines[at]["cloud"]["ids"][-1] = wrong
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(UsageError, match=f"line {at + 1} is no event"):
        asyncio.run(replay(path, lambda _: None))


def test_a_store_tells_of_another_version_and_of_nothing_that_is_not_there(tmp_path):
    path = tmp_path / "store.json"
    store = JsonStore(path, "numbers")
    assert store.damage is None
    path.write_text(newer := '{"version": 2, "entries": {"numbers a": 1}}')
    assert str(path) in store.damage
    assert store.keep("b", 2)
    assert store.read_entries() == {"b": 2}
    assert path.with_name("store.json.1.aside").read_text() == newer
