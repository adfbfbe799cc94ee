"""What probes found is kept whole or not at all, and forgotten when an answer contradicts it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cases import each, each_of
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from wordlist import RECORDED

from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.sglang import Sglang
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.probe_result import ChatDifference, ProbeCache, ProbeResult, apply_result, as_probe_result
from hybrid.store.json_store import VERSION

KNOWN = ProbeResult(
    "http://there",
    "m",
    "sglang",
    rows=True,
    most_k=20,
    scoring_method="one request",
    scoring_methods={"one request": "agrees"},
)
WHERE = (KNOWN.url, "m", "sglang")
HERE, ELSEWHERE = "0123", "4567"  # two local vocabularies
# What the versions of the recorded files have not measured.
LATER = dict.fromkeys(("written_ms", "scored_ms", "reread_ms", "check_ms", "chat_alike", "chat_difference"))
LATER |= {"opening_kl": []}
APART = ChatDifference(3, "<|user|>", "user: ", dates=False)
OTHER = replace(
    KNOWN,
    model="n",
    grid=1e-4,
    noise_nats=0.01,
    same_words=False,
    chat_alike=False,
    chat_difference=APART,
    opening_kl=((0.5, 1.25), (2.0, None)),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "cache.json"


@pytest.fixture
def before(path):
    """The file that an earlier version had for endpoints alone."""
    path.parent.mkdir()
    return path.with_name("endpoints.json")


def held(path):
    """The entries of endpoints in the cache, by their keys."""
    return {key.removeprefix("endpoints "): each for key, each in json.loads(path.read_text())["entries"].items()}


def test_what_was_found_is_read_again_by_endpoint_and_model(path):
    probe_cache = ProbeCache(path, HERE)
    assert probe_cache.read(*WHERE) is None
    assert probe_cache.write(KNOWN)
    assert probe_cache.write(OTHER)
    assert ProbeCache(path, HERE).read(*WHERE) == KNOWN
    assert ProbeCache(path, HERE).read(KNOWN.url, "n", "sglang") == OTHER
    assert ProbeCache(path, HERE).read("http://elsewhere", "m", "sglang") is None


def test_what_holds_for_one_dialect_or_vocabulary_is_not_said_of_another(path):
    """A probe with the bundled model found "another vocabulary", and the right model was then refused."""
    wrong = replace(KNOWN, same_words=False, rows=False, scoring_method=None)
    chat = replace(KNOWN, dialect="openai-chat", scoring_method=None)
    ProbeCache(path, HERE).write(KNOWN)
    ProbeCache(path, ELSEWHERE).write(wrong)
    ProbeCache(path, HERE).write(chat)
    assert ProbeCache(path, HERE).read(*WHERE) == KNOWN
    assert ProbeCache(path, ELSEWHERE).read(*WHERE) == wrong
    assert ProbeCache(path, HERE).read(KNOWN.url, "m", "openai-chat") == chat
    ProbeCache(path, ELSEWHERE).forget(*WHERE)
    assert ProbeCache(path, HERE).read(*WHERE) == KNOWN


def test_processes_that_write_at_once_lose_nothing(path):
    """Each reads the file, adds an entry and writes the whole: one that read before another wrote would drop that."""
    many = [[replace(KNOWN, url=f"http://{who}/{i}") for i in range(8)] for who in range(6)]
    begin = threading.Barrier(len(many))

    def work(mine):
        begin.wait()
        return all(ProbeCache(path, HERE).write(found) for found in mine)

    with ThreadPoolExecutor(len(many)) as pool:
        assert all(pool.map(work, many))
    assert all(ProbeCache(path, HERE).read(one.url, "m", "sglang") == one for mine in many for one in mine)


def test_a_file_that_somebody_does_not_let_go_of_is_left_alone(path, monkeypatch):
    monkeypatch.setattr("hybrid.store.json_store.PATIENCE_S", 0.02)
    ProbeCache(path, HERE).write(KNOWN)
    with FileLock(f"{path}.lock"):
        assert not ProbeCache(path, HERE).write(OTHER)
        assert ProbeCache(path, HERE).read(*WHERE) == KNOWN
    assert ProbeCache(path, HERE).write(OTHER)


def test_on_a_file_system_without_locks_findings_are_kept(path, monkeypatch):
    def denied(*_, **__):
        raise RuntimeError("no locks here")  # what filelock says, or one of its kind

    monkeypatch.setattr(FileLock, "acquire", denied)
    assert ProbeCache(path, HERE).write(KNOWN)
    assert ProbeCache(path, HERE).read(*WHERE) == KNOWN


# ---- what an earlier version kept, by endpoint and model alone -----------------------------------------------------


@each("same_words", [True, None])
def test_findings_of_an_earlier_version_are_believed_for_the_dialect_that_they_name(path, before, same_words):
    known = replace(KNOWN, same_words=same_words)
    written(before, {"version": VERSION, "endpoints": {"http://there m": known.to_json()}})
    for vocabulary in (HERE, ELSEWHERE):
        assert ProbeCache(path, vocabulary).read(*WHERE) == known
        assert ProbeCache(path, vocabulary).read(KNOWN.url, "m", "vllm") is None


def test_findings_of_an_earlier_version_that_met_another_vocabulary_are_found_out_anew(path, before):
    """Nobody knows which local model that was; it may have been the bundled one."""
    known = replace(KNOWN, same_words=False, scoring_method=None)
    written(before, {"version": VERSION, "endpoints": {"http://there m": known.to_json()}})
    assert ProbeCache(path, HERE).read(*WHERE) is None


def test_findings_of_an_earlier_version_stay_until_they_are_contradicted(path, before):
    old = {"http://there m": KNOWN.to_json(), "http://there n": OTHER.to_json(), "of a later one": {"a": 1}}
    written(before, {"version": VERSION, "endpoints": old})
    newer = replace(KNOWN, most_k=5)
    probe_cache = ProbeCache(path, HERE)
    probe_cache.write(newer)
    assert (probe_cache.read(*WHERE), ProbeCache(path, ELSEWHERE).read(*WHERE)) == (newer, KNOWN)
    assert held(path) == {**old, KEY: newer.to_json()}
    assert not before.exists(), "what it held was moved"
    probe_cache.forget(*WHERE)
    assert probe_cache.read(*WHERE) is None
    assert held(path).keys() == {"http://there n", "of a later one"}


def test_a_file_that_was_recorded_by_an_earlier_version_is_read_whole(path, before):
    """Written by ``hybrid probe`` of an earlier version; what it does not tell stays as the documents have it."""
    before.write_bytes((RECORDED / "endpoints_1.json").read_bytes())
    [told] = json.loads(before.read_text())["endpoints"].values()
    found = ProbeCache(path, "21e4f4c0e5e118da").read("http://127.0.0.1:8220", "large", "vllm")
    later = ("streams", "hidden_mass", "token_route")
    assert found.to_json() == told | dict.fromkeys(later) | LATER
    for streams in (True, False):
        can = apply_result(replace(Vllm.can, streams=streams), found)
        assert (can.scoring_method, can.rows, can.most_k, can.streams) == ("one request", True, 20, streams)


def test_a_file_of_0_1_0_names_its_scoring_methods_as_was_done_then_and_is_read_as_before(path, before):
    """Its writer called the field ``way``, and two of its values replay and compare; the keys are still these."""
    before.write_bytes((RECORDED / "endpoints_0_1_0.json").read_bytes())
    cache, told = ProbeCache(path, "0123abcd"), json.loads(before.read_text())["endpoints"].values()
    found = [cache.read(entry["url"], entry["model"], entry["dialect"]) for entry in told]
    assert [result.scoring_method for result in found] == ["forced", "generate", "one request", None]
    assert [list(result.scoring_methods) for result in found] == [
        ["forced"],
        ["generate"],
        ["one request"],
        ["one request", "prefixes", "generate"],
    ]
    for result, entry in each_of(zip(found, told, strict=True)):
        renamed = {
            "way": result.scoring_method,
            "ways": dict(zip(result.scoring_methods, entry["ways"].values(), strict=True)),
        }
        assert result.to_json() == entry | renamed | LATER, entry["url"]
        assert cache.write(result)
        assert cache.read(result.url, result.model, result.dialect) == result


def test_what_a_probe_has_measured_of_streams_is_kept(path):
    ProbeCache(path, HERE).write(replace(KNOWN, streams=False))
    assert not apply_result(Sglang.can, ProbeCache(path, HERE).read(*WHERE)).streams


@given(
    known=st.builds(
        ProbeResult,
        url=st.just(KNOWN.url),
        model=st.just("m"),
        dialect=st.just("any"),
        rows=st.booleans(),
        most_k=st.sampled_from([None, 5, 20]),
        continues=st.sampled_from([None, True, False]),
        raw_rows=st.sampled_from([None, True, False]),
        scoring_method=st.sampled_from([None, "one request", "generate"]),
        keeps_cache=st.sampled_from([None, True, False]),
        cached_usage=st.sampled_from([None, True, False]),
        candidates=st.sampled_from([None, True, False]),
        streams=st.sampled_from([None, True, False]),
    ),
    documented=st.sampled_from([Vllm.can, Sglang.can, Completions.can, Chat.can]),
)
def test_what_an_endpoint_is_taken_for_can_be_kept_and_read_again(known, documented):
    can = apply_result(documented, known)
    assert apply_result(documented, as_probe_result(KNOWN.url, can.model, can)) == can


def test_what_is_forgotten_is_gone_and_nothing_else(path):
    probe_cache = ProbeCache(path, HERE)
    probe_cache.write(KNOWN)
    probe_cache.write(OTHER)
    probe_cache.forget(*WHERE)
    probe_cache.forget(KNOWN.url, "nobody", "sglang")
    assert probe_cache.read(*WHERE) is None
    assert probe_cache.read(KNOWN.url, "n", "sglang") == OTHER


def test_forgetting_where_there_is_nothing_makes_no_file(path):
    ProbeCache(path, HERE).forget(*WHERE)
    assert not path.exists()


def written(path, kept):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(kept if isinstance(kept, bytes) else json.dumps(kept).encode())


KEY = "http://there m sglang 0123"
ENTRY = {KEY: KNOWN.to_json()}


@each(
    "kept",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        [],
        {"version": VERSION},
        {"version": VERSION + 1, "endpoints": ENTRY},
        {"version": VERSION, "endpoints": []},
        {"version": VERSION, "endpoints": {KEY: 1}},
        {"version": VERSION, "endpoints": {KEY: {}}},
        {"version": VERSION, "endpoints": {KEY: KNOWN.to_json() | {"later": 1}}},
        {"version": VERSION, "endpoints": {KEY: KNOWN.to_json() | {"most_k": "many"}}},
        {"version": VERSION, "endpoints": {KEY: KNOWN.to_json() | {"rows": "yes"}}},
        {"version": VERSION, "endpoints": {KEY: KNOWN.to_json() | {"ways": [1]}}},
    ],
    ids=range(15),
)
def test_a_file_that_cannot_be_believed_is_no_findings_and_is_written_over(path, before, kept):
    """The cache, and the file that an earlier version had in its place."""
    for file in (before, path):
        path.unlink(missing_ok=True)
        written(file, kept)
        probe_cache = ProbeCache(path, HERE)
        assert probe_cache.read(*WHERE) is None
        assert probe_cache.write(KNOWN)
        assert probe_cache.read(*WHERE) == KNOWN


def test_a_file_that_cannot_be_written_is_no_failure_and_leaves_nothing_but_a_lock(tmp_path):
    (tmp_path / "file").write_text("")
    assert not ProbeCache(tmp_path / "file" / "cache.json", HERE).write(KNOWN)
    (tmp_path / "folder").mkdir()
    assert not ProbeCache(tmp_path / "folder", HERE).write(KNOWN)
    assert ProbeCache(tmp_path / "folder", HERE).read(*WHERE) is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder", "folder.lock"]


def test_a_reader_sees_the_old_file_or_the_new_one(path, monkeypatch):
    """The file is made beside its place and moved there: a run that is killed in between has changed nothing."""
    probe_cache = ProbeCache(path, HERE)
    probe_cache.write(KNOWN)
    before = path.read_text()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(path), "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        probe_cache.write(OTHER)
    assert path.read_text() == before
