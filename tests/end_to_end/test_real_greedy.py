"""``greedy-exact`` over a real model is the reference's own greedy text, by whichever server it is served.

Ten or twenty questions here; ``tests/oracles/own_greedy.py`` is a program that asks a hundred. For vLLM the model
is converted: that its words and its numbers are the file's is shown first.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import subprocess
import unicodedata
import uuid
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import llama_cpp
import numpy as np
import pytest
from arithmetic import tolerance
from cases import each_of
from endpoints import connected
from kept_servers import folder_of
from own_greedy import CONTEXT, END, FOLDER, Comparison, OwnText, compare, count, mixed, serving_real
from server_environments import Unavailable, python_of

from hybrid.cloud import ScoreQuestion
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.engine.native import take_log
from hybrid.tasks.assistant import QUESTIONS
from hybrid.types import Message

MAX_TOKENS = 32
ASKED = {"stub": 5, "llama-server": 10, "vllm": 10}
VLLM = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def served(real_model, tmp_path_factory):
    """Serve the real reference by a kind of server, one at a time."""
    with ExitStack() as clean_up:

        def serve(kind):
            try:
                return clean_up.enter_context(serving_real(kind, tmp_path_factory.getbasetemp()))
            except Unavailable as why:
                pytest.skip(str(why))

        yield serve


@pytest.fixture(scope="module")
def over_vllm(served):
    return served("vllm")


# ---- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=[pytest.mark.slow, pytest.mark.timeout(600)]) for kind in ("stub", "llama-server")),
        pytest.param("vllm", marks=VLLM),
    ],
)
def test_greedy_exact_writes_what_the_server_writes_by_itself(kind, served, real_model, request):
    url = request.getfixturevalue("over_vllm") if kind == "vllm" else served(kind)
    found = compare(kind, url, real_model("real:q3"), mixed(ASKED[kind]), MAX_TOKENS)
    print(f"{kind}: {found}")
    assert found.num == ASKED[kind]
    assert found.tokens >= 8 * found.num
    assert not found.wrong
    assert len(found.near_ties) <= found.num // 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_greedy_chain_of_real_models_writes_what_the_server_writes_by_itself(served, real_model):
    """The reference with layers left out drafts for its requantisation, which drafts for it.

    On 5 questions; 50 take twenty minutes beside other tests, and were the reference's own when they were asked.
    """
    choices = {"drafters": (real_model("real:d4"),), "chain": "auto"}
    found = compare("stub", served("stub"), real_model("real:q3"), mixed(5), MAX_TOKENS, **choices)
    print(f"{found}; {dict(found.written_by)}")
    assert found.num == 5
    assert len(found.written_by) == 3
    assert not found.wrong
    assert len(found.near_ties) <= found.num // 4


def test_a_difference_is_excused_by_a_near_tie_alone():
    """The gap between the two best must be one that noise was seen to close, elsewhere than where the texts part."""
    found = Comparison()
    count(found, "equal", (5, 6, END), OwnText((5, 6, END), (0.4, 2.0, 0.9)), {0: 0.5, 1: 9.0, 2: 0.9})
    assert (found.num, found.tokens, found.parted) == (1, 3, [])
    assert found.noise == pytest.approx(0.15)
    count(found, "tie", (5, 7), OwnText((5, 6), (0.4, 0.09)), {0: 0.4, 1: 0.0})
    count(found, "wrong", (5, 7), OwnText((5, 6), (0.4, 0.2)), {0: 0.4, 1: 0.0})
    count(found, "cut", (5,), OwnText((5, 6), (0.4, 3.0)), {0: 0.4})
    count(found, "went on", (5, 6), OwnText((5, END), (0.4,)), {0: 0.4, 1: 2.5})
    assert [(question, at) for question, at, _ in found.near_ties] == [("tie", 1)]
    assert [(question, at, gap) for question, at, gap in found.wrong] == [
        ("wrong", 1, 0.2),
        ("cut", 1, 3.0),
        ("went on", 1, 2.5),
    ]


# ---- the converted model --------------------------------------------------------------------------------------------


def hard_texts():
    """Questions, programs, every character of the first plane, and what is drawn of the oddest ones."""
    rng = random.Random(0)
    planes = [chr(code) for code in range(1, 0x10000) if not 0xD800 <= code < 0xE000]
    odd = [*" \n\t\r" * 40, *"aZ1½'s!é中\u00a0\u2003\u3000\u200b" * 10, *rng.choices(planes, k=300)]
    odd += [chr(rng.randrange(0x10000, 0x20000)) for _ in range(100)]
    programs = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    drawn = ["".join(rng.choices(odd, k=rng.randrange(1, 40))) for _ in range(2000)]
    single = [f"a{one}b {one} {one}{one}1" for one in planes if unicodedata.category(one) != "Lo" or ord(one) % 50 == 0]
    return [*(question.text for question in QUESTIONS), *programs, *drawn, *single]


READ = "import json, sys; from tokenizers import Tokenizer; words = Tokenizer.from_file(sys.argv[1]); "
READ += "json.dump([words.encode(text).ids for text in json.load(sys.stdin)], sys.stdout)"


@pytest.mark.slow
@pytest.mark.vllm
def test_the_converted_vocabulary_reads_every_text_as_llama_cpp_does(real_model, tmp_path_factory):
    try:
        python = python_of("vllm")
    except Unavailable as why:
        pytest.skip(str(why))
    model, texts = real_model("real"), hard_texts()
    folder = folder_of("vllm", model, tmp_path_factory.getbasetemp() / FOLDER)
    command = [python, "-c", READ, folder / "tokenizer.json"]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    with closing(Weights(model)) as words:
        for text, ids in each_of(zip(texts, json.loads(done.stdout), strict=True)):
            assert tuple(ids) == words.tokenize(text, special=True), text


@pytest.fixture(scope="module")
def unquantised(real_model, tmp_path_factory):
    """The reference with its weights as float32 numbers: llama.cpp rounds activations where weights are quantised."""
    target = tmp_path_factory.mktemp("unquantised") / "real.gguf"
    take_log()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = llama_cpp.LLAMA_FTYPE_ALL_F32, True, 1
    source = os.fsencode(real_model("real"))
    assert llama_cpp.llama_model_quantize(source, os.fsencode(target), ctypes.byref(params)) == 0
    with closing(Weights(target)) as weights, closing(weights.context(CONTEXT, 1)) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_the_converted_models_rows_are_the_files(over_vllm, unquantised):
    """A wrong base of the rotation, a wrong order of the heads or an untied embedding would be nats off."""
    cursor, asked = Cursor(unquantised), []
    for question in mixed(4):
        text = prompt = unquantised.render([Message("user", question)])
        for _ in range(12):
            text += (cursor.row(text).best,)
        asked.append(ScoreQuestion(prompt, text[len(prompt) :], True, 20))

    async def score():
        async with connected(over_vllm, unquantised) as (endpoint, can):
            assert (can.dialect, can.same_words) == ("vllm", True)
            return [await endpoint.score(question, uuid.uuid4().hex) for question in asked]

    worst = 0.0
    for question, scores in each_of(zip(asked, asyncio.run(score()), strict=True)):
        assert len(scores.rows) == question.num_rows
        for i, row in enumerate(scores.rows):
            expected = cursor.row(question.prefix + question.span[:i])
            likely = expected.probs[row.ids] >= 1e-3
            worst = max(worst, np.abs(row.logprobs - expected.logprobs[row.ids])[likely].max())
    print(f"at most {worst:.4f} nats off")
    assert worst <= tolerance().nats


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_the_converted_template_writes_a_conversation_as_the_file_does(over_vllm, unquantised):
    told = [("user", "Hi, 12 é?"), ("assistant", "Hello."), ("user", "Why is the sky blue?")]
    for turns in (told[2:], told[1:], [("system", "Be brief."), *told[2:]]):
        messages = [{"role": role, "content": content} for role, content in turns]
        reply = httpx.post(
            f"{over_vllm}/tokenize", json={"model": "large", "messages": messages}, trust_env=False, timeout=60
        )
        assert tuple(reply.json()["tokens"]) == unquantised.render([Message(*turn) for turn in turns])
