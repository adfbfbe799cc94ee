"""A local model with recurrent layers, through the whole client: what is decoded ahead changes nothing but the time.

The engine is llama.cpp's over random weights; its first eight tokens are the house's words.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise, product

import numpy as np
import pytest
from cases import each, each_of
from recurrent_shapes import TINY_RECURRENT
from scripted_engine import ScriptedEngine

from hybrid.engine.llama import Weights
from hybrid.lab.speed.random_model import write_random_model
from hybrid.policy import PRESETS
from hybrid.run import Finished, RequestSent, SpanDrafted

PROMPT, MAX_TOKENS, SPAN = "a b c a d e a b f g c a", 24, 4
# A mixed model and a purely recurrent one.
KINDS = ("falcon-h1", "mamba2")
# As in test_overlap.
WHOLE = ("kl", "doubt", "greedy-exact", "paper", "exact", "u-hlm")
BOUNDED = {"random", "u-hlm", "relaxed", "cascade"}


class EightWords(ScriptedEngine):
    """The scripted vocabulary over the rows of a real context."""

    def __init__(self, context, words, _, **more):
        super().__init__(words, _, **more)
        self.context, self.num_decoded = context, 0
        self.has_exact_rewind = context.has_exact_rewind
        self.unlikely_end = np.float32([0, 0, 0, 0, 0, 0, 0, 4])

    @property
    def ids(self):
        return self.context.ids

    def extend(self, ids, num_rows=1, cancelled=lambda: False):
        scores = self.context.extend(ids, num_rows, cancelled)
        self.num_decoded = self.context.num_decoded
        return scores[:, : self.num_tokens] - self.unlikely_end

    def rewind(self, length):
        self.context.rewind(length)

    def settle(self, length):
        self.context.settle(length)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    loaded = {kind: Weights(write_random_model(folder / f"{kind}.gguf", TINY_RECURRENT[kind])) for kind in KINDS}
    yield loaded
    for each_of_them in loaded.values():
        each_of_them.close()


@pytest.fixture(scope="module")
def similar(weights):
    """A table of scores that are much like the local model's; a prefix has the same ones whenever it comes."""
    known = {}

    def table(kind):
        context = weights[kind].context(512, 1)

        def scores(prefix):
            if (kind, prefix) not in known:
                context.rewind(0)
                own = np.random.default_rng([len(prefix), *prefix]).standard_normal(8)
                known[kind, prefix] = context.extend(prefix)[0][:8] + own - [0, 0, 0, 0, 0, 0, 0, 4]
            return known[kind, prefix]

        return scores

    return table


@pytest.fixture
def answer(house, run, weights, similar):
    """Ask once; return all that must not depend on overlap, what was ready, and the tokens that were decoded."""

    def ask(kind, prompt=PROMPT, **choices):
        context = weights[kind].context(512, 1)
        h = house(made=lambda *given, **more: EightWords(context, *given, **more))
        h.cloud._scores = similar(kind)
        score = h.cloud.score

        async def slow_score(question, *attempt):
            await asyncio.sleep(0.001)  # the check is sent before drafting goes on
            await h.worker.do(lambda _: None)  # until all that can be decoded ahead has been
            return await score(question, *attempt)

        h.cloud.score = slow_score
        events = run(gather(h.client, prompt, max_tokens=MAX_TOKENS, span=SPAN, **choices))
        told = next(event.answer for event in events if isinstance(event, Finished))
        sent = [(e.kind, e.position, e.num_tokens, e.reserved_nanousd) for e in events if isinstance(e, RequestSent)]
        drafts = [event for event in events if isinstance(event, SpanDrafted)]
        same = (told.text, told.tokens, told.usage, told.bill, told.handoffs, told.degraded, sent)
        ready, decoded = sum(d.num_ready for d in drafts), h.engine.num_decoded
        context.close()
        return (*same, [(d.position, d.ids) for d in drafts]), ready, decoded

    return ask


async def gather(client, prompt, **choices):
    return [event async for event in client.stream(prompt, **choices)]


@pytest.mark.parametrize(
    ("kinds", "policies"),
    [(KINDS[:1], WHOLE), pytest.param(KINDS, tuple(PRESETS), marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_overlap_changes_no_text_no_request_and_no_bill(answer, kinds, policies):
    ahead = 0
    for kind, policy, is_lax in each_of(product(kinds, policies, (False, True))):
        choices = {"policy": policy, "temperature": 0.0 if policy == "greedy-exact" else 1.0, "seed": 3}
        choices["threshold"] = 0.3 if not is_lax else 1.0 if policy in BOUNDED else float("inf")
        expected, none, _ = answer(kind, overlap=False, **choices)
        got, ready, _ = answer(kind, overlap=True, **choices)
        assert none == 0
        assert got == expected, (kind, choices)
        ahead += ready
    assert ahead > 20


@each("kind", KINDS)
def test_a_rejection_does_not_read_the_text_again(answer, weights, kind, monkeypatch):
    """Without states it does: a prompt of 120 tokens, for every rejection."""
    choices = {"policy": "greedy-exact", "overlap": False, "prompt": " ".join("abcdefbc"[i % 8] for i in range(120))}
    found, _, few = answer(kind, **choices)
    with monkeypatch.context() as patch:
        patch.setattr(weights[kind], "_restores_exactly", False)
        _, _, many = answer(kind, **choices)
    # The last drafted token is not decoded: where only that is rejected, nobody goes back.
    num_back = sum(after <= at + len(span) - 1 for (at, span), (after, _) in pairwise(found[7]))
    assert num_back >= 3
    assert many - few > 100 * num_back
    assert few < 120 + found[2].drafted + len(found[7]) + 4 * num_back
