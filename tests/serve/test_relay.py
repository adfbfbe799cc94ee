"""Relays through the endpoint: what goes up and comes down, what is refused, and a caller that leaves."""

from __future__ import annotations

import asyncio
import json

from asgi_caller import JSON
from cases import each
from chat_upstream import CUT, DONE, STAY, STREAM, USAGE, WHOLE, Script, delta, event
from relays import PRICE, TOOLS, relaying

from hybrid.cloud.relay_bounds import worst_case
from hybrid.serve.app_state import ServeOptions
from hybrid.serve.reducer import REASONS
from hybrid.types import CloudUsage

CHARGED = PRICE.cost(CloudUsage(12, 3))
OFFLINE = [{"hybrid": {"offline": True}}, {"model": "hybrid:local"}, {"hybrid": {"policy": "local"}}]


def relayed(endpoint, run, *scripts, ask, **given):
    """Ask an endpoint that relays to these scripts; returns what was heard, and the relay."""

    async def asked():
        served = endpoint()
        async with relaying(*scripts, **given) as relay:
            served.house.client.relayer = relay.relayer
            heard = await ask(served)
            relay.left = asyncio.all_tasks() - {asyncio.current_task()} - relay.there.serving
            return heard, relay, served

    return run(asked())


def test_a_whole_answer_comes_with_what_it_cost_and_no_header_passes_either_way(endpoint, run):
    canary = [(b"authorization", b"Bearer canary"), (b"x-canary", b"canary"), (b"cookie", b"canary=1")]
    body = {"model": "hybrid", "messages": [{"role": "user", "content": "a"}], "tools": TOOLS}

    async def ask(served):
        return await served.ask("/v1/chat/completions", body, headers=[*JSON, *canary])

    script = Script.whole(**{"x-request-id": "up-7", "x-canary": "canary", "set-cookie": "canary=1"})
    heard, relay, served = relayed(endpoint, run, script, ask=ask)
    assert heard.status == 200
    own = {"local_tokens": 0, "cloud_tokens": 3, "checks": 0, "cloud_only_cost": CHARGED / 1e9}
    own["bytes_sent"] = len(relay.there.requests[0][2])
    own["cloud"] = {"told_prompt_tokens": 12, "told_completion_tokens": 3, "known_prompt_tokens": 0} | dict.fromkeys(
        ("known_completion_tokens", "assumed_prompt_tokens", "assumed_completion_tokens"), 0
    )
    assert heard.data["usage"] == {**USAGE, "cost": CHARGED / 1e9, "hybrid": own}
    assert {name: heard.data[name] for name in WHOLE if name != "usage"} == {
        name: WHOLE[name] for name in WHOLE if name != "usage"
    }
    assert heard.headers["x-hybrid-mode"] == "relay"
    assert float(heard.headers["x-hybrid-cost"]) == CHARGED / 1e9
    assert heard.headers["x-request-id"] == "up-7"
    assert "canary" not in json.dumps(heard.headers)
    _, headers, sent = relay.there.requests[0]
    assert "canary" not in json.dumps(headers) + sent.decode()
    assert headers["authorization"] == "Bearer sk-ours"
    assert served.house.client.spent.nanousd == CHARGED
    totals = served.monitor.state.totals
    assert (totals.answers["relayed"], totals.counts["sent", "relay"]) == (1, 1)


@each("reason, room", [("length", 12), ("stop", 12), ("length", 5000)])
def test_an_answer_that_a_cap_has_cut_off_says_so(endpoint, run, reason, room):
    """A tool's call that ends in its midst is no use; one that ended by itself lacks nothing."""
    whole = {**WHOLE, "choices": [{**WHOLE["choices"][0], "finish_reason": reason}]}
    body = {"model": "m", "messages": [{"role": "user", "content": "a b c"}], "tools": TOOLS}
    prompt = worst_case(body, 1).prompt_tokens
    cap = PRICE.worst_case(prompt, room)
    heard, relay, _ = relayed(
        endpoint, run, Script.whole(whole), ask=lambda served: served.chat(tools=TOOLS, max_tokens=4096), cap=cap
    )
    [sent] = relay.there.bodies
    expected = f"the cap leaves room for {sent['max_tokens']} of the 4,096 tokens that the cloud might write"
    cut_off = reason == "length" and sent["max_tokens"] < 4096
    assert cut_off == (reason == "length" and room == 12)
    assert heard.headers.get("x-hybrid-degraded") == (expected if cut_off else None)
    assert heard.data["hybrid"]["degraded"] == (expected if cut_off else None)


