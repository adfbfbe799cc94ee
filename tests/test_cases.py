"""``each`` runs every input, gives what pytest gives, and names the input that failed."""

from __future__ import annotations

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

SEEN = []


@each("second", "ab")
@each(("first", "more"), [(1, 2), (3, 4)], ids=["one", "two"])
def test_every_pair_of_inputs_is_run(first, more, second, tmp_path):
    assert tmp_path.exists()
    SEEN.append((second, first, more))


def test_they_were_run_in_order():
    if SEEN:  # the test before ran in this process
        assert SEEN == [("a", 1, 2), ("a", 3, 4), ("b", 1, 2), ("b", 3, 4)]


@pytest.mark.parametrize("bad", [0, 2])
def test_the_first_that_fails_is_named_and_ends_it(bad):
    seen = []

    @each("number", range(4), ids=lambda number: f"<{number}>")
    def run(number):
        seen.append(number)
        assert number != bad

    with pytest.raises(AssertionError) as caught:
        run()
    assert caught.value.__notes__ == [f"input {bad}: number = <{bad}>"]
    assert seen == list(range(bad + 1))


def test_a_failure_that_is_no_exception_is_named_as_well():
    @each("number", [7])
    def run(number):
        with pytest.raises(ZeroDivisionError):
            pass

    with pytest.raises(pytest.fail.Exception) as caught:
        run()
    assert caught.value.__notes__ == ["input 0: number = 7"]


@each("low", [0, 5])
@given(number=st.integers(0, 9))
def test_a_property_holds_for_each_input(low, number):
    assert low <= low + number


def test_a_test_of_no_inputs_is_an_error():
    with pytest.raises(ValueError, match="no inputs for number"):
        each("number", [])
