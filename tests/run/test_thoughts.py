"""Thoughts are told from the answer by marks: however they come in pieces, whoever writes, live and replayed."""

from __future__ import annotations

import itertools
import json
from functools import partial

import numpy as np
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from hybrid.engine import ThoughtMarks
from hybrid.record.answer_builder import CUT_THOUGHTS, ONLY_THOUGHTS, ThoughtDecoder, overlap
from hybrid.record.events import NoteAdded, TokenEmitted, text_of, thoughts_of, to_json
from hybrid.run.replay import replay

MARKS = [ThoughtMarks("<t>", "</t>"), ThoughtMarks("<|c|>", "final<|m|>"), ThoughtMarks("tt", "tit"), None]
parts = st.sampled_from(["<t>", "</t>", "<", "<|c|>", "final<|m|>", "fin", "t", "i", " ", "\n", "é", "🙂", "a"])
texts = st.lists(parts, max_size=12).map("".join)


def naive(text, marks):
    """The thoughts and the answer of a whole text."""
    thoughts, thinking = "", marks is not None and marks.opened
    had = thinking
    while marks is not None:
        if thinking:
            thought, mark, text = text.partition(marks.close)
            thoughts += thought
            if not mark:
                break
        if not (thinking := text.lstrip().startswith(marks.open)):
            break
        had, text = True, text.lstrip()[len(marks.open) :]
    return thoughts, text.lstrip() if had else text


def divide(text, cuts, marks):
    raw, decoder = text.encode(), ThoughtDecoder(marks)
    ends = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    read = [decoder.add(raw[a:b]) for a, b in itertools.pairwise(ends)]
    read.append(decoder.rest())
    return "".join(each.thoughts for each in read), "".join(each.answer for each in read)


@given(texts, st.lists(st.integers(0, 60), max_size=12), st.sampled_from(MARKS), st.booleans())
def test_the_division_is_the_same_however_the_bytes_are_cut(text, cuts, marks, opened):
    if marks is not None:
        marks = ThoughtMarks(marks.open, marks.close, opened=opened)
    assert divide(text, cuts, marks) == divide(text, range(200), marks) == naive(text, marks)


def test_what_is_no_mark_is_given_out_at_once_and_what_may_be_one_is_held_back():
    decoder = ThoughtDecoder(ThoughtMarks("<think>", "</think>"))
    read = [decoder.add(each) for each in (b"\n<th", b"ink>\nSo <", b"3 </thi", b"nk", b">\n", b"\nIt is", b" <think>")]
    assert [each.thoughts for each in read] == ["", "\nSo ", "<3 ", "", "", "", ""]
    assert [each.answer for each in read] == ["", "", "", "", "", "It is", " <think>"], "an answer may speak of a mark"
    plain = ThoughtDecoder(ThoughtMarks("<think>", "</think>"))
    assert [plain.add(each).answer for each in (b" ", b"\n<t", b"able>", b"x")] == ["", "", " \n<table>", "x"]


def test_overlap_is_the_longest_end_that_begins_a_mark_and_is_none():
    assert [overlap(text, ("ab", "abc")) for text in ("xa", "xab", "xabc", "", "ca")] == [1, 2, 0, 0, 1]
    assert overlap("xx", ()) == 0


# ---- answers ---------------------------------------------------------------------------------------------------------

# Of the scripted vocabulary: a word and a space are a token, so the first mark is spelled by two.
SPELLED = ThoughtMarks("b c ", "d ")
END = 7


def writing(words, until_end=True):
    """A table that writes these words after any prompt of three, and then ends."""

    def scores(prefix):
        at = len(prefix) - 3
        row = np.zeros(8)
        row["abcdefgh".index(words[at]) if at < len(words) else END] = 9.0
        return row

    return scores


def built(house, words, marks):
    """A house whose local model writes these words, between these marks."""
    return house(small=writing(words), made=partial(ScriptedEngine, thoughts=marks))


PROMPT = "a b c"


def test_an_answer_is_without_its_thoughts_which_are_counted(house, run):
    """The last of the tokens that spell the first mark, four thoughts and the second mark."""
    answer = run(built(house, "bcaaeedaaf", SPELLED).client.generate(PROMPT, policy="local"))
    assert (answer.thoughts, answer.text) == ("a a e e ", "a a f ")
    assert [token.thought for token in answer.tokens] == [False, *[True] * 6, *[False] * 3]
    assert (answer.usage.thought_tokens, answer.usage.local_tokens) == (6, 10)
    assert answer.to_json()["thoughts"] == "a a e e "
    assert "".join(token.thought_text for token in answer.tokens) == answer.thoughts
    opened = ThoughtMarks("b c ", "d ", opened=True)
    answer = run(built(house, "aeedaaf", opened).client.generate(PROMPT, policy="local"))
    assert (answer.thoughts, answer.text, answer.usage.thought_tokens) == ("a e e ", "a a f ", 4)
    assert run(built(house, "aeedaaf", None).client.generate(PROMPT, policy="local")).text == "a e e d a a f "


