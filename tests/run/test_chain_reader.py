"""A chain over the bundled models: its rows, what it decodes, who wrote what, and its trace."""

from __future__ import annotations

import json
import random

import anyio
import numpy as np
import pytest
from cases import each_of

import hybrid
from hybrid.cli.show import summary
from hybrid.engine import Cursor, never
from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.policy.requests import Check, PendingToken
from hybrid.record.events import SpanDrafted, SpanRead, to_json
from hybrid.run.replay import replay
from hybrid.run.verifier import ChainReader
from hybrid.settings.names import MODELS

CHAIN = "small*4>mid"
QUESTION = "What is 470 + 386?"
# Batches of other shapes sum rounded numbers in another order.
NEAR = 0.05


@pytest.fixture(scope="module")
def weights():
    loaded = Weights(MODELS / "mid.gguf")
    yield loaded
    loaded.close()


@pytest.fixture
def engines(weights):
    opened = [weights.context(256, 1, in_turn=False) for _ in range(2)]
    yield opened
    for engine in opened:
        engine.close()


class Counted(Cursor):
    """A cursor that counts what it decodes."""

    decoded = 0

    def _extend(self, ids, num_rows, cancelled):
        self.decoded += len(ids)
        return super()._extend(ids, num_rows, cancelled)


def span_of(tokens):
    return tuple(PendingToken(token, "local", "unchecked") for token in tokens)


def test_after_any_history_its_rows_are_a_fresh_contexts_and_no_token_that_stands_is_decoded_twice(engines):
    rng, prompt = random.Random(0), tuple(engines[0].tokenize(QUESTION))
    cursor, fresh = Counted(engines[0]), Cursor(engines[1])
    level, at, rejected = ChainReader(cursor, prompt), (), 0
    for _ in range(12):
        drafted = tuple(rng.randrange(300) for _ in range(rng.randint(0, 4)))
        rows = level.check(Check(at, span_of(drafted)), never)
        for i, row in each_of(enumerate(rows)):
            fresh.rewind(0)
            own = fresh.rows(prompt + at + drafted[:i], 1)[0]
            assert np.abs(row.logprobs - own.logprobs).max() < NEAR
        kept = rng.randint(0, len(drafted))
        rejected += len(drafted) - kept
        at += drafted[:kept] + ((rng.randrange(300),) if rng.random() < 0.7 else ())
    assert cursor.decoded <= len(prompt) + len(at) + rejected
    level.rewind_to(at[:2])
    assert engines[0].ids == prompt + at[:2]


def test_a_chain_writes_the_largest_models_text_and_says_who_wrote_what():
    with hybrid.open(local="mid", offline=True, policy="local", max_tokens=40) as client:
        alone = client.generate(QUESTION)
    with hybrid.open(local=["small", "mid"], chain=CHAIN, offline=True, policy="local", max_tokens=40) as client:
        events = list(client.stream(QUESTION))
    answer = events[-1].answer
    assert (answer.text, {token.model for token in alone.tokens}) == (alone.text, {"mid"})
    assert answer.usage.written_by.keys() == {"small", "mid"}
    assert sum(answer.usage.written_by.values()) == len(answer.tokens) == answer.usage.local_tokens
    assert answer.usage.written_by["small"] > answer.usage.written_by["mid"]
    counts = answer.usage.written_by
    assert f"by small {counts['small']}, mid {counts['mid']}" in summary(answer)
    read = [event for event in events if isinstance(event, SpanRead)]
    assert {event.level for event in read} == {1}
    assert sum(event.num_tokens for event in read) == sum(len(e.ids) for e in events if isinstance(e, SpanDrafted))


@pytest.mark.parametrize("chain", ["small>mid", "small*2>mid", "mid", "small"])
def test_a_named_chain_is_the_one_that_writes(chain):
    with hybrid.open(local=["small", "mid"], chain=chain, offline=True, policy="local", max_tokens=24) as client:
        answer = client.generate(QUESTION)
    assert set(answer.usage.written_by) <= set(chain.replace("*2", "").split(">"))
    assert (" stages=" in answer.policy) == (">" in chain)


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        ("large>mid", "--chain large>mid: of the local models that are loaded (small, mid) none is called 'large'"),
        ("mid>small", "--chain mid>small: small does not stand above mid: the order is small>mid"),
        ("small>mid*2", "--chain small>mid*2: mid is the last and drafts for no other model, so it has no *2"),
        ("small*0>mid", "--chain small*0>mid: '0' is no number of tokens between 1 and 16"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_in_a_sentence(chain, told):
    with pytest.raises(UsageError) as refused, hybrid.open(local=["small", "mid"], chain=chain, offline=True) as client:
        client.generate(QUESTION)
    assert str(refused.value) == told


def test_a_chain_of_a_model_that_max_active_leaves_out_is_refused_as_not_loaded():
    said = r"of the local models that are loaded \(mid\) none is called 'small'"
    with (
        pytest.raises(UsageError, match=said),
        hybrid.open(local=["small", "mid"], chain="small>mid", max_active=1, offline=True),
    ):
        pass


def test_no_model_drafts_for_itself():
    with pytest.raises(UsageError, match="local: small is named twice, and no model drafts for itself"):
        hybrid.open(local=["small", "mid", "small"], offline=True)


def test_models_of_other_vocabularies_form_no_chain():
    with pytest.raises(UsageError, match="384 and 512 tokens: models that read one text need one vocabulary"):
        hybrid.open(local=["alien", "mid"], offline=True).__enter__()


@pytest.mark.parametrize("choices", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "sampled"])
def test_a_chains_trace_is_replayed(tmp_path, choices):
    path = tmp_path / "trace.jsonl"
    with hybrid.open(
        local=["small", "mid"], chain=CHAIN, offline=True, policy="local", max_tokens=24, **choices
    ) as client:
        events = [*client.stream(QUESTION, trace_rows=True)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in ({"trace": 5}, *map(to_json, events))))
    answer = events[-1].answer
    again = anyio.run(replay, path)
    assert [(t.id, t.model, t.how) for t in again.tokens] == [(t.id, t.model, t.how) for t in answer.tokens]


@pytest.mark.slow
def test_where_checks_cost_more_than_the_cloud_alone_it_writes_alone_and_the_text_is_the_same():
    flags = {"local": ["small", "mid"], "chain": "cheap", "policy": "greedy-exact", "ledger": "none", "price": "5/5/1"}
    with hybrid.open(**flags, max_tokens=70) as client:
        answers = [client.generate(QUESTION)]
        # No other chain before 400 tokens of each pair were compared: half of an answer's where the best span is 1.
        while answers[-1].usage.checks and len(answers) < 40:
            answers.append(client.generate(QUESTION))
    first, last = answers[0], answers[-1]
    assert (first.usage.checks > 0, last.usage.checks, last.usage.local_tokens) == (True, 0, 0)
    assert first.text == last.text
    assert last.bill.nanousd < first.bill.nanousd
