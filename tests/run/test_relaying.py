"""Relays over real sockets: what leaves, what is reserved for it, and how it is settled, whatever becomes of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from cases import each
from chat_upstream import CUT, DONE, STAY, STREAM, USAGE, WHOLE, Script, delta, event
from relays import BODY, PRICE, relaying

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.relay_bounds import UnboundedField, worst_case
from hybrid.errors import CloudError, Unreachable, UsageError
from hybrid.run import RequestSent, RequestSettled
from hybrid.run.open_request import RequestDenied
from hybrid.run.relaying import RELAY_TOKENS
from hybrid.spend import Price
from hybrid.types import CloudUsage

CHARGED = PRICE.cost(CloudUsage(12, 3))
EARLY = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
ENDING = event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE})


async def asked(relay):
    """Return once a request has come."""
    for _ in range(500):
        if relay.there.requests:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def streamed(reply):
    return [each async for each in reply.events()]


def test_only_the_body_leaves_with_another_model_and_a_limit(run):
    async def go():
        async with relaying(Script.whole()) as relay:
            async with relay.open(hybrid={"conversation": "c"}, seed=3) as reply:
                assert json.loads((await reply.whole()).data) == WHOLE
            (path, headers, _), (body,) = relay.there.requests[0], relay.there.bodies
            assert path == "/v1/chat/completions"
            assert body == {**BODY, "model": "big", "seed": 3, "max_tokens": RELAY_TOKENS}
            assert headers["authorization"] == "Bearer sk-ours"
            assert reply.bytes_sent == int(headers["content-length"])

    run(go())


@each("given", [{"max_tokens": 9}, {"max_completion_tokens": 7.0, "n": 2.0}])
@each("price", [PRICE, None])
def test_a_limit_keeps_the_name_and_the_number_it_was_given(run, given, price):
    """The wire takes 9.0 for 9 where both models answer; so does a relay, and sends what every service reads."""

    async def go():
        async with relaying(Script.whole(), price=price) as relay:
            async with relay.open(**given) as reply:
                await reply.whole()
            (body,) = relay.there.bodies
            sent = {name: repr(value) for name, value in body.items() if name not in BODY}
            assert sent == {name: str(int(value)) for name, value in given.items()}

    run(go())


def test_a_stream_always_tells_its_usage_and_its_events_are_handed_on_as_they_came(run):
    async def go():
        async with relaying(Script.stream()) as relay:
            async with relay.open(stream=True, stream_options={"x": 1}) as reply:
                events = await streamed(reply)
            (body,) = relay.there.bodies
            assert body["stream_options"] == {"x": 1, "include_usage": True}
            data = [STREAM[0], STREAM[2], STREAM[3]]
            assert [b"data: " + each.data + b"\n\n" for each in events] == data
            assert [each.usage is not None for each in events] == [False, False, True]
            assert relay.spent == (CHARGED, 0)

    run(go())


@each(
    "parts, settled",
    [
        ([*STREAM, DONE], "charged"),
        ([delta("a"), DONE], "limit"),  # no usage
        ([delta("a"), ENDING, DONE], "charged"),
        ([delta("a", usage=EARLY), delta("b", usage=USAGE), DONE], "charged"),  # beside every token
        ([STREAM[3], delta("a"), DONE], "limit"),  # more came after it
        ([STREAM[3], delta("a"), ENDING, DONE], "charged"),
        ([delta("a"), event({"choices": [], "usage": {"prompt_tokens": 12}}), DONE], "limit of a told prompt"),
        ([*STREAM], "unknown"),  # cut before [DONE]
        ([delta("a"), CUT], "unknown"),
        ([event({"error": {"message": "no"}}), DONE], "limit"),
    ],
)
def test_a_stream_is_settled_by_its_usage_or_by_its_limit_and_one_that_broke_not_at_all(run, parts, settled):
    async def go():
        async with relaying(Script.stream(parts)) as relay:
            try:
                async with relay.open(stream=True, max_tokens=50) as reply:
                    await streamed(reply)
            except CloudError:
                assert settled == "unknown"
            most = relay.most(50)
            of_prompt = PRICE.cost(CloudUsage(12, 50))
            found = {"charged": (CHARGED, 0), "limit": (most, 0), "unknown": (0, most)}
            assert relay.spent == {**found, "limit of a told prompt": (of_prompt, 0)}[settled]
            sent, done = [event for event in relay.events if isinstance(event, RequestSent | RequestSettled)]
            assert (sent.kind, sent.reserved_nanousd, done.request_id) == ("relay", most, sent.request_id)

    run(go())


@each("body, settled", [(WHOLE, CHARGED), ({**WHOLE, "usage": None}, None), ({"no": "answer"}, None)])
def test_a_whole_answer_is_settled_by_its_usage_or_by_its_limit(run, body, settled):
    async def go():
        async with relaying(Script.whole(body)) as relay:
            async with relay.open(max_tokens=50) as reply:
                await reply.whole()
            assert relay.spent == (relay.most(50) if settled is None else settled, 0)

    run(go())


def test_reasoning_that_only_the_total_counts_is_charged(run):
    async def go():
        usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 40}
        async with relaying(Script.whole({**WHOLE, "usage": usage})) as relay:
            async with relay.open() as reply:
                await reply.whole()
            assert relay.spent == (PRICE.cost(CloudUsage(12, 28)), 0)

    run(go())


@each("read", [0, 1])
def test_who_leaves_closes_the_upstream_at_once_and_is_charged_all_of_the_limit(run, read):
    async def go():
        async with relaying(Script.stream([delta("a"), delta("b"), STAY])) as relay:
            async with relay.open(stream=True, max_tokens=50) as reply:
                events = reply.events()
                for _ in range(read):
                    await anext(events)
                await events.aclose()
            assert relay.spent == (relay.most(50), 0)
            for _ in range(100):
                await asyncio.sleep(0.01)
                if relay.there.left:
                    break
            assert relay.there.left == [1]

    run(go())


def test_a_usage_that_more_of_the_answer_follows_is_not_what_a_caller_is_charged_that_leaves(run):
    async def go():
        early = event({"choices": [], "usage": EARLY})
        async with relaying(Script.stream([early, *[delta("a")] * 9, STAY])) as relay:
            async with relay.open(stream=True, max_tokens=50) as reply:
                events = reply.events()
                for _ in range(9):
                    await anext(events)
                await events.aclose()
            assert relay.spent == (relay.most(50), 0)

    run(go())


@each("told", [{"x": 1}, {"completion_tokens": None}, {"completion_tokens": -1}, {"output_tokens": 3}])
def test_a_usage_that_does_not_tell_what_was_written_counts_all_of_the_limit(run, told):
    async def go():
        async with relaying(Script.whole({**WHOLE, "usage": {"prompt_tokens": 12, **told}})) as relay:
            async with relay.open(max_tokens=50) as reply:
                await reply.whole()
            assert relay.spent == (PRICE.cost(CloudUsage(12, 50)), 0)

    run(go())


def test_a_caller_that_is_cancelled_before_the_first_byte_settles_and_closes(run):
    async def go():
        async with relaying(Script(parts=[STAY], wait_s=5.0)) as relay:

            async def ask():
                async with relay.open(max_tokens=50):
                    pass

            task = asyncio.create_task(ask())
            await asked(relay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert relay.spent == (relay.most(50), 0)
            assert relay.wire.num_open == 0

    run(go())


def test_the_limit_is_lowered_to_what_a_cap_allows_and_below_that_nothing_leaves(run):
    async def go():
        prompt = worst_case(BODY, 1).prompt_tokens * 1000
        async with relaying(Script.whole(), cap=prompt + 5 * 4000) as relay:
            async with relay.open() as reply:
                await reply.whole()
            assert relay.there.bodies[0]["max_tokens"] == 5
        async with relaying(Script.whole(), cap=prompt) as relay:
            with pytest.raises(RequestDenied) as denied:
                async with relay.open():
                    pass
            assert denied.value.by_cap
            assert "has counted nothing like it yet" in str(denied.value), "why so much is needed"
            assert relay.there.requests == []

    run(go())


def test_each_of_n_answers_has_a_share_of_what_is_reserved(run):
    async def go():
        usage = worst_case({**BODY, "n": 3}, 1)
        cap = usage.prompt_tokens * 1000 + 8 * 4000
        async with relaying(Script.whole(), cap=cap) as relay:
            async with relay.open(n=3) as reply:
                await reply.whole()
            assert relay.there.bodies[0]["max_tokens"] == 2, "eight tokens for three"
        async with relaying(Script.whole(), cap=cap - 6 * 4000) as relay:
            with pytest.raises(RequestDenied, match="a token for each of 3"):
                async with relay.open(n=3):
                    pass
            assert relay.spent == (0, 0)
            assert relay.there.requests == []

    run(go())


def test_fifty_at_once_under_a_cap_worth_three_overshoot_nothing(run):
    async def go():
        usage = worst_case(BODY, 50)
        most = PRICE.worst_case(usage.prompt_tokens, usage.completion_tokens)
        async with relaying(Script(200, [0.05, json.dumps(WHOLE).encode()], {}), cap=3 * most) as relay:

            async def ask():
                async with relay.open(max_tokens=50) as reply:
                    await reply.whole()
                    return "answered"

            found = await asyncio.gather(*(ask() for _ in range(50)), return_exceptions=True)
            answered = [each for each in found if each == "answered"]
            assert len(relay.there.requests) == len(answered) >= 3
            assert all(isinstance(each, RequestDenied) or each == "answered" for each in found)
            assert sum(relay.spent) <= 3 * most

    run(go())


UNBOUNDED = {
    "audio": {"voice": "alloy"}, "prediction": {"type": "content", "content": "x"}, "web_search_options": {},
    "service_tier": "priority", "modalities": ["text", "audio"], "guided_regex": "a*", "unheard_of": 1,
    "tools": [{"type": "web_search"}], "response_format": {"type": "grammar"},
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
}  # fmt: skip


def test_what_nothing_bounds_is_refused_by_its_name_under_a_price_and_relayed_without(run):
    async def go():
        async with relaying(Script.whole()) as relay:
            for name, value in UNBOUNDED.items():
                with pytest.raises(UnboundedField) as refused:
                    async with relay.open(**{name: value}):
                        pass
                assert refused.value.name.startswith((name, "messages[]"))
            assert (relay.there.requests, relay.spent) == ([], (0, 0))
        for price in (None, Price.parse("free")):
            async with relaying(Script.whole(), price=price) as relay:
                for name, value in UNBOUNDED.items():
                    async with relay.open(**{name: value}) as reply:
                        await reply.whole()
                    sent = {**BODY, name: value, "model": "big"}
                    assert relay.there.bodies[-1] == sent, "and without a limit that nobody asked for"

    run(go())


def test_a_cap_without_a_price_lets_nothing_leave(run):
    async def go():
        async with relaying(Script.whole(), price=None, cap=10**9) as relay:
            with pytest.raises(RequestDenied, match="no price"):
                async with relay.open():
                    pass
            assert relay.there.requests == []

    run(go())


def test_an_image_counts_what_the_user_says_it_may_cost(run):
    async def go():
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "data:" + "A" * 9999}}]
        given = {"messages": [{"role": "user", "content": parts}]}
        async with relaying(Script.whole(), image_tokens=700) as relay:
            async with relay.open(**given, max_tokens=1) as reply:
                await reply.whole()
            (reserved,) = (sent.reserved_nanousd for sent in relay.events if isinstance(sent, RequestSent))
            assert 700 * 1000 < reserved < (700 + 2 * 1024 + 2000) * 1000

    run(go())


@each("status", [400, 404, 422])
def test_what_the_service_turns_down_is_its_callers_fault_free_and_asked_once(run, status):
    async def go():
        refusal = Script.whole({"error": {"message": "bad schema sk-ours"}}, status)
        async with relaying(refusal) as relay:
            for _ in range(7):
                with pytest.raises(CloudError) as refused:
                    async with relay.open():
                        pass
            assert refused.value.status == status
            assert "bad schema [the key]" in str(refused.value)
            assert len(relay.there.requests) == 7, "no breaker opens"
            assert relay.spent == (0, 0)

    run(go())


def test_what_may_pass_is_asked_again_before_the_first_byte_and_not_after_it(run):
    async def go():
        busy = Script.whole({"error": {"message": "busy"}}, 503)
        async with relaying(busy, Script.whole()) as relay:
            async with relay.open(max_tokens=50) as reply:
                await reply.whole()
            assert len(relay.there.requests) == 2
            assert len({headers["x-request-id"] for _, headers, _ in relay.there.requests}) == 2
            assert relay.spent == (CHARGED, relay.most(50)), "nobody knows what the first one cost"
            assert reply.bytes_sent == sum(len(body) for _, _, body in relay.there.requests)
        async with relaying(Script.stream([delta("a"), CUT])) as relay:
            with pytest.raises(Unreachable):
                async with relay.open(stream=True) as reply:
                    await streamed(reply)
            assert len(relay.there.requests) == 1

    run(go())


def test_a_silent_upstream_is_given_up_and_the_breaker_opens_after_some(run):
    async def go():
        silent = Script(parts=[STAY], wait_s=5.0)
        async with relaying(silent, timeouts=Timeouts(1, 0.05, 0.05, 0.2)) as relay:
            said = []
            for _ in range(4):
                with pytest.raises(Unreachable) as given_up:
                    async with relay.open():
                        pass
                said.append(str(given_up.value))
            assert "in time" in said[0]
            assert "left alone" in said[-1]
            assert relay.relayer.health.breaker.state == "open"

    run(go())


@each("given", [{"n": 0}, {"n": True}, {"max_tokens": 0}, {"max_tokens": "many"}, {"n": 1.5}, {"n": 1e999}])
def test_a_number_that_cannot_be_is_refused_before_anything_is_reserved(run, given):
    async def go():
        async with relaying(Script.whole()) as relay:
            with pytest.raises(UsageError):
                async with relay.open(**given):
                    pass
            assert relay.spent == (0, 0)

    run(go())


def test_a_key_that_an_upstream_repeats_is_handed_to_nobody(run):
    async def go():
        said = {**WHOLE, "debug": "you are sk-ours"}
        stream = Script.stream([event(said), *STREAM, DONE], **{"x-request-id": "sk-ours"})
        async with relaying(Script.whole(said), stream) as relay:
            async with relay.open() as reply:
                whole = (await reply.whole()).data
            async with relay.open(stream=True) as reply:
                events = await streamed(reply)
                named = f"{reply.content_type} {reply.request_id}"
        assert "sk-ours" not in named
        for text in (whole, events[0].data):
            assert b"you are [the key]" in text
            assert b"sk-ours" not in text

    run(go())


def test_a_page_in_the_place_of_an_answer_is_handed_on_and_charged_at_its_most(run):
    async def go():
        async with relaying(Script(200, [b"<html>"], {"content-type": "text/html"})) as relay:
            async with relay.open(max_tokens=50) as reply:
                assert (await reply.whole()).data == b"<html>"
            assert relay.spent == (relay.most(50), 0)

    run(go())
