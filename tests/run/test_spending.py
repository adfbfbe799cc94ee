"""A client's running total: the sum of its answers' bills, never less than may have been charged; and dear checks."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from anyio.from_thread import start_blocking_portal
from cases import each_of
from scripted_house import SMALL, Clock

from hybrid.errors import Unreachable, UsageError
from hybrid.pairs.profile import PairIdentity
from hybrid.policy import PRESETS, PolicyOptions
from hybrid.record.spending import CheckCostNote
from hybrid.record.state import Spending, Spent
from hybrid.run import Client, Finished, NoteAdded, RequestSent, RequestSettled, TokenEmitted
from hybrid.run.deferral import PlannerFactory
from hybrid.spend import TokenTimes
from hybrid.types import CloudUsage

PROMPT = "a b c"
POLICIES = ["kl", "cloud", "local", "doubt"]


def test_it_is_the_sum_of_the_bills_whatever_the_price(house, run):
    for price in ("1/0.1/4", "free", "1/0.1/1/4/0.01"):
        h, bills, requests = house(price=price), 0, 0
        assert h.client.spent == Spent(0, 0, 0)
        for number, policy in enumerate(POLICIES, start=1):
            answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=12))
            bills, requests = bills + answer.bill.nanousd, requests + answer.usage.cloud_requests
            assert h.client.spent == Spent(bills, requests, number), (price, policy)
        assert requests > 3
        assert h.ledger.settled_nanousd == bills
        assert h.client.spent.usd == pytest.approx(bills / 1e9)


def test_without_a_price_it_is_unknown_from_the_first_request_on_and_never_zero(house, run):
    h = house(price=None)
    run(h.client.generate(PROMPT, policy="local", max_tokens=4))
    assert h.client.spent == Spent(0, 0, 1), "nothing was asked: that costs nothing at any price"
    run(h.client.generate(PROMPT, policy="kl", max_tokens=4))
    spent = h.client.spent
    assert (spent.nanousd, spent.usd, spent.requests > 0, spent.answers) == (None, None, True, 2)
    run(h.client.generate(PROMPT, policy="local", max_tokens=4))
    assert h.client.spent.nanousd is None


def test_an_answer_that_is_left_early_counts_what_its_requests_cost(house, run):
    """At every event: while a request is under way as the most it can cost, and afterwards as the ledger has it."""
    booked = 0
    for policy in POLICIES:
        for after in range(1, 14):
            h = house()

            async def leave_early(h=h, policy=policy, after=after):
                stream, heard = h.client.stream(PROMPT, policy=policy, max_tokens=20), 0
                async for event in stream:
                    heard += 1
                    spent = h.client.spent
                    assert spent.nanousd >= h.ledger.settled_nanousd
                    assert spent.nanousd - spent.reserved_nanousd <= h.ledger.settled_nanousd
                    if isinstance(event, RequestSent):
                        assert spent.requests > 0
                        assert spent.nanousd > 0
                    if heard == after:
                        break
                await stream.aclose()
                return h.client.spent

            spent = run(leave_early())
            assert h.ledger.reserved_nanousd == 0
            assert (spent.nanousd, spent.reserved_nanousd) == (h.ledger.settled_nanousd, 0), (policy, after)
            assert 0 <= spent.assumed_nanousd <= spent.nanousd, (policy, after)
            booked += spent.assumed_nanousd
            assert spent.answers == 1
    assert booked, "what was left is booked at its most"


def test_a_question_that_is_refused_costs_nothing_and_is_no_answer(house, run):
    h = house()
    with pytest.raises(UsageError):
        run(h.client.generate(" "))
    assert h.client.spent == Spent(0, 0, 0)


def test_a_request_whose_charge_never_became_known_counts_as_the_most_it_can_cost(house, run):
    h = house()
    write = h.cloud.write

    async def broken(question, request_id, before_send):
        async for chunk in write(question, request_id, before_send):
            yield chunk
            raise ConnectionError("cut")

    h.cloud.write = broken
    with pytest.raises(ConnectionError):
        run(h.client.generate(PROMPT, policy="cloud", max_tokens=20))
    assert h.client.spent.nanousd == h.ledger.settled_nanousd + h.ledger.reserved_nanousd > 0
    assert h.client.spent.reserved_nanousd == h.ledger.reserved_nanousd, "and is told apart from what was charged"


def test_a_charge_that_is_never_told_counts_as_what_was_reserved_and_one_that_is_told_as_it_is():
    usage = CloudUsage(3, 1)
    for reserved, told, cost, total in [(70, None, None, 70), (70, usage, 20, 20), (None, None, None, None),
                                        (None, usage, None, None), (0, None, None, 0),
                                        (70, usage.assumed, 20, 20)]:  # fmt: skip
        spending = Spending()
        spending.observe(RequestSent("a", "check", 0, 1, reserved))
        assert spending.spent == Spent(reserved, 1, 0, reserved or 0), "under way it is the most it can cost"
        spending.observe(RequestSettled("a", "check", told, cost, 1.0))
        held = 0 if told else reserved or 0
        assumed = 20 if told and told.assumed_prompt_tokens else held
        assert spending.spent == Spent(total, 1, 0, held, assumed), (reserved, told)
        spending.observe(RequestSent("b", "write", 0, 1, 5))
        assert spending.spent == Spent(None if total is None else total + 5, 2, 0, held + 5, assumed)


def test_text_is_the_answer_as_it_becomes_readable(house, run):
    h = house()

    async def pieces(**choices):
        return [text async for text in h.client.text(PROMPT, max_tokens=12, **choices)]

    for choices in ({}, {"policy": "cloud"}, {"stop": ["zz"]}, {"stop": ["d"]}):
        answer = run(h.client.generate(PROMPT, max_tokens=12, **choices))
        found = run(pieces(**choices))
        assert "".join(found) == answer.text, choices
        assert all(found), "no piece is empty"
    assert len(run(pieces())) > 3


def test_text_that_is_left_early_leaves_everything_at_rest(house, run):
    h = house()

    async def leave_early():
        texts = h.client.text(PROMPT, policy="cloud", max_tokens=200)
        first = await anext(texts)
        await texts.aclose()
        return first, [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    first, left = run(leave_early())
    assert (bool(first), left, h.cloud.num_open, h.ledger.reserved_nanousd) == (True, [], 0, 0)


def test_the_blocking_client_has_the_same(house):
    h = house()
    with start_blocking_portal() as portal:
        client = Client(h.client, portal)
        answer = client.generate(PROMPT, max_tokens=12)
        assert "".join(client.text(PROMPT, max_tokens=12)) == answer.text
        asked = [{"role": "user", "content": PROMPT}]
        with pytest.raises(UsageError, match="message 1: a message is an object"):
            client.generate([{"role": "user"}])
        rendered = client.generate(asked, max_tokens=4)
        assert rendered.text == client.generate(PROMPT, max_tokens=4).text
        assert client.spent == h.client.spent
        assert client.spent.answers == 4
        texts = client.text(PROMPT, max_tokens=200, policy="cloud")
        next(texts)
        texts.close()
        assert (h.cloud.num_open, h.ledger.reserved_nanousd) == (0, 0)
        assert client.spent.answers == 5
        assert any(isinstance(event, TokenEmitted) for event in client.stream(PROMPT, max_tokens=2))


# ---- dear checks -----------------------------------------------------------------------------------------------------


def dear(notes):
    return [note for note in notes if "its checks made this answer cost" in note]


def test_the_first_answer_whose_checks_made_it_dearer_than_the_cloud_alone_says_so_by_its_bill(house, run):
    """Bare ``kl`` cost five times the cloud alone, and nothing said so: of no pair it knew, at no first answer."""
    found = set()
    for policy in each_of(PRESETS):
        for price in ("1/0.1/4", "1/0.1/4:new", "4/4/4", "free", None):
            h = house(price=price)
            answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=12, temperature=0.0))
            ours, alone = answer.bill.nanousd, answer.bill.cloud_only_nanousd
            # ``auto`` says with every answer what an unknown pair has taken so far.
            is_dear = bool(ours and alone and 10 * ours >= 11 * alone and answer.usage.checks and policy != "auto")
            notes = dear(answer.notes)
            assert len(notes) == is_dear, (policy, price, answer.bill)
            assert all(f" {ours / alone:.1f} times what the cloud alone" in note for note in notes), (policy, price)
            assert all(str(answer.bill).partition(" USD")[0] in note for note in notes)
            found.add((is_dear, answer.usage.checks > 0))
    assert found == {(True, True), (False, True), (False, False)}


def test_it_is_said_once_in_a_client_before_the_answer_is_finished(house, run):
    h = house()

    async def events():
        return [event async for event in h.client.stream(PROMPT, policy="kl", max_tokens=12)]

    heard = [run(events()) for _ in range(3)]
    assert [len(dear(each[-1].answer.notes)) for each in heard] == [1, 0, 0]
    assert isinstance(heard[0][-2], NoteAdded)
    assert isinstance(heard[0][-1], Finished)
    assert (heard[0][-2].why,) == heard[0][-1].answer.notes


def test_a_longer_hold_is_named_where_the_cloud_writes_less_at_a_handoff(house, run):
    """Where it writes nothing, or as much already, that is of no help."""
    named = {}
    for policy, choices in (("kl", {}), ("kl", {"hold": 96}), ("greedy-exact", {})):
        note = dear(run(house().client.generate(PROMPT, policy=policy, max_tokens=12, **choices)).notes)[0]
        named[policy, *choices] = "--hold 96 asks less often" in note
    assert named == {("kl",): True, ("kl", "hold"): False, ("greedy-exact",): False}


def test_what_is_charged_at_worst_is_not_laid_to_checks(house, run):
    """Of a reply that broke off nobody knows what it cost; the next answer is told of."""
    answer, policy = (
        run(house().client.generate(PROMPT, policy="kl", max_tokens=12)),
        PRESETS["kl"].build(PolicyOptions()),
    )
    note = CheckCostNote()
    for name in ("cloud_assumed_prompt_tokens", "cloud_assumed_completion_tokens"):
        assert note.of(policy, replace(answer, usage=replace(answer.usage, **{name: 1}))) is None
    assert note.of(PRESETS["auto"].build(PolicyOptions()), answer) is None, "it has weighed that before it asked"
    assert note.of(policy, answer)


@pytest.fixture
def timed(house, monkeypatch):
    """Build houses with a clock of their own: what a local token, a request, and a token that the cloud writes take.

    ``held_back``: what it writes comes when the last token is there. ``written_ms``: what a probe has measured.
    """
    monkeypatch.setattr("hybrid.record.spending.LEAST_S", 3.0)
    monkeypatch.setattr("hybrid.record.spending.LONG_S", 10.0)
    clock = Clock()
    for name in ("run.open_request", "record.answer_builder"):
        monkeypatch.setattr(f"hybrid.{name}.time", SimpleNamespace(monotonic=clock))

    def build(local_s, request_s, *, token_s=0.0, held_back=False, written_ms=None, faults=()):
        def small(prefix):
            clock.now += local_s
            return SMALL(prefix)

        def fault(number):
            limit = getattr(h.cloud.questions[-1], "limit", 0)
            clock.now += request_s + token_s * limit * held_back
            return Unreachable("503", trouble="busy", sent=False) if number in faults else None

        def tells(charged):
            clock.now += token_s * (not held_back)
            return charged

        times = None if written_ms is None else TokenTimes(written_ms, 1.0, None, 30.0)
        planners = PlannerFactory(PairIdentity("abc", times=lambda _: times))
        cloud = {"fault": fault, "tells": tells, "tells_always": True}
        h = house(small=small, planners=planners, queue={"overlap": False}, **cloud)
        return h

    return build


def slow(h, run, policy):
    """What one more answer says of its time."""
    notes = run(h.client.generate(PROMPT, policy=policy, max_tokens=40)).notes
    return [note for note in notes if "took" in note]


def test_the_first_answer_whose_checks_took_twice_the_clouds_own_time_says_so_where_that_was_measured(timed, run):
    """``concepts`` and ``excess`` took eleven and eight times as long as the cloud, and nothing said so."""
    said = {}
    for policy in each_of(PRESETS):
        h = timed(0.2, 0.1, written_ms=10.0)
        said[policy] = [len(slow(h, run, policy)) for _ in range(3)]
    once, never = ([policy for policy, found in said.items() if found == each] for each in ([1, 0, 0], [0, 0, 0]))
    assert {"kl", "concepts", "excess", "greedy-exact"} <= set(once)
    assert {"local", "cloud", "auto", "route"} <= set(never)
    assert len(once) + len(never) == len(PRESETS)


def test_both_times_are_told_as_they_were_measured_from_the_first_token_on(timed, run):
    answer = run(timed(0.2, 0.1, written_ms=10.0).client.generate(PROMPT, policy="excess", max_tokens=40))
    took = (answer.timing.total_ms - answer.timing.ttft_ms) / 1000
    [note] = [note for note in answer.notes if "took" in note]
    assert f"took {took:.1f} s after its first token, where by the last probe the cloud alone" in note
    assert f"some {0.01 * len(answer.tokens):.1f} s:" in note


def test_no_time_is_laid_to_checks_where_the_cloud_is_as_slow_or_the_answer_short_or_a_request_failed(timed, run):
    assert slow(timed(0.2, 0.1, written_ms=500.0), run, "excess") == [], "half a second a token"
    assert slow(timed(0.001, 0.0005, written_ms=0.01), run, "excess") == [], "over before anybody minds"
    h = timed(0.2, 0.1, written_ms=10.0, faults=(2,))
    assert [len(slow(h, run, "excess")) for _ in range(2)] == [0, 1], "it has waited to ask again, the next has not"


def test_without_a_probe_what_the_cloud_wrote_of_the_answer_tells_its_own_time(timed, run):
    """A write takes as long as the local model reads along: that bounds the cloud's own time, and nothing else does."""
    said = {}
    for policy in each_of(PRESETS):
        h = timed(0.2, 0.1, token_s=0.01)
        said[policy] = [len(slow(h, run, policy)) for _ in range(3)]
    assert {policy for policy, found in said.items() if found == [1, 0, 0]} >= {"kl", "paper", "excess", "greedy-exact"}
    never = {policy for policy, found in said.items() if found == [0, 0, 0]}
    assert never >= {"local", "cloud", "auto", "route", "once"}, "it wrote alone, or weighed that"


