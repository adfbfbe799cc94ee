"""The promised texts, through llama.cpp and HTTP, with the oracle beside them: each model decoding by itself."""

from __future__ import annotations

import math

import pytest
from acting import acting
from cases import each, each_of

import hybrid
from hybrid.policy import PRESETS
from hybrid.run import RequestSent, SpanDrafted
from hybrid.tasks import FAMILIES, distinct

MAX_TOKENS = 64
# Rules that accept, recover and hand over in ways of their own. ``tests/run/test_overlap.py`` has every rule with an
# engine that is pickier than llama.cpp, so here the others are asked fewer questions.
OF_EACH_KIND = {"kl", "paper", "exact"}
# One of each family, and a second of every other one: 21.
QUESTIONS = [
    problem.question
    for number, family in enumerate(FAMILIES)
    for problem in distinct(family, "test", 1 + number % 2, seed=5)
]
# By default every third of them; the others among the slow tests.
SOME = QUESTIONS[::3]
REST = [question for question in QUESTIONS if question not in SOME]
asked = pytest.mark.parametrize("questions", [SOME, pytest.param(REST, marks=pytest.mark.slow)], ids=["some", "rest"])


def compare(oracle, stub, questions, **choices):
    """Texts must agree token for token, up to a near tie; how many part at one is printed (pytest -s)."""
    ties = 0
    with hybrid.open(local="small", cloud=stub.url, max_tokens=MAX_TOKENS, **choices) as client:
        for question in questions:
            expected, tie = oracle.text(question, MAX_TOKENS)
            answer = client.generate(question)
            assert answer.degraded is None
            got = tuple(token.id for token in answer.tokens)
            ties += tie is not None and got != expected
            assert got[:tie] == expected[:tie], question
    print(f"{ties} of {len(questions)} texts part at a near tie")
    assert ties <= len(questions) // 4, "near ties are rare; this many mean another fault"


@asked
@pytest.mark.parametrize("span", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(11, marks=pytest.mark.slow)])
def test_greedy_exact_gives_the_large_models_own_greedy_text(oracles, stub, span, questions):
    compare(oracles[1], stub, questions, policy="greedy-exact", span=span)


@asked
def test_kl_at_threshold_zero_gives_the_large_models_own_greedy_text(oracles, stub, questions):
    compare(oracles[1], stub, questions, policy="kl", threshold=0.0)


@asked
def test_cloud_gives_the_large_models_own_greedy_text(oracles, stub, questions):
    compare(oracles[1], stub, questions, policy="cloud")


@asked
def test_kl_at_threshold_infinity_gives_the_small_models_text_without_a_handoff(oracles, stub, questions):
    compare(oracles[0], stub, questions, policy="kl", threshold=math.inf)
    with hybrid.open(local="small", cloud=stub.url, policy="kl", threshold=math.inf, max_tokens=MAX_TOKENS) as client:
        answer = client.generate(QUESTIONS[0])
    assert answer.handoffs == ()
    assert answer.usage.cloud_tokens == 0
    assert answer.usage.checks > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@each("temperature", [0.0, 1.0])
