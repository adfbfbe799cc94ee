"""What was recorded is what is replayed; under another policy, what that policy would have written."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from cases import each

from hybrid.cloud import Chunk
from hybrid.errors import UsageError
from hybrid.policy import PRESETS
from hybrid.prob import Dense
from hybrid.record.events import TRACE_VERSION, Finished, key_of, packed, to_json, unpacked
from hybrid.run.replay import replay
from hybrid.run.replay_trace import MissingRow, ReplayTrace
from hybrid.types import CloudUsage

PROMPT = "a b c"
AT_ONE = {"temperature": 1.0, "seed": 5}
SAMPLED = [name for name in PRESETS if name != "greedy-exact"]


async def recorded(house, path, rows=True, **choices):
    """Answer, and write every event as the command line does; returns the answer."""
    answer = None
    with path.open("w") as file:
        print(json.dumps({"trace": TRACE_VERSION}), file=file)
        async for event in house.client.stream(PROMPT, raw=True, trace_rows=rows, max_tokens=24, **choices):
            print(json.dumps(to_json(event)), file=file)
            answer = event.answer if isinstance(event, Finished) else answer
    return answer


def told(answer):
    """What of an answer does not depend on the clock or on the price."""
    usage = asdict(answer.usage)
    return [(t.id, t.text, t.source, t.how, t.why, t.kl) for t in answer.tokens], answer.finish_reason, usage


@pytest.mark.slow
@each("overlap", [True, False])
@each("name", PRESETS)
def test_an_answer_is_replayed_as_it_was_recorded(house, run, tmp_path, name, overlap):
    path = tmp_path / "trace.jsonl"
    answer = run(recorded(house(), path, policy=name, overlap=overlap))
    again = run(replay(path))
    assert told(again) == told(answer)
    assert len(again.tokens) > 3


@each("name", SAMPLED)
def test_a_sampled_answer_is_replayed_from_the_same_coins(house, run, tmp_path, name):
    path = tmp_path / "trace.jsonl"
    answer = run(recorded(house(), path, policy=name, **AT_ONE))
    assert told(run(replay(path))) == told(answer)


@each("policy", ["doubt", "kl"])
def test_what_was_written_without_rows_and_scored_is_replayed_with_its_requests(house, run, tmp_path, policy):
    path = tmp_path / "trace.jsonl"
    choices = {"policy": policy, "threshold": 0.05, "entropy": 1.6, "span": 3}
    answer = run(recorded(house(rows=False), path, **choices, **AT_ONE))
    assert answer.usage.checks > 0
    assert told(run(replay(path))) == told(answer)


CHOSEN = (
    {"policy": "kl", "threshold": 0.01, "hold": 1, "span": 3},
    {"policy": "kl", "threshold": float("inf")},
    {"policy": "relaxed", "judge": "js:0.01", "gate": "survival:0.3", "lead": 2},
    {"policy": "bild", "scope": 1, "bonus": False, "span": 4},
    {"policy": "kl", "threshold": 0.05, "strict": True, "stop": ["c", "nowhere"]},
    {"policy": "doubt", "entropy": 0.2, "offline": True},
)


@each("choices", CHOSEN, ids=str)
def test_what_was_chosen_is_recorded_and_replayed_where_no_policy_is_given(house, run, tmp_path, choices):
    path = tmp_path / "trace.jsonl"
    answer = run(recorded(house(), path, **choices))
    assert told(run(replay(path))) == told(answer)
    assert "Infinity" not in path.read_text(), "JSON has no such number"


@each("name", ["greedy-exact", "exact", "block", "kl"])
def test_what_a_machine_chooses_for_itself_is_no_part_of_a_recording(house, run, tmp_path, monkeypatch, name):
    """What a recording leaves to its policy is the policy's, whatever the environment or a file here says."""
    path, sampling = tmp_path / "trace.jsonl", {} if name == "greedy-exact" else AT_ONE
    answer = run(recorded(house(), path, policy=name, **sampling))
    expected = run(replay(path))
    monkeypatch.setenv("HYBRID_SPAN", "4")
    monkeypatch.setenv("HYBRID_HOLD", "7")
    again = run(replay(path))
    assert told(again) == told(expected) == told(answer)
    assert again.policy == expected.policy
    if name == "greedy-exact":
        assert "span=16..32" in again.policy


def test_a_trace_that_weighed_a_handback_is_replayed_without_that_choice(house, run, tmp_path):
    """An earlier version wrote ``hold`` "priced" into traces of ``auto``, which nobody can choose any more."""
    path = tmp_path / "trace.jsonl"
    answer = run(recorded(house(), path, policy="kl", threshold=0.05))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (begun,) = (line for line in lines if line.get("event") == "recording_started")
    begun["choices"]["hold"] = "priced"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert told(run(replay(path))) == told(answer)


def test_a_policy_that_is_given_starts_from_its_own_numbers(house, run, tmp_path):
    path, own = tmp_path / "trace.jsonl", tmp_path / "own.jsonl"
    recorded_under = run(recorded(house(), path, policy="greedy-exact", span=64))
    live = run(recorded(house(), own, policy="greedy-exact"))
    assert told(run(replay(path, policy="greedy-exact"))) == told(live) != told(recorded_under)


def replayed(run, path, **choices):
    """The answer, or what was missing."""
    try:
        return run(replay(path, **choices))
    except MissingRow as missing:
        return missing


