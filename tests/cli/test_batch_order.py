"""Lines that are finished in any order come out in theirs: all orders of six lines, and a buffer that fills up."""

from __future__ import annotations

from itertools import permutations

import pytest
from cases import each_of

from hybrid.batch.output_lines import ReorderBuffer


def drained(order, number):
    """Finish a line and take out what may go."""
    order.finish(number, f"answer {number}")
    ready = order.ready()
    order.release()
    return [each for each, _ in ready]


@pytest.mark.parametrize("places", [1, 2, 3, 6])
def test_in_whatever_order_lines_are_finished_they_come_out_in_theirs_each_as_soon_as_it_may(places):
    """Numbers have gaps, as blank lines leave them. At any time so many are begun as there are places."""
    numbers = [2, 3, 5, 6, 9, 10]
    for wanted in each_of(permutations(numbers)):
        order, todo, running, out, finished = ReorderBuffer(len(numbers)), iter(numbers), [], [], set()
        while len(finished) < len(numbers):
            while len(running) < places and (begun := next(todo, None)) is not None:
                order.begin(begun)
                running.append(begun)
            number = min(running, key=wanted.index)
            running.remove(number)
            finished.add(number)
            out += drained(order, number)
            due = next((i for i, each in enumerate(numbers) if each not in finished), len(numbers))
            assert out == numbers[:due]
        assert out == numbers


def test_what_a_line_came_to_comes_out_with_it():
    order = ReorderBuffer(8)
    for number in (1, 2):
        order.begin(number)
    order.finish(2, "two")
    assert order.ready() == []
    order.finish(1, "one")
    assert order.ready() == [(1, "one"), (2, "two")]
    assert order.ready() == [(1, "one"), (2, "two")], "until they are released: they may fail to be written"


def test_behind_a_line_that_takes_long_so_many_are_begun_and_no_more():
    order = ReorderBuffer(3)
    for number in range(1, 4):
        assert not order.is_full
        order.begin(number)
    assert order.is_full
    order.finish(3, "")
    order.finish(2, "")
    assert order.is_full, "finished lines that wait take up room, too"
    assert drained(order, 1) == [1, 2, 3]
    assert not order.is_full


def test_a_line_is_finished_once_and_only_after_it_was_begun():
    order = ReorderBuffer(3)
    order.begin(4)
    order.begin(4)
    with pytest.raises(ValueError, match="line 5 is not being answered"):
        order.finish(5, "")
    order.begin(5)
    order.finish(5, "")
    with pytest.raises(ValueError, match="line 5 is not being answered"):
        order.finish(5, "")
    assert drained(order, 4) == [4, 5]
    with pytest.raises(ValueError, match="line 4 is not being answered"):
        order.finish(4, "")