@each("policy", PRESETS)
def test_overlap_changes_no_text_no_number_no_request_and_no_bill(stub, policy, temperature):
    """To the last bit, through llama.cpp: which tokens are decoded together is the same, whatever was decoded ahead."""
    if policy == "greedy-exact" and temperature:
        return  # it does not sample
    told, ready = {}, {}
    # What is found out of a pair at its first answers is planned with from then on: those are not compared.
    for number, overlap in enumerate((True, True, False) if policy == "auto" else (True, False)):
        told[overlap], ready[overlap] = [], 0
        settings = acting(policy, span=5) | {"temperature": temperature, "overlap": overlap, "seed": 4}
        settings["cache_salt"] = f"{policy} {temperature} {number}"  # nothing is in the server's cache
        with hybrid.open(local="small", cloud=stub.url, max_tokens=32, price="1/0.1/4", **settings) as client:
            for question in QUESTIONS[:: 2 if policy in OF_EACH_KIND else 6]:
                events = list(client.stream(question))
                ready[overlap] += sum(event.num_ready for event in events if isinstance(event, SpanDrafted))
                asked = [(e.kind, e.position, e.num_tokens) for e in events if isinstance(e, RequestSent)]
                answer = events[-1].answer
                told[overlap].append((answer.tokens, answer.usage, answer.bill, answer.degraded, asked))
    assert told[True] == told[False]
    assert ready[False] == 0
    assert ready[True] > 0 or policy in {"local", "cloud", "doubt", "random", "once", "route"}, (
        "nothing was ready, so nothing was tested"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@each("temperature", [0.0, 1.0])
@each("policy", ["kl", "exact", "block"])
def test_overlap_changes_nothing_of_a_chain(stub, policy, temperature):
    """The same coins, whatever was decoded ahead, by the small model or by the one that reads what it drafts."""
    told = {}
    for overlap in (True, False):
        settings = acting(policy, span=6) | {"temperature": temperature, "overlap": overlap, "seed": 4}
        settings |= {"cache_salt": f"chain {policy} {temperature} {overlap:d}", "local": "mid", "drafters": ("small",)}
        with hybrid.open(cloud=stub.url, max_tokens=32, chain="small*3>mid", **settings) as client:
            answers = [client.generate(question) for question in SOME]
        told[overlap] = [(answer.tokens, answer.usage, answer.bill, answer.degraded) for answer in answers]
        assert {"small", "mid"} <= {token.model for answer in answers for token in answer.tokens}
    assert told[True] == told[False]


@each("choices", [{"policy": "local"}, {"offline": True}])
def test_local_and_offline_send_no_request(oracles, proxy, choices):
    between = proxy(lambda *_: None)
    with hybrid.open(local="small", cloud=between.url, max_tokens=MAX_TOKENS, **choices) as client:
        for question in each_of(QUESTIONS[:5]):
            assert tuple(t.id for t in client.generate(question).tokens) == oracles[0].text(question, MAX_TOKENS)[0]
    assert between.requests == []


def charges(server):
    """What the server says it really computed, by request."""
    return {entry["id"]: entry for entry in server.client.get("/v1/charges").json()["data"]}


@pytest.mark.parametrize(
    ("policy", "flags"),
    [
        ("kl", ("--scoring-keeps-cache",)),
        ("cloud", ()),
        *(
            pytest.param(policy, flags, marks=pytest.mark.slow)
            for policy in ("kl", "greedy-exact", "paper", "cloud")
            for flags in ((), ("--scoring-keeps-cache",))
            if (policy, flags) not in {("kl", ("--scoring-keeps-cache",)), ("cloud", ())}
        ),
    ],
)
def test_the_charges_equal_the_clients_recorded_usage(own_stub, policy, flags):
    """Every clean run: what the server computed, request by request, is what the answer says it was charged."""
    server = own_stub("--enable-prompt-tokens-details", *flags)
    with hybrid.open(local="small", cloud=server.url, policy=policy, max_tokens=MAX_TOKENS, price="1/0.1/4") as client:
        for question in each_of(QUESTIONS[::3]):
            before = charges(server)
            answer = client.generate(question)
            new = [charge for key, charge in charges(server).items() if key not in before]
            usage = answer.usage
            assert usage.cloud_requests == len(new)
            assert usage.cloud_prompt_tokens == sum(charge["prompt_tokens"] for charge in new)
            assert usage.cloud_cached_tokens == sum(charge["cached_tokens"] for charge in new)
            assert usage.cloud_completion_tokens == sum(charge["completion_tokens"] for charge in new)
            fresh = usage.cloud_prompt_tokens - usage.cloud_cached_tokens
            expected = fresh * 1000 + usage.cloud_cached_tokens * 100 + usage.cloud_completion_tokens * 4000
            assert answer.bill.nanousd == expected


def test_sampling_repeats_with_its_seed_on_both_sides(stub):
    with hybrid.open(local="small", cloud=stub.url, temperature=3.0, max_tokens=30) as client:
        for policy in ("kl", "cloud"):
            texts = [client.generate(QUESTIONS[0], policy=policy, seed=seed).text for seed in (3, 3, 4, 5)]
            assert texts[0] == texts[1]
            assert len(set(texts)) == 3, "a hot model's texts differ with the seed"
            answers = [client.generate(QUESTIONS[0], policy=policy) for _ in range(3)]
            assert len({answer.text for answer in answers}) == 3, "without one it is another each time, and told"
            again = client.generate(QUESTIONS[0], policy=policy, seed=answers[1].seed)
            assert again.tokens == answers[1].tokens


def test_a_stream_that_is_left_without_being_closed_ends_with_its_client(stub):
    """``break`` out of an ``async for`` closes nothing by itself."""
    import asyncio

    async def leave():
        async with hybrid.open(local="small", cloud=stub.url, policy="greedy-exact", span=1) as client:
            stream = client.stream(QUESTIONS[0])
            async for _ in stream:
                break
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(leave()) == []


def test_asking_at_once_from_many_tasks_gives_each_its_own_answer(oracles, stub):
    import asyncio

    async def many():
        async with hybrid.open(local="small", cloud=stub.url, policy="greedy-exact", max_tokens=MAX_TOKENS) as client:
            return await asyncio.gather(*(client.generate(question) for question in QUESTIONS[:4]))

    for question, answer in each_of(zip(QUESTIONS, asyncio.run(many()), strict=False)):
        expected, tie = oracles[1].text(question, MAX_TOKENS)
        assert tuple(t.id for t in answer.tokens)[:tie] == expected[:tie]