def test_where_the_cloud_wrote_nothing_and_no_probe_was_run_only_the_answers_own_time_is_said(timed, run):
    h = timed(0.2, 0.1)
    answer = run(h.client.generate(PROMPT, policy="excess", max_tokens=40))
    took = (answer.timing.total_ms - answer.timing.ttft_ms) / 1000
    [note] = [note for note in answer.notes if "took" in note]
    assert f"took {took:.1f} s after its first token: --policy cloud has neither, and hybrid probe can" in note
    assert slow(h, run, "excess") == [], "once"
    assert slow(timed(0.1, 0.05), run, "excess") == [], "under ten seconds, and nobody can say that it is long"
    h = timed(0.2, 0.1, faults=(2,))
    assert [len(slow(h, run, "excess")) for _ in range(2)] == [0, 1], "it has waited to ask again, the next has not"


def test_what_the_cloud_wrote_of_earlier_answers_tells_too_and_a_probe_goes_before_both(timed, run):
    h = timed(0.2, 0.1, token_s=0.01)
    assert slow(h, run, "cloud") == []
    [note] = slow(h, run, "excess")
    assert "by what it wrote here the cloud alone would have taken at most" in note
    h = timed(0.2, 0.1, token_s=0.01, written_ms=10.0)
    assert slow(h, run, "cloud") == []
    [note] = slow(h, run, "excess")
    assert "by the last probe the cloud alone would have taken some" in note


