"""Servers that nobody here wrote, with llama.cpp itself beside them: what is read from them is what the model says.

llama.cpp's own server (xllamacpp) and llama-cpp-python's, over the bundled pair: known, probed, their rows, and what
they write. The answers that come of it are in ``test_real_answers.py``.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from alike import assert_shown
from arithmetic import tolerance
from cases import each_of

import hybrid
from hybrid.assemble import PROBE, probing
from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.probe_result import habits
from hybrid.cloud.wire import Timeouts, Wire
from hybrid.engine.llama import Weights
from hybrid.errors import VocabularyMismatch
from hybrid.tasks import FAMILIES, distinct
from hybrid.types import Message, Sampling

pytestmark = pytest.mark.slow

ALIEN = Path(hybrid.__file__).parent / "models" / "alien.gguf"

REQUEST_ID = "0123456789abcdef0123456789abcdef"
QUESTIONS = [next(iter(distinct(family, "test", 1, seed=5))).question for family in FAMILIES]


@asynccontextmanager
async def connected(server, words, method=None):
    """The endpoint as ``hybrid.open`` makes it; ``way``: another than its dialect's first."""
    endpoint = Endpoint(Wire(server.url, None, Timeouts(), through_proxies=False), words=words)
    try:
        capabilities = await endpoint.connect(PROBE, words.tokenize(PROBE))
        if method:
            known = endpoint.knowledge
            known.dialect = replace(known.dialect, can=replace(known.dialect.can, scoring_method=method))
        yield endpoint, capabilities
    finally:
        await endpoint.aclose()


def score(server, words, questions, method=None):
    async def ask():
        async with connected(server, words, method) as (endpoint, _):
            return [
                (await endpoint.score(question, REQUEST_ID), endpoint.max_usage(question)) for question in questions
            ]

    return asyncio.run(ask())


# ---- recognised ----------------------------------------------------------------------------------------------------


def test_the_endpoint_is_recognised_without_being_named(real, oracles):
    async def discover():
        async with connected(real, oracles[0].engine) as (_, capabilities):
            return capabilities

    found = asyncio.run(discover())
    assert found.dialect == real.family
    assert "large" in found.model
    assert found.max_context == real.context
    text = {"score", "write", "open"}
    assert found.abilities == (text | {"ids"} if real.family == "llama-server" else text)
    assert found.scoring_method == ("forced" if real.family == "llama-server" else "one request")


def test_a_local_model_of_another_vocabulary_is_refused(real):
    with pytest.raises(VocabularyMismatch, match="vocabulary"), hybrid.open(cloud=real.url, local=ALIEN) as client:
        client.generate(QUESTIONS[0])


# ---- probed --------------------------------------------------------------------------------------------------------


def test_the_probe_finds_what_the_server_can_do(real, tmp_path, monkeypatch):
    """By asking alone, in 600 tokens at most; what it found is believed by the next client."""
    monkeypatch.setattr("hybrid.assemble.reaching.cache_file", lambda: tmp_path / "cache.json")
    probed = asyncio.run(probing.probe(lambda _: None, cloud=real.url, price="free"))
    found, can = probed.findings, probed.can
    exact = real.family == "llama-server"
    assert (found.dialect, found.scoring_method) == (real.family, "forced" if exact else "one request")
    assert found.scoring_methods == {found.scoring_method: "agrees"}
    assert (found.rows, found.most_k, found.takes_ids) == (True, 100, exact)
    assert (found.same_words, found.continues, found.raw_rows) == (True, True, True)
    assert (found.cached_usage, found.keeps_cache) == ((True, True) if exact else (False, None))
    assert found.noise_nats <= tolerance().nats
    assert found.chat_alike is (True if exact else None), "only llama-server renders a chat for whoever asks"
    assert (len(found.opening_kl), habits(found.opening_kl)) == (5, "alike")
    assert found.grid == 0
    assert 0 < found.spent_tokens <= 2000, "without a price it also times what a scored and a written token take"
    assert ("ids" in can.abilities) is exact
    with hybrid.open(local="small", cloud=real.url, price="free", policy="kl") as client:
        assert client.generate(QUESTIONS[0], max_tokens=8).degraded is None
    assert json.loads((tmp_path / "cache.json").read_text())["entries"]