@each("wanted", [False, True])
def test_events_pass_as_they_came_and_the_usage_only_to_those_who_asked(endpoint, run, wanted):
    options = {"stream_options": {"include_usage": True}} if wanted else {}
    heard, relay, _ = relayed(
        endpoint, run, Script.stream(), ask=lambda served: served.chat(tools=TOOLS, stream=True, **options)
    )
    assert heard.body.startswith(STREAM[0] + STREAM[2]), "to the byte"
    assert heard.headers["content-type"] == "text/event-stream"
    assert heard.body.endswith(DONE)
    assert relay.spent == (CHARGED, 0)
    last = heard.events[-2]
    assert bool(isinstance(last, dict) and last.get("usage")) == wanted
    if wanted:
        assert (last["usage"]["cost"], last["hybrid"]["mode"]) == (CHARGED / 1e9, "relay")
        assert last["choices"] == []


@each("wanted", [False, True])
def test_a_usage_beside_a_part_of_the_answer_is_told_to_those_who_asked_and_the_part_to_all(endpoint, run, wanted):
    ending = {"id": "x", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}], "usage": USAGE}
    options = {"stream_options": {"include_usage": True}} if wanted else {}
    script = Script.stream([delta("a"), event(ending), DONE])
    heard, relay, _ = relayed(
        endpoint, run, script, ask=lambda served: served.chat(tools=TOOLS, stream=True, **options)
    )
    assert relay.spent == (CHARGED, 0)
    last = heard.events[-2]
    assert last["choices"] == ending["choices"]
    assert bool(last["usage"]) == wanted
    if wanted:
        assert last["usage"]["cost"] == CHARGED / 1e9


@each("untold", [None, "much", {}])
@each("streamed", [False, True])
def test_where_no_usage_is_told_its_caller_hears_what_was_booked_and_that_it_is_assumed(
    endpoint, run, streamed, untold
):
    """Its caller could not know that 50 tokens were booked where two came."""
    parts = [delta("a", model="big", usage=untold), delta("b", model="big"), DONE]
    script = Script.stream(parts) if streamed else Script.whole({**WHOLE, "usage": untold})
    options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    heard, relay, _ = relayed(
        endpoint, run, script, ask=lambda served: served.chat(tools=TOOLS, max_tokens=50, **options)
    )
    told = heard.events[-2] if streamed else heard.data
    usage, cloud = told["usage"], told["usage"]["hybrid"]["cloud"]
    assert relay.spent == (round(usage["cost"] * 1e9), 0)
    assert usage["cost"] == PRICE.cost(CloudUsage(usage["prompt_tokens"], usage["completion_tokens"])) / 1e9
    assert (usage["completion_tokens"], usage["total_tokens"]) == (50, 50 + usage["prompt_tokens"])
    assert cloud["assumed_prompt_tokens"] == usage["prompt_tokens"] > 1000
    assert (cloud["known_completion_tokens"], cloud["assumed_completion_tokens"]) == ((2, 48) if streamed else (1, 49))
    if streamed:
        assert (told["id"], told["choices"]) == ("x", [])
    else:
        assert float(heard.headers["x-hybrid-cost"]) == usage["cost"]


def test_what_was_booked_for_want_of_a_usage_is_no_event_for_those_who_did_not_ask(endpoint, run):
    parts = [delta("a"), delta("b")]
    script = Script.stream([*parts, DONE])
    heard, _, _ = relayed(endpoint, run, script, ask=lambda served: served.chat(tools=TOOLS, stream=True))
    assert heard.body == b"".join([*parts, DONE])


@each("fields", OFFLINE)
def test_where_nothing_may_be_sent_the_field_is_refused_by_its_name(endpoint, run, fields):
    heard, relay, _ = relayed(endpoint, run, Script.whole(), ask=lambda served: served.chat(tools=TOOLS, **fields))
    assert (heard.status, heard.error["code"], heard.error["param"]) == (400, "unsupported_parameter", "tools")
    assert relay.there.requests == []


def not_relayed(served):
    """Whether an answer failed on the page without a relay: none left."""
    [log], totals = served.monitor.state.answers.values(), served.monitor.state.totals
    return (log.head["state"], log.head["relayed"], totals.answers["relayed"]) == ("failed", False, 0)


