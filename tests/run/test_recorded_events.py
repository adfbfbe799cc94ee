"""What a trace file holds comes back as the events that they were, but for plans."""

from __future__ import annotations

import asyncio
import json
import math

import numpy as np
import pytest
from cases import each, each_of

from hybrid.errors import UsageError
from hybrid.record.answer import Token
from hybrid.record.events import (
    TRACE_VERSION,
    Finished,
    LevelsCompared,
    Planned,
    RecordingStarted,
    Rows,
    SpanCritiqued,
    SpanRead,
    TokenEmitted,
    to_json,
)
from hybrid.record.recorded_events import RecordedAnswer
from hybrid.types import Divergence


async def recorded(house, path, **choices):
    """Answer, and write every event as the command line does; returns the events."""
    heard = []
    with path.open("w") as file:
        print(json.dumps({"trace": TRACE_VERSION}), file=file)
        async for event in house.client.stream("a b c", raw=True, max_tokens=24, **choices):
            print(json.dumps(to_json(event)), file=file)
            heard.append(event)
    return heard


def comparable(event):
    """What of an event is told by a trace, and has an equality."""
    if isinstance(event, Finished):
        return event.answer.to_json()
    if isinstance(event, RecordingStarted):
        return event.pieces, event.end_ids, event.sampling
    return event


@each("policy", ["kl", "exact", "doubt", "local", "auto"])
def test_what_was_written_comes_back(house, run, tmp_path, policy):
    path = tmp_path / "trace.jsonl"
    heard = run(recorded(house(), path, policy=policy))
    expected = [comparable(event) for event in heard if not isinstance(event, Planned)]
    assert [comparable(event) for event in RecordedAnswer.read(path).events()] == expected
    assert RecordedAnswer.read(path).prompt is None


def test_the_bytes_of_every_token_are_read_once_for_all_answers_that_record(house, run, tmp_path, monkeypatch):
    """Reading those of 150,000 tokens took a fifth of a second of each answer that the monitor shows."""
    home, read = house(parallel=2), []
    words, piece = home.client._contexts.words, home.client._contexts.words.piece
    monkeypatch.setattr(words, "piece", lambda token: read.append(token) or piece(token))

    async def all_of_them():
        first = await recorded(home, tmp_path / "a", policy="local", trace_rows=True)
        read.clear()
        pieces = [event.pieces for event in first if isinstance(event, RecordingStarted)]
        both = [recorded(home, tmp_path / name, policy="local", trace_rows=True) for name in ("b", "c")]
        for heard in await asyncio.gather(*both):
            pieces += [event.pieces for event in heard if isinstance(event, RecordingStarted)]
        return pieces, sum(isinstance(event, TokenEmitted) for event in first)

    pieces, num_shown = run(all_of_them())
    assert pieces[0] is pieces[1] is pieces[2]
    assert pieces[0] == tuple(map(piece, range(words.num_tokens)))
    assert len(read) <= 2 * num_shown, "only what was shown"


def test_rows_come_back_at_their_places_and_those_of_turned_down_drafts_do_not(house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    heard = run(recorded(house(), path, policy="kl", trace_rows=True, threshold=0.05))
    text = tuple(event.token.id for event in heard if isinstance(event, TokenEmitted))
    expected = [event for event in heard if isinstance(event, Rows) and event.at == text[: len(event.at)]]
    assert len(expected) < sum(isinstance(event, Rows) for event in heard)
    found = [event for event in RecordedAnswer.read(path).events() if isinstance(event, Rows)]
    assert [(row.at, row.written, row.banned) for row in found] == [(r.at, r.written, r.banned) for r in expected]
    for one, other in each_of(zip(found, expected, strict=True)):
        assert (one.local is None, one.cloud is None) == (other.local is None, other.cloud is None)
        if one.local is not None:
            assert np.allclose(one.local.logits, other.local.logits, rtol=1e-6)
    assert RecordedAnswer.read(path).prompt.split() == ["a", "b", "c"]


def write(path, *lines, end="\n"):
    path.write_text("\n".join(json.dumps(line) for line in ({"trace": TRACE_VERSION}, *lines)) + end)
    return path


def test_an_unbounded_divergence_comes_back_unbounded(tmp_path):
    token = Token(1, "a", "local", "accepted", Divergence(1.0, 1.0, math.inf))
    path = write(tmp_path / "t", to_json(TokenEmitted(0, token)))
    assert "null" in path.read_text()
    assert list(RecordedAnswer.read(path).events()) == [TokenEmitted(0, token)]


def test_an_event_of_tomorrow_is_passed_over_and_a_cut_off_last_line_ends_the_trace(tmp_path):
    token = TokenEmitted(0, Token(1, "a", "local", "accepted"))
    path = write(tmp_path / "t", {"event": "dreamt", "of": [1]}, to_json(token), end='\n{"event": "token_emi')
    assert list(RecordedAnswer.read(path).events()) == [token]


@each(
    "event",
    [SpanRead(1, 4, 8, 9, 2.5), LevelsCompared(2, 0, 7, 3), SpanCritiqued(2, (5, 6), (0.5, 0.25), (-1.0, -2.0))],
)
def test_what_only_a_chain_or_a_critic_tells_comes_back_too(tmp_path, event):
    assert list(RecordedAnswer.read(write(tmp_path / "t", to_json(event))).events()) == [event]


@each("version", [3, 4, 6])
def test_a_trace_of_another_version_is_refused_in_a_sentence_that_says_what_to_do(tmp_path, version):
    path = tmp_path / "t"
    path.write_text(json.dumps({"trace": version}) + "\n")
    with pytest.raises(UsageError, match=f"of version {version}, not 5: record it again"):
        RecordedAnswer.read(path)


GOOD = to_json(TokenEmitted(0, Token(1, "a", "local", "accepted")))


@each(
    "line",
    [
        [],
        7,
        {"no": "event"},
        {"event": 3.5, "position": []},
        {**GOOD, "position": "first"},
        {**GOOD, "token": None},
        {**GOOD, "token": {**GOOD["token"], "id": 2**70}},
        {**GOOD, "token": {**GOOD["token"], "source": "somebody"}},
        {"event": "rows", "key": [], "local": None},
        {"event": "started", "prompt": [1], "policy": None},
        {"event": "recording_started", "pieces": ["zz"]},
        {"event": "finished", "tokens": 3},
    ],
)
def test_a_damaged_line_is_a_sentence_that_names_it(tmp_path, line):
    path = write(tmp_path / "t", GOOD, line, GOOD)
    with pytest.raises(UsageError, match="line 3 is no event"):
        list(RecordedAnswer.read(path).events())


@each("content", [b"", b"[]\n", b"\xff\xfe", b'{"trace": 99}\n', b'{"trace": 5}\n\xff\n'])
def test_what_is_no_trace_is_a_sentence(tmp_path, content):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="trace"):
        RecordedAnswer.read(path)
    with pytest.raises(UsageError, match="No such file"):
        RecordedAnswer.read(tmp_path / "nowhere")


def test_the_reader_of_rows_needs_the_same_tokens(tmp_path):
    """A token id that was changed by hand moves no row to another text."""
    changed = {**GOOD, "token": {**GOOD["token"], "id": 2}}
    row = to_json(Rows((1,)))
    path = write(tmp_path / "t", changed, row)
    assert [type(event) for event in RecordedAnswer.read(path).events()] == [TokenEmitted]
