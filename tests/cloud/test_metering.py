"""The law of what a request was charged: what is told, and never less than what the client knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cloud import Chunk
from hybrid.cloud.dialects.reading import read_usage, usage_of
from hybrid.cloud.port import UsageMeter, final_usage, num_written, usage_after_failure
from hybrid.errors import BadReply, Unreachable
from hybrid.spend import Price
from hybrid.types import NO_USAGE, CloudUsage

END = 9
ENDS = frozenset({END})
COUNTS = st.integers(0, 50)
USAGES = st.builds(lambda prompt, written, kept: CloudUsage(prompt, written, min(prompt, kept)), COUNTS, COUNTS, COUNTS)
KNOWN = st.builds(CloudUsage, st.integers(1, 50), COUNTS)


@given(told=USAGES, known=KNOWN, more=COUNTS)
def test_what_is_settled_is_the_greater_of_told_and_known_field_by_field(told, known, more):
    charged = final_usage(told, known, known.prompt_tokens + more)
    untold = final_usage(CloudUsage(0, told.completion_tokens), known, known.prompt_tokens + more)
    assert untold.prompt_tokens == known.prompt_tokens + more, "not told: the most that it can be"
    assert charged.completion_tokens == max(told.completion_tokens, known.completion_tokens)
    assert charged.cached_tokens == told.cached_tokens <= charged.prompt_tokens
    if told.prompt_tokens:
        assert charged.prompt_tokens == max(told.prompt_tokens, known.prompt_tokens)
    else:
        assert charged.prompt_tokens == untold.prompt_tokens


@given(honest=USAGES, known=KNOWN, parts=st.integers(1, 20), more=COUNTS)
def test_no_server_is_charged_less_for_telling_less(honest, known, parts, more):
    """Whatever share of the truth it tells, but for what it says was cached, the charge covers what is known."""
    less = CloudUsage(honest.prompt_tokens // parts, honest.completion_tokens // parts)
    charged = final_usage(less, known, known.prompt_tokens + more)
    assert charged.at_least(known) == charged
    assert charged.at_least(less) == charged


def sources(usage):
    """Pairs of the prompt and the completion: told, told or known, charged."""
    told = usage.told_prompt_tokens, usage.told_completion_tokens
    known = told[0] + usage.known_prompt_tokens, told[1] + usage.known_completion_tokens
    return told, known, (usage.prompt_tokens, usage.completion_tokens)


@given(told=USAGES, known=KNOWN, more=COUNTS)
def test_of_a_charge_it_is_said_what_was_told_what_is_known_and_what_is_assumed(told, known, more):
    most = known.prompt_tokens + more
    charged = final_usage(told, known, most)
    said, certain, total = sources(charged)
    assert said == (told.prompt_tokens, told.completion_tokens)
    assert certain == tuple(map(max, said, (known.prompt_tokens, known.completion_tokens)))
    assert total == (certain[0] if told.prompt_tokens else most, certain[1])


@given(st.lists(st.tuples(USAGES, st.sampled_from(["told", "known", "assumed"])), min_size=1, max_size=4))
def test_the_greater_of_usages_and_their_sum_keep_apart_where_each_count_comes_from(parts):
    """Whatever their order: each source by itself, and never less than nothing."""
    usages = [usage if source == "told" else getattr(usage, source) for usage, source in parts]
    for order in (usages, usages[::-1]):
        greatest = NO_USAGE
        for usage in order:
            greatest = greatest.at_least(usage)
        levels = [tuple(map(max, *pairs)) for pairs in zip(*map(sources, [NO_USAGE, *usages]), strict=True)]
        assert [*sources(greatest)] == levels
    total = [tuple(map(sum, zip(*pairs, strict=True))) for pairs in zip(*map(sources, usages), strict=True)]
    assert [*sources(sum(usages, NO_USAGE))] == total


@given(honest=USAGES, known=KNOWN)
def test_an_honest_server_is_believed_to_the_token(honest, known):
    honest = honest.at_least(known)
    assert final_usage(honest, known, 99) == honest


@given(sizes=st.lists(st.integers(1, 4), max_size=6), limit=st.integers(1, 20), ended=st.booleans(), told=st.booleans())
def test_the_token_that_ends_a_text_counts_where_it_is_not_shown(sizes, limit, ended, told):
    ids = (1,) * sum(sizes)
    shown = ids + (END,) * (ended and told)
    counted = num_written(shown, "stop" if ended else "length", ENDS, limit)
    if ended and not told:
        assert counted == max(len(ids), min(len(ids) + 1, limit))
    else:
        assert counted == len(shown)


def test_without_a_vocabulary_nobody_can_say_whether_an_end_was_shown():
    assert num_written((1, 2), "stop", frozenset(), 8) == 2


@given(
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    told=st.lists(st.none() | USAGES, min_size=6, max_size=6),
    prompt=st.integers(1, 30),
)
def test_a_stream_is_charged_for_all_that_came_whenever_a_usage_is_told(sizes, told, prompt):
    """A usage that is told early is a lower bound; a later one that is less takes nothing back."""
    meter = UsageMeter(CloudUsage(prompt, 0), CloudUsage(prompt, 100), ENDS)
    seen, heard, latest = 0, NO_USAGE, None
    for size, usage in each_of(zip(sizes, told, strict=False)):
        chunk = meter.read(Chunk((1,) * size, usage=usage))
        seen += size
        heard = heard if usage is None else usage.at_least(heard)
        latest = chunk.usage or latest
        assert (chunk.usage is None) == (usage is None)
        if chunk.usage:
            assert chunk.usage == final_usage(heard, CloudUsage(prompt, seen), prompt)
    rest = list(meter.remaining())
    assert len(rest) <= 1
    if seen or latest:
        assert (rest[0].usage if rest else latest) == final_usage(heard, CloudUsage(prompt, seen), prompt)
    else:
        assert not rest, "nothing came, and nothing was told: nobody knows"


def test_a_stream_that_ends_without_a_usage_is_charged_for_what_came():
    meter = UsageMeter(CloudUsage(4, 0), CloudUsage(7, 8), ENDS)
    meter.read(Chunk((1, 2)))
    meter.read(Chunk(finish="stop"))
    assert [chunk.usage for chunk in meter.remaining()] == [CloudUsage(7, 3)], "two tokens and the end"


def test_what_came_of_a_chat_that_told_no_usage_is_known():
    meter = UsageMeter(CloudUsage(0, 0), CloudUsage(1100, 40), ENDS, counts_tokens=False, floor=lambda _: 12)
    meter.read(Chunk((1,)))
    meter.read(Chunk(finish="stop"))
    (last,) = meter.remaining()
    assert sources(last.usage) == ((0, 0), (0, 12), (1100, 40))


def test_what_came_of_a_chat_is_charged_up_to_its_limit():
    """Deltas are no count of tokens: more of them than were allowed close no endpoint."""
    meter = UsageMeter(CloudUsage(0, 0), CloudUsage(1100, 40), ENDS, counts_tokens=False, floor=lambda _: 99)
    meter.read(Chunk((1,), finish="stop"))
    assert meter.read(Chunk(usage=CloudUsage(25, 12))).usage == CloudUsage(25, 40)


def test_a_usage_that_is_told_at_the_end_is_not_told_twice():
    meter = UsageMeter(CloudUsage(4, 0), CloudUsage(4, 8), ENDS)
    meter.read(Chunk((1, END), finish="stop"))
    assert meter.read(Chunk(usage=CloudUsage(4, 2, 3))).usage == CloudUsage(4, 2, 3)
    assert not list(meter.remaining())


# ---- what a server tells of its cache's writes and of thoughts -------------------------------------------------------

TOLD = st.integers(-3, 60) | st.sampled_from([None, "7", 2.5, True, [], 10**30])
WRITE_NAMES = (
    ("prompt_tokens_details", "cache_write_tokens"),
    ("prompt_tokens_details", "cache_creation_tokens"),
    ("prompt_tokens_details", "cache_creation_input_tokens"),
    ("cache_creation_input_tokens",),
)


def told_usage(prompt, written, cached=0, *, total=None, reasoning=None, writes=()):
    """A reply's usage; ``writes``: pairs of a name's path and a count."""
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "prompt_tokens_details": {"cached_tokens": cached}}
    usage |= {} if total is None else {"total_tokens": total}
    usage |= {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    for (*within, name), value in writes:
        (usage[within[0]] if within else usage)[name] = value
    return {"usage": usage}


@given(TOLD, TOLD, TOLD, TOLD, TOLD, st.lists(st.tuples(st.sampled_from(WRITE_NAMES), TOLD), max_size=3))
def test_a_prompt_token_is_cached_or_written_or_neither_whatever_is_told(prompt, done, kept, total, thought, writes):
    """And thoughts are among the completion. What is above any count was not told, and all of it may be written."""
    usage = read_usage(told_usage(prompt, done, kept, total=total, reasoning=thought, writes=writes))
    assert 0 <= usage.cached_tokens + (usage.cache_write_tokens or 0) <= usage.prompt_tokens < 2**40
    assert 0 <= usage.reasoning_tokens <= usage.completion_tokens < 2**40
    counts = [value for _, value in dict(writes).items() if type(value) is int and 0 <= value < 2**32]
    assert (usage.cache_write_tokens is None) == (not counts), "told, or not told; never a guess"


@each("name", WRITE_NAMES)
def test_writes_are_read_by_the_name_that_the_service_gives_them(name):
    assert read_usage(told_usage(100, 5, 30, writes=[(name, 70)])).cache_write_tokens == 70
    assert read_usage(told_usage(100, 5, 30, writes=[(name, 0)])).cache_write_tokens == 0
    assert read_usage(told_usage(100, 5, 30, writes=[(name, 71)])).cache_write_tokens == 70, "no token is two of them"
    assert read_usage(told_usage(100, 5, 30)).cache_write_tokens is None


@each("total", [None, 0, 130, 40])
def test_thoughts_that_a_service_leaves_out_of_its_completion_are_charged(total):
    """Some tell them beside it, some in the total alone; where they are within it, nothing is counted twice."""
    beside = read_usage(told_usage(10, 20, reasoning=100, total=total))
    assert (beside.completion_tokens, beside.reasoning_tokens) == (120, 100)
    assert read_usage(told_usage(10, 120, reasoning=100, total=total)) == beside
    assert read_usage(told_usage(10, 20, total=130)).completion_tokens == 120
    assert read_usage(told_usage(10, 20, total=30, reasoning=15)).completion_tokens == 20


@given(st.lists(st.tuples(USAGES, st.none() | COUNTS), max_size=5))
def test_the_writes_of_a_sum_are_told_where_those_of_every_prompt_are(parts):
    usages = [replace(usage, cache_write_tokens=writes) for usage, writes in parts]
    total = sum(usages, NO_USAGE)
    told = [usage.cache_write_tokens for usage in usages if usage.prompt_tokens]
    assert total.cache_write_tokens == (None if None in told or not told else sum(told))
    assert sum(reversed(usages), NO_USAGE) == total


# ---- failures ------------------------------------------------------------------------------------------------------

WORST = CloudUsage(10, 8)


def noted(meter, error):
    with pytest.raises(type(error)), meter.charge_errors():
        raise error
    return error


def test_what_was_turned_away_is_free_and_of_what_broke_nobody_knows():
    assert usage_after_failure(BadReply("400", sent=False), WORST) == NO_USAGE
    assert usage_after_failure(Unreachable("500"), WORST) is None
    assert usage_after_failure(Unreachable("500", charged=CloudUsage(10, 3)), WORST) is None, "within what is reserved"


def test_what_was_answered_before_a_refusal_is_charged():
    assert usage_after_failure(BadReply("400", sent=False, charged=CloudUsage(5, 1)), WORST) == CloudUsage(5, 1)


def test_what_is_known_beyond_the_reservation_is_not_lost_with_the_answer():
    assert usage_after_failure(BadReply("too long", charged=CloudUsage(3, 20)), WORST) == CloudUsage(10, 20)


def test_what_broke_off_is_assumed_beyond_what_was_told_or_came():
    meter = UsageMeter(CloudUsage(10, 0), WORST, ENDS)
    meter.read(Chunk((1, 2), usage=CloudUsage(11, 1)))
    charged = usage_after_failure(noted(meter, Unreachable("cut")), WORST)
    assert charged == CloudUsage(11, 8)
    assert sources(charged) == ((11, 1), (11, 2), (11, 8))


def test_an_error_says_what_came_before_it():
    meter = UsageMeter(CloudUsage(10, 0), WORST, ENDS)
    refusal = noted(meter, BadReply("no", sent=False))
    assert (refusal.sent, refusal.charged) == (False, NO_USAGE)
    meter.read(Chunk((1, 2), usage=CloudUsage(30, 1)))
    error = noted(meter, BadReply("no", sent=False))
    assert error.sent, "something came: no refusal any more"
    assert error.charged == CloudUsage(30, 2)


# ---- reading -------------------------------------------------------------------------------------------------------

NONSENSE = [None, 0, -1, -(10**30), 1.5, 7.0, float("nan"), float("inf"), "7", True, [], {}]


@each("told", NONSENSE, ids=repr)
def test_what_cannot_be_a_count_was_not_told(told):
    assert usage_of(told, told, told) == CloudUsage(0, 0)
    assert usage_of(5, told, told) == CloudUsage(5, 0)


@each("usage", [None, 7, "much", [], {}, {"prompt_tokens": None}, {"prompt_tokens_details": 3}])
def test_a_usage_of_any_shape_is_read(usage):
    assert read_usage({"usage": usage}) == read_usage({}) == read_usage([]) == CloudUsage(0, 0)


def test_more_cached_tokens_than_there_were_are_none():
    assert usage_of(5, 1, 5) == CloudUsage(5, 1, 5)
    assert usage_of(5, 1, 6) == CloudUsage(5, 1, 0)


REAL = st.integers(0, 128 * 10**7)
ABSURD = st.integers(2**32, 10**40) | st.just(10**400)


@given(REAL | ABSURD, REAL | ABSURD, REAL | ABSURD)
def test_a_count_beyond_what_any_request_holds_was_not_told_and_makes_none_cheaper(prompt, written, kept):
    """One of 10**400 was booked as 4,294 USD. Cached tokens may cost nothing: none belong to a prompt that is none."""
    read = usage_of(prompt, written, kept)
    assert Price.parse("600/300/1200").cost(read) < 2**63
    assert (read.prompt_tokens, read.completion_tokens) == tuple(n if n < 2**32 else 0 for n in (prompt, written))
    assert read.cached_tokens == (kept if kept <= read.prompt_tokens else 0)


@given(
    st.integers(1, 60),
    st.none() | st.integers(0, 70),
    st.integers(0, 40),
    st.integers(1, 40),
    st.sampled_from([None, 0]),
)
def test_a_total_without_a_prompt_covers_every_split_of_it_and_no_more(total, written, most, limit, prompt):
    usage = read_usage(told_usage(prompt, written, total=total), CloudUsage(most, limit))
    splits = [(total - n, n) for n in range(total + 1) if n == written or (not written and n <= limit)]
    assert usage.completion_tokens == (written or max(n for _, n in splits))
    assert usage.prompt_tokens == max((min(rest, most) for rest, _ in splits), default=0)
    assert (usage.told_prompt_tokens, usage.told_completion_tokens) == (0, written or 0)
