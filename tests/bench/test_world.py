"""The world is the client over the bundled server, and keeping rows changes none of them. On the bundled pair."""

from __future__ import annotations

import asyncio
from contextlib import closing

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.engine import Interrupted
from hybrid.engine.llama import Weights
from hybrid.errors import ContextOverflow
from hybrid.lab.arms import Arm, draw_balanced
from hybrid.lab.experiments.memo import MemoEngine
from hybrid.lab.experiments.served import compare_with_client, is_sampled, open_driver
from hybrid.lab.experiments.world import open_world
from hybrid.types import Sampling

QUESTIONS = [problem.question for problem in draw_balanced(14, "test", 0)]
ARMS = (
    Arm("cloud", "cloud"),
    Arm("local", "local"),
    Arm("kl", "kl", {"span": 4}),
    Arm("doubt", "doubt", {"entropy": 0.1}),
    Arm("paper", "paper"),
    Arm("fsd", "fsd"),
    Arm("random", "random"),
)
GREEDY = (*ARMS, Arm("greedy-exact", "greedy-exact"), Arm("bild", "bild"))
DRAWN = (*ARMS, Arm("exact", "exact"), Arm("block", "block"), Arm("u-hlm", "u-hlm"))


@pytest.fixture(scope="module")
def weights():
    with closing(Weights(BUNDLED_LOCAL)) as loaded:
        yield loaded


@pytest.fixture
def memo(weights):
    """An engine that keeps rows, and one that does not."""
    with closing(MemoEngine(weights.context(256, 1))) as engine, closing(weights.context(256, 1)) as fresh:
        yield engine, fresh


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "temperature"), [(GREEDY, 0.0), (DRAWN, 1.0)])
def test_texts_requests_and_bills_are_those_of_the_client_over_the_bundled_server(arms, temperature):
    """Both models of the pair are read in batches of the same shapes, so not one near tie may fall otherwise."""

    async def reports():
        async with (
            open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world,
            open_driver(BUNDLED_LOCAL, BUNDLED_CLOUD) as served,
        ):
            found = []
            for seed, question in enumerate(QUESTIONS[:2]):
                for arm in arms:
                    sampling = Sampling(temperature, seed=seed)
                    answered = await world.answer(question, arm, sampling, 48)
                    assert answered.answer.degraded is None
                    found.append(await compare_with_client(served, world, question, arm, sampling, answered, 48))
                world.forget()
            return found

    found = asyncio.run(reports())
    same = [report["text"] and report["requests"] and report["bill"] for report in found]
    near = [report for report in found if report.get("gap", 1.0) <= tolerance().gap]
    assert sum(same) + len(near) == len(found), [report for report in found if not report["text"]]
    assert len(near) <= 1, near


def test_a_rule_that_comes_later_reads_nothing_twice():
    async def decoded():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            counts = []
            for arm in (ARMS[0], GREEDY[-2], ARMS[0], GREEDY[-2]):
                answered = await world.answer(QUESTIONS[0], arm, Sampling(), 32)
                counts.append((world.local.num_decoded, world.cloud.num_decoded))
                world.loss(answered)
            return counts

    counts = asyncio.run(decoded())
    assert counts[0][1] > 0
    assert counts[1] == counts[2] == counts[3], "the same two rules again"


def test_the_clouds_greedy_text_has_no_excess_loss_and_a_text_is_judged_with_the_token_that_ended_it():
    async def losses():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            cloud = await world.answer(QUESTIONS[0], ARMS[0], Sampling(), 240)
            local = await world.answer(QUESTIONS[0], ARMS[1], Sampling(), 3)
            return world, cloud, world.loss(cloud), local, world.loss(local)

    _, cloud, of_cloud, local, of_local = asyncio.run(losses())
    assert cloud.ended
    assert len(of_cloud.nll) == len(cloud.ids) + 1
    assert not local.ended
    assert len(of_local.nll) == len(local.ids) == 3
    assert np.all(of_cloud.excess == 0.0)
    assert np.all(of_cloud.nll >= 0.0)
    assert np.all(of_local.excess <= of_local.nll)


def test_a_row_is_a_fresh_contexts_whatever_was_read_before(memo, weights, agree):
    """Read in one go, to the bit; in another order, within the model's noise."""
    from hybrid.prob import Dense

    engine, fresh = memo
    first, second = weights.tokenize("What is 12 + 30? It is 42."), weights.tokenize("What is 12 + 31?")
    expected = fresh.extend(first, len(first))
    assert np.array_equal(engine.extend(first, len(first)), expected)
    engine.rewind(4)
    engine.extend(second[4:], 2)
    engine.rewind(4)
    decoded = engine.num_decoded
    assert np.array_equal(engine.extend(first[4:], len(first) - 4), expected[4:])
    assert engine.num_decoded == decoded, "they were kept"
    engine.forget()
    engine.rewind(0)
    again = engine.extend(first, 1)[0]
    assert agree(Dense.from_logits(again), Dense.from_logits(expected[-1]))


def test_with_a_prompt_at_once_a_row_is_to_the_bit_that_of_a_draft_token_by_token(memo, weights):
    engine, fresh = memo
    text = weights.tokenize("What is 12 + 30? It is 42.")
    fresh.extend(text[:9], 1)
    expected = {n: fresh.extend((text[n - 1],), 1)[0] for n in range(10, len(text) + 1)}
    engine.together = 9
    engine.extend(text, 2)  # in one call, as what the cloud wrote is read
    engine.rewind(9)
    for n, row in each_of(zip(expected, engine.extend(text[9:], len(text) - 9), strict=True)):
        assert np.array_equal(row, expected[n]), n
    engine.rewind(0)
    engine.extend((*text[:11], 5), 1)  # away, and back to a place whose tokens are no longer in the cache
    engine.rewind(0)
    engine.forget()
    assert np.array_equal(engine.extend(text, 1)[0], expected[len(text)])


def test_no_more_rows_are_kept_than_were_allowed(weights):
    with closing(MemoEngine(weights.context(64, 1), max_rows=5)) as engine:
        text = weights.tokenize("What is 12 + 30?")
        engine.extend(text, len(text))
        decoded = engine.num_decoded
        engine.rewind(0)
        engine.extend(text, 3)
        assert engine.num_decoded == decoded, "the last are kept"
        engine.rewind(0)
        engine.extend(text[:2], 1)
        assert engine.num_decoded > decoded, "the first are not"


def test_an_engine_that_keeps_rows_refuses_what_any_engine_refuses(memo):
    engine, _ = memo
    with pytest.raises(ContextOverflow, match="257 tokens do not fit"):
        engine.extend((5,) * 257)
    with pytest.raises(Interrupted):
        engine.extend((5,), 1, lambda: True)
    assert engine.ids == ()


def test_the_checked_share_is_decided_by_words():
    arm = Arm("kl", "kl")
    chosen = [is_sampled(f"question {i}", arm, 0.25) for i in range(2000)]
    assert chosen == [is_sampled(f"question {i}", arm, 0.25) for i in range(2000)]
    assert 400 < sum(chosen) < 600
    assert not any(is_sampled(f"question {i}", arm, 0.0) for i in range(50))
