"""What the driver asks of rows: where they are asked for, what stands in them, and where there are none."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import numpy as np
from cases import each

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.run import NoteAdded, RequestSent, RequestSettled

PROMPT = "a b c"


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


@each(
    ("policy", "choices", "asks"),
    [
        ("cloud", {}, False),
        ("paper", {"lead": 4}, False),
        ("cloud", {"trace_rows": True}, True),
        ("cloud", {"can": {"ids": False}}, True),
        ("kl", {"threshold": 0.05, "hold": 4}, True),
        ("exact", {"temperature": 1.3, "min_p": 1e-12, "listed": 3}, True),
    ],
)
def test_rows_of_written_tokens_are_asked_for_where_somebody_looks_at_them(house, run, policy, choices, asks):
    """Nine tenths of what vLLM sends; SGLang repeats all of them with every token: 38 MB for 400 tokens."""
    h = house(can=choices.get("can"))
    h.client._settings = h.client._settings.model_copy(update={"cloud_top_k": choices.get("listed", 8)})
    choices = {name: choice for name, choice in choices.items() if name not in {"can", "listed"}}
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=12, **choices))
    assert answer.degraded is None
    writes = [question for question in h.cloud.questions if isinstance(question, WriteQuestion) and not question.ban]
    assert writes
    assert all((question.top_k > 0) is asks for question in writes)


@each(("same_words", "asks"), [(True, True), (None, False)])
def test_the_drafters_candidates_are_asked_about_only_where_the_vocabularies_were_compared(
    house, run, same_words, asks
):
    """SGLang's server dies of an id that its vocabulary lacks."""
    h = house(can={"candidates": True, "same_words": same_words})
    run(h.client.generate(PROMPT, policy="kl", max_tokens=12, span=4))
    checks = [question for question in h.cloud.questions if isinstance(question, ScoreQuestion)]
    assert checks
    assert all(any(question.candidates) is asks for question in checks if question.span)


@each(("policy", "threshold"), [("kl", 0.3), ("kl", 0.0), ("greedy-exact", None), ("doubt", 0.02)])
def test_unlikely_padding_changes_no_token_and_no_divergence_becomes_infinite(house, run, policy, threshold):
    """A vocabulary of 151,936 rows has 267 that are no token; where a model is sure they are among its top twenty."""
    choices = {"policy": policy, "threshold": threshold, "entropy": 0.3, "max_tokens": 30}
    plain = run(house().client.generate(PROMPT, **choices))
    h = house()
    score, write = h.cloud.score, h.cloud.write

    def with_padding(row):
        padding = np.array([99, 1234]), np.log([1e-4, 1e-7])
        ids, logprobs = np.concatenate((row.ids, padding[0])), np.concatenate((row.logprobs, padding[1]))
        return row and replace(row, ids=ids, logprobs=logprobs, num_listed=row.num_listed + 2)

    async def padded_score(question, *attempt):
        scores = await score(question, *attempt)
        return replace(scores, rows=tuple(map(with_padding, scores.rows)), pieces={99: "<pad>", 1234: ""})

    async def padded_write(question, *attempt):
        async with aclosing(write(question, *attempt)) as chunks:
            async for chunk in chunks:
                yield replace(chunk, rows=tuple(map(with_padding, chunk.rows)))

    h.cloud.score, h.cloud.write = padded_score, padded_write
    answer = run(h.client.generate(PROMPT, **choices))
    assert answer.text == plain.text
    assert [(token.source, token.how, token.kl) for token in answer.tokens] == [
        (token.source, token.how, token.kl) for token in plain.tokens
    ]
    assert answer.degraded is None


WEIGHED = {"policy": "doubt", "entropy": 1.2, "threshold": 0.05, "max_tokens": 40}


@each("choices", [WEIGHED, {"policy": "kl", "threshold": 0.05, "span": 3, "max_tokens": 40}])
def test_what_is_written_without_rows_is_scored_and_the_text_is_that_with_rows(house, run, choices):
    """Each check has its reservation and its charge, like any other; the text does not depend on who tells the rows."""
    with_rows = run(house().client.generate(PROMPT, **choices))
    h = house(rows=False)
    events = run(gather(h.client, **choices))
    answer = events[-1].answer
    assert [(t.id, t.source, t.how) for t in answer.tokens] == [(t.id, t.source, t.how) for t in with_rows.tokens]
    assert answer.usage.checks > with_rows.usage.checks
    assert answer.degraded is None
    asked = {event.request_id: event.reserved_nanousd for event in events if isinstance(event, RequestSent)}
    settled = {event.request_id: event.nanousd for event in events if isinstance(event, RequestSettled)}
    assert asked.keys() == settled.keys() == h.cloud.charged.keys()
    assert all(settled[one] <= asked[one] for one in asked)
    assert answer.bill.nanousd == sum(settled.values())


def test_what_is_written_without_rows_and_cannot_be_scored_is_said_once_to_be_unweighed(house, run):
    h = house(rows=False)
    connect = h.client._connection._connect

    async def reach(asked_at):
        cloud, can = await connect(asked_at)
        return cloud, replace(can, scoring_method=None)

    h.client._connection._connect = reach
    events = run(gather(h.client, **WEIGHED))
    [told] = [event for event in events if isinstance(event, NoteAdded) and "its checks made" not in event.why]
    assert told.why.startswith("the endpoint gives no log-probabilities of its model")
    assert (events[-1].answer.notes, events[-1].answer.degraded) == ((told.why,), None)
    assert not any(isinstance(question, ScoreQuestion) for question in h.cloud.questions)
    assert sum(isinstance(question, WriteQuestion) for question in h.cloud.questions) > 1


@each("policy", ["exact", "block"])
def test_where_the_list_does_not_determine_the_law_the_cloud_writes_on_and_that_is_said_once(house, run, policy):
    """A check, then blocks of 4, 8, 16 and what is left; it used to be two requests for every token."""
    h = house()
    h.client._settings = h.client._settings.model_copy(update={"cloud_top_k": 3})
    events = run(gather(h.client, policy=policy, temperature=1.3, min_p=1e-12, max_tokens=40))
    answer = events[-1].answer
    assert len(answer.tokens) > 12
    assert answer.usage.cloud_requests <= 5
    assert answer.usage.checks == 1
    [told] = [event for event in events if isinstance(event, NoteAdded) and "its checks made" not in event.why]
    assert "the shown tokens do not determine the cloud's distribution" in told.why
    assert (answer.notes[0], answer.degraded) == (told.why, None)
    assert [handoff.reason for handoff in answer.handoffs] == [
        "the shown tokens do not determine the cloud's distribution here"
    ]