def test_beside_the_bundled_models_it_is_said_where_such_requests_can_go(endpoint, run):
    served = endpoint()
    heard = run(served.chat(tools=TOOLS))
    assert (heard.status, heard.error["param"]) == (400, "tools")
    assert "[relay]" in heard.error["message"]
    assert not_relayed(served)


def test_what_nothing_bounds_is_refused_by_its_name(endpoint, run):
    heard, relay, served = relayed(
        endpoint, run, Script.whole(), ask=lambda served: served.chat(tools=TOOLS, a_field_of_tomorrow=1)
    )
    assert (heard.status, heard.error["code"]) == (400, "unsupported_parameter")
    assert heard.error["param"] == "a_field_of_tomorrow"
    assert relay.there.requests == []
    assert not_relayed(served)


def test_fifty_callers_under_a_cap_worth_three_get_an_answer_or_402_once(endpoint, run):
    most = worst_case({"model": "", "messages": [{"role": "user", "content": "a b c"}], "tools": TOOLS}, 12)
    cap = 3 * PRICE.worst_case(most.prompt_tokens, most.completion_tokens)

    async def ask(served):
        return await asyncio.gather(*(served.chat(tools=TOOLS) for _ in range(50)))

    script = Script(200, [0.05, json.dumps(WHOLE).encode()], {"content-type": "application/json"})
    heard, relay, _ = relayed(endpoint, run, script, ask=ask, cap=cap)
    answered, refused = ([each for each in heard if each.status == status] for status in (200, 402))
    assert len(answered) == len(relay.there.requests) >= 3
    assert len(answered) + len(refused) == 50
    assert {each.error["code"] for each in refused} == {"budget_exceeded"}
    assert {each.headers["x-should-retry"] for each in refused} == {"false"}
    assert sum(relay.spent) <= cap


@each(
    "status, told, code",
    [
        (400, 400, "upstream_refused"),
        (401, 403, "upstream_access_denied"),
        (402, 402, "upstream_payment_required"),
        (422, 422, "upstream_refused"),
        (429, 429, "upstream_rate_limited"),
        (500, 500, "upstream_failed"),
        (503, 503, "upstream_failed"),
        (599, 599, "upstream_failed"),
        (600, 502, "upstream_failed"),
        (999, 502, "upstream_failed"),
    ],
)
def test_a_status_of_the_upstream_keeps_its_class_and_its_words_without_our_key(endpoint, run, status, told, code):
    refusal = Script.whole({"error": {"message": "because of sk-ours"}}, status)
    heard, _, served = relayed(endpoint, run, refusal, ask=lambda served: served.chat(tools=TOOLS))
    assert (heard.status, heard.error["code"]) == (told, code)
    [log] = served.monitor.state.answers.values()
    kind = "refused" if status < 500 and status != 429 else "unreachable"
    assert {row["why"] for _, row in log.places("requests")} == {REASONS[kind]}, (
        "no reply here is one not to be believed"
    )
    assert "because of [the key]" in heard.error["message"]
    assert set(heard.error) == {"message", "type", "param", "code"}
    assert (heard.headers.get("x-should-retry") == "false") == (status == 402)


NO_ROUTE = [{"detail": "Not Found"}, {"error": {"message": "File Not Found"}}, {"error": {"message": "Invalid URL"}}]


@each("status", [404, 405, 501])
@each("body", NO_ROUTE)
def test_where_the_cloud_has_no_chat_route_the_field_is_refused_by_its_name(endpoint, run, status, body):
    heard, relay, _ = relayed(endpoint, run, Script.whole(body, status), ask=lambda served: served.chat(tools=TOOLS))
    assert (heard.status, heard.error["code"], heard.error["param"]) == (400, "unsupported_parameter", "tools")
    assert "no chat route" in heard.error["message"]
    assert f"answered {status}" in heard.error["message"]
    assert relay.relayer.health.breaker.state == "closed"


def test_a_model_that_the_cloud_does_not_have_is_its_own_404(endpoint, run):
    refusal = Script.whole({"error": {"message": "The model `big` does not exist"}}, 404)
    heard, _, _ = relayed(endpoint, run, refusal, ask=lambda served: served.chat(tools=TOOLS))
    assert (heard.status, heard.error["code"]) == (404, "upstream_refused")


