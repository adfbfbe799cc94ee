"""Money in the loop: what a ledger says, the answer says, and the local model finishes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cases import each

from hybrid.errors import LedgerError
from hybrid.policy import PRESETS
from hybrid.run import Degraded, NoteAdded, RequestSent, RequestSettled
from hybrid.spend import MaxCost, MemoryLedger, Price, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable import ledger as durable_ledger
from hybrid.types import CloudUsage

PROMPT = "a b c"
# auto asks where that pays: ``test_planned.py``.
ASKING = [name for name in PRESETS if name not in {"local", "auto", "route"}]
# What checks, what hands over and what only writes: with these every case is seen by default, and with all one of them.
FEW = ("greedy-exact", "kl", "cloud")


def with_each(names, cases, always):
    """All policies with one case and a few with the others in one test, the rest of the grid in a slow one."""
    grid = [(policy, case) for case in cases for policy in ASKING]
    few = [(policy, case) for policy, case in grid if policy in FEW or case == always]
    rest = [pair for pair in grid if pair not in few]

    def decorate(test):
        @pytest.mark.parametrize("inputs", [few, pytest.param(rest, marks=pytest.mark.slow)], ids=["few", "rest"])
        def run_all(house, run, file_ledger, inputs):
            each(names, inputs)(test)(house=house, run=run, file_ledger=file_ledger)

        run_all.__doc__ = test.__doc__
        return run_all

    return decorate


def ids(answer):
    return tuple(token.id for token in answer.tokens)


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


@pytest.fixture
def file_ledger(tmp_path):
    """A ledger on disk, with caps."""
    ledgers = []

    def make(patience_s=5.0, **caps):
        ledgers.append(FileLedger(tmp_path / f"ledger-{len(ledgers)}.sqlite", patience_s=patience_s))
        for level, nanousd in caps.items():
            LedgerAdmin(ledgers[-1]).set_cap(level, nanousd)
        return ledgers[-1]

    yield make
    for ledger in ledgers:
        ledger.close()


def total(ledger):
    row = LedgerAdmin(ledger).rows()[-1]
    return row.spent_nanousd, row.reserved_nanousd


@pytest.mark.slow
@each("policy", ASKING)
def test_a_durable_ledger_holds_the_bill_of_every_answer(house, run, file_ledger, policy):
    """Threads change no text, no request and no bill."""
    ledger = file_ledger(total=10**9)
    choices = {"policy": policy, "max_tokens": 40, "span": 3, "threshold": 0.1}
    expected, answer = (run(house(ledger=one).client.generate(PROMPT, **choices)) for one in (None, ledger))
    assert (answer.tokens, answer.usage, answer.bill) == (expected.tokens, expected.usage, expected.bill)
    assert total(ledger) == (answer.bill.nanousd, 0)


@with_each("policy, level", ("request", "conversation", "day", "month", "total"), always="total")
def test_each_cap_holds_is_named_with_what_is_left_and_the_answer_is_finished(house, run, file_ledger, policy, level):
    ledger = file_ledger(**{level: 20_000})
    h = house(ledger=ledger)
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40, span=3, threshold=0.01))
    assert sum(total(ledger)) <= 20_000
    assert len(answer.tokens) == 40 or answer.finish_reason == "stop"
    if answer.degraded or policy != "random":  # which hardly ever asks at this threshold
        names = {level: f"the {level}'s", "request": "the question's", "total": "the total"}
        assert answer.degraded.startswith(f"{names[level]} cap of 0.00002 USD does not allow another request (0.0000")


def test_a_limit_that_does_not_fit_is_lowered_by_the_durable_ledger_and_sent_upstream(house, run, file_ledger):
    h = house(ledger=file_ledger(day=23_000))  # 3 prompt tokens at 1000, then five completion tokens at 4000
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=40))
    assert [question.limit for question in h.cloud.questions] == [5]
    assert [token.source for token in answer.tokens[:6]] == ["cloud"] * 5 + ["local"]


def test_a_conversation_has_a_cap_of_its_own_whoever_goes_on_with_it(house, run):
    """Without a name it is the client's own."""
    ledger = MemoryLedger(caps={"conversation": 43_000})
    first, second = house(ledger=ledger), house(ledger=ledger)
    asked = [(first, "a", True), (second, "a", False), (second, "b", True), (first, None, True), (second, None, True)]
    for h, conversation, pays in [*asked, (first, None, False)]:
        answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=10, conversation=conversation))
        assert (answer.tokens[0].source == "cloud") == pays
        assert pays or "the conversation's cap" in answer.degraded


