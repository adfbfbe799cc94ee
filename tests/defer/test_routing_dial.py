"""The dials of whole questions, against every cut-off that there is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sent_questions import is_sent

from hybrid.defer import QuestionCosts

ABOVE_0 = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
ROWS = st.lists(st.tuples(ABOVE_0, ABOVE_0, ABOVE_0, ABOVE_0), min_size=1, max_size=7)


def questions(rows: list[tuple[float, ...]]) -> QuestionCosts:
    return QuestionCosts(*(np.array(column) for column in zip(*rows, strict=True)))


def reachable(asked: QuestionCosts, weights: Any) -> list[float]:
    """Every share of the weight that some worth sends, by trying one in each gap wider than rounding."""
    turns = sorted(asked.mean_excess * asked.expected / asked.told / asked.paid.mean())
    between = [turns[0] / 2, *((a + b) / 2 for a, b in pairwise(turns) if a < b * (1 - 1e-9)), 2 * turns[-1]]
    return [float(weights[is_sent(asked, worth)].sum() / weights.sum()) for worth in between]


@given(ROWS, st.floats(0.0, 1.0))
def test_no_other_worth_comes_nearer_to_what_was_asked(rows: list[tuple[float, ...]], share: float) -> None:
    asked = questions(rows)
    got = float(asked.paid[is_sent(asked, asked.worth_at_bill(share))].sum() / asked.paid.sum())
    nearest = min(abs(each - share) for each in reachable(asked, asked.paid))
    assert abs(got - share) == pytest.approx(nearest, abs=1e-12)


@given(ROWS, ABOVE_0, ABOVE_0)
def test_a_dial_depends_on_no_unit(rows: list[tuple[float, ...]], nats: float, money: float) -> None:
    """The worth is a multiple of a price: dollars or tokens, nats or bits, the same questions are sent."""
    asked = questions(rows)
    other = QuestionCosts(asked.told * nats, asked.excess * nats, asked.expected * money, asked.paid * money)
    assert other.worth_at_bill(0.5) == pytest.approx(asked.worth_at_bill(0.5))


def test_the_order_is_the_loss_per_price_not_the_loss() -> None:
    """The second loses most, but twice as much is lost for the same money by two others."""
    asked = questions([(1.0, 1.0, 1.0, 1.0), (1.5, 1.5, 3.0, 3.0), (1.0, 1.0, 1.0, 1.0), (0.1, 0.1, 1.0, 1.0)])
    assert is_sent(asked, asked.worth_at_bill(2 / 6)).tolist() == [True, False, True, False]


def test_a_draft_that_is_told_to_lose_nothing_is_sent_by_no_worth() -> None:
    asked = questions([(1.0, 1.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0)])
    assert is_sent(asked, asked.worth_at_bill(1.0)).tolist() == [True, False]


@pytest.mark.parametrize("rows", [[], [(0.0, 1.0, 1.0, 1.0)], [(1.0, 0.0, 1.0, 1.0)], [(1.0, 1.0, 0.0, 1.0)]])
def test_where_nothing_can_be_told_that_is_said(rows: list[tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="a dial needs"):
        QuestionCosts(*(np.array(column) for column in (zip(*rows, strict=True) if rows else [[]] * 4)))
