"""Two models of one vocabulary may have two templates, and two ways to begin: both are seen before money is spent."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from probed_server import Server, V, dense, probed

from hybrid.cloud.dialects import llama_server, vllm
from hybrid.cloud.discover import DIALECTS
from hybrid.cloud.probe_result import (
    APART_NATS,
    CHATS,
    ChatDifference,
    LocalChat,
    LocalSide,
    first_difference,
    habits,
    median_kl,
    opening_kl,
    without_dates,
    worst_kl,
)
from hybrid.errors import BadReply
from hybrid.prob import Dense, TopK
from hybrid.types import Message

TURNS = (Message("user", "Why?"),)
ENDS = st.tuples(st.floats(0, 20), st.floats(0, 20)).map(sorted).map(tuple)


def letters(token):
    if token >= 128:
        raise ValueError(token)
    return bytes([token])


def differ(ours, theirs):
    return first_difference(tuple(ours.encode()), tuple(theirs.encode()), letters)


# ---- templates -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_chats_are_alike_exactly_where_their_ids_are_and_else_the_first_difference_is_told(ours, theirs):
    found = first_difference(tuple(ours), tuple(theirs), letters)
    assert (found is None) == (ours == theirs)
    if found:
        assert ours[: found.position] == theirs[: found.position]
        assert ours[found.position : found.position + 1] != theirs[found.position : found.position + 1]


def test_both_pieces_are_shown_where_the_chats_differ_first():
    assert differ("<user>Why?", "<user> Why?") == ChatDifference(6, "Why?", " Why")
    assert differ("<user>Why?", "<user>Why?<go>") == ChatDifference(10, "", "<go>")
    assert first_difference((65,), (300, 65), letters) == ChatDifference(0, "A", "<token 300>A")


@each(
    ("ours", "theirs"),
    [
        ("Today Date: 26 Jul 2024\nWhy?", "Today Date: 5 August 2026\nWhy?"),
        ("Today is Monday, 2026-11-23, 03:15.", "Today is Friday, 2024-7-1, 17:00."),
        ("Current date: March 3, 2026", "Current date: Nov 23, 2025"),
    ],
)
def test_what_differs_in_a_date_alone_is_told_as_that(ours, theirs):
    """A template that writes the day would else be another one tomorrow."""
    assert differ(ours, theirs).dates
    assert differ(ours, ours) is None
    assert not differ(ours, theirs + "!").dates
    assert not differ(ours.replace("a", "e", 1), theirs).dates


def test_the_conversations_of_the_probe_hold_nothing_that_a_date_could_be():
    for text in each_of(turn.content for turns in CHATS for turn in turns):
        assert without_dates(text) == text


def test_the_same_text_in_other_tokens_is_a_difference_and_no_date():
    found = first_difference((1, 2), (3,), {1: b"a", 2: b"b", 3: b"ab"}.__getitem__)
    assert found == ChatDifference(0, "ab", "ab")


# ---- first words ---------------------------------------------------------------------------------------------------


@given(st.lists(ENDS, min_size=1, max_size=9), st.data())
def test_the_median_and_the_worst_of_true_divergences_lie_in_their_intervals(found, data):
    true = [data.draw(st.floats(low, high)) for low, high in found]
    for of, told in ((median, median_kl(found)), (max, worst_kl(found))):
        assert told[0] <= of(true) <= told[1]
    unbounded = [(low, None) for low, _ in found]
    assert (median_kl(unbounded)[1], worst_kl(unbounded)[1]) == (None, None)


def test_alike_and_apart_are_told_only_where_the_whole_interval_says_so():
    assert habits([(0.0, 1.0)] * 3) == "alike"
    assert habits([(APART_NATS, None)] * 3) == "apart"
    assert habits([(APART_NATS - 0.1, APART_NATS + 0.1)] * 3) == habits([(0.0, None)]) == "unknown"
    assert habits([]) is None is median_kl([])


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_an_interval_holds_the_divergence_from_the_cloud_to_the_local_model(seed, k):
    """Its two arguments swapped give another number."""
    rng = np.random.default_rng(seed)
    cloud, local = (Dense.from_logits(rng.normal(scale=3, size=8)) for _ in range(2))
    true = float(np.sum(np.exp(cloud.logprobs) * (cloud.logprobs - local.logprobs)))
    low, high = opening_kl(TopK.from_lists(dict(cloud.top(k)), None, {}), local)
    assert low - 1e-3 <= true
    assert high is None or true <= high + 1e-3


def test_a_list_with_a_token_that_is_none_here_says_nothing():
    assert opening_kl(TopK.from_lists({9: -0.1}, None, {}), Dense.from_logits(np.zeros(8))) is None


# ---- in a probe ----------------------------------------------------------------------------------------------------


def local(shift=0.0, **more):
    """Two questions, begun as the server of the tests begins them, or with other odds."""
    prompts = {"0": (5, 6), "1": (7, 8, 9)}
    rows = {text: Dense.from_logits(dense(ids).logprobs + shift * np.arange(V)) for text, ids in prompts.items()}
    asked = [LocalChat((Message("user", text),), ids, row=rows[text]) for text, ids in prompts.items()]
    chats = [replace(chat, **more) for chat in asked]
    return LocalSide((*chats, LocalChat(TURNS, (1, 2, 3))), letters)


def test_two_models_that_begin_alike_are_told_from_two_that_do_not():
    alike, apart = (probed(Server(), local=local(shift))[0] for shift in (0.0, 1.0))
    assert (habits(alike.opening_kl), habits(apart.opening_kl)) == ("alike", "apart")
    assert [low for low, _ in alike.opening_kl] == [0.0, 0.0]
    assert all(high < 0.01 for _, high in alike.opening_kl), "the whole row was shown"
    assert probed(Server())[0].opening_kl == ()


def test_first_words_are_asked_for_one_token_each_and_paid_like_any_question():
    plain, with_habits = probed(Server()), probed(Server(), local=local())
    assert len(with_habits[2]) == len(plain[2]) + 2
    assert with_habits[0].spent_tokens == plain[0].spent_tokens + 2 + 1 + 3 + 1


def test_a_question_that_does_not_fit_there_and_rows_that_are_not_given_say_nothing():
    small = replace(Server().dialect.can, model="m", max_context=4, same_words=True)
    assert len(probed(Server(), local=local(), said=small)[0].opening_kl) == 1
    assert probed(Server(), local=local(row=None))[0].opening_kl == ()


def test_every_chat_is_compared_until_one_differs():
    def found(**chats):
        return probed(Server(chats=chats), local=local())[0]

    same = {"0": (5, 6), "1": (7, 8, 9)}
    assert (found(**same).chat_alike, found(**same).chat_difference) == (True, None)
    assert found(**same, **{"Why?": (1, 2, 3)}).chat_alike is True
    other = found(**same, **{"Why?": (1, 2, 4)})
    assert (other.chat_alike, other.chat_difference) == (False, ChatDifference(2, "\x03", "\x04"))


def test_a_date_is_told_and_a_real_difference_before_it():
    def chat(text, ids):
        return LocalChat((Message("user", text),), tuple(ids.encode()))

    habits_here = LocalSide((chat("a", "on 1 May: a"), chat("b", "on 1 May: b")), letters)
    told = {"a": tuple(b"on 23 Nov: a"), "b": tuple(b"on 1 May: b")}
    found = probed(Server(chats=told), local=habits_here)[0]
    assert (found.chat_alike, found.chat_difference.dates, found.chat_difference.position) == (False, True, 3)
    found = probed(Server(chats=told | {"b": tuple(b"by 1 May: b")}), local=habits_here)[0]
    assert (found.chat_alike, found.chat_difference.dates, found.chat_difference.position) == (False, False, 0)


def test_of_a_server_that_cannot_be_asked_and_a_model_without_a_template_nothing_is_claimed():
    assert probed(Server(), local=local())[0].chat_alike is None
    bare = LocalSide(tuple(replace(each, rendered=False) for each in local().chats), letters)
    assert probed(Server(chats={"0": (1,)}), local=bare)[0].chat_alike is None


# ---- how a server is asked for its template ------------------------------------------------------------------------


def asked(route, *replies):
    """Drive a dialect's flow by hand."""
    flow, sent = route("m", CHATS[-1][:2]), []
    told = None
    for reply in (*replies, None):
        try:
            sent.append(flow.send(told))
        except StopIteration as done:
            return sent, done.value
        told = reply
    return sent, None


