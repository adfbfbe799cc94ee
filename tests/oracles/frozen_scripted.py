"""What is frozen and needs no model: exchanges with ``hybrid serve`` over tables, ledgers, prices, recorded traces.

What is compared holds on every machine; numbers with a point on one that computes as the one that recorded them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from asgi_caller import JSON, Endpoint, Heard
from chat_upstream import CUT, STREAM, Script
from frozen_models import trace
from frozen_text import TREE, Section, masked
from money import Clock
from pydantic import SecretStr
from relays import TOOLS, relaying
from scripted_house import houses
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.errors import Unreachable
from hybrid.policy import PRESETS
from hybrid.record.recorded_events import RecordedAnswer
from hybrid.serve.app_state import ServeOptions
from hybrid.serve.reducer import AnswerMetadata, MonitorState, Subscriber
from hybrid.spend import STORED_CAP_LEVELS, Denial, MaxCost, MemoryLedger, Price, Settlement, SpendScope
from hybrid.spend import bill as bill_of
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.types import CloudUsage

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUM_LEDGERS, NUM_STEPS = 200, 12
# No drafting ahead: how far it comes is a matter of time.
AT_REST = {"overlap": False}
SAMPLED = {"temperature": 0.9, "seed": 5}
# How the house is built, and what is asked of it: each whole and streamed.
CHATS: dict[str, tuple[dict, dict]] = {
    **{
        f"policy {name}": ({}, {"model": f"hybrid:{name}", **(SAMPLED if number % 2 else {})})
        for number, name in enumerate(PRESETS)
    },
    "log-probabilities": ({}, {"model": "hybrid:kl:0.5", "logprobs": True, "top_logprobs": 2}),
    "several": ({}, {"n": 3, **SAMPLED}),
    "stop": ({}, {"stop": ["d", "gh"], "max_tokens": 30}),
    "usage": ({}, {"stream_options": {"include_usage": True}, "reasoning_effort": "low", "user": "u"}),
    "fields": ({}, {"hybrid": {"policy": "greedy-exact", "span": 3}, "max_tokens": 5}),
    "a cap": ({"cap": 40_000}, {"hybrid": {"policy": "kl:0.2"}, "max_tokens": 30}),
    "no price": ({"price": None}, {}),
    "no cloud": ({"connect": Unreachable("no route", sent=False)}, {"model": "hybrid:kl"}),
    "no cloud, which alone was asked": ({"connect": Unreachable("no route", sent=False)}, {"model": "hybrid:cloud"}),
    "offline": ({}, {"hybrid": {"offline": True}}),
    "tools without a relay": ({}, {"tools": TOOLS}),
    "no such policy": ({}, {"model": "hybrid:nothing"}),
    "no such choice": ({}, {"hybrid": {"spam": 1}}),
    "too long": ({"num_context": 8}, {"messages": [{"role": "user", "content": "a b c d e f g h"}]}),
    "no messages": ({}, {"messages": []}),
}
ASKED: dict[str, tuple[str, str, object]] = {
    "completion": ("POST", COMPLETIONS, {"model": "hybrid:kl", "prompt": "a b c", "max_tokens": 9, "logprobs": 2}),
    "streamed completion": ("POST", COMPLETIONS, {"model": "hybrid", "prompt": "a b", "max_tokens": 9, "stream": True}),
    "no JSON": ("POST", CHAT, b"{"),
    "another method": ("GET", CHAT, None),
    "another route": ("POST", "/v1/responses", {}),
    "models": ("GET", "/v1/models", None),
    "a model": ("GET", "/v1/models/hybrid:kl:0.5", None),
    "health": ("GET", "/health", None),
    "metrics": ("GET", "/metrics", None),
}
RELAYED = {
    "whole": (Script.whole(), {}),
    "streamed": (Script.stream(), {"stream": True}),
    "cut": (Script.stream((*STREAM[:2], CUT)), {"stream": True}),
    "refused": (Script.whole({"error": {"message": "no"}}, 400), {}),
}
PRICES = ("1/0.1/4", "1/0.1/4:cached", "2/0.1/2.5/10", "1/0.1/1/4/0.002:new", "0.15/0.075/0.6", "free")
QUESTION = "What is 47 + 86?"
QUOTED = ("auto", "route", "excess:0.5", "local")
QUOTES = (
    *(("--price", price, *rest) for price, rest in product(PRICES, ((), ("--policy", "kl:0.3", QUESTION)))),
    *(("--price", "1/0.1/4", "--policy", policy, QUESTION) for policy in QUOTED),
)


def told(asked: object, heard: Heard) -> str:
    """Return an exchange: what was asked, the status, the headers in their order, and the body."""
    question = asked.decode() if isinstance(asked, bytes) else json.dumps(asked)
    length = {"content-length": "of the body"} if heard.headers.get("content-length") == str(len(heard.body)) else {}
    head = "\n".join(f"{name}: {value}" for name, value in {**heard.headers, **length}.items())
    return masked(f"{question}\n\n{heard.status}\n{head}\n\n{heard.body.decode()}")


def exchanges() -> Section:
    """Return every exchange with an app of its own: those above, and the requests of real clients."""
    found = {}

    async def relay(build: Callable, script: Script, fields: dict) -> Heard:
        async with relaying(script) as upstream:
            house = build()
            house.client.relayer = upstream.relayer
            return await Endpoint(house, ServeOptions()).chat(tools=TOOLS, **fields)

    with houses() as build:
        for (name, (how, fields)), streamed in product(CHATS.items(), (False, True)):
            heard = asyncio.run(Endpoint(build(queue=AT_REST, **how), ServeOptions()).chat(stream=streamed, **fields))
            found[f"{name}{', streamed' * streamed}"] = told(fields, heard)
        for name, (method, path, body) in ASKED.items():
            found[name] = told(body, asyncio.run(Endpoint(build(), ServeOptions()).ask(path, body, method=method)))
        for name, (script, fields) in RELAYED.items():
            found[f"relay {name}"] = told(fields, asyncio.run(relay(build, script, fields)))
        keyed = Endpoint(build(), ServeOptions(key=SecretStr("key"), hosts=frozenset({"laptop.lan"})))
        found["no key"] = told({}, asyncio.run(keyed.chat()))
        for path in sorted((TREE / "tests/serve/golden").glob("*.json")):
            asked = json.loads(path.read_text(encoding="utf-8"))
            headers = [*JSON[:1], *((name.encode(), value.encode()) for name, value in asked["headers"].items())]
            served = Endpoint(build(num_context=3000), ServeOptions())
            heard = asyncio.run(served.ask(asked["path"], asked["body"], method=asked["method"], headers=headers))
            found[f"client {path.stem}"] = told(None, heard)
    return found


def events() -> Section:
    """Return every event of an answer over tables, by every preset, with both models' rows."""
    ways = {"greedy": {"temperature": 0}, "sampled": {**SAMPLED, "top_k": 7}}
    found = {}
    with houses() as build:
        for preset, (way, choices) in product(PRESETS, ways.items()):
            asked = trace(
                build(queue=AT_REST).client,
                "a b c",
                whole=True,
                policy=preset,
                trace_rows=True,
                max_tokens=12,
                **choices,
            )
            found[f"{preset}, {way}"] = asyncio.run(asked)
    return found


