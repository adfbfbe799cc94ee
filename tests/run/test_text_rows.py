"""A text and both models' rows along it: whose text, whose rows, what it cost, and what is left behind."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each

from hybrid.errors import AccessDenied, Unreachable
from hybrid.policy.requests import BudgetDenied, NoAnswer
from hybrid.prob import Dense, TopK

PROMPT = "a b c"
END = 7


def same(found, scores, text, prompt):
    """Whether rows are those of a table along a text."""
    for place, row in enumerate(found):
        dense = Dense.from_logits(np.array(scores(prompt + text[:place]), dtype=np.float64))
        known = row.ids if isinstance(row, TopK) else np.arange(row.num_tokens)
        assert np.allclose(row.logprobs, dense.logprobs_of(known), atol=1e-5), place


@each("writer", ["local", "cloud"])
@each("max_tokens", [1, 5, 40])
def test_the_text_is_the_writers_own_and_each_row_is_that_models_at_its_place(house, run, writer, max_tokens):
    h = house()
    found = run(h.client.text_rows(PROMPT, writer, max_tokens=max_tokens))
    own = h.small(max_tokens) if writer == "local" else h.large(max_tokens)
    assert tuple(token for token in found.tokens if token != END) == own
    assert found.ended == (len(own) < max_tokens)
    assert found.tokens[len(own) :] == ((END,) if found.ended else ())
    assert len(found.local) == len(found.cloud) == len(found.tokens)
    same(found.local, h.tables[0], found.tokens, h.prompt)
    same(found.cloud, h.tables[1], found.tokens, h.prompt)
    assert found.failed is None
    assert len(h.cloud.questions) == 1
    assert found.nanousd == h.ledger.settled_nanousd == sum(map(h.price.cost, h.cloud.charged.values()))
    assert h.client.spent.nanousd == found.nanousd
    assert h.ledger.reserved_nanousd == h.cloud.num_open == 0
    assert h.engine.ids == h.prompt[: len(h.engine.ids)], "no token that nobody was shown stays in the cache"


def test_where_a_draft_cannot_be_scored_nothing_is_asked_and_what_is_written_still_brings_its_rows(house, run):
    h = house(can={"scoring_method": None})
    draft = run(h.client.text_rows(PROMPT, "local", max_tokens=5))
    assert (draft.cloud, draft.failed, draft.nanousd) == ((), None, 0)
    assert not h.cloud.questions
    assert len(run(h.client.text_rows(PROMPT, "cloud", max_tokens=5)).cloud) == 5
    rowless = house(rows=False)
    assert run(rowless.client.text_rows(PROMPT, "cloud", max_tokens=5)).cloud == ()


def test_a_text_is_paid_for_whole_or_not_begun(house, run):
    """A shortened one would be taken for the cloud's own answer."""
    whole = 3 * 1_000 + 5 * 4_000
    h = house(cap=whole)
    found = run(h.client.text_rows(PROMPT, "cloud", max_tokens=5))
    assert found.failed is None
    assert found.nanousd <= whole
    h = house(cap=whole - 1)
    found = run(h.client.text_rows(PROMPT, "cloud", max_tokens=5))
    assert isinstance(found.failed, BudgetDenied)
    assert not h.cloud.questions
    assert run(h.client.generate(PROMPT, policy="cloud", max_tokens=5)).usage.cloud_requests == 1, (
        "an answer is lowered"
    )


@each("writer", ["local", "cloud"])
@each("after", [0, 2])
def test_a_cloud_that_fails_leaves_its_reason_and_nothing_open(house, run, writer, after):
    h = house(fault=lambda _: Unreachable("it is away"), fault_after=after)
    found = run(h.client.text_rows(PROMPT, writer, max_tokens=5))
    assert isinstance(found.failed, NoAnswer)
    assert "it is away" in found.failed.why
    assert found.cloud == ()
    assert h.cloud.num_open == 0


def test_a_refusal_is_raised(house, run):
    h = house(fault=lambda _: AccessDenied("no entry"))
    for writer in ("local", "cloud"):
        with pytest.raises(AccessDenied, match="no entry"):
            run(h.client.text_rows(PROMPT, writer, max_tokens=5))
    with pytest.raises(AccessDenied, match="no key"):
        run(house(connect=AccessDenied("no key")).client.text_rows(PROMPT, "local"))