def test_what_is_streamed_joined_is_the_answer_and_the_thoughts(house, run):
    async def events(h):
        return [event async for event in h.client.stream(PROMPT, policy="local")]

    found = run(events(built(house, "bcaaeedaaf", SPELLED)))
    assert "".join(map(text_of, found)) == "a a f "
    assert "".join(map(thoughts_of, found)) == "a a e e "
    tokens = [event.token for event in found if isinstance(event, TokenEmitted)]
    assert tuple(tokens) == found[-1].answer.tokens


def test_raw_text_has_no_thoughts(house, run):
    answer = run(built(house, "bcaaeedaaf", SPELLED).client.generate(PROMPT, policy="local", raw=True))
    assert (answer.thoughts, answer.text) == ("", "b c a a e e d a a f ")


def test_stop_strings_do_not_see_thoughts(house, run):
    answer = run(built(house, "bcaaeedafa", SPELLED).client.generate(PROMPT, policy="local", stop=["a e", "f "]))
    assert (answer.thoughts, answer.text, answer.finish_reason) == ("a a e e ", "a ", "stop")


@each(("words", "most", "why"), [("bcaaeedaaf", 5, CUT_THOUGHTS), ("bcaae", 50, ONLY_THOUGHTS)])
def test_an_answer_that_ends_in_its_thoughts_is_empty_and_says_so(house, run, words, most, why):
    async def events(h):
        return [event async for event in h.client.stream(PROMPT, policy="local", max_tokens=most)]

    found = run(events(built(house, words, SPELLED)))
    answer = found[-1].answer
    assert (answer.text, answer.thoughts, answer.notes) == ("", "a a e ", (why,))
    assert NoteAdded(why) in found
    assert len(answer.tokens) == 5, "thoughts count as any token"


def test_what_is_held_back_at_the_end_is_given_out(house, run):
    answer = run(built(house, "b", SPELLED).client.generate(PROMPT, policy="local"))
    assert (answer.text, answer.tokens[-1].text) == ("b ", "b ")
    answer = run(built(house, "bca", ThoughtMarks("b c ", "a e ")).client.generate(PROMPT, policy="local"))
    assert (answer.text, answer.thoughts, answer.tokens[-1].thought_text) == ("", "a ", "a ")


@each("policy", ["kl", "greedy-exact", "cloud", "doubt"])
def test_whoever_writes_the_division_is_that_of_the_text(house, run, policy):
    h = house(made=partial(ScriptedEngine, thoughts=ThoughtMarks("a ", "b ", opened=True)))
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40))
    whole = run(house().client.generate(PROMPT, policy=policy, max_tokens=40))
    assert [token.id for token in answer.tokens] == [token.id for token in whole.tokens]
    assert (answer.thoughts, answer.text) == naive(whole.text, ThoughtMarks("a ", "b ", opened=True))
    assert answer.bill == whole.bill, "thoughts are priced as any token"


def test_a_replay_divides_as_the_recording_did_and_an_old_trace_has_no_marks(house, run, tmp_path):
    file = tmp_path / "trace.jsonl"

    async def record(h):
        return [event async for event in h.client.stream(PROMPT, policy="local", trace_rows=True)]

    events = run(record(built(house, "bcaaeedaaf", SPELLED)))
    lines = [json.dumps({"trace": 5}), *(json.dumps(to_json(event)) for event in events)]
    file.write_text("\n".join(lines) + "\n")
    again = run(replay(file))
    assert (again.text, again.thoughts, again.tokens) == ("a a f ", "a a e e ", events[-1].answer.tokens)
    for number, line in enumerate(lines):
        old = json.loads(line)
        if old.pop("thoughts", None) is not None and old["event"] == "recording_started":
            lines[number] = json.dumps(old)
    file.write_text("\n".join(lines) + "\n")
    assert run(replay(file)).text == "b c a a e e d a a f "


def test_where_an_endpoint_takes_messages_its_text_is_the_answer(house, run):
    """It renders them by its own template: the thoughts that our prompt opened were never open there."""
    opened = ThoughtMarks("e ", "d ", opened=True)
    h = house(can={"continues": False}, made=partial(ScriptedEngine, thoughts=opened))
    plain = run(house(can={"continues": False}).client.generate(PROMPT, policy="cloud", max_tokens=6))
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=7))
    assert answer.text == plain.text != ""
    assert (answer.thoughts, answer.usage.thought_tokens) == ("", 1)
    assert [token.id for token in answer.tokens] == [3, *(token.id for token in plain.tokens)]
