"""The money of branches and of ``kl:adaptive``, attacked by who knows the manual alone.

The cloud is of another hand and keeps its own account (``counting_cloud``): it charges a prompt token 1,000 nano-USD
and a written one 4,000, whatever its reply says. For every answer: charged by the cloud <= in the ledger <= the cap.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import threading

import pytest
from asked_money import read_ledger, set_cap
from cases import each, each_of
from counting_cloud import CountingCloud

import hybrid
from hybrid.record.events import BranchDrawn
from hybrid.spend.durable import FileLedger, LedgerAdmin

QUESTION = "Put in order, smallest first: 55 95 21 20 35 31."
NUM_CHECKS, CHECK = (
    4,
    89_000,
)  # four of six draws differ under this seed; each is 85 tokens with its prompt, and one more
BRANCHES = {"branches": 6, "temperature": 1.0, "max_tokens": 40}
PATIENT = {"first_byte_timeout_s": 60.0, "read_timeout_s": 60.0, "retries": 0, "cool_down_s": 0.001}
ASKED = {"local": "small", "dialect": "vllm", "price": "1/0.1/4", "threads": 1, "learn": False} | PATIENT


class SpoilingCloud(CountingCloud):
    """Answers request number ``at`` (from 1) as ``how`` says, and all others honestly."""

    def __init__(self):
        super().__init__(price="1/0.1/4")
        self.how, self.at, self.number, self.reached = "", 0, 0, threading.Event()
        self._server.config.app, self._server.config.interface = self._serve, "asgi3"

    def spoil(self, how, at):
        self.how, self.at, self.number = how, at, 0

    async def _serve(self, scope, receive, send):
        if scope["path"] != "/v1/completions":
            return await self.app(scope, receive, send)
        self.number += 1
        if self.number != self.at:
            return await self.app(scope, receive, send)
        self.reached.set()
        if self.how == "hang":
            return await asyncio.sleep(5)
        if self.how.isdecimal():
            start = {"type": "http.response.start", "status": int(self.how), "headers": []}
            await send(start)
            return await send({"type": "http.response.body", "body": b'{"error": {"message": "as asked"}}'})
        sent = []

        async def keep(message):
            sent.append(message)

        await self.app(scope, receive, keep)
        body = b"".join(message.get("body", b"") for message in sent)
        await send(sent[0] | {"headers": []})
        if self.how == "half":
            await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
            raise ConnectionResetError  # uvicorn drops the connection
        return await send({"type": "http.response.body", "body": spoilt(self.how, body)})


def spoilt(how, body):
    reply = json.loads(body)
    rows = reply["choices"][0]["prompt_logprobs"]
    if how == "garbage":
        return body[:-2]
    if how == "no usage":
        del reply["usage"]
    elif how == "no row at the end":
        rows[-1] = None
    elif how == "too few rows":
        del rows[-5:]
    elif how == "a tenth as usage":
        reply["usage"] = {name: count // 10 for name, count in reply["usage"].items() if isinstance(count, int)}
    else:
        told = {"not a number": float("nan"), "above one": 5.0, "texts": "-1"}[how]
        for entry in (entry for row in rows if row for entry in row.values()):
            entry["logprob"] = told
    return json.dumps(reply).encode()


@pytest.fixture(scope="module")
def cloud():
    with SpoilingCloud() as running:
        yield running


@pytest.fixture
def ask(cloud, tmp_path):
    """Ask; return events of each answer, what the cloud charged, the ledger's lines and what it counts as spent."""
    cloud.spoil("", 0)
    numbers = itertools.count()

    def run(*seeds, together=False, question=QUESTION, level="total", limit=None, asked=None, **settings):
        path = tmp_path / f"ledger-{next(numbers)}.sqlite"
        if limit is not None:
            ledger = FileLedger(path)
            LedgerAdmin(ledger).set_cap(level, limit)
            ledger.close()
        before = cloud.account()["total_nanousd"]

        async def gather(client, seed):
            return [event async for event in client.stream(question, seed=seed, **asked or {})]

        async def go():
            async with hybrid.open(cloud=cloud.url, ledger=path, **ASKED | settings) as client:
                if together:
                    return await asyncio.gather(*(gather(client, seed) for seed in seeds))
                return [await gather(client, seed) for seed in seeds]

        events = asyncio.run(go())
        return events, cloud.account()["total_nanousd"] - before, *read_ledger(path)

    return run


def scored(events):
    return [event.cloud_logprob is not None for event in events if isinstance(event, BranchDrawn)]