# ---- a server that charges more than it may -----------------------------------------------------------------------


@each("durable", [False, True])
def test_a_charge_above_the_reservation_is_recorded_shuts_the_endpoint_and_is_told(house, run, file_ledger, durable):
    h = house(ledger=file_ledger(total=10**9) if durable else None)
    score = h.cloud.score

    async def dear(question, *attempt):
        scores = await score(question, *attempt)
        return replace(scores, usage=CloudUsage(1000, 1))

    h.cloud.score = dear
    events = run(gather(h.client, policy="greedy-exact", max_tokens=40, span=4))
    answer, said = events[-1].answer, "http://scripted is closed (it charged 0.001004 USD"
    assert answer.degraded.startswith(said)
    assert len(h.cloud.questions) == sum(isinstance(event, RequestSent) for event in events) == 1
    assert (
        [event.nanousd for event in events if isinstance(event, RequestSettled)] == [1_004_000] == [answer.bill.nanousd]
    )
    assert [event.why.startswith(said) for event in events if isinstance(event, Degraded)] == [True]
    spent = total(h.ledger)[0] if durable else h.ledger.settled_nanousd
    assert spent == 1_004_000
    again = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=40, span=4))
    assert ids(again) == h.small(40)
    assert again.degraded.startswith(said)
    assert len(h.cloud.questions) == 1


def test_an_excess_at_the_very_end_is_told_too(house, run):
    """Nothing was refused and no cap is left to name it: the user must still hear of it."""
    h = house()
    write = h.cloud.write

    async def dear(question, *attempt):
        async for chunk in write(question, *attempt):
            yield replace(chunk, usage=chunk.usage and CloudUsage(1000, 1))

    h.cloud.write = dear
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=5))
    assert ids(answer) == h.large(5)
    assert "is closed (it charged" in answer.degraded


# ---- a server that tells less than it charges ----------------------------------------------------------------------

LIES = {
    "nothing": lambda _: None,
    "zero": lambda _: CloudUsage(0, 0),
    "a tenth": lambda true: CloudUsage(true.prompt_tokens // 10, true.completion_tokens // 10),
    "no completion": lambda true: replace(true, completion_tokens=0),
    "no prompt": lambda true: replace(true, prompt_tokens=0),
    "one too few": lambda true: CloudUsage(true.prompt_tokens - 1, true.completion_tokens - 1),
}


def charged(h):
    return sum(h.price.cost(usage) for usage in h.cloud.charged.values())


@pytest.mark.slow
@with_each("policy, lie", LIES, always="nothing")
def test_a_server_that_tells_too_little_is_recorded_for_what_it_did(house, run, file_ledger, policy, lie):
    """What was sent and what came is known to whoever sent it and read it."""
    choices = {"policy": policy, "max_tokens": 40, "span": 3, "threshold": 0.1}
    honest, h = house(), house(tells=LIES[lie])
    expected, answer = (run(one.client.generate(PROMPT, **choices)) for one in (honest, h))
    assert (answer.tokens, answer.degraded) == (expected.tokens, expected.degraded)
    assert answer.bill.nanousd == expected.bill.nanousd == charged(h)
    assert h.ledger.settled_nanousd == charged(h)


@each("lie", LIES)
@each("policy", ["greedy-exact", "kl", "cloud", "doubt"])
def test_no_lie_passes_a_cap(house, run, policy, lie):
    cap = 40_000
    h = house(tells=LIES[lie], tells_always=True, cap=cap)
    for _ in range(5):
        run(h.client.generate(PROMPT, policy=policy, max_tokens=40, span=3, threshold=0.1))
    assert charged(h) <= h.ledger.settled_nanousd + h.ledger.reserved_nanousd <= cap


@each("always", [False, True])
def test_a_stream_that_a_stop_string_ends_is_charged_for_all_it_may_have_run_ahead(house, run, always):
    """The letters are the tokens; what is told with the last one that was read is less than what is charged."""
    whole = run(house().client.generate(PROMPT, policy="cloud", max_tokens=40))
    h = house(tells_always=always)
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=40, stop=(whole.text[3:5],)))
    assert answer.text == whole.text[: whole.text.index(whole.text[3:5])]
    [question] = h.cloud.questions
    assert h.ledger.settled_nanousd == h.price.cost(CloudUsage(len(h.prompt), question.limit))


