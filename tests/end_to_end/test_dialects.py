"""Every family whose words the server here speaks: known for what it is; its rows, texts and charges are the model's.

The server writes each wire from the published definitions, apart from the client's own reading of them. What no real
server of a family was asked stands in ``server_stub/README.md``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each, each_of

import hybrid
from hybrid.assemble import PROBE
from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.errors import MissingCapability
from hybrid.policy import PRESETS
from hybrid.types import Message, Sampling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTIONS = ["What is 47 + 86?", "gcd of 246 and 82?", "What is 9 * 14?"]
MAX_TOKENS = 16
DRAFT = 5
PRICE = "1/0.1/4"


@dataclass(frozen=True)
class Family:
    """How the server is started, what the user has to name, and what then can be done.

    ``split``: it takes and gives text, so that rows may be fewer. ``silent``: it does not say what was cached.
    """

    serves: str
    named: str | None = None
    scores: bool = True
    writes: bool = True
    rows: bool = True
    ids: bool = False
    silent: bool = False
    flags: tuple[str, ...] = field(default=())


FAMILIES = {
    "vllm": Family("vllm", ids=True, silent=True),
    "vllm-tokens": Family(
        "vllm", "vllm-tokens", ids=True, flags=("--enable-scale-out", "--v2-runner", "--enable-prompt-tokens-details")
    ),
    "sglang": Family("sglang", ids=True),
    "openai-completions": Family("openai-legacy"),
    "fireworks": Family("fireworks", "fireworks", ids=True),
    "together": Family("together", "together", silent=True),
    "ollama": Family("ollama", silent=True),
    "openai-chat": Family("openai-chat", scores=False, writes=False),
    "text-completions": Family("openai-legacy", "text-completions", scores=False, rows=False, flags=("--no-logprobs",)),
    "text-chat": Family(
        "openai-chat", "text-chat", scores=False, writes=False, rows=False, flags=("--no-logprobs",)
    ),
}  # fmt: skip
SCORING = [name for name, family in FAMILIES.items() if family.scores]
WRITING = [name for name, family in FAMILIES.items() if family.writes]


@pytest.fixture(scope="session")
def spoken(bundled, start_server):
    """A server of each kind, started when it is first needed."""
    started = {}

    def of(family):
        key = (family.serves, family.flags)
        if key not in started:
            flags = ("--parallel", "1", "--dialect", family.serves, *family.flags)
            started[key] = start_server(*flags, model=bundled[1])
        return started[key]

    return of


@pytest.fixture
def reached(spoken, oracles):
    """Do something with an endpoint of a family, by its name."""

    def run(name, work):
        family = FAMILIES[name]

        async def working():
            wire = Wire(spoken(family).url, None, Timeouts(5, 60, 60, 60), through_proxies=False)
            endpoint = Endpoint(wire, words=oracles[0].engine, dialect=family.named)
            try:
                can = await endpoint.connect(PROBE, oracles[0].engine.tokenize(PROBE))
                return await work(endpoint, can)
            finally:
                await endpoint.aclose()

        return asyncio.run(working())

    return run


@pytest.fixture
def ask(spoken):
    """Answer a question with a policy through a family's server."""

    def answer(name, policy, question, **choices):
        family = FAMILIES[name]
        settings = {"max_tokens": MAX_TOKENS, "price": PRICE, "ledger": "none", "seed": 0} | choices
        with hybrid.open(
            local="small", cloud=spoken(family).url, dialect=family.named, policy=policy, **settings
        ) as client:
            return client.generate(question)

    return answer


@pytest.fixture(scope="session")
def texts(oracles):
    return {question: oracles[1].text(question, MAX_TOKENS) for question in QUESTIONS}


