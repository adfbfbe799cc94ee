"""The monitor's state is a fold over events: its laws, over streams that the real builder published."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import product
from typing import get_args

import pytest
from cases import each, each_of
from event_streams import KINDS, Stream, handoffs, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid import errors
from hybrid.record.answer import Token
from hybrid.record.events import (
    BranchDrawn,
    CheckAnswered,
    CloudRecovered,
    Degraded,
    NoteAdded,
    RequestSent,
    RequestSettled,
    Started,
    TokenEmitted,
    text_of,
    thoughts_of,
)
from hybrid.record.state import AnswerState, family
from hybrid.serve.errors import reason_of
from hybrid.serve.reducer import LEFT, NUM_FINISHED, REASONS, AnswerMetadata, MonitorState, reason_class, without_texts
from hybrid.types import CloudUsage, DegradedKind


def fold(events, *, shows_texts=True, prompt="secret question", state=None, name="one"):
    state = state or MonitorState(shows_texts=shows_texts)
    log = state.begin(AnswerMetadata(name, "hybrid", 1.0, prompt))
    for event in events:
        state.observe(log, event)
    return state, log


def shown(log):
    return {"head": log.head, **{name: items(log, name) for name in ("tokens", "requests", "spans")}}


def items(log, name):
    """A list of an answer, as a page that looks for the first time is told it."""
    return [item for _, item in log.places(name)]


@settings(max_examples=40)
@given(streams(), st.data())
def test_every_beginning_of_every_stream_gives_a_state_and_its_counts_are_those_of_the_tokens(stream: Stream, data):
    """A page may be opened, and an answer left, at any moment."""
    num = data.draw(st.integers(0, len(stream.events)))
    state, log = fold(stream.events[:num])
    tokens = [event.token for event in stream.events[:num] if isinstance(event, TokenEmitted)]
    assert len(log.state.tokens) == len(tokens)
    counts = Counter(token.source for token in tokens) + Counter(token.how for token in tokens)
    assert {name: count for name, count in log.head["counts"].items() if count and name in counts} == dict(counts)
    assert family(state.totals.counts, "tokens") == Counter((token.source, token.how) for token in tokens)
    heard = stream.events[:num]
    unchecked = next((place for place, event in enumerate(heard) if isinstance(event, CheckAnswered)), num)
    checked = [event.token for event in heard[unchecked:] if isinstance(event, TokenEmitted)]
    positions = family(state.totals.counts, "positions")
    assert positions["accepted"] == sum(token.how == "accepted" for token in checked)
    assert positions["rejected"] == sum(token.source == "cloud" and token.why is not None for token in checked)
    assert family(state.totals.counts, "sent").total() == sum(isinstance(event, RequestSent) for event in heard)
    assert json.loads(json.dumps(shown(log), allow_nan=False))
    state.end(log, LEFT if num % 2 else None)
    assert state.totals.cost.reserved == 0
    assert log.head["reserved"] == 0


@settings(max_examples=40)
@given(streams())
def test_the_counts_at_the_end_are_the_answers_own(stream: Stream):
    """Of the monitor's figures and the answer's, which one fold makes, each is held against a program of its own."""
    _, log = fold(stream.events)
    answer, head, shown_tokens = stream.answer, log.head, items(log, "tokens")
    emitted = [event.token for event in stream.events if isinstance(event, TokenEmitted)]
    num = Counter(type(event).__name__ for event in stream.events)
    assert answer.text == "".join(token["text"] for token in shown_tokens) == "".join(map(text_of, stream.events))
    thoughts = "".join(map(thoughts_of, stream.events))
    assert answer.thoughts == "".join(token["thoughts"] for token in shown_tokens) == thoughts
    local = [token for token in emitted if token.source == "local"]
    counted = len(local), len(emitted) - len(local)
    assert (head["counts"]["local"], head["counts"]["cloud"]) == counted
    assert (answer.usage.local_tokens, answer.usage.cloud_tokens) == counted
    assert head["counts"]["certified"] == answer.usage.certified == sum(token.certified for token in local)
    assert head["counts"]["thoughts"] == answer.usage.thought_tokens == sum(token.thought for token in emitted)
    assert head["counts"]["wording"] == answer.usage.wording == sum(token.is_wording for token in emitted)
    assert head["drafted"] == answer.usage.drafted == 2 * num["SpanDrafted"]
    assert head["checks"] == answer.usage.checks == num["CheckAnswered"]
    assert len(log.state.requests) == answer.usage.cloud_requests == num["RequestSent"]
    assert answer.handoffs == handoffs(tuple(emitted))
    assert [tuple(each) for each in head["handoffs"]] == [(h.position, h.reason, h.tokens) for h in answer.handoffs]
    assert head["answer"]["bill"] == answer.bill.nanousd
    assert head["notes"] == list(answer.notes) == [event.why for event in stream.events if isinstance(event, NoteAdded)]
    assert (head["degraded"] and head["degraded"]["kind"]) == answer.degraded_kind
    for token, drawn in each_of(zip(emitted, shown_tokens, strict=True), least=0):
        ends = None if token.kl is None else [token.kl.lower, token.kl.upper if math.isfinite(token.kl.upper) else None]
        assert (drawn["kl"] and drawn["kl"][:2]) == ends


@settings(max_examples=40)
@given(streams(), st.data())
def test_spent_and_reserved_are_together_what_the_client_counts_and_spent_never_falls(stream: Stream, data):
    """Two tills that disagree would each be believed by somebody."""
    state = MonitorState()
    log = state.begin(AnswerMetadata("one", "hybrid", 1.0))
    before = 0
    for number, event in each_of(enumerate(stream.events, start=1)):
        state.observe(log, event)
        for cost in (state.totals.cost, log.state.cost):
            known = None if cost.settled is None or cost.reserved is None else cost.settled + cost.reserved
            assert known == cost.spent.nanousd == most_spent(stream.events[:number])
        assert cost.settled is None or cost.settled >= before
        before = cost.settled or 0
    state.end(log)
    assert state.totals.cost.settled == most_spent(stream.events)


def most_spent(events):
    """What requests cost or can have cost: a naive program over all events so far."""
    costs = {event.request_id: event.reserved_nanousd for event in events if isinstance(event, RequestSent)}
    settled = [event for event in events if isinstance(event, RequestSettled) and event.usage is not None]
    costs |= {event.request_id: event.nanousd for event in settled}
    return None if None in costs.values() else sum(costs.values())


@settings(max_examples=40)
@given(streams())
def test_without_texts_nothing_that_anybody_wrote_is_kept(stream: Stream):
    """Counts, bill and KL always; prompts, answers, candidates and what an endpoint said only where that was chosen."""
    state, log = fold(stream.events, shows_texts=False)
    state.end(log, "a secret failure")
    said = json.dumps([shown(log), state.totals.to_json()])
    assert "secret" not in said
    assert all(token["text"] is None and token["candidates"] is None for token in items(log, "tokens"))


def test_without_texts_a_branch_has_none():
    told = BranchDrawn((0, 2), 5, "a secret", -1.0, -2.0, chosen=True)
    assert without_texts(told) == BranchDrawn((0, 2), 5, "", -1.0, -2.0, chosen=True)


def test_candidates_stand_with_the_token_that_they_led_to_and_say_which_one_stands():
    """Rows come before their token, along with those of drafts that were turned down."""
    _, log = fold(_example())
    first = items(log, "tokens")[0]["candidates"]
    assert [row[0] for row in first["local"]][:2] == ["a", " b"]
    assert [row[2] for row in first["cloud"]] == [True, False, False]
    assert first["local"][0][1] == pytest.approx(0.4)
    assert items(log, "tokens")[1]["candidates"] is None


def _example():
    from event_streams import PIECES, ROW

    from hybrid.prob import TopK
    from hybrid.record.answer import Token
    from hybrid.record.events import RecordingStarted, Rows

    return [
        Started((1,), "kl"),
        RecordingStarted(PIECES, (), sampling=None, max_tokens=9),
        Rows((), local=ROW),
        Rows((5,), local=ROW),  # along a draft that was turned down
        Rows((), cloud=TopK.from_dense(ROW, 3)),
        TokenEmitted(0, Token(0, "a", "cloud", "recovered", why="KL 1 nats, above 0.5")),
        TokenEmitted(1, Token(1, " b", "cloud", "written")),
    ]


def test_handoffs_are_those_of_a_naive_program_over_all_tokens():
    """Every order of four tokens: who writes, and whether a reason is given, tells where a hand-off begins."""
    for kinds in each_of(product(KINDS, repeat=4)):
        tokens = tuple(Token(1, "", source, how, why=why) for source, how, why in kinds)
        state = AnswerState()
        for position, token in enumerate(tokens):
            state.apply(TokenEmitted(position, token))
        assert tuple(state.handoffs) == handoffs(tokens)


def test_a_request_that_was_never_settled_counts_as_the_most_it_can_cost():
    state, log = fold([RequestSent("r", "write", 0, 4, 500)])
    assert (log.head["spent"], log.head["reserved"]) == (0, 500)
    state.end(log, LEFT)
    assert (log.head["spent"], log.head["reserved"], log.head["state"]) == (500, 0, LEFT)
    assert state.totals.cost.settled == 500


@each("usage", [None, CloudUsage(0, 0)])
@each("texts, why", [(True, "the secret of 10.0.0.7"), (False, REASONS["unreachable"])])
def test_a_failed_request_has_its_reason_in_its_own_row(usage, texts, why):
    """Of a request that was asked again, or after which the cloud was given up, only a count told."""
    sent = [RequestSent(name, "check", 0, 4, 500) for name in "ab"]
    failed = RequestSettled("a", "check", usage, None, 2.0, "the secret of 10.0.0.7", "unreachable")
    answered = RequestSettled("b", "check", CloudUsage(3, 1), 7, 2.0)
    _, log = fold([*sent, failed, answered], shows_texts=texts)
    assert [row["why"] for row in items(log, "requests")] == [why, None]


def test_a_question_counts_as_a_relay_once_a_request_of_it_leaves():
    state, log = fold([])
    assert (log.head["relayed"], state.totals.answers["relayed"]) == (False, 0)
    for name in "ab":  # asked again
        state.observe(log, RequestSent(name, "relay", 0, 4, 500))
    assert (log.head["relayed"], state.totals.answers["relayed"]) == (True, 1)


def test_what_is_not_known_is_none_and_never_zero():
    state, log = fold([RequestSent("r", "write", 0, 4, None)])
    assert log.head["reserved"] is None
    state.observe(log, RequestSettled("r", "write", CloudUsage(3, 1), None, 2.0))
    assert (log.head["spent"], log.head["reserved"]) == (None, 0)
    assert log.head["prompt_tokens"] is None
    assert log.head["threshold"] is None
    assert log.head["answer"] is None


def test_the_threshold_is_the_judges_and_only_of_kl():
    _, log = fold([Started((1,), "kl", "kl span=32 gate=always judge=kl:0.5 hold=4 handback=kl:0.2")])
    assert log.head["threshold"] == 0.5
    _, log = fold([Started((1,), "kl", "kl span=32 gate=always judge=js:0.1")])
    assert log.head["threshold"] is None


def test_the_state_is_bounded_and_the_oldest_finished_answers_are_dropped_first():
    """An endpoint runs for months."""
    state = MonitorState()
    first = state.begin(AnswerMetadata("under way", "hybrid", 0.0))
    for number in range(3 * NUM_FINISHED):
        _, log = fold([], state=state, name=f"n{number}")
        state.end(log)
        state.end(log)  # said twice, counted once
    assert len(state.answers) == NUM_FINISHED + 1
    assert state.answers["under way"] is first
    assert state.totals.answers["finished"] == 3 * NUM_FINISHED
    for number in range(1000):
        token = Token(1, "", "cloud", "recovered", why=f"KL {number} nats, " + "x" * number)
        state.observe(first, TokenEmitted(number, token))
    assert len(state.totals.reasons) <= 25
    assert len(state.totals.counts) <= 25


def test_reasons_are_told_apart_without_their_numbers():
    assert reason_class("KL 7.93 nats, above 0.5") == reason_class("KL 1e-05 nats, above 12") == "KL # nats, above #"


def test_a_failure_is_told_by_its_sentence_where_texts_are_shown_and_else_in_words_that_quote_nobody():
    for texts, why in ((True, "'secret' cannot be read"), (False, "the local model cannot be used")):
        state, log = fold([], shows_texts=texts)
        state.end(log, "'secret' cannot be read", "the local model cannot be used")
        assert (log.head["state"], log.head["why"]) == ("failed", why)


def test_every_kind_of_failure_and_of_trouble_has_words_that_quote_nobody():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HybridError)]
    assert len(kinds) > 10
    for kind in each_of(kinds):
        error = kind.__new__(kind)
        error.args = ("secret",)
        assert "secret" not in reason_of(error)
    assert reason_of(ValueError("secret")) == "the endpoint itself failed"
    for kind in each_of(get_args(DegradedKind)):
        for texts, why in ((True, "secret"), (False, REASONS[kind])):
            _, log = fold([Degraded("secret", kind)], shows_texts=texts)
            assert log.head["degraded"] == {"kind": kind, "why": why}


USAGE = CloudUsage(3, 0, 1)
ANSWERED = (RequestSettled("r", "write", USAGE, 1, 2.0), CheckAnswered("r", 1), CloudRecovered(5.0))
SILENT = tuple(Degraded("gone", kind) for kind in ("unreachable", "bad reply", "refused"))
UNASKED = (
    *(Degraded("not sent", kind) for kind in ("budget", "paced", "context", "capability")),
    RequestSettled("r", "write", None, None, 2.0),
    RequestSettled("r", "write", CloudUsage(0, 0, 0), 0, 2.0),
    NoteAdded("slow"),
)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*ANSWERED, *SILENT, *UNASKED])), max_size=12))
def test_the_clouds_state_is_that_of_the_last_word_on_it_in_any_answer(told):
    """Eleven minutes after its death the page said that it was reachable: nothing but the breaker was looked at."""
    state = MonitorState(shows_texts=True)
    logs = [state.begin(AnswerMetadata(f"n{number}", "hybrid", 10.0 + number)) for number in range(3)]
    last = None
    for number, event in each_of(told, least=0):
        before = state.totals.version
        state.observe(logs[number], event)
        if event in ANSWERED or event in SILENT:
            silent = event in SILENT
            last = {"answers": not silent, "why": "gone" if silent else None, "at": 10.0 + number}
            assert state.totals.version > before, "every page is told"
        assert state.totals.to_json()["cloud"] == last
    state.end(logs[0], "no route", "an error of ours")
    assert state.totals.to_json()["cloud"] == last
    state.end(logs[1], "no route", REASONS["unreachable"])
    assert state.totals.to_json()["cloud"] == {"answers": False, "why": "no route", "at": 11.0}
