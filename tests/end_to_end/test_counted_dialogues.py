"""Conversations that change in their midst, with honest services: what was counted once is not what is sent now.

An earlier turn is edited, a template grows, tools come and go, a tokenizer normalises what the model itself wrote.
Each request: charged by the service <= booked in the ledger <= reserved before it left (``test_counted_chat``).
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
from dataclasses import replace

import drawn_dialogues
import pytest
from asked_money import LIMIT, RELAYED, TOOL, Asker, RelayCaller, read_ledger, set_cap
from cases import each
from chat_kinds import KINDS, Kind, normalised, raw_bytes
from counting_chat import CountingChat

BYTES = Kind(count=raw_bytes, word="s", answer=24)
LONG = "the quick brown fox jumps " * 10
MUSIC, GLYPH = "\U0001d160", "\ufdfa"  # three times as many bytes after NFC, eleven times after NFKC


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def turns(*contents):
    """A conversation whose first and last turn are the user's."""
    return [(assistant if number % 2 else user)(content) for number, content in enumerate(contents)]


def call(arguments):
    function = {"name": "add", "arguments": json.dumps(arguments, ensure_ascii=False)}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return [user("hi"), called, {"role": "tool", "tool_call_id": "c", "content": "3"}]


def only(tokens, where):
    """Tokens that a template adds where a body is so."""
    return lambda body: tokens if where(body) else 0


def unsaid(body):
    """Whether no turn is the system's, so that a template says something of its own."""
    return all(turn["role"] != "system" for turn in body["messages"])


OTHER = copy.deepcopy(TOOL)
OTHER["function"] |= {"name": "multiply", "description": "Multiply. " * 60}
SCHEMA = {"type": "object", "description": "x" * 900}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}