def check_exact_cap(ask, level, missing, **asked):
    """A cap of two checks, and of so much less."""
    (events,), charged, bookings, spent = ask(1, limit=2 * CHECK - missing, level=level, asked=asked, **BRANCHES)
    answer, paid = events[-1].answer, 2 - bool(missing)
    assert charged == spent == answer.bill.nanousd == paid * CHECK
    assert {booking.state for booking in bookings} == {"settled"}
    assert scored(events) == [True] * paid + [False] * (NUM_CHECKS - paid)
    assert answer.text
    assert answer.degraded_kind == "budget"
    assert any(note.startswith(f"{NUM_CHECKS - paid} of {NUM_CHECKS} different branches") for note in answer.notes)


@each("missing", [0, 1])
def test_a_cap_of_two_checks_pays_for_two_and_a_nano_dollar_less_for_one(ask, missing):
    check_exact_cap(ask, "total", missing)


@pytest.mark.slow
@each("missing", [0, 1])
def test_the_caps_of_questions_conversations_days_and_months_are_as_exact(ask, missing):
    for level in each_of(["request", "day", "month"]):
        check_exact_cap(ask, level, missing)
    check_exact_cap(ask, "conversation", missing, conversation="talk")


@pytest.mark.slow
@each(("cap", "paid"), [("0.000178", 2), ("0.000177999", 1)])
def test_the_cap_of_a_client_is_as_exact(ask, cap, paid):
    (events,), charged, _, spent = ask(1, cap=cap, **BRANCHES)
    assert charged == spent == events[-1].answer.bill.nanousd == paid * CHECK
    assert events[-1].answer.text


def check_spoilt(ask, cloud, how, *, left):
    """The third check goes wrong: what was charged is booked, what is known decides, and nothing more is asked."""
    cloud.spoil(how, 3)
    (events,), charged, bookings, spent = ask(1, **BRANCHES)
    answer = events[-1].answer
    assert charged <= spent == sum(booking.booked for booking in bookings) == answer.bill.nanousd
    assert {booking.state for booking in bookings} <= {"settled", "sent"}, "what left is booked, or stands"
    assert spent == (NUM_CHECKS if left is None else left) * CHECK
    assert scored(events) == ([True] * NUM_CHECKS if left is None else [True, True, False, False])
    best = max((event for event in events if isinstance(event, BranchDrawn) if event.cloud_logprob is not None),
               key=lambda branch: branch.cloud_logprob / branch.num_tokens)  # fmt: skip
    assert answer.text == best.text
    assert (answer.degraded_kind is None) == (left is None)


@each(("how", "left"), [("429", 2), ("garbage", 3)])
def test_a_check_that_goes_wrong_is_booked_and_the_scored_branches_are_left(ask, cloud, how, left):
    check_spoilt(ask, cloud, how, left=left)


WRONG = dict.fromkeys(["500", "half", "not a number", "above one", "texts", "no row at the end", "too few rows"], 3)
WRONG |= {"400": 2, "no usage": None, "a tenth as usage": None}


@pytest.mark.slow
@each(("how", "left"), [*WRONG.items()])
def test_a_check_that_goes_wrong_in_any_way_is_booked(ask, cloud, how, left):
    check_spoilt(ask, cloud, how, left=left)


@each("cap", [5 * CHECK - 1])
def test_answers_at_once_share_a_cap_and_each_has_a_text(ask, cap):
    answers, charged, bookings, spent = ask(1, 2, 3, 4, limit=cap, together=True, parallel=4, **BRANCHES)
    assert 0 < charged == spent == sum(events[-1].answer.bill.nanousd for events in answers) <= cap
    assert {booking.state for booking in bookings} == {"settled"}
    assert all(events[-1].answer.text for events in answers)


@pytest.mark.slow
@each("tariff", ["1/0.1/1/4/0.002", "1/0.1/2.5/4"])
def test_a_dearer_price_is_reserved_for_each_check(ask, tariff):
    """A stated price above what this cloud charges: a cap of one check pays for one."""
    per_prompt, request = {"1/0.1/1/4/0.002": (1000, 2_000_000), "1/0.1/2.5/4": (2500, 0)}[tariff]
    one = 85 * per_prompt + 4000 + request
    _, charged, bookings, spent = ask(1, limit=2 * one - 1, price=tariff, **BRANCHES)
    assert charged == CHECK
    assert [booking.reserved for booking in bookings] == [spent] == [one]


