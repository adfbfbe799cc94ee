"""A long body is read at a pace: whatever it holds, others have the interpreter between two of its pieces."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from contextlib import suppress

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.serve.body import ThreadPacer
from hybrid.serve.errors import ApiError
from hybrid.serve.handler import read_long
from hybrid.serve.requests import read_chat

# Calls of functions between two rests: some milliseconds. 3,000 turns without a rest are 15,000 to 300,000.
MOST_CALLS = 12_000
NUM = 3_000
TURN = {"role": "user", "content": "a"}
BODIES = {
    "turns": {"messages": [TURN] * NUM},
    "named": {"messages": [TURN | {"name": "b", "refusal": "c", "odd": 1}] * NUM},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * NUM}]},
    "calls": {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}] * NUM},
    "refused": {"messages": [*[TURN | {"name": "b"}] * NUM, {"role": 7}]},
    "elsewhere": {"messages": [TURN], "metadata": [{"a": {"b": 1}}] * 4 * NUM},
}


def calls_between_rests(raw):
    """Read a body; return how many functions were called from each rest to the next."""
    counts = [0]

    def count(_frame, event, _arg):
        if event in {"call", "c_call"}:
            counts[-1] += 1

    pace = ThreadPacer(sleep=lambda _: counts.append(0))
    sys.setprofile(count)
    try:
        with suppress(ApiError):
            read_long(raw, read_chat, pace)
    finally:
        sys.setprofile(None)
    return counts


@each("name", list(BODIES))
def test_few_functions_are_called_between_two_rests_whatever_a_body_holds(name):
    counts = calls_between_rests(json.dumps({"model": "hybrid", **BODIES[name]}).encode())
    assert sum(counts) > MOST_CALLS, "there was more to do than is done without a rest"
    assert max(counts) < MOST_CALLS


def test_a_reading_thread_has_a_quarter_of_the_time_at_most():
    """Of what is drawn here as a clock: each look at it is a unit of work, and so is each call before it."""
    worked, slept = 0, list[float]()

    def work():
        nonlocal worked
        worked += 1
        return float(worked)

    pace = ThreadPacer(slept.append, work)
    for value in pace.through(range(NUM)):
        worked += value % 3
    pace.rest()
    assert len(slept) > 10
    assert sum(slept) >= 3 * (worked - len(slept) - 1), "but for the looks at the clock after each rest"


@given(st.dictionaries(st.sampled_from(["messages", "tools", "n", "stop"]), st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.just(TURN),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "a"]), inner),
    max_leaves=12,
)), st.binary(max_size=3))  # fmt: skip
def test_what_is_read_at_a_pace_is_what_is_read_at_once(fields, junk):
    raw = json.dumps({"model": "hybrid", "messages": [TURN], **fields}).encode() + junk

    def at_a_pace():
        return repr(read_long(raw, read_chat, ThreadPacer(lambda _: None)))

    try:
        at_once = json.loads(raw)
        found = repr((at_once, read_chat(at_once)))
    except ValueError:
        found = "the body is not a JSON object"
    except ApiError as error:
        found = error.message
    try:
        assert at_a_pace() == found
    except ApiError as error:
        assert error.message == found  # noqa: PT017


class Kept(list):
    """What a body held, of which a test asks whether it still lives."""


def test_a_refusal_holds_nothing_of_what_was_read():
    """Each error held its fields until somebody looked for garbage, and nobody looks while a body is read."""
    kept = []

    def refuse(fields, _steps=iter, /):
        fields["kept"] = Kept()
        kept.append(weakref.ref(fields["kept"]))
        raise ApiError(400, "no")

    gc.disable()
    try:
        with pytest.raises(ApiError) as refusal:
            read_long(b"{}", refuse, ThreadPacer(lambda _: None))
        assert refusal.value.status == 400
        assert kept[0]() is None
    finally:
        gc.enable()