@each("name", FAMILIES)
def test_an_endpoint_is_known_for_what_it_is_and_can_do(reached, name):
    async def discover(_, can):
        return can

    can, family = reached(name, discover), FAMILIES[name]
    assert can.dialect == name
    assert can.model.removesuffix(":latest") == "large"
    able = {"open": True, "score": family.scores, "write": family.writes, "ids": family.ids}
    assert can.abilities == {ability for ability, has in able.items() if has}
    assert can.rows is family.rows


@each("name", SCORING)
def test_rows_are_those_of_the_model_itself(reached, oracles, agree, name):
    """And the charge is what the server says that it computed, never above what was reserved."""
    prompt = oracles[0].engine.render([Message("user", QUESTIONS[0])])
    ids, _ = oracles[1].text(QUESTIONS[0], DRAFT)
    question = ScoreQuestion(prompt, ids, True, 20)

    async def score(endpoint, _):
        return await endpoint.score(question, f"score-{name}"), endpoint.max_usage(question)

    scores, worst = reached(name, score)
    assert len(scores.rows) == DRAFT + 1
    for i, row in each_of(enumerate(scores.rows)):
        expected = oracles[1].cursor.row(prompt + ids[:i])
        known = expected.probs[row.ids] >= 1e-3
        assert np.abs(row.logprobs - expected.logprobs[row.ids])[known].max() <= tolerance().nats
        assert (
            row.best == expected.best
            or expected.logprobs[expected.best] - expected.logprobs[row.best] <= tolerance().gap
        )
        assert row.num_listed >= 1
        hidden = np.delete(expected.probs, row.ids)
        assert hidden.size == 0 or hidden.max() <= row.tail_max * np.exp(tolerance().nats) + 1e-4, (
            "no token is likelier than the cap"
        )
    assert scores.usage.prompt_tokens <= worst.prompt_tokens
    assert scores.usage.completion_tokens <= worst.completion_tokens


@each("name", WRITING)
def test_a_continuation_is_the_models_and_costs_no_more_than_was_reserved(reached, oracles, name):
    prompt = oracles[0].engine.render([Message("user", QUESTIONS[1])])
    ids, tie = oracles[1].text(QUESTIONS[1], 6)
    question = WriteQuestion(prompt + ids[:2], 4, 20, Sampling(), begun=2)

    async def write(endpoint, _):
        return [chunk async for chunk in endpoint.write(question, f"write-{name}")], endpoint.max_usage(question)

    chunks, worst = reached(name, write)
    written = tuple(token for chunk in chunks for token in chunk.ids)
    assert written == ids[2:6] or tie is not None
    rows = [row for chunk in chunks for row in chunk.rows]
    assert len(rows) == len(written)
    assert all((row is not None) is FAMILIES[name].rows for row in rows)
    usage = next(chunk.usage for chunk in reversed(chunks) if chunk.usage)
    assert usage.prompt_tokens <= worst.prompt_tokens
    assert usage.completion_tokens <= worst.completion_tokens


@each("name", SCORING)
def test_greedy_exact_gives_the_large_models_text(ask, texts, name):
    for question, (expected, tie) in each_of(texts.items()):
        answer = ask(name, "greedy-exact", question)
        got = tuple(token.id for token in answer.tokens)
        assert answer.degraded is None
        assert got[:tie] == expected[:tie], (name, question)


@each(("policy", "choices"), [("kl", {}), ("doubt", {"entropy": 0.0001})], ids=["kl", "doubt"])
def test_a_policy_writes_the_same_text_wherever_it_can_be_done(ask, policy, choices):
    answers = {question: ask("vllm", policy, question, **choices) for question in QUESTIONS[:2]}
    assert all(answer.usage.cloud_requests for answer in answers.values()), "a text without the cloud shows nothing"
    reference = {question: answer.text for question, answer in answers.items()}
    for name in each_of(WRITING):
        if not (FAMILIES[name].rows and (FAMILIES[name].scores or policy == "doubt")):
            continue
        for question, text in each_of(reference.items()):
            answer = ask(name, policy, question, **choices)
            assert (answer.text, answer.degraded) == (text, None), name