def named(answer):
    """The settings that a note of ``kl:adaptive`` names."""
    note = next(note for note in answer.notes if "chose" in note)
    threshold, span, handoff = re.search(r"threshold ([\d.]+), span (\d+), handoff (\w+)", note).groups()
    return {"policy": f"kl:{threshold}", "span": int(span), "hold": handoff if handoff == "rest" else int(handoff)}


def check_named(ask, seeds):
    tried, *_ = ask(*seeds, policy="kl:adaptive", learn=True, max_tokens=24, temperature=0.7)
    answers = {answer.policy: (seed, answer) for seed, answer in zip(
        seeds, (events[-1].answer for events in tried), strict=True)}  # fmt: skip
    for seed, answer in each_of(answers.values()):
        (events,), charged, _, spent = ask(seed, max_tokens=24, temperature=0.7, **named(answer))
        alone = events[-1].answer
        assert (alone.text, alone.bill.nanousd, alone.policy) == (answer.text, answer.bill.nanousd, answer.policy)
        assert charged == spent == alone.bill.nanousd
    return answers


def test_an_adaptive_answer_is_that_of_kl_with_the_named_settings(ask):
    assert check_named(ask, (3,))


@pytest.mark.slow
def test_adaptive_answers_are_those_of_kl_whatever_is_tried(ask):
    assert len(check_named(ask, range(40, 56))) > 2


@each("learn", [True, False])
def test_no_cap_is_passed_by_adaptive_answers(ask, learn):
    cap = 200_000
    answers, charged, bookings, spent = ask(*range(6), limit=cap, policy="kl:adaptive", learn=learn, max_tokens=24)
    assert 0 < charged == spent == sum(events[-1].answer.bill.nanousd for events in answers) <= cap
    assert {booking.state for booking in bookings} == {"settled"}
    assert all(events[-1].answer.text for events in answers)
    assert "budget" in {events[-1].answer.degraded_kind for events in answers}


def begin(*words):
    return subprocess.Popen([sys.executable, "-m", "hybrid", *words], stdout=-1, stderr=-1, text=True)


def flags(cloud, path):
    return [
        "--local", "small", "--cloud", cloud.url, "--dialect", "vllm", "--price", "1/0.1/4", "--branches", "6",
        "--temperature", "1", "--max-tokens", "40", "--threads", "1", "--ledger", str(path),
    ]  # fmt: skip


@pytest.mark.slow
@each("how", [signal.SIGTERM, signal.SIGKILL])
def test_who_is_ended_at_the_third_check_has_what_left_on_record_and_no_more(cloud, tmp_path, how):
    path = tmp_path / f"ledger-{how}.sqlite"
    cloud.spoil("hang", 3)
    cloud.reached.clear()
    before = cloud.account()["total_nanousd"]
    process = begin("ask", QUESTION, *flags(cloud, path), "--seed", "1")
    try:
        assert cloud.reached.wait(60)
        process.send_signal(how)
        process.communicate(timeout=60)
    finally:
        process.kill()
    bookings, spent = read_ledger(path)
    assert process.returncode == (143 if how == signal.SIGTERM else -how)
    assert [booking.reserved for booking in bookings] == [CHECK] * 3
    assert cloud.account()["total_nanousd"] - before <= spent == 3 * CHECK
    # Nobody knows whether the killed one's third check was charged: it stays. It left, so no next owner gives it back.
    assert bookings[-1].state == ("settled" if how == signal.SIGTERM else "sent")
    cloud.spoil("", 0)
    set_cap(path, 4 * CHECK)
    out, told = begin("ask", QUESTION, *flags(cloud, path), "--seed", "1", "--json").communicate(timeout=60)
    answer = json.loads(out)
    assert answer["bill"]["nanousd"] == CHECK, told
    assert answer["text"]
    assert read_ledger(path)[1] == 4 * CHECK


@pytest.mark.slow
def test_processes_on_one_ledger_share_its_cap_and_each_shows_an_answer(cloud, tmp_path):
    path, cap = tmp_path / "ledger.sqlite", 5 * CHECK - 1
    cloud.spoil("", 0)
    set_cap(path, cap)
    before = cloud.account()["total_nanousd"]
    begun = [begin("ask", QUESTION, *flags(cloud, path), "--seed", str(i), "--json") for i in (1, 2, 3)]
    answers = [json.loads(process.communicate(timeout=100)[0]) for process in begun]
    bookings, spent = read_ledger(path)
    charged = cloud.account()["total_nanousd"] - before
    assert 0 < charged == spent == sum(answer["bill"]["nanousd"] for answer in answers) <= cap
    assert {booking.state for booking in bookings} == {"settled"}
    assert all(answer["text"] for answer in answers)
