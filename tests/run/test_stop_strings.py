"""Stop strings, wherever they fall: within a token, across tokens, across a hand-over, in the middle of a character."""

from __future__ import annotations

import itertools

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.record.answer_builder import StopStringDecoder
from hybrid.record.events import Finished, Flushed, TokenEmitted

PROMPT = "a b c"
letters = st.text("ab\u00e9\U0001f642", max_size=12)


def read(text, cuts, stops):
    """The parts as they become readable, from bytes cut anywhere."""
    raw, reader = text.encode(), StopStringDecoder(stops)
    ends = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    parts = [reader.add(raw[a:b]) for a, b in itertools.pairwise(ends)]
    return [*parts, reader.rest()], reader.stopped


def naive(text, stops):
    """What stands before the stop string that is complete first; of two that end together, the longer one."""
    for end in range(1, len(text) + 1):
        if met := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, met))], True
    return text, False


@given(letters, st.lists(st.integers(0, 40), max_size=12), st.lists(letters.filter(bool), max_size=3))
def test_the_text_is_what_stands_before_the_first_stop_string_however_it_is_cut(text, cuts, stops):
    parts, stopped = read(text, cuts, stops)
    assert ("".join(parts), stopped) == naive(text, stops)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none():
    reader = StopStringDecoder(["END"])
    assert [reader.add(part) for part in (b"so E", b"N", b"X E", b"ND more")] == ["so ", "", "ENX ", ""]
    assert (reader.stopped, reader.rest()) == (True, "")
    assert reader.add(b"anything") == ""


def texts(house, run, **choices):
    return run(house().client.generate(PROMPT, raw=True, max_tokens=24, **choices))


@each("policy", ["local", "cloud", "kl", "greedy-exact", "doubt", "exact"])
def test_an_answer_ends_before_its_stop_string_whoever_writes(house, run, policy):
    """The scripted words are letters and a space each: two letters of the whole text stand in two tokens."""
    whole = texts(house, run, policy=policy)
    for start in range(1, 8, 2):
        stop = whole.text[start : start + 3]  # " x ", in two tokens
        answer = texts(house, run, policy=policy, stop=[stop])
        assert answer.text == whole.text[: whole.text.find(stop)]
        assert answer.finish_reason == "stop"
        shown = 3 * 1000 + len(answer.tokens) * 4000
        assert answer.bill.cloud_only_nanousd == shown, "no token ended it that was not shown"
        assert whole.tokens[: len(answer.tokens)] != ()
    assert texts(house, run, policy=policy, stop=["nowhere"]).text == whole.text


def test_what_was_held_back_is_told_when_nothing_follows(house, run):
    async def gather():
        stream = house().client.stream(PROMPT, raw=True, max_tokens=5, policy="local", stop=[" zz"])
        return [event async for event in stream]

    events = run(gather())
    shown = "".join(event.token.text for event in events if isinstance(event, TokenEmitted))
    (rest,) = (event.text for event in events if isinstance(event, Flushed))
    answer = next(event.answer for event in events if isinstance(event, Finished))
    assert shown + rest == answer.text
    assert rest == " "
    assert answer.text == texts(house, run, policy="local").text[: len(answer.text)]


def test_an_empty_stop_string_is_refused(house, run):
    from hybrid.errors import UsageError

    with pytest.raises(UsageError, match="stop"):
        texts(house, run, stop=[""])