# ---- rows ----------------------------------------------------------------------------------------------------------


def drafts(oracles):
    """Questions about drafts: the small model's own in spans of eight, and one with split characters."""
    engine, found = oracles[0].engine, []
    for question in (*QUESTIONS[:6:2], "What is \u4e2d plus \u00e9?"):
        prompt = engine.render([Message("user", question)])
        drafted = [token for _, token in oracles[0].rows(question, lambda row: row.best, 48)]
        found += spans(prompt, drafted, engine.end_ids)
        found.append(ScoreQuestion(prompt, (), True, 20))
    letters = engine.tokenize("The letter \u00e9 and \u4e2d, or caf\u00e9, are two and more bytes.")
    return [*found, *spans(prompt, letters, engine.end_ids)]


def spans(prompt, drafted, ends):
    """A draft, eight tokens a time."""
    for start in range(0, len(drafted), 8):
        span = tuple(drafted[start : start + 8])
        after = span[-1] not in ends
        yield ScoreQuestion(prompt + tuple(drafted[:start]), span, after, 20)


def whole(engine, ids):
    """Whether tokens end with a whole character, so that a text can say them."""
    try:
        b"".join(map(engine.piece, ids)).decode()
    except UnicodeDecodeError:
        return False
    return True


WAYS = {"llama-server": ("forced", "prefixes", "generate"), "llama-cpp-python": ("one request",)}


def test_rows_are_those_of_the_model_itself_in_every_way_of_asking(real, oracles):
    """Every row of a draft, the one after it and the one at its end: within what float16 sums leave open."""
    questions, found = drafts(oracles), {}
    for way in each_of(WAYS[real.family]):
        found[way] = score(real, oracles[0].engine, questions, way)
        assert_rows(oracles, questions, found[way], way)
    # What one server says in two ways lies nearer together.
    for one, other in each_of(combinations(found.values(), 2), least=0):
        for (scores, _), (others, _) in each_of(zip(one, other, strict=True)):
            for row, same in each_of(zip(scores.rows, others.rows, strict=False)):
                shared, mine, theirs = np.intersect1d(row.ids, same.ids, return_indices=True)
                assert len(shared) >= min(len(row.ids), len(same.ids)) - 2, "the twentieth may be a tie"
                likely = row.probs[mine] >= 1e-3
                assert np.abs(row.logprobs[mine] - same.logprobs[theirs])[likely].max() <= tolerance().nats


def assert_rows(oracles, questions, answers, way):
    """Nearly what direct evaluation gives, as many rows as can be had, and no more charged than was reserved."""
    worst, num_rows = 0.0, 0
    for question, (scores, most) in zip(questions, answers, strict=True):
        for i, row in enumerate(scores.rows):
            expected = oracles[1].cursor.row(question.prefix + question.span[:i])
            worst = max(worst, assert_shown(row, expected))
        assert len(scores.rows) >= least_rows(way, question, oracles)
        assert scores.usage.prompt_tokens <= most.prompt_tokens
        assert scores.usage.completion_tokens <= most.completion_tokens
        num_rows += len(scores.rows)
    due = sum(question.num_rows for question in questions)
    print(f"{way}: {num_rows} of {due} rows, at most {worst:.4f} nats off")


def least_rows(way, question, oracles):
    """How many rows must be there: all, but for what a text cannot say, and for where the model itself goes on."""
    if way == "one request":
        ids = [question.prefix + question.span[:i] for i in range(question.num_rows)]
        return next((i for i, prefix in enumerate(ids) if not whole(oracles[0].engine, prefix)), question.num_rows)
    if way == "generate":
        return min(num_agreed(oracles[1], question) + 1, question.num_rows)
    if way == "forced":  # a grammar cannot force a part of a character, nor the end
        forced = (i for i, token in enumerate(question.span) if not whole(oracles[0].engine, [token]))
        return min(next(forced, question.num_rows) + 1, question.num_rows)
    return question.num_rows