def ledgers() -> Section:
    """Return what two ledgers, in memory and in a file, did and have after the same drawn operations."""
    shared = Path("/dev/shm")  # a disk would take most of the time
    with TemporaryDirectory(dir=shared if shared.exists() else None) as folder:
        return {f"{number:03}": ledger(number, Path(folder) / f"{number}.sqlite") for number in range(NUM_LEDGERS)}


def ledger(number: int, path: Path) -> str:
    """Draw operations, and tell them, the caps and the entries at the end, and the bill of all charges."""
    drawn, clock, lines, under_way, charges = random.Random(number), Clock(), [], [], []
    caps = {level: drawn.randrange(50_000, 3_000_000) for level in STORED_CAP_LEVELS if drawn.random() < 0.4}
    memory, price = MemoryLedger(caps=caps, clock=clock), Price.parse(PRICES[number % len(PRICES)])
    with closing(FileLedger(path, clock)) as file:
        admin = LedgerAdmin(file)
        for level, cap in caps.items():
            admin.set_cap(level, cap)
        lines.append(f"{price} {price.in_full} {caps}")
        for step in range(NUM_STEPS):
            client_cap = drawn.choice((None, 1_000_000))
            scope = SpendScope(f"http://{drawn.randrange(2)}", f"q{step // 3}", f"c{step // 6}", "me", client_cap)
            match drawn.randrange(5):
                case 0 | 1:
                    cost = MaxCost(price, drawn.randrange(90), drawn.randrange(1, 30), requests=drawn.randrange(1, 3))
                    both = [each.reserve(cost, scope) for each in (memory, file)]
                    granted = [each.why if isinstance(each, Denial) else (each.nanousd, each.limit) for each in both]
                    lines.append(f"reserve {cost.worst_nanousd} {cost.least_nanousd} {scope.endpoint}: {granted}")
                    under_way += [both] if not any(isinstance(each, Denial) for each in both) else []
                case 2 | 3 if under_way:
                    both = under_way.pop(drawn.randrange(len(under_way)))
                    usage = CloudUsage(drawn.randrange(90), drawn.randrange(30), cached_tokens=drawn.randrange(9))
                    charged, why = price.cost(usage), None
                    if charged > both[1].nanousd:
                        why = f"it charged {charged}"
                    for each, reserved in zip((memory, file), both, strict=True):
                        each.mark_sent(reserved)
                        each.settle(Settlement(reserved, charged, why))
                    charges.append(usage)
                    lines.append(f"settle {both[1].nanousd} by {astuple(usage)}: {charged}, {why}")
                case _:
                    clock.now += drawn.choice((60, 86_400, -3600))
            told = [" ".join(map(str, map(astuple, each.cap_statuses(scope)))) for each in (memory, file)]
            lines += told if told[0] != told[1] else told[:1]
        lines += [str(astuple(row)) for rows in (admin.log(999), admin.closed(), admin.rows()) for row in rows]
    bill = bill_of(price, charges, 40, 20)
    lines.append(f"{memory.settled_nanousd} {memory.reserved_nanousd} {bill} {astuple(bill)}")
    return masked("\n".join(lines))


