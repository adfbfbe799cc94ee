"""An endpoint that takes messages: its text is split into our tokens, which are not those that it charges for."""

from __future__ import annotations

import json

import pytest
from cases import each

from hybrid.cloud import Chunk
from hybrid.errors import Unreachable
from hybrid.record.events import TRACE_VERSION, to_json
from hybrid.run import Finished
from hybrid.run.replay import replay
from hybrid.types import CloudUsage

PROMPT = "a b c"
TAKES_MESSAGES = {"ids": False, "continues": False, "rows": False, "scoring_method": None, "dialect": "text-chat"}
CHARGED = CloudUsage(9, 4)
# What the endpoint charges as four tokens is seven of ours.
TEXT = (3, 1, 4, 1, 5, 2, 6)


@pytest.fixture
def service(house):
    """A client over an endpoint that writes chunks."""

    def build(*chunks, **more):
        h = house(can=TAKES_MESSAGES, **more)

        async def write(question, request_id, before_send):
            await before_send()
            h.cloud.questions.append(question)
            for chunk in chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk

        h.cloud.write = write
        h.cloud.max_usage = lambda question: CloudUsage(40, question.limit)
        return h

    return build


def chunk(*ids, **more):
    return Chunk(ids, (None,) * len(ids), **more)


def ask(run, h, **choices):
    return run(h.client.generate(PROMPT, raw=True, **({"policy": "cloud", "max_tokens": 12} | choices)))


def text(answer):
    return tuple(token.id for token in answer.tokens)


@each("apart", [True, False], ids=["end apart", "end with the text"])
@each("why", ["stop", "length"])
def test_a_text_is_the_services_own_and_its_end_and_its_charge_are_told(service, run, why, apart):
    """Nobody goes on from it, though it has fewer tokens of ours than were asked for."""
    end = (chunk(*TEXT), chunk(finish=why)) if apart else (chunk(*TEXT, finish=why),)
    h = service(*end, chunk(usage=CHARGED))
    answer = ask(run, h)
    assert text(answer) == TEXT
    assert {token.source for token in answer.tokens} == {"cloud"}
    assert (answer.finish_reason, answer.degraded) == (why, None)
    assert answer.bill.nanousd == h.price.cost(CHARGED)
    assert len(h.cloud.questions) == answer.usage.cloud_requests == 1


def test_a_text_of_more_tokens_than_were_asked_for_is_cut_here_and_read_to_its_end_for_its_charge(service, run):
    h = service(*(chunk(token) for token in TEXT * 3), chunk(finish="length"), chunk(usage=CHARGED))
    answer = ask(run, h, max_tokens=5)
    assert (text(answer), answer.finish_reason, answer.degraded) == (TEXT[:5], "length", None)
    assert answer.bill.nanousd == h.price.cost(CHARGED)


def test_a_charge_that_nobody_told_counts_as_the_worst_case(service, run):
    """Our tokens say nothing of it."""
    h = service(chunk(*TEXT), chunk(finish="stop"))
    assert ask(run, h).bill.nanousd == h.price.cost(CloudUsage(40, 12))


REFUSED = Unreachable("no connection", sent=False, trouble="connect")
CUT = Unreachable("cut", trouble="cut")


@each(
    ("tries", "assumed", "told"),
    [
        ([[chunk(3), chunk(finish="stop"), chunk(usage=CHARGED)]], (0, 0), (9, 4)),
        ([[chunk(3), chunk(finish="stop")]], (40, 12), (0, 0)),
        ([[CUT]], (120, 36), (0, 0)),  # each of three tries may have been computed
        ([[chunk(3), CUT]], (40, 12), (0, 0)),
        ([[REFUSED], [chunk(3, finish="stop"), chunk(usage=CHARGED)]], (0, 0), (9, 4)),
        ([[CUT], [chunk(3, finish="stop"), chunk(usage=CHARGED)]], (40, 12), (9, 4)),
        ([[REFUSED]], (0, 0), (0, 0)),
    ],
)
def test_the_charge_of_a_reply_that_broke_off_is_assumed_and_that_of_one_that_left_nothing_is_none(
    service, run, tries, assumed, told
):
    """The last of the tries is what every further one finds."""
    h, left = service(retries=2), [*tries]

    async def write(question, request_id, before_send):
        await before_send()
        for part in left.pop(0) if len(left) > 1 else left[0]:
            if isinstance(part, Exception):
                raise part
            yield part

    h.cloud.write = write
    usage = ask(run, h).usage
    assert (usage.cloud_assumed_prompt_tokens, usage.cloud_assumed_completion_tokens) == assumed
    assert (usage.cloud_told_prompt_tokens, usage.cloud_told_completion_tokens) == told
    assert usage.cloud_prompt_tokens == assumed[0] + told[0]
    assert usage.cloud_completion_tokens == assumed[1] + told[1]