def num_agreed(large, question):
    """How many tokens of a draft are the model's own, without a near tie."""
    for i, token in enumerate(question.span):
        row = large.cursor.row(question.prefix + question.span[:i])
        (best, first), (_, second) = row.top(2)
        if token != best or first - second <= tolerance().gap:
            return i
    return len(question.span)


def with_an_opening_token(model, folder):
    """A copy of a model whose vocabulary says that every text begins with its token 0."""
    data, key = model.read_bytes(), b"tokenizer.ggml.add_bos_token"
    at = data.index(key) + len(key) + 4  # the value's type stands between
    assert data[at] == 0
    copy = folder / model.name
    copy.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    return copy


def test_rows_are_aligned_where_every_text_begins_with_an_opening_token(start_real, bundled, oracles, tmp_path):
    """llama-cpp-python lists the rows of an echoed prompt one off without such a token, and in place with it."""
    local, cloud = (with_an_opening_token(model, tmp_path) for model in bundled)
    server = start_real("llama-cpp-python", cloud)
    with closing(Weights(local)) as weights, closing(weights.context()) as engine:
        assert engine.tokenize("", special=True) == (0,)
        questions = [
            replace(question, prefix=question.prefix if question.prefix[0] == 0 else (0, *question.prefix))
            for question in drafts(oracles)
        ]
        assert_rows(oracles, questions, score(server, engine, questions), "one request")


# ---- written -------------------------------------------------------------------------------------------------------


def written(server, words, questions):
    """What the endpoint writes for each question."""

    async def ask():
        async with connected(server, words) as (endpoint, _):
            return [[chunk async for chunk in endpoint.write(question, REQUEST_ID)] for question in questions]

    return [tuple(token for chunk in chunks for token in chunk.ids) for chunks in asyncio.run(ask())]


def test_a_banned_token_is_never_written(real, oracles):
    """The most likely one, and those likely after it, greedily and drawn."""
    words = oracles[0].engine
    prompt = words.render([Message("user", QUESTIONS[0])])
    ban = frozenset(token for token, _ in oracles[1].cursor.row(prompt).top(6)) | words.end_ids
    samplings = [Sampling(), *(Sampling(temperature=1.0, seed=seed) for seed in range(8))]
    texts = written(real, words, [WriteQuestion(prompt, 12, 5, how, ban) for how in samplings])
    assert all(texts)
    assert not ban & {token for text in texts for token in text}


def ranks(oracle, prompt, text):
    """How many tokens the model finds likelier than each one that was written."""
    rows = [oracle.cursor.row(prompt + text[:i]).logprobs for i in range(len(text))]
    return [int((row > row[token] + tolerance().nats).sum()) for row, token in zip(rows, text, strict=True)]


def test_tokens_are_drawn_as_asked_and_not_as_the_server_would_by_itself(real, oracles):
    """Both servers keep to 40 tokens, to a nucleus and to a least probability where nothing else is sent."""
    words = oracles[0].engine
    prompt = words.render([Message("user", QUESTIONS[0])])
    # A text can name these alone, and go on.
    ban = frozenset(i for i in range(words.num_tokens) if not words.piece(i).isascii()) | words.end_ids | {1}
    free, five = Sampling(temperature=4.0, seed=3), Sampling(temperature=4.0, top_k=5, seed=3)
    texts = written(real, words, [WriteQuestion(prompt, 40, 5, how, ban) for how in (free, five)])
    assert max(ranks(oracles[1], prompt, texts[0])) > 60
    allowed = [sorted(set(range(words.num_tokens)) - ban)]
    for i, token in each_of(enumerate(texts[1])):
        likely = oracles[1].cursor.row(prompt + texts[1][:i]).logprobs
        assert (likely[allowed] > likely[token] + tolerance().nats).sum() < 5
