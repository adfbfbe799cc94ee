"""What was seen of a pair: counts that add up, and no text."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cases import each

from hybrid.engine.identity import identify_by_ends
from hybrid.pairs.profile import (
    MOST_JUDGES,
    MOST_PAIRS,
    JudgedTokens,
    PairObserver,
    PairRecord,
    pair_record,
    seen_of_pair,
)

PROMPT = "a b c"
CHOICES = {"policy": "kl", "max_tokens": 30, "span": 3, "threshold": 0.5}
JUDGE = "kl:0.5"


@pytest.fixture
def record(tmp_path):
    return PairRecord(tmp_path / "state" / "counts.json", "digest", "http://there")


def observed(h, record):
    """Have a client count into a record."""
    h.client._memory.pair = PairObserver(record)
    return h


async def gather(h, **choices):
    events = [event async for event in h.client.stream(PROMPT, **(CHOICES | choices))]
    await h.client._memory.pair.aclose()
    return events


# ---- counting ------------------------------------------------------------------------------------------------------


def test_what_an_answer_shows_to_be_judged_is_counted_by_pair_and_judge(house, run, record):
    """Kept are the tokens that a check accepted; each that the cloud put in a rejected one's place was turned down."""
    h = observed(house(), record)
    answer = run(gather(h))[-1].answer
    kept = sum(token.how == "accepted" for token in answer.tokens)
    first = JudgedTokens.of(answer)
    assert (first.kept, first.judged > first.kept > 0) == (kept, True)
    assert record.read("scripted") == {JUDGE: first}
    run(gather(h))
    assert record.read("scripted") == {JUDGE: first + first}
    other = JudgedTokens.of(run(gather(h, policy="greedy-exact"))[-1].answer)
    assert record.read("scripted") == {JUDGE: first + first, "greedy": other}
    assert record.read("another") == replace(record, local="other").read("scripted") == {}
    assert record.models() == ["scripted"]


@each("policy", ["cloud", "local", "doubt"])
def test_an_answer_without_a_check_shows_nothing(house, run, record, policy):
    run(gather(observed(house(), record), policy=policy))
    assert not record.path.exists()


def test_no_text_is_kept_and_nobody_else_may_read_it(house, run, record):
    """What was asked and answered is nobody's business, and neither is with whom."""
    run(gather(observed(house(), record)))
    [[key, judges]] = json.loads(record.path.read_text())["entries"].items()
    assert key == "pairs digest http://there scripted"
    assert [(name, len(counts)) for name, counts in judges.items()] == [(JUDGE, 2)]
    assert record.path.stat().st_mode & 0o777 == 0o600


def test_what_many_add_at_once_adds_up(record):
    with ThreadPoolExecutor(8) as threads:
        each_alone = [PairRecord(record.path, record.local, record.endpoint) for _ in range(24)]
        list(threads.map(lambda one: one.add("m", JUDGE, JudgedTokens(2, 3)), each_alone))
    assert record.read("m") == {JUDGE: JudgedTokens(48, 72)}


def test_what_version_0_1_0_counted_of_a_file_is_taken_over_and_nothing_of_another(record, tmp_path):
    """It knew the file by its ends."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + bytes(3 << 20))
    earlier, seen = replace(record, local=identify_by_ends(model)), JudgedTokens(3, 4)
    for each_of in (earlier, replace(record, local="another")):
        each_of.add("large", JUDGE, seen)
    record.adopt(model)
    record.adopt(model)
    assert record.read("large") == {JUDGE: seen} == replace(record, local="another").read("large")
    assert earlier.read("large") == {}


def test_the_file_stays_small_and_what_was_seen_last_is_kept(record):
    for number in range(MOST_JUDGES + 3):
        record.add("m", f"kl:{number}", JudgedTokens(1, 1))
    assert list(record.read("m")) == [f"kl:{number}" for number in range(3, MOST_JUDGES + 3)]
    record.store.change(lambda _: {f"digest http://there {n}": {} for n in range(MOST_PAIRS)})
    record.add("0", JUDGE, JudgedTokens(1, 1))
    record.add("new", JUDGE, JudgedTokens(1, 1))
    assert len(record.models()) == MOST_PAIRS
    assert record.models()[-2:] == ["0", "new"]
    assert "1" not in record.models()


@each("text", ["", "nonsense", "[]", '{"version": 1}', '{"version": 2, "pairs": {}}', "\\udcff"])
def test_a_file_that_cannot_be_read_holds_nothing_and_is_counted_into_anew(record, text):
    record.path.parent.mkdir(exist_ok=True)
    record.path.write_text(text)
    assert record.read("m") == {}
    assert "the file may be deleted, and what it held of pairs is then found out anew" in record.store.damage
    assert record.add("m", JUDGE, JudgedTokens(1, 2))
    assert record.read("m") == {JUDGE: JudgedTokens(1, 2)}


@each("entry", [None, [], "text", [3, 2], [1], [-1, 2], [True, 2], ["1", 2], {"kept": 1}], ids=repr)
def test_an_entry_of_another_shape_is_nothing(record, entry):
    record.store.change(lambda _: {"digest http://there m": {JUDGE: entry}})
    assert record.read("m") == {}


def test_a_file_that_cannot_be_written_is_no_failure(house, run, tmp_path):
    (tmp_path / "file").write_text("")
    unwritable = PairRecord(tmp_path / "file" / "counts.json", "digest", "http://there")
    answer = run(gather(observed(house(), unwritable)))[-1].answer
    assert answer.degraded is None


def test_a_pair_is_the_bytes_of_a_file_and_the_name_of_an_endpoint_and_the_bundled_one_is_counted_nowhere(tmp_path):
    """Where the file lies and how the endpoint's address is written change nothing."""
    for name in ("one.gguf", "two.gguf"):
        (tmp_path / name).write_bytes(b"model")
    one = pair_record("http://there/v1/", tmp_path / "one.gguf")
    assert one == pair_record("http://there", tmp_path / "two.gguf")
    (tmp_path / "two.gguf").write_bytes(b"other")
    assert one != pair_record("http://there", tmp_path / "two.gguf")
    assert pair_record(None, tmp_path / "one.gguf") is None
    assert seen_of_pair(None, tmp_path / "one.gguf", "m") == {}
    assert pair_record("http://there", tmp_path / "gone.gguf") is None


def test_a_share_of_fewer_than_fifty_tokens_is_none(record):
    """``hybrid price`` and ``hybrid probe`` hold it against a break-even."""
    assert (JudgedTokens(20, 49).share, JudgedTokens(20, 50).share) == (None, 0.4)
