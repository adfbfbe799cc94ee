"""What the client and the server here share, held against llama.cpp's own server and llama-cpp-python.

The order of the filters and their ends (``prob.warp``), ties, a rendered conversation, and how much of a prompt was
cached. Elsewhere one hand wrote both sides, and both could be wrong alike.
"""

from __future__ import annotations

import ctypes
import math
from contextlib import closing
from dataclasses import replace
from itertools import takewhile

import gguf
import httpx
import llama_cpp
import numpy as np
import pytest
from cases import each_of
from llama_cpp._internals import LlamaTokenDataArray
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from wordlist import opened

from hybrid.cloud import WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.llama_cpp_python import LlamaCppPython
from hybrid.cloud.dialects.llama_server import LlamaServer
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.prob import Dense, warp
from hybrid.types import Message, Sampling
from server_stub.slots import PrefixCache

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
    least = sampling.top_p * (1 - by) if sampling.top_p < 1.0 else 1.0
    less = replace(sampling, top_p=least, min_p=sampling.min_p * (1 - by))
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


@pytest.fixture(scope="module")
def sampler_of(bundled):
    """Make the chain of llama-cpp-python itself that draws by a body of the client's; of its model a vocabulary."""
    words, names = Weights(bundled[0]), ("top_k", "top_p", "min_p")
    owner = llama_cpp.Llama(str(bundled[0]), vocab_only=True, verbose=False)

    def make(sampling):
        speaker = LlamaCppPython(DialectConfig("m", TextVocabulary(words)))
        body = opened(speaker.write(WriteQuestion(words.tokenize("a"), 4, 2, sampling)))[0].body
        return owner._init_sampler(temp=body["temperature"], **{name: body[name] for name in names})

    yield make
    owner.close()
    words.close()


def drawn_law(sampler, logits):
    """What a chain leaves of a row, as log-probabilities by token, and the token that it takes."""
    held = LlamaTokenDataArray(n_vocab=logits.size)
    held.copy_logits(logits)
    llama_cpp.llama_sampler_apply(sampler.sampler, ctypes.byref(held.candidates))
    left = held.candidates.data[: held.candidates.size]
    total = math.log(sum(math.exp(each.logit) for each in left))
    return {each.id: each.logit - total for each in left}, left[held.candidates.selected].id


CUTS = [
    {"temperature": temperature} | cut
    for temperature in (0.3, 1.0, 2.5)
    for cut in (
        {},
        {"top_k": 7},
        {"min_p": 0.05},
        {"top_k": 5, "min_p": 0.3},
        {"top_p": 0.7},
        {"top_k": 6, "top_p": 0.9},
    )
    if temperature == 1.0 or "top_p" not in cut
]


def test_what_the_library_draws_from_is_the_law_that_was_asked_for(sampler_of):
    """Its filters come in another order: top-k, top-p, min-p, and the temperature last."""
    rng = np.random.default_rng(3)
    for cut in each_of(CUTS):
        sampling = Sampling(**cut)
        sampler = sampler_of(sampling)
        rows = rng.normal(scale=3.0, size=(20, 60)).astype(np.float32)
        for logits in each_of((row for row in rows if is_clear(Dense.from_logits(row), sampling)), least=3):
            law, (found, taken) = warp(Dense.from_logits(logits), sampling), drawn_law(sampler, logits)
            assert found.keys() == set(np.flatnonzero(law.probs).tolist()), cut
            assert list(found.values()) == pytest.approx([law.logprobs[token] for token in found], abs=1e-4), cut
            assert taken in found


def test_of_tokens_that_are_as_likely_the_library_too_takes_the_lower_one(sampler_of):
    sampler = sampler_of(Sampling(temperature=0.0, top_p=0.5, min_p=0.1))
    logits = np.repeat(np.array([1.0, 3.0, 3.0, 2.0, 3.0], dtype=np.float32), 20)
    assert drawn_law(sampler, logits)[1] == Dense.from_logits(logits).best == 20


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


ATOMS = [
    "", " ", "   ", "\t\n\r\n", "a", "The quick brown fox.", "don't WON'T I'll", "x" * 70, "3.14159 1,234 007",
    "0x1F+2^3=11", "caf\u00e9", "cafe\u0301", "\u4e2d\u6587\u3002", "\u0627\u0644\u0639", "\u200b\u200f\ufeff",
    "\U0001f469\u200d\U0001f680", "\u00a0\u2003", "\x00\x01\x7f", "<|im_end|>", "<|im_start|>user\n", "<s></s>",
    "<0x41>", "\u2581word\u0120", "def f(x):\n    return {x!r}\n", "\ufffd\U0010ffff",
]  # fmt: skip
AROUND = ["{}", " {}", "{}\n", "ab{} {}<|im_end|>{}"]


@pytest.fixture(scope="module", params=["small.gguf", "alien.gguf", "words.gguf"])
def vocabularies(request, bundled):
    """One file's vocabulary as read here, and as llama-cpp-python reads it."""
    path = bundled[0].with_name(request.param)
    with closing(Weights(path)) as ours, closing(llama_cpp.Llama(str(path), vocab_only=True, verbose=False)) as theirs:
        yield ours, theirs


def test_a_hundred_texts_have_the_tokens_and_the_bytes_of_llama_cpp_python(vocabularies):
    ours, theirs = vocabularies
    texts = [around.replace("{}", atom) for atom in ATOMS for around in AROUND]
    assert len(texts) == 100
    for text in texts:
        for special in (False, True):
            ids = ours.tokenize(text, special=special)
            assert ids == tuple(theirs.tokenize(text.encode(), add_bos=special, special=special)), (text, special)
            # Theirs leaves out a space behind the opening token.
            pieces = b"".join(map(ours.piece, ids))
            assert pieces == b"".join(theirs._model.detokenize([token], special=True) for token in ids), text
    assert ours.num_tokens == theirs.n_vocab()
    assert theirs.token_eos() in ours.end_ids


def test_a_conversation_is_rendered_as_by_llama_cpp_python(vocabularies):
    ours, theirs = vocabularies
    bos, eos = (theirs._model.token_get_text(token) for token in (theirs.token_bos(), theirs.token_eos()))
    formatter = Jinja2ChatFormatter(theirs.metadata["tokenizer.chat_template"], eos_token=eos, bos_token=bos)
    for turns in CONVERSATIONS:
        written = formatter(messages=[{"role": role, "content": content} for role, content in turns]).prompt
        rendered = ours.render([Message(role, content) for role, content in turns])
        assert b"".join(map(ours.piece, rendered)).decode() == written, turns
        if "<|im_end|>" not in turns[-1][1]:
            assert rendered == tuple(theirs.tokenize(written.encode(), add_bos=False, special=True)), turns


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
            assert llama_cpp.Llama.longest_token_prefix(prompt, held) == alike
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
