"""No honest server's user is charged more than it tells, however it frames; a lower usage is raised to what came."""

from __future__ import annotations

import json
from itertools import pairwise

from cases import each, each_of
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.cloud.relay_bounds import ReplyFloor

# Tokens of up to seven characters, some of them parts of one: a byte-level vocabulary's.
PIECES = [b"a", b"word", b" longest", b"\n", "é".encode(), *(bytes([byte]) for byte in "中".encode()), "한국".encode()]
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=30)
FIELDS = st.sampled_from(["content", "reasoning_content", "reasoning", "arguments"])


def spelled(tokens):
    """What tokens spell. Half a character is held back, or given up where another begins, as servers do."""
    return b"".join(PIECES[token] for token in tokens).decode("utf-8", "replace")


def event(text, field="content", index=0, **more):
    delta = {field: text}
    if field == "arguments":
        delta = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": text}}]}
    return {"choices": [{"index": index, "delta": delta, **more}]}


def by_token(tokens, field, index):
    """A delta a token; the first has the role, the last the reason of the end."""
    whole = [spelled(tokens[:end]).removesuffix("\ufffd") for end in range(len(tokens) + 1)]
    yield {"choices": [{"index": index, "delta": {"role": "assistant", "content": ""}}]}
    yield from (event(after[len(before) :], field, index) for before, after in pairwise(whole))
    yield {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}


def by_batches(tokens, field, index):
    yield from (event(spelled(tokens[start : start + 4]), field, index) for start in range(0, len(tokens), 4))


def by_characters(tokens, field, index):
    yield from (event(char, field, index) for char in spelled(tokens))


def by_parts(tokens, field, index):
    """Each token's bytes in the place of a text, as servers do that hold nothing back."""
    yield from (event(PIECES[token].decode("utf-8", "replace"), field, index) for token in tokens)


def whole(tokens, field, index):
    yield {"choices": [{"index": index, "message": event(spelled(tokens), field)["choices"][0]["delta"]}]}


def listed(tokens, field, index):
    """Log-probabilities of the content's tokens, which a proxy has cut into characters."""
    entries = [{"token": "t", "logprob": 0.0} for _ in tokens]
    yield event(spelled(tokens)[:1], field, index, **({"logprobs": {"content": entries}} if field == "content" else {}))
    if field == "content":
        yield from by_characters(tokens[1:], field, index)


def listed_by_token(tokens, field, index):
    """As vLLM streams: every delta lists its tokens, of thoughts and of a call as well."""
    for sent in by_token(tokens, field, index):
        delta = sent["choices"][0]["delta"]
        entries = [{"token": "t", "logprob": 0.0}] * (delta not in ({}, {"role": "assistant", "content": ""}))
        yield {"choices": [{**sent["choices"][0], "logprobs": {"content": entries} if entries else None}]}


FRAMINGS = (by_token, by_batches, by_characters, by_parts, whole, listed, listed_by_token)


def floor_of(events, told, longest=None):
    floor = ReplyFloor(longest)
    for each_event in events:
        floor.add(each_event)
    return floor.num_tokens(told)


@given(st.lists(st.tuples(TOKENS, FIELDS), min_size=1, max_size=3), st.sampled_from(FRAMINGS), st.booleans())
def test_framing_alone_charges_no_more_than_an_honest_server_tells(answers, framing, known):
    events = [got for index, (tokens, field) in enumerate(answers) for got in framing(tokens, field, index)]
    told = sum(len(tokens) for tokens, _ in answers)
    longest = max(map(len, PIECES)) if known and framing is not listed else None
    assert floor_of(events, told, longest) <= told


@given(st.lists(st.text("ab cd", min_size=1, max_size=9), min_size=1, max_size=40), FIELDS, st.integers(1, 3))
def test_every_delta_that_is_not_empty_is_a_token_where_less_is_told(texts, field, choices):
    for choice in range(choices):
        own = texts[choice::choices]
        assume(sum(map(len, own)) > 2 * len(own))
    events = [event(text, field, number % choices) for number, text in enumerate(texts)]
    for told in each_of(range(len(texts))):
        assert floor_of(events, told) == len(texts)


@each("told, booked", [(0, 32), (3, 32), (4, 4), (5, 5), (30, 30), (99, 32)])
def test_a_text_cut_into_characters_is_believed_as_far_as_tokens_have_eight_of_them(told, booked):
    assert floor_of([event(char) for char in "understanding characteristically"], told) == booked


def test_a_text_in_pieces_of_two_characters_is_believed_as_one_in_single_ones_is():
    """Chinese, cut into characters but for one delta of two: 190 tokens are told of 281."""
    events = [event(char) for char in "中" * 279] + [event("中中")]
    assert floor_of(events, 190) == 190
    assert floor_of([event("ab")] * 225, 97) == 97
    assert floor_of([event("ab")] * 225, 20) == 225


def test_what_a_service_writes_itself_is_no_token():
    """The name of a call that is forced, a role, an end."""
    named = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}
    silent = [{"role": "assistant"}, {"content": None}, {"content": ""}, named, {}]
    assert floor_of([{"choices": [{"delta": delta, "finish_reason": "stop"}]} for delta in silent], 0) == 0


@each("told, booked", [(1, 4), (5, 4)])
def test_where_the_longest_token_is_known_a_text_has_no_fewer_than_fit_into_it(told, booked):
    assert floor_of([event("a" * 31)], told, longest=9) == booked
    assert floor_of([event("a" * 31)], told) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "message",
                        "content",
                        "tool_calls",
                        "function",
                        "arguments",
                        "logprobs",
                        "index",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_a_reply_of_any_shape_is_counted(reply):
    """It is counted before it is checked."""
    floor = ReplyFloor()
    floor.add(reply)
    floor.add({"choices": [reply]})
    assert 0 <= floor.num_tokens(0) <= len(json.dumps(reply))