def test_no_less_is_told_of_the_cloud_than_it_takes_however_its_tokens_come(timed, run):
    """A proxy may hold them back until the last is there: from the first to the last no time passes then."""
    told = []
    for local_s, request_s, token_s in product((0.02, 0.2, 1.0), (0.01, 0.5), (0.01, 0.05, 0.5)):
        for held_back, policy in product((False, True), ("kl", "paper")):
            h = timed(local_s, request_s, token_s=token_s, held_back=held_back)
            answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40))
            notes = [note for note in answer.notes if "took" in note]
            told += [(note, held_back, token_s * len(answer.tokens)) for note in notes]
    assert {held_back for _, held_back, _ in told} == {False, True}
    for note, held_back, least in each_of(told):
        took, alone = map(float, re.findall(r"([\d.]+) s", note))
        assert took >= 2 * alone - 0.2, note
        assert alone >= least - 0.05, (note, held_back)


def test_without_a_probe_no_time_is_laid_to_checks_where_the_cloud_is_as_slow_or_a_request_failed(timed, run):
    assert slow(timed(0.02, 0.1, token_s=0.5), run, "kl") == [], "half a second a token"
    h = timed(0.2, 0.1, token_s=0.01, faults=(2,))
    assert [len(slow(h, run, "kl")) for _ in range(2)] == [0, 1], "it has waited to ask again, the next has not"
