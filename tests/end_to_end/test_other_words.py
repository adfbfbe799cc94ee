"""A local model that spells otherwise than the cloud: its text, its traces, its money, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from itertools import islice

import pytest
from conftest import CLOUD, MODELS

import hybrid
from hybrid.errors import MissingCapability, VocabularyMismatch
from hybrid.record.events import TRACE_VERSION, Finished, RequestSettled, to_json
from hybrid.run.replay import replay
from hybrid.tasks import FAMILIES, distinct

ALIEN = MODELS / "alien.gguf"
QUESTIONS = ("What is 48 + 57?", "Sort these numbers: 41, 7, 93, 18, 66", "What is 7472 - 93460?")
MAX_TOKENS = 240


def opened(url=None, **flags):
    """A client whose small model has another vocabulary than the endpoint's."""
    there = {} if url is None else {"cloud": url, "cloud_vocabulary": CLOUD}
    return hybrid.open(**{"local": ALIEN, "ledger": "none", "learn": False, "policy": "kl", **there, **flags})


def problems(num):
    """Test problems of all families in turn."""
    each = [distinct(family, "test", num // len(FAMILIES) + 1, 3) for family in FAMILIES]
    return [problem.question for problem in islice((p for turn in zip(*each, strict=True) for p in turn), num)]


def unlike_own(client, oracle, questions):
    """Count the answers that are not the large model's own text, but for those where another was as good."""
    wrong = []
    for question in questions:
        ids, tie = oracle.text(question, MAX_TOKENS)
        own = b"".join(map(oracle.engine.piece, ids))
        answer = client.generate(question, max_tokens=2 * MAX_TOKENS)
        assert answer.degraded is None
        before_tie = own if tie is None else b"".join(map(oracle.engine.piece, ids[:tie]))
        if answer.text.encode() != own and not (tie is not None and answer.text.encode().startswith(before_tie)):
            wrong.append((question, own, answer.text))
    return wrong


def test_greedy_exact_gives_the_large_models_own_text(oracles, stub):
    with opened(stub.url, policy="greedy-exact") as client:
        assert not unlike_own(client, oracles[1], QUESTIONS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_greedy_exact_gives_the_large_models_own_text_on_eighty_four_problems(oracles, stub):
    with opened(stub.url, policy="greedy-exact") as client:
        assert not unlike_own(client, oracles[1], problems(84))


# Without a score a draft of ``auto`` is kept or given up whole; at this worth some are.
BY_CELLS = [{"policy": "kl:0.5"}, {"policy": "auto", "worth": "100"}]


@pytest.fixture
def no_score_ships(monkeypatch):
    """A score is of a model by its name, and other servers give it others."""
    monkeypatch.setattr("hybrid.pairs.store._shipped", tuple)


def writers(url, policy):
    """Who wrote each token of the answers to 14 problems."""
    with opened(url, price="1/0.1/4", **policy) as client:
        answers = [client.generate(question, max_tokens=MAX_TOKENS) for question in problems(14)]
    assert not any(answer.degraded for answer in answers)
    return [[(token.text, token.source) for token in answer.tokens] for answer in answers]


def hands_over_alike(url, stub, policy):
    """Whether most answers are written by the same hands as over the bundled server; rows differ in their noise."""
    pairs = list(zip(writers(url, policy), writers(stub.url, policy), strict=True))
    hands = {source for found, _ in pairs for _, source in found}
    return sum(found == expected for found, expected in pairs) >= 12 and hands == {"cloud", "local"}


@pytest.mark.slow
def test_so_it_does_behind_servers_that_nobody_here_wrote(oracles, real):
    with opened(real.url, policy="greedy-exact") as client:
        assert not unlike_own(client, oracles[1], problems(14))


@pytest.mark.slow
@pytest.mark.usefixtures("no_score_ships")
@pytest.mark.parametrize("policy", BY_CELLS, ids=["kl", "auto"])
def test_the_pen_changes_hands_there_as_it_does_here(real, stub, policy):
    assert hands_over_alike(real.url, stub, policy)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_so_it_does_behind_vllm(oracles, start_kept):
    with opened(start_kept("vllm").url, policy="greedy-exact") as client:
        assert not unlike_own(client, oracles[1], problems(14))


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("no_score_ships")
@pytest.mark.parametrize("policy", BY_CELLS, ids=["kl", "auto"])
def test_and_behind_vllm(stub, start_kept, policy):
    assert hands_over_alike(start_kept("vllm").url, stub, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["kl", "greedy-exact", "doubt", "auto"])
def test_an_answer_is_replayed_from_its_trace(stub, tmp_path, policy):
    path = tmp_path / "trace.jsonl"

    async def recorded():
        async with opened(stub.url, policy=policy) as client:
            with path.open("w") as file:
                print(json.dumps({"trace": TRACE_VERSION}), file=file)
                async for event in client.stream(QUESTIONS[2], trace_rows=True):
                    print(json.dumps(to_json(event)), file=file)
        assert isinstance(event, Finished)
        return event.answer

    answer, again = asyncio.run(recorded()), asyncio.run(replay(path))
    assert [(t.id, t.source, t.how, t.kl) for t in again.tokens] == [
        (t.id, t.source, t.how, t.kl) for t in answer.tokens
    ]
    assert again.text == answer.text


@pytest.mark.slow
def test_what_is_decoded_ahead_changes_nothing(stub):
    texts = []
    for overlap in (True, False):
        with opened(stub.url, overlap=overlap) as client:
            texts.append([[token.id for token in client.generate(question).tokens] for question in QUESTIONS])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("policy", ["kl", pytest.param("greedy-exact", marks=pytest.mark.slow)])
def test_a_cap_holds_and_the_answer_is_finished_without_the_cloud(stub, policy):
    """The endpoint's own tokens are charged, whose number is not that of ours."""
    with opened(stub.url, policy=policy, price="1/0.1/4", cap="0.001") as client:
        found = [client.generate(question) for question in (*QUESTIONS, *QUESTIONS)]
    assert 0 < sum(answer.bill.nanousd for answer in found) <= 1_000_000
    assert found[-1].degraded_kind == "budget"
    assert all(answer.text for answer in found)


def test_a_request_is_never_charged_above_what_was_reserved_for_it(stub):
    async def settled():
        async with opened(stub.url, price="1/0.1/4") as client:
            events = [event async for event in client.stream(QUESTIONS[2])]
        return [each for each in events if isinstance(each, RequestSettled)], events[-1].answer

    requests, answer = asyncio.run(settled())
    assert requests
    assert all(request.usage.prompt_tokens > 0 for request in requests)
    assert not answer.degraded


@pytest.mark.parametrize("temperature", [0.7, pytest.param(1.5, marks=pytest.mark.slow)])
def test_drawn_texts_are_repeated_by_their_seed(stub, temperature):
    texts = []
    for _ in range(2):
        with opened(stub.url, temperature=temperature, seed=5) as client:
            texts.append(client.generate(QUESTIONS[0]).text)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_several_answers_at_once_are_those_of_one_after_another(stub):
    async def answered():
        async with opened(stub.url, parallel=2) as client:
            together = await asyncio.gather(*(client.generate(question) for question in QUESTIONS))
            return [a.text for a in together], [(await client.generate(question)).text for question in QUESTIONS]

    together, apart = asyncio.run(answered())
    assert together == apart


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["kl", "doubt"])
def test_a_question_that_is_asked_again_is_answered_again_alike(stub, policy):
    with opened(stub.url, policy=policy) as client:
        first, again = ([client.generate(question).tokens for question in QUESTIONS] for _ in range(2))
    assert [[token.id for token in tokens] for tokens in first] == [[token.id for token in tokens] for tokens in again]


def test_without_a_vocabulary_the_sentence_says_what_to_name(stub):
    with (
        opened(stub.url, cloud_vocabulary=None) as client,
        pytest.raises(VocabularyMismatch, match="--cloud-vocabulary"),
    ):
        client.generate(QUESTIONS[0])


def test_a_vocabulary_that_is_not_the_endpoints_is_refused(stub):
    with (
        opened(stub.url, local=MODELS / "small.gguf", cloud_vocabulary=ALIEN) as client,
        pytest.raises(VocabularyMismatch, match="is not the vocabulary of the cloud"),
    ):
        client.generate(QUESTIONS[0])


@pytest.mark.parametrize("policy", ["exact", "relaxed", "fsd", "block"])
def test_what_compares_tokens_is_refused(stub, policy):
    with opened(stub.url, policy=policy) as client, pytest.raises(MissingCapability, match="another vocabulary"):
        client.generate(QUESTIONS[0])


def test_a_judge_that_compares_tokens_is_named_beside_a_policy_that_would_work(stub):
    with opened(stub.url, policy="kl", judge="tv:0.5") as client, pytest.raises(MissingCapability) as refused:
        client.generate(QUESTIONS[0])
    assert "policy kl with judge tv:0.5 compares token with token" in str(refused.value)
    assert ", kl, " in str(refused.value)
