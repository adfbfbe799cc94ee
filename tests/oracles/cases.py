"""Many inputs in one test case: a loop with the look of ``parametrize``, for laws that are quick on each input.

pytest counts, sets up and reports every parametrized case apart, which costs more than most of these laws. A failure
names its input as a note below the assertion. The inputs share the test's fixtures: a test that changes ``tmp_path`` or
``monkeypatch`` in a way that the next input would see stays with ``parametrize``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item")


def each_of(items: Iterable[Item], *, least: int = 1) -> Iterator[Item]:
    """Yield the items of a loop that asserts. Raises AssertionError where fewer came than ``least``.

    Of nothing everything holds. With ``least=0`` it may be of nothing, in a test that asserts something beside it.
    """
    number = 0
    for number, item in enumerate(items, start=1):  # noqa: B007  (how many there were)
        yield item
    assert number >= least, f"{number} came, so nothing was asserted of the others"


def each(
    names: str | Sequence[str], inputs: Iterable[Any], ids: Callable[[Any], Any] | Sequence[Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test once for each input, in order, and stop at the first that fails; ``names`` as in ``parametrize``."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [(value,) if len(wanted) == 1 else tuple(value) for value in inputs]
    if not rows:
        msg = f"no inputs for {names}: the test would hold of nothing"
        raise ValueError(msg)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test, updated=())  # a wrapped Hypothesis test is none itself
        def run(**fixtures: Any) -> None:
            for number, row in enumerate(rows):
                try:
                    test(**fixtures, **dict(zip(wanted, row, strict=True)))
                except BaseException as error:  # a failure of pytest is no Exception
                    error.add_note(f"input {number}: {_said(wanted, row, ids, number)}")
                    raise

        own = inspect.signature(test)
        left = [parameter for name, parameter in own.parameters.items() if name not in wanted]
        run.__signature__ = own.replace(parameters=left)  # what pytest gives: the fixtures
        run.pytestmark = list(getattr(test, "pytestmark", []))
        if getattr(test, "is_hypothesis_test", False):
            run.pytestmark.append(pytest.mark.hypothesis)  # which its plugin gives to those it sees
        return run

    return decorate


def _said(names: list[str], row: tuple[Any, ...], ids: Any, number: int) -> str:
    if callable(ids):
        return ", ".join(f"{name} = {ids(value)}" for name, value in zip(names, row, strict=True))
    if ids is not None:
        return str(list(ids)[number])
    return ", ".join(f"{name} = {value!r}"[:400] for name, value in zip(names, row, strict=True))