# ---- a ledger that cannot be used ---------------------------------------------------------------------------------


@each("policy", ASKING)
@each("price", ["1/0.1/4", None])
def test_with_a_ledger_in_trouble_no_request_leaves_and_the_answer_is_local(house, run, file_ledger, policy, price):
    """Also where no price is known: nobody could tell whether there is a cap."""
    ledger = file_ledger()
    ledger.file.path.write_bytes(b"nonsense" * 1000)
    h = house(ledger=ledger, price=price)
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40))
    assert ids(answer) == h.small(40)
    assert h.cloud.questions == []
    assert answer.degraded.startswith(f"the ledger {ledger.file.path} is damaged")
    assert "HYBRID_LEDGER" in answer.degraded
    assert answer.bill.nanousd == 0


def test_a_locked_ledger_costs_its_patience_once_an_answer(house, run, file_ledger):
    from filelock import FileLock

    ledger = file_ledger(patience_s=0.3)
    h = house(ledger=ledger)
    with FileLock(f"{ledger.file.path}.lock"):
        answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=40, span=2))
    assert ids(answer) == h.small(40)
    assert "is held by another process" in answer.degraded
    assert answer.timing.total_ms < 2_000
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=40)).degraded is None, "it works again"


# ---- what has left, and what has not -------------------------------------------------------------------------------


@each("policy", ["kl", "cloud", "doubt"])
def test_every_request_is_marked_as_sent_before_the_cloud_hears_of_it(house, run, file_ledger, policy):
    """Else a process that dies then would get money back that was spent."""
    ledger, states = file_ledger(total=10**9), []
    h = house(ledger=ledger, fault=lambda _: states.extend(entry.state for entry in LedgerAdmin(ledger).open_entries()))
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40, span=3, threshold=0.1, entropy=0.5))
    assert states == ["sent"] * answer.usage.cloud_requests != []


@each("policy", ["kl", "cloud"])
def test_a_request_whose_leaving_cannot_be_recorded_stays_and_the_answer_is_local(house, run, file_ledger, policy):
    def trouble(_):
        raise LedgerError("the ledger is in trouble: mend it")

    ledger = file_ledger(total=10**9)
    ledger.mark_sent = trouble
    h = house(ledger=ledger)
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40))
    assert (ids(answer), answer.degraded) == (h.small(40), "the ledger is in trouble: mend it")
    assert h.cloud.questions == []
    assert (answer.bill.nanousd, total(ledger)) == (0, (0, 0))


@each("left", [False, True])
@each("policy", ["kl", "cloud"])
def test_cancelled_before_it_left_a_request_is_free_and_after_that_it_is_its_worst_case(house, run, policy, left):
    """A connection may take seconds: whoever gives up meanwhile has bought nothing."""
    h = house(cap=10**9)

    async def stuck(question, request_id, before_send):
        if left:
            await before_send()
        began.set()
        await asyncio.sleep(60)

    async def stuck_writing(question, request_id, before_send):
        await stuck(question, request_id, before_send)
        yield

    h.cloud.score, h.cloud.write = stuck, stuck_writing

    async def cancelled():
        task = asyncio.create_task(h.client.generate(PROMPT, policy=policy, max_tokens=40))
        await began.wait()
        task.cancel()
        await asyncio.wait([task])

    began = asyncio.Event()
    run(cancelled())
    assert h.ledger.reserved_nanousd == 0
    assert (h.ledger.settled_nanousd > 0) == left


def test_what_the_dead_never_sent_is_given_back_and_told(house, run, file_ledger, monkeypatch):
    ledger = file_ledger(total=10**9)
    monkeypatch.setattr(durable_ledger, "owner", lambda: "the dead")
    ledger.reserve(MaxCost(Price.parse("1/0.1/4"), 10, 5), SpendScope("http://gpu", "q", "t", "c"))
    monkeypatch.undo()
    monkeypatch.setattr(durable_ledger, "is_dead", lambda name: name == "the dead")
    told = run(gather(house(ledger=ledger).client, policy="cloud", max_tokens=10))
    said = "0.00003 USD can be spent again: a process had reserved it and died before asking"
    assert [event.why for event in told if isinstance(event, NoteAdded)] == [said]
    assert told[-1].answer.notes == (said,)
    assert total(ledger)[1] == 0