def test_a_service_that_breaks_in_the_middle_is_the_one_mixture_and_it_is_said(service, run):
    h = service(chunk(3, 1), Unreachable("cut", sent=True), retries=0)
    answer = ask(run, h)
    assert [token.source for token in answer.tokens][:3] == ["cloud", "cloud", "local"]
    assert answer.degraded is not None
    assert "cut" in answer.degraded


def test_what_a_cap_cut_is_gone_on_with_here_and_it_is_said(service, run):
    """A limit that was lowered is not the end of the answer."""
    h = service(chunk(3, 1), chunk(finish="length"), chunk(usage=CloudUsage(9, 2)), cap=60_000)
    answer = ask(run, h)
    [question] = h.cloud.questions
    assert question.limit < 12
    assert {token.source for token in answer.tokens} == {"cloud", "local"}
    assert "money for the beginning" in answer.degraded
    assert f"the cap leaves room for {question.limit} of the 12 tokens that the cloud might write" in answer.notes


@each(("price", "assumed", "said"), [("1/0.1/4", 40, True), ("1/0.1/4", 0, False), ("free", 40, False)])
def test_what_nothing_has_counted_is_reserved_at_its_most_and_it_is_said_where_it_costs_something(
    service, run, price, assumed, said
):
    h = service(chunk(3, finish="stop"), chunk(usage=CHARGED), price=price)
    h.cloud.max_usage = lambda question: CloudUsage(40, question.limit, assumed_prompt_tokens=assumed)
    assert [note[:34] for note in ask(run, h).notes] == ["its prompt is reserved as 40 token"] * said


def test_no_log_probabilities_are_asked_for_where_nobody_weighs_them(service, run):
    """A reasoning model refuses them."""
    for choices, wanted in (({}, False), ({"trace_rows": True}, True), ({"policy": "route", "worth": "99"}, False)):
        h = service(chunk(3, finish="stop"), chunk(usage=CHARGED))
        ask(run, h, **choices)
        assert [bool(question.top_k) for question in h.cloud.questions] == [wanted], choices


async def recorded(h, path, **choices):
    """Answer, and write every event as the command line does; returns the answer."""
    answer = None
    with path.open("w") as file:
        print(json.dumps({"trace": TRACE_VERSION}), file=file)
        async for event in h.client.stream(PROMPT, raw=True, trace_rows=True, max_tokens=12, **choices):
            print(json.dumps(to_json(event)), file=file)
            answer = event.answer if isinstance(event, Finished) else answer
    return answer


@each("choices", [{"policy": "cloud"}, {"policy": "route", "worth": "99"}, {"policy": "route", "worth": "0.0001"}])
@each("why", ["stop", "length"])
def test_it_is_replayed_with_its_end(service, run, tmp_path, choices, why):
    path = tmp_path / "trace.jsonl"
    answer = run(recorded(service(chunk(*TEXT), chunk(finish=why), chunk(usage=CHARGED)), path, **choices))
    again = run(replay(path))
    assert [(t.id, t.source, t.how, t.why) for t in again.tokens] == [
        (t.id, t.source, t.how, t.why) for t in answer.tokens
    ]
    assert again.finish_reason == answer.finish_reason
    assert len({token.source for token in answer.tokens}) == 1
    assert (answer.finish_reason == why) or answer.tokens[0].source == "local"


def test_the_text_of_route_is_that_of_local_or_of_cloud_under_the_same_seed(service, run):
    seen = set()
    for worth, seed, temperature in (("99", 1, 0.0), ("0.0001", 1, 0.0), ("99", 2, 1.0), ("0.0001", 2, 1.0)):
        drawn = {"seed": seed, "temperature": temperature, "max_tokens": 12}
        h = service(chunk(*TEXT), chunk(finish="stop"), chunk(usage=CHARGED))
        answer = ask(run, h, policy="route", worth=worth, **drawn)
        whose = "cloud" if worth == "99" else "local"
        assert text(answer) == text(ask(run, h, policy=whose, **drawn))
        assert {token.source for token in answer.tokens} == {whose}
        seen.add(whose)
    assert seen == {"local", "cloud"}