# name -> (the service, what is sent: messages, or messages and a service that it has become)
DIALOGUES = {
    "an earlier turn is edited": (
        BYTES,
        [
            turns("hi"),
            turns("hi", "yes", "more"),
            turns(LONG, "yes", "more"),
            turns("hi", LONG, "more"),
            turns(LONG + "x", LONG + "y", "z"),
        ],
    ),
    "a system message comes and goes": (
        BYTES,
        [turns("hi"), [system(LONG), user("hi")], turns("hi"), [system(LONG + "a"), *turns("hi", "b", LONG)]],
    ),
    "a turn changes its role": (BYTES, [turns(LONG), [system(LONG), user("a")], [system(LONG), user(LONG)]]),
    "the template grows": (
        KINDS["honest"],
        [
            turns("hi"),
            turns("hi", "yes", "more"),
            (turns("hi", "yes", "more", "k", "l"), Kind(preamble=60)),
            turns("again"),
        ],
    ),
    "English, then Chinese": (KINDS["honest"], [turns(LONG), turns(LONG, "y", "m"), turns("\u6f22\u5b57" * 60)]),
    "what it wrote grows in NFC": (
        Kind(count=normalised("NFC"), word=MUSIC, answer=24),
        [turns("hi"), turns("hi", MUSIC * 24, "m"), turns("hi", MUSIC * 24, "m", MUSIC * 24, "m")],
    ),
    "what it wrote grows in NFKC": (
        Kind(count=normalised("NFKC"), word=GLYPH, answer=24),
        [turns("hi"), turns("hi", GLYPH * 24, "m"), turns("hi", GLYPH * 24, "m", GLYPH * 24, "m")],
    ),
    "what it wrote is read as bytes": (
        BYTES,
        [turns("hi"), turns("hi", "s" * 24, "m"), turns("hi", "s" * 24, "m", "s", "m")],
    ),
    "thoughts do not come back": (Kind(thoughts=9), [turns("hi"), turns("hi", " sum" * 12, "m")]),
    "many turns after one": (Kind(each_turn=12), [turns("a"), turns("a", *"bc" * 12)]),
    "a lone long turn after many": (Kind(each_turn=12), [turns("a", *"bc" * 12), turns(LONG)]),
    "a default system message": (
        Kind(extra=only(300, unsaid)),
        [
            [system("be brief"), user("hi")],
            [system("be brief"), *turns("hi", "y", "m")],
            turns("hi"),
            turns("hi", "y", "m"),
        ],
    ),
    "a system message is printed with the last turn": (
        Kind(extra=lambda body: 20 * (len(body["messages"]) > 1)),
        [turns("hi"), turns("hi", "y", "m"), turns("hi", "y", "m", "y", "m")],
    ),
    "an answer is shown with its marks once it is answered": (
        Kind(each_turn=4, extra=lambda body: 30 * (len(body["messages"]) // 2)),
        [turns("hi"), turns("hi", "y", "m"), turns("hi", *"ymymymym"), turns("hi", "y", "m")],
    ),
    "hangul, emoji, combining marks": (
        KINDS["NFKD"],
        [
            turns("\ud55c\uae00" * 30),
            turns("e\u0301" * 40),
            turns("\U0001f468\u200d\U0001f469\u200d\U0001f467" * 8),
            turns("\u2460\u3231\u1e9b\u0323" * 16),
        ],
    ),
}
# Of relays alone: messages and other fields of the body.
BODIES = {
    "tools appear and go": (
        BYTES,
        [(turns("hi"), {"tools": tools}) for tools in ([TOOL], [TOOL, OTHER], [OTHER], [TOOL])],
    ),
    "a schema takes the place of tools": (
        BYTES,
        [(turns("hi"), {}), (turns("hi"), {"tools": [], "response_format": FORMAT})],
    ),
    "n answers, each with a prompt": (Kind(prompt_per_choice=True), [(turns(LONG), {"n": n}) for n in (1, 3, 1, 8)]),
    "n answers, one prompt": (Kind(), [(turns("hi"), {"n": n}) for n in (3, 1, 3, 8)]),
    "the arguments of a call change": (
        KINDS["NFKC"],
        [(call({"a": text}), {}) for text in ("x" * 500, GLYPH * 300, "b")],
    ),
    "a text becomes parts": (
        BYTES,
        [(turns(LONG), {}), (turns([{"type": "text", "text": LONG}] * 2), {}), (turns(LONG), {})],
    ),
    "a template that says more where there are tools": (
        Kind(extra=only(400, lambda body: body.get("tools"))),
        [
            (turns("hi"), {"tools": [], "response_format": {"type": "json_object"}}),
            (turns("hi"), {}),
            (turns("hi", "y", "m"), {}),
        ],
    ),
    "a template that names the effort": (
        Kind(extra=only(60, lambda body: body.get("reasoning_effort") == "high")),
        [
            (turns("hi"), {}),
            (turns("hi"), {"reasoning_effort": "high"}),
            (turns("hi", "y", "m"), {"reasoning_effort": "high"}),
        ],
    ),
    "a choice of tool that is printed": (
        Kind(extra=only(60, lambda body: body.get("tool_choice") == "required")),
        [
            (turns("hi"), {}),
            (turns("hi"), {"tool_choice": "required"}),
            (turns("hi", "y", "m"), {"tool_choice": "required"}),
        ],
    ),
    "limits vary": (Kind(thoughts=9), [(turns("hi"), {"max_tokens": n}) for n in (1, 7, 24, 3)]),
    "the effort of reasoning varies": (
        Kind(thoughts=10**6),
        [(turns("hi"), {"reasoning_effort": effort}) for effort in ("low", "high", "none")],
    ),
    "one of two limits": (
        Kind(thoughts=100),
        [(turns("hi"), {"max_completion_tokens": n, "max_tokens": 10 - n}) for n in (7, 3)],
    ),
}
QUICK = {"an earlier turn is edited", "what it wrote grows in NFC"}


@pytest.fixture
def told(tmp_path):
    """Hold a dialogue; return the service, the ledger's lines and what is spent."""
    numbers = itertools.count()

    def hold(caller, kind, steps, **settings):
        path = tmp_path / f"ledger-{next(numbers)}.sqlite"
        with CountingChat(kind) as cloud:

            async def go():
                async with caller(cloud, path, **settings) as asker:
                    for step in steps:
                        messages, more = step if isinstance(step, tuple) else (step, {})
                        if isinstance(more, Kind):
                            cloud.become(more)
                        await asker.ask(messages, **({} if isinstance(more, Kind) else more))

            asyncio.run(go())
            return cloud, *read_ledger(path)

    return hold


def check(found, steps):
    cloud, bookings, spent = found
    assert len(cloud.served) == len(bookings) == len(steps)
    for number, (booking, served) in enumerate(zip(bookings, cloud.served, strict=True), start=1):
        assert served.nanousd <= booking.booked <= booking.reserved, f"request {number}"
    assert spent >= cloud.nanousd


@each(("name", "caller"), zip(sorted(QUICK), [Asker, RelayCaller], strict=True))
def test_a_conversation_that_changes_is_reserved_as_it_is_sent(told, caller, name):
    kind, steps = DIALOGUES[name]
    check(told(caller, kind, steps), steps)


@pytest.mark.slow
@each(
    ("name", "caller"), [(name, (Asker, RelayCaller)[i % 2]) for i, name in enumerate(sorted(DIALOGUES.keys() - QUICK))]
)
def test_a_conversation_that_changes_in_any_way_is_reserved_as_it_is_sent(told, caller, name):
    kind, steps = DIALOGUES[name]
    check(told(caller, kind, steps), steps)


@pytest.mark.slow
@each("name", sorted(BODIES))
def test_a_body_that_changes_is_reserved_as_it_is_sent(told, name):
    kind, steps = BODIES[name]
    check(told(RelayCaller, kind, steps), steps)


@pytest.mark.slow
@each("number", range(12))
def test_any_conversation_with_any_honest_template_is_reserved_as_it_is_sent(told, number):
    draw = random.Random(number)
    kind, steps = drawn_dialogues.service(draw), drawn_dialogues.dialogue(draw, 7)
    more = [
        {"tools": [TOOL, OTHER][: draw.randint(1, 2)], "n": draw.randint(1, 2)} if number % 2 else {} for _ in steps
    ]
    check(told((Asker, RelayCaller)[number % 2], kind, list(zip(steps, more, strict=True))), steps)


@each("after", [1, 5])
def test_a_caller_who_leaves_a_relay_leaves_its_money_on_record(tmp_path, after):
    path = tmp_path / f"ledger-{after}.sqlite"
    with CountingChat("honest") as cloud:

        async def go():
            async with RelayCaller(cloud, path) as asker:
                body = {"model": "hybrid", "messages": turns("hi"), "max_tokens": LIMIT, "stream": True, **RELAYED}
                route = "/v1/chat/completions"
                await asker.endpoint.ask(route, body, leave=lambda heard: heard.body.count(b"data:") >= after)

        asyncio.run(go())
        bookings, spent = read_ledger(path)
        assert 0 < cloud.nanousd <= spent == sum(booking.booked for booking in bookings)
        assert all(booking.booked <= booking.reserved for booking in bookings)


def test_two_clients_on_one_ledger_keep_its_cap(tmp_path):
    """One asks, the other relays, twenty questions each, at the same time."""
    path, cap = tmp_path / "ledger.sqlite", 6_000_000
    set_cap(path, cap)
    with CountingChat("thoughts to the limit") as cloud:

        async def go():
            async with Asker(cloud, path, parallel=20) as one, RelayCaller(cloud, path) as other:
                questions = [turns(f"What is {number} + 86?") for number in range(20)]
                await asyncio.gather(*(asker.ask(question) for question in questions for asker in (one, other)))

        asyncio.run(go())
        _, spent = read_ledger(path)
        assert 0 < cloud.nanousd <= spent <= cap


@each("kind", [Kind(refuses=(429, 503)), Kind(resets=2)])
def test_a_question_that_is_asked_again_is_booked_for_what_was_computed_at_least(told, kind):
    cloud, bookings, spent = told(Asker, replace(kind, answer=5), [turns("hi")], retries=2)
    assert len(cloud.served) == 1
    assert cloud.nanousd <= spent <= sum(booking.reserved for booking in bookings)