def command(*words: str) -> str:
    """Return what a command prints, and how it ends."""
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    return masked(f"{done.exit_code}\n{done.stdout}\n{done.stderr}")


def prices() -> Section:
    """Return what ``hybrid price`` tells."""
    return {" ".join(words): command("price", "--json", *words) for words in QUOTES}


def monitor(traces: Section) -> Section:
    """Return what a monitor's page is told after every event of every trace, with texts and without."""
    kinds = product(traces.items(), (True, False))
    return {f"{name}{', no texts' * (not shows)}": states(trace, shows=shows) for (name, trace), shows in kinds}


def states(trace: str, *, shows: bool) -> str:
    """Return what is new after each event, a line each; each is the whole state by ``tests/serve/test_feed.py``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text(trace, encoding="utf-8")
        recorded, state = RecordedAnswer.read(path), MonitorState(shows_texts=shows)
        follower, log, lines = Subscriber(state), state.begin(AnswerMetadata("one", "hybrid", 1.0, recorded.prompt)), []
        for event in recorded.events():
            state.observe(log, event)
            lines.append(json.dumps(follower.news()))
        state.end(log)
        return masked("\n".join([*lines, json.dumps(follower.news())]))


def shown(traces: Section) -> Section:
    """Return what ``hybrid trace show`` and ``hybrid replay`` print of every trace."""
    found = {}
    with TemporaryDirectory() as folder:
        for name, trace in traces.items():
            path = Path(folder) / "trace.jsonl"
            path.write_text(trace, encoding="utf-8")
            found[f"{name}, shown"] = command("trace", "show", str(path))
            found[f"{name}, replayed"] = command("replay", str(path), "--json")
    return found


def scripted(traces: Section) -> dict[str, Section]:
    """Return all of it. ``traces``: as ``frozen_models.answers`` recorded them."""
    return {
        "exchanges": exchanges(),
        "events": events(),
        "ledgers": ledgers(),
        "prices": prices(),
        "monitor": monitor(traces),
        "shown": shown(traces),
    }