def test_more_relays_than_may_be_under_way_are_told_at_once_to_come_again(endpoint, run, monkeypatch):
    """Nothing of them leaves, nothing is reserved, and the endpoint is not blamed."""
    monkeypatch.setattr("hybrid.run.relaying.MOST_RELAYS", 2)

    async def ask(served):
        gone = asyncio.Event()
        relayer = served.house.client.relayer
        waiting = [asyncio.create_task(served.chat(tools=TOOLS, gone=gone)) for _ in range(2)]
        while relayer._under_way < 2:  # noqa: ASYNC110  (nobody is told)
            await asyncio.sleep(0.01)
        beyond = [await served.chat(tools=TOOLS) for _ in range(9)]
        gone.set()
        await asyncio.gather(*waiting)
        return beyond, await served.chat(tools=TOOLS)

    scripts = [Script(parts=[STAY], wait_s=0.0)] * 2 + [Script.whole()]
    (beyond, after), relay, _ = relayed(endpoint, run, *scripts, ask=ask)
    assert {(each.status, each.error["code"]) for each in beyond} == {(503, "overloaded")}
    assert all(int(each.headers["retry-after"]) > 0 for each in beyond)
    assert after.status == 200
    assert len(relay.there.requests) == 3
    assert relay.relayer.health.breaker.in_a_row == 0


def test_others_have_their_turn_between_two_events_of_a_flood(endpoint, run):
    """A small question beside a hundred flooded relays took 36 s."""
    num, turns = 500, [0]

    async def ask(served):
        async def take_turns():
            while True:
                await asyncio.sleep(0)
                turns[0] += 1

        other = asyncio.create_task(take_turns())
        heard = await served.chat(tools=TOOLS, stream=True, leave=lambda heard: turns.append(turns[0]))
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        return heard

    heard, _, _ = relayed(endpoint, run, Script.stream([b"".join([delta("a")] * num), *STREAM, DONE]), ask=ask)
    assert heard.body.count(b"data:") > num
    seen = turns[2:]
    assert len({*seen}) >= num, "what came in one part was handed on in as many turns"


def test_a_stream_that_breaks_ends_with_an_error_and_without_the_mark_of_an_end(endpoint, run):
    script = Script.stream([delta("a"), CUT])
    heard, relay, _ = relayed(endpoint, run, script, ask=lambda served: served.chat(tools=TOOLS, stream=True))
    assert heard.status == 200
    assert heard.events[-1]["error"]["code"] == "upstream_failed"
    assert b"[DONE]" not in heard.body
    assert len(relay.there.requests) == 1
    assert relay.spent[1] > 0, "nobody knows what it cost"


@each("streamed", [False, True])
@each("after", [0, 1])
def test_a_caller_that_leaves_ends_the_upstreams_request_and_is_charged_its_limit(endpoint, run, streamed, after):
    parts = [delta("a"), STAY] if streamed else [b"{", STAY]
    script = Script(200, parts, {"content-type": "text/event-stream" if streamed else "application/json"})

    async def ask(served):
        gone = asyncio.Event()
        leave = (lambda heard: len(heard.body) > 0) if after and streamed else None
        asking = asyncio.create_task(served.chat(tools=TOOLS, stream=streamed, leave=leave, gone=gone))
        if leave is None:
            for _ in range(200):
                await asyncio.sleep(0.01)
                if upstream_of(served).requests:
                    break
            gone.set()
        heard = await asking
        for _ in range(200):
            await asyncio.sleep(0.01)
            if upstream_of(served).left:
                break
        return heard

    heard, relay, served = relayed(endpoint, run, script, ask=ask)
    assert relay.there.left == [1]
    assert relay.spent[0] > CHARGED
    assert relay.spent[1] == 0
    assert not relay.left
    assert b"[DONE]" not in heard.body
    assert served.monitor.state.totals.answers["left"] == 1


def upstream_of(served):
    return served.house.client.relayer.target.wire.there


def test_no_text_of_a_relay_reaches_the_monitor(endpoint, run):
    secret = [{"role": "user", "content": "canary"}]
    heard, _, served = relayed(
        endpoint, run, Script.whole(), ask=lambda served: served.chat(tools=TOOLS, messages=secret)
    )
    assert heard.status == 200
    shown = [log.head for log in served.monitor.state.answers.values()]
    assert shown
    assert "canary" not in json.dumps([*shown, served.monitor.state.totals.to_json()])
    assert ServeOptions().shows_texts is False
