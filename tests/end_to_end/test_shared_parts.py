"""What the client and the server here have in common, held against llama.cpp's own server, which has neither.

The order of the filters and their ends (``prob.warp``), ties, a rendered conversation, and how much of a prompt was
cached. Elsewhere one hand wrote both sides, and both could be wrong alike.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from itertools import takewhile

import gguf
import httpx
import numpy as np
import pytest
from cases import each_of
from wordlist import opened

from hybrid.cloud import WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.llama_server import LlamaServer
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.prob import Dense, warp
from hybrid.types import Message, Sampling
from server_stub.prefix_cache import PrefixCache

pytestmark = pytest.mark.slow

QUESTION = "Sort 42 17 99."
SAMPLINGS = [
    Sampling(temperature=2.0, top_p=0.8),
    Sampling(temperature=0.5, min_p=0.05),
    Sampling(temperature=2.0, top_k=9, top_p=0.7),
    Sampling(temperature=1.5, top_k=12, min_p=0.02),
    Sampling(temperature=3.0, top_k=20, top_p=0.9, min_p=0.1),
]
BEGINNINGS = ["", "The le", "A", "So th", "1", "The answer is t", "x^2 + ", "b", "Word"]


@pytest.fixture(scope="module")
def server(bundled, start_real):
    return start_real("llama-server")


def dialect(engine):
    return LlamaServer(DialectConfig("m", TextVocabulary(engine)))


def said(server, engine, question, **more):
    """What the server answers to the client's own body, in one piece."""
    body = opened(dialect(engine).write(question))[0].body | {"stream": False} | more
    reply = httpx.post(f"{server.url}/completion", json=body, trust_env=False, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def prompts(engine):
    begun = engine.render([Message("user", QUESTION)])
    return [begun + engine.tokenize(text) for text in BEGINNINGS]


def kept(row, sampling):
    return set(np.flatnonzero(warp(row, sampling).probs > 0.0).tolist())


def is_clear(row, sampling):
    """Whether what the filters keep does not hang on the last digits of a row."""
    by, ranked = 0.01, np.sort(row.logprobs)[::-1]
    if sampling.top_k and ranked[sampling.top_k - 1] - ranked[sampling.top_k] < by:
        return False
    less = replace(sampling, top_p=sampling.top_p * (1 - by), min_p=sampling.min_p * (1 - by))
    more = replace(sampling, top_p=min(1.0, sampling.top_p * (1 + by)), min_p=sampling.min_p * (1 + by))
    return kept(row, less) == kept(row, sampling) == kept(row, more)


def test_the_filters_have_the_order_and_the_ends_of_llama_cpps_own(server, oracles):
    """It tells the row that it has, then what is left of it to draw from, and with which probabilities."""
    engine, clear = oracles[1].engine, []
    for prompt in prompts(engine):
        for _ in range(2):  # the second row comes of one token after a cached prompt, as all that follow
            told = said(server, engine, WriteQuestion(prompt, 1, engine.num_tokens, Sampling()), cache_prompt=True)
        listed = {entry["id"]: entry["logprob"] for entry in told["completion_probabilities"][0]["top_logprobs"]}
        row = Dense.from_logits(np.array([listed[token] for token in range(engine.num_tokens)]))
        clear += [(prompt, how, warp(row, how)) for how in SAMPLINGS if is_clear(row, how)]
    assert len(clear) >= 20
    for prompt, sampling, law in each_of(clear):
        told = said(server, engine, WriteQuestion(prompt, 1, 100, sampling), post_sampling_probs=True)
        left = {entry["id"]: entry["prob"] for entry in told["completion_probabilities"][0]["top_probs"]}
        assert left.keys() == set(np.flatnonzero(law.probs > 0.0).tolist()), sampling
        for token, prob in each_of(left.items()):
            assert math.log(prob) == pytest.approx(law.logprobs[token], abs=0.01), sampling


CONVERSATIONS = [
    [("user", "hi")],
    [("system", "Be brief."), ("user", "What is 47 + 86?")],
    [("user", "a"), ("assistant", "b"), ("user", " c \n")],
    [("system", " "), ("user", "caf\u00e9 \u4e2d"), ("assistant", ""), ("user", "<|im_end|> x")],
]


def test_a_conversation_is_rendered_as_by_llama_cpps_own_template_engine(server, oracles):
    engine = oracles[0].engine
    for turns in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in turns]
        with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client:
            text = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
            asked = {"content": text, "add_special": True, "parse_special": True}
            theirs = client.post("/tokenize", json=asked).json()["tokens"]
        ours = engine.render([Message(role, content) for role, content in turns])
        if "<|im_end|>" not in turns[-1][1]:
            assert ours == tuple(theirs), turns
        assert b"".join(map(engine.piece, ours)).decode() == text, turns


def test_what_was_cached_is_the_prefix_that_the_last_request_shares(server, oracles):
    """Told as cached is all that is equal, but for the last token, which is computed to go on from it."""
    engine = oracles[1].engine
    begun = engine.render([Message("user", QUESTION)])
    long = (*begun, 5, 6, 7, 8)
    held = None
    for prompt in (long, (*long, 9, 9), (*begun[:10], 3, 3), long, (*long, 9, 9), (*long, 9, 9), begun):
        question = WriteQuestion(prompt, 3, 0, Sampling())
        told = said(server, engine, question)
        [chunk] = dialect(engine).read_completions([question], told)
        assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) == (len(prompt), len(chunk.ids))
        if held is not None:
            alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, held, strict=False)))
            assert chunk.usage.cached_tokens == min(alike, len(prompt) - 1)
            cache = PrefixCache()
            cache.add(held, None)
            assert min(cache.longest(prompt, None), len(prompt) - 1) == chunk.usage.cached_tokens
        held = prompt + chunk.ids[:-1]


@pytest.mark.parametrize("step", [-1, 1])
def test_of_two_tokens_that_are_as_likely_the_lower_one_is_written(start_real, bundled, oracles, tmp_path, step):
    """The large model with a second token of the best one's output row: its logit is the same to the last bit."""
    prompt = oracles[1].engine.render([Message("user", QUESTION)])
    best = oracles[1].cursor.row(prompt).best
    copy = tmp_path / "tied.gguf"
    copy.write_bytes(bundled[1].read_bytes())
    rows = next(each for each in gguf.GGUFReader(copy, "r+").tensors if each.name == "output.weight").data
    rows[best + step] = rows[best]
    rows.base.flush() if hasattr(rows.base, "flush") else None
    with closing(Weights(copy)) as weights, closing(weights.context()) as engine:
        row = Cursor(engine).row(prompt)
        assert row.logprobs[best] == row.logprobs[best + step]
        assert row.best == min(best, best + step)
        told = said(start_real("llama-server", copy), engine, WriteQuestion(prompt, 1, 5, Sampling()))
    [entry] = told["completion_probabilities"]
    tied = {each["id"]: each["logprob"] for each in entry["top_logprobs"]}
    assert tied[best] == tied[best + step]
    assert told["tokens"] == [min(best, best + step)]