@each("name", FAMILIES)
def test_what_cannot_be_done_is_refused_in_a_sentence_that_names_what_can(ask, reached, name):
    async def discover(_, can):
        return can

    can = reached(name, discover)
    wanted = {"kl": 0.0, "greedy-exact": 0.0, "doubt": 0.0, "exact": 1.0, "cloud": 1.0}
    refused = {p: t for p, t in wanted.items() if not PRESETS[p].works(can.abilities, Sampling(t))}
    for policy, temperature in each_of(refused.items(), least=0):
        with pytest.raises(MissingCapability, match=f"policy {policy} needs an endpoint that can .*; here .* work"):
            ask(name, policy, QUESTIONS[0], temperature=temperature)
    assert "cloud" not in refused
    assert ("exact" in refused) is not FAMILIES[name].ids, "what draws by rejection needs tokens by number"


@each("name", ["openai-chat", "text-chat", "text-completions"])
def test_where_nothing_can_be_scored_the_cloud_still_writes_a_whole_answer(ask, texts, name):
    answer = ask(name, "cloud", QUESTIONS[0])
    expected, tie = texts[QUESTIONS[0]]
    assert tuple(token.id for token in answer.tokens)[:tie] == expected[:tie]


def test_without_log_probabilities_the_answer_says_that_only_the_local_models_own_doubt_decided(ask):
    answer = ask("text-completions", "doubt", QUESTIONS[0], entropy=0.0)
    told = "the endpoint gives no log-probabilities of its model: only the local model's own doubt decides"
    assert (answer.notes, answer.degraded) == ((told,), None)
    assert answer.text


@each("policy", ["doubt", "kl"])
@each("temperature", [0.7, 1.0])
def test_the_pen_goes_back_at_the_same_token_whether_rows_come_with_the_text_or_not(ask, policy, temperature):
    """SGLang tells rows after the temperature, vLLM the model's own; the same seed draws the same tokens on both."""
    for question in ("Integrate 30x^5 + 20x^3 + 6x.", *QUESTIONS):
        drawn = {"temperature": temperature, "threshold": 1e-4, "seed": 1, "max_tokens": 40}
        drawn |= {"entropy": 0.3} if policy == "doubt" else {}
        vllm, sglang = (ask(name, policy, question, **drawn) for name in ("vllm", "sglang"))
        assert [(t.id, t.source) for t in sglang.tokens] == [(t.id, t.source) for t in vllm.tokens]
        assert sglang.degraded is None


@each("named", [None, "openai-completions"])
def test_an_endpoint_that_turns_out_to_give_none_is_refused_with_what_to_do(ask, spoken, named):
    url = spoken(FAMILIES["text-completions"]).url
    with (
        hybrid.open(
            local="small", cloud=url, dialect=named, policy="doubt", entropy=0.0, price=PRICE, ledger="none"
        ) as client,
        pytest.raises(MissingCapability, match="without log-probabilities; hybrid probe tells"),
    ):
        client.generate(QUESTIONS[0])


@each("name", SCORING)
def test_the_bill_is_what_the_server_charged(ask, spoken, name):
    """Every request's id, and the sum of them; where it does not say what was cached, all counts as new."""
    server, family = spoken(FAMILIES[name]), FAMILIES[name]
    before = {str(told) for told in server.client.get("/v1/charges").json()["data"]}
    usage = ask(name, "greedy-exact", QUESTIONS[2]).usage
    told = [one for one in server.client.get("/v1/charges").json()["data"] if str(one) not in before]
    assert usage.cloud_prompt_tokens == sum(one["prompt_tokens"] for one in told)
    assert usage.cloud_completion_tokens == sum(one["completion_tokens"] for one in told)
    assert usage.cloud_cached_tokens == (0 if family.silent else sum(one["cached_tokens"] for one in told))