@pytest.mark.slow
@each("name", PRESETS)
def test_another_policy_is_decoded_as_it_would_have_been(house, run, tmp_path, name):
    """Recorded along the large model's text. Who leaves that text is stopped where the live answer read on."""
    path, own = tmp_path / "trace.jsonl", tmp_path / "own.jsonl"
    run(recorded(house(), path, policy="greedy-exact", span=64))
    live = run(recorded(house(), own, policy=name, learn=False))  # as whatever a test replays
    found = replayed(run, path, policy=name)
    if isinstance(found, MissingRow):
        key = key_of(found.at)
        trace, followed = ReplayTrace.read(own), ReplayTrace.read(path)
        if "local" in found.what:
            assert (key, 0) in trace.local.keys() - followed.local.keys()
        else:
            assert key in trace.cloud.keys() - followed.cloud.keys()
    else:
        assert told(found) == told(live)


def test_most_policies_can_be_decoded_from_the_large_models_text(house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    run(recorded(house(), path, policy="greedy-exact", span=64))
    for name in ("cloud", "greedy-exact", "exact", "block"):
        assert run(replay(path, policy=name, span=1)).text == run(replay(path)).text


def test_what_is_missing_is_said_and_where(house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    run(recorded(house(), path, policy="local"))
    with pytest.raises(MissingRow, match="does not hold the cloud model's row at position 0 of this text") as caught:
        run(replay(path, policy="cloud"))
    assert caught.value.at == ()
    run(recorded(house(), path, policy="cloud"))
    with pytest.raises(MissingRow, match="the local model's row at position 0"):
        run(replay(path, policy="local"))


def test_what_the_cloud_would_draw_is_never_guessed(house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    run(recorded(house(), path, policy="greedy-exact", span=64))
    with pytest.raises(MissingRow, match="what the cloud draws"):
        run(replay(path, policy="cloud", temperature=1.0))


def test_a_draw_counts_only_under_the_sampling_and_the_ban_it_was_drawn_with(house, run, tmp_path):
    """Greedy it is the best token, whatever was drawn; a token from outside a list is no draw from the whole law."""
    path = tmp_path / "trace.jsonl"
    sampled = run(recorded(house(), path, policy="cloud", **AT_ONE))
    greedy = run(replay(path, policy="cloud", temperature=0.0, max_tokens=1))
    trace = ReplayTrace.read(path)
    assert greedy.tokens[0].id == trace.cloud[key_of(())].best
    assert run(replay(path)).text == sampled.text
    with pytest.raises(MissingRow, match="what the cloud draws at position 0"):
        run(replay(path, top_k=3))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("written") is not None:
            line["banned"] = [0]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(MissingRow, match="what the cloud draws at position 0"):
        run(replay(path))


def test_what_was_drawn_outside_a_list_is_found_by_who_draws_outside_it(house, run, tmp_path):
    """Two shown tokens leave tails: ``exact`` is replayed with them; ``cloud`` takes none for a draw of its own."""
    path, h = tmp_path / "trace.jsonl", house()
    h.client._settings = h.client._settings.model_copy(update={"cloud_top_k": 2})
    answer = run(recorded(h, path, policy="exact", **AT_ONE))
    assert told(run(replay(path))) == told(answer)
    with pytest.raises(MissingRow, match="what the cloud draws at position 0"):
        run(replay(path, policy="cloud"))
    assert any(ban for _, ban in ReplayTrace.read(path).written)


def test_a_trace_without_rows_of_another_version_or_damaged_is_one_sentence(house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    run(recorded(house(), path, rows=False, policy="kl"))
    with pytest.raises(UsageError, match="holds no rows: record it with --trace-rows"):
        ReplayTrace.read(path)
    for version in (3, 4, TRACE_VERSION + 1):
        path.write_text(json.dumps({"trace": version}))
        with pytest.raises(UsageError, match=rf"trace\.jsonl is a trace of version {version}, not 5: record it again"):
            ReplayTrace.read(path)
    for text, number in [('{"event": "rows"}\n', 2), ('{"event": "notes"}\nhalf a li', 3), ("[" * 10**5, 2), ("3", 2)]:
        path.write_text(json.dumps({"trace": TRACE_VERSION}) + "\n" + text)
        with pytest.raises(UsageError, match=f"is damaged: line {number} is no event of a trace$"):
            ReplayTrace.read(path)
    for content in (b"a shopping list", b"", b"[3]", b'{"trace": "3"}', b"\xff\x00", b"[" * 10**5):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"trace\.jsonl is no trace"):
            ReplayTrace.read(path)
    with pytest.raises(UsageError, match="No such file"):
        ReplayTrace.read(tmp_path / "none")


def test_rows_come_back_to_the_bit_and_positions_have_names_of_their_own():
    row = Dense.from_logits(np.random.default_rng(0).standard_normal(50).astype(np.float32))
    assert np.array_equal(unpacked(packed(row)).logits, row.logits)
    assert unpacked(packed(row)).log_total == row.log_total
    assert len({key_of(at) for at in [(), (0,), (0, 0), (1,), (256,), (2**31 - 1,)]}) == 6


def test_a_text_that_ended_without_saying_by_which_token_is_replayed_to_its_end(house, run, tmp_path):
    path, h = tmp_path / "trace.jsonl", house()

    async def write(question, *_):
        yield Chunk((1,), (h.cloud._row(question.prefix, 8),))
        yield Chunk(finish="stop")
        yield Chunk(usage=CloudUsage(3, 2))

    h.cloud.write = write
    answer = run(recorded(h, path, policy="cloud", **AT_ONE))
    assert told(run(replay(path))) == told(answer)
    assert (len(answer.tokens), answer.finish_reason) == (1, "stop")
