"""The most that a prompt may be charged by what was counted before: no server that is one and the same charges more."""

from __future__ import annotations

import unicodedata
from statistics import median

from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from toy_templates import ToyServer

from hybrid.cloud.prompt_bounds import BoundedPrompt, BoundedTurn, CountedAnswer, PromptCounts

WORDS = ("the ", "cat ", "sat", " on", "ing", "mat", "e", "é", "  ", "think")
TEXT = st.lists(
    st.sampled_from([*WORDS, "한", "\u0958", "ﷺ", "\u0390", "x", "\n", "<think>a b</think>"]), max_size=8
).map("".join)
SERVER = st.builds(
    ToyServer,
    pieces=st.sets(st.sampled_from(WORDS)).map(tuple),
    form=st.sampled_from([None, "NFC", "NFD", "NFKC", "NFKD"]),
    default_system=st.sampled_from([0, 7, 70, 700]),
    turn_marks=st.integers(0, 12),
    dates=st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple),
    drops_thoughts=st.booleans(),
    tool_text=st.sampled_from([0, 90]),
    begin=st.integers(0, 2),
    merges=st.booleans(),
    wants_it_first=st.booleans(),
)
# What is asked next: how many turns of the conversation stay, the system message, and what is new; whether the answer
# stays in the conversation.
STEP = st.tuples(
    st.integers(0, 5),
    st.sampled_from(["", " ", "be brief", "you are a cat " * 3]),
    st.sampled_from(["user", "user", "tool", "system"]),
    TEXT,
    TEXT,
    st.booleans(),
)


def most_bytes(text):
    forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))]
    return max(len(form.encode()) for form in forms)


def bounded(turns, others=b""):
    return BoundedPrompt(tuple(BoundedTurn(role, text.encode(), most_bytes(text)) for role, text in turns), others)


def answered(text, tokens):
    return CountedAnswer.of(text, tokens)


@given(SERVER, st.lists(STEP, min_size=1, max_size=8))
def test_no_server_of_one_template_and_vocabulary_charges_more_than_was_reserved(server, steps):
    """Whatever it was asked before: conversations that go on, others, a system message anywhere or none, tools."""
    counts, turns = PromptCounts(), []
    for kept, system, role, text, answer, stays in each_of(steps):
        start = [("system", system)] if system else []
        rest = [turn for turn in turns if turn[0] != "system"][:kept]
        turns = [*start, *rest, (role, text)]
        told, most = server.prompt(turns), counts.most(bounded(turns))
        assert told <= most.tokens
        counts = counts.learn(bounded(turns), told, answered(answer, max(1, server.tokens(answer))))
        turns = [*turns, *([("assistant", answer)] if stays else [])]
    assert counts.constant


def test_turns_that_one_template_merges_and_another_order_of_them_does_not():
    server, counts = ToyServer(merges=True, turn_marks=8), PromptCounts()
    twenty = [("user", "a")] * 20
    counts = counts.learn(bounded(twenty), server.prompt(twenty))
    apart = [("user", "a"), ("assistant", "a")] * 10
    assert counts.most(bounded(apart)).counted
    assert server.prompt(apart) <= counts.most(bounded(apart)).tokens


@each("counted", [[("user", "hi"), ("system", "Be brief")], [("system", "Be brief"), ("user", "hi")]])
def test_a_system_message_elsewhere_or_none_is_another_kind(counted):
    server = ToyServer(default_system=700, wants_it_first=counted[0][0] == "system")
    counts = PromptCounts().learn(bounded(counted), server.prompt(counted))
    for other in ([("user", "hi")], [("system", " "), ("user", "hi")]):
        assert server.prompt(other) <= counts.most(bounded(other)).tokens


QUESTIONS = ("What is the capital of France, and how many people live there?", "And of Spain?", "Why is it so?") * 2
ENGLISH = (*{word for question in QUESTIONS for word in question.split()}, " ", "Paris", " has ", "millions")
ANSWER = "Paris has millions of people"


def reserved_over_told(conversations, *, whole=True):
    server, counts, ratios = ToyServer(ENGLISH, default_system=20, turn_marks=4), PromptCounts(), []
    for conversation in conversations:
        turns = []
        for question in conversation:
            turns.append(("user", question))
            told = server.prompt(turns)
            ratios.append(counts.most(bounded(turns)).tokens / told)
            reply = answered(ANSWER, server.tokens(ANSWER)) if whole else None
            counts = counts.learn(bounded(turns), told, reply)
            turns.append(("assistant", ANSWER))
    return ratios


def test_what_was_counted_is_reserved_as_counted():
    """Of 6 turns all but the first, and the first turn of the next conversation, too."""
    ratios = reserved_over_told([QUESTIONS, QUESTIONS])
    assert ratios[0] > 9
    assert all(ratio <= 3 for ratio in ratios[1:6])
    assert median(ratios) <= 3
    assert ratios[6] < ratios[0] / 3


def test_the_bound_of_what_nobody_has_counted_is_said_to_be_that():
    first = bounded([("user", "cab")])
    assert not PromptCounts().most(first).counted
    assert PromptCounts().learn(first, 9).most(first).counted
    assert not PromptCounts().learn(first, 9).most(bounded([("user", "cab")], b"other tools")).counted
    assert not PromptCounts().learn(first, 9).most(bounded([("system", "be"), ("user", "cab")])).counted


@given(st.lists(st.sampled_from([0, 0, 1, 40, 5000, 2**40]), max_size=8))
def test_no_reply_raises_a_reservation_by_more_than_one_preamble(counts_told):
    """A prompt told as 0 was not told; a number beyond all bounds is disputed, and teaches little."""
    first, counts = bounded([("user", "cab")]), PromptCounts()
    published = counts.most(first).tokens
    for told in each_of(counts_told, least=0):
        counts = counts.learn(first, told)
        assert counts.most(first).tokens <= 2 * published
    if not any(counts_told):
        assert counts == PromptCounts()


def test_a_server_that_counts_otherwise_than_before_is_bounded_as_if_it_had_counted_nothing():
    turns = [("user", "the cat sat on the mat")]
    counts = PromptCounts().learn(bounded(turns), 12)
    assert counts.most(bounded(turns)).tokens < 60
    changed = counts.learn(bounded(turns), 300)
    assert changed.most(bounded(turns)) == PromptCounts().most(bounded(turns))
    assert changed.learn(bounded(turns), 12) == changed, "it is trusted no more"


def test_a_server_whose_own_message_is_longer_than_any_published_one_is_allowed_for_once():
    turns = [("user", "the cat sat on the mat")]
    counts = PromptCounts().learn(bounded(turns), 1900)
    other = [("user", "x" * 40)]
    assert counts.most(bounded(other)).tokens >= 1900 - 6 + 40
    assert counts.most(bounded([("system", "s"), *other])).tokens >= 1900 - 6 + 41


def test_counts_of_many_conversations_are_kept_in_bounded_memory():
    counts = PromptCounts()
    for number in range(1500):
        counts = counts.learn(bounded([("user", str(number))]), 9, answered("yes", 1))
    assert len(counts.counts) <= 1024
    assert counts.most(bounded([("user", "new")])).counted