MESSAGES = [{"role": turn.role, "content": turn.content} for turn in CHATS[-1][:2]]


def test_vllm_renders_a_conversation_in_its_tokenizer():
    sent, ids = asked(vllm.chat_route, {"tokens": [1, 2], "count": 2})
    assert sent == [("/tokenize", {"model": "m", "messages": MESSAGES, "add_generation_prompt": True})]
    assert ids == (1, 2)
    assert DIALECTS["vllm-tokens"].chat_route is DIALECTS["vllm"].chat_route


def test_llama_server_renders_to_a_text_which_its_tokenizer_reads_as_the_chat_route_does():
    sent, ids = asked(llama_server.chat_route, {"prompt": "<a>Why?"}, {"tokens": [3]})
    assert sent == [
        ("/apply-template", {"messages": MESSAGES}),
        ("/tokenize", {"content": "<a>Why?", "add_special": True, "parse_special": True}),
    ]
    assert ids == (3,)


@each("reply", [{}, {"prompt": None}, {"prompt": ["a"]}, [], "a"], ids=str)
def test_a_rendered_text_that_is_none_is_a_bad_reply(reply):
    with pytest.raises(BadReply):
        asked(llama_server.chat_route, reply)


def test_what_is_found_can_be_written_down():
    found = probed(Server(chats={"0": (5, 6), "1": (1,)}), local=local())[0]
    assert type(found).from_json(json.loads(json.dumps(found.to_json()))) == found
