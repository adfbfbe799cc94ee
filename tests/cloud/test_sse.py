"""Server-sent events are those of the HTML standard, however the network cuts them."""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cloud.bounds import BYTE_ORDER_MARK, MAX_EVENT_BYTES, EventReader, LineReader
from hybrid.errors import BadReply

MARK = BYTE_ORDER_MARK.decode()


def lines_of(text):
    """Every line that is ended, from the whole text."""
    return re.split(r"\r\n|\r|\n", text.removeprefix(MARK))[:-1]


def events_of(text):
    """The standard, word by word: buffers, fields, and a dispatch at every empty line."""
    events, data = [], ""
    for line in lines_of(text):
        if line == "":
            if data != "":
                events.append(data.removesuffix("\n"))
            data = ""
        elif line.startswith(":"):
            pass
        else:
            field, colon, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data += (value if colon else "") + "\n"
    return events


def read(reader, whole, cuts):
    edges = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    parts = [whole[start:end] for start, end in pairwise(edges)]
    return [found.decode() for part in parts if part for found in reader.feed(part)]


ENDS = ["\r", "\n", "\r\n", "\n\n", "\u2028", "\x0c"]  # the last two end no line
WORDS = ["data", "data:", "data: ", "data:  x", ":", " ", "id: 7", "{}", "é", MARK, *ENDS]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=30).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)


@given(TEXTS, CUTS)
def test_however_the_bytes_are_cut_the_events_are_those_of_the_whole_text(text, cuts):
    assert read(EventReader(), text.encode(), cuts) == events_of(text)


@given(TEXTS, CUTS)
def test_however_the_bytes_are_cut_the_lines_are_those_of_the_whole_text(text, cuts):
    assert read(LineReader(), text.encode(), cuts) == lines_of(text)


@each(
    ("text", "events"),
    [
        (MARK + "data: 1\n\n", ["1"]),
        ("data: 1\r\rdata: 2\r\n\r\n", ["1", "2"]),
        ('data: {"a":\ndata: 1}\n\n', ['{"a":\n1}']),
        ("data:1\n\ndata:  2\n\n", ["1", " 2"]),
        (": ping\n\nevent: x\nid: 3\ndata: 1\nretry: 5\n\n", ["1"]),
        ("data\n\n", [""]),
        ("database: 1\n\n", []),
        ("data: 1\n\ndata: 2\n", ["1"]),
        ("data: 1\n" + MARK + "data: 2\n\n", ["1"]),
    ],
    ids=ascii,
)
def test_an_event_is_what_the_standard_says(text, events):
    """Examples, lest reader and oracle should be wrong alike."""
    assert read(EventReader(), text.encode(), range(len(text) * 4)) == events_of(text) == events


@each(
    ("reader", "part"),
    [(LineReader, b"x" * 2**20), (EventReader, b"x" * 2**20), (EventReader, b"data: %s\n" % (b"x" * 1023) * 2**10)],
)
def test_what_does_not_end_is_given_up(reader, part):
    """A line, or an event of many lines."""
    endless = reader()
    with pytest.raises(BadReply, match="does not end its lines, or its events"):
        deque((found for _ in range(MAX_EVENT_BYTES // 2**20 + 1) for found in endless.feed(part)), maxlen=0)


@pytest.mark.slow
@each("line", [b": ping\n\n", b": ping\n", b"\n", b"id: 7\n", b"event: a\n\n"])
def test_a_stream_of_comments_alone_ends_and_one_with_events_between_them_does_not(line):
    """Comments say that a server lives; without end they took the time of all others."""
    some = line * (100_000 // len(line))
    reader = EventReader()
    for _ in range(5):
        assert list(reader.feed(some + b"\ndata: x\n\n")) == [b"x"]
    reader = EventReader()
    with pytest.raises(BadReply, match="comments and no events"):
        list(reader.feed(some * 5))
