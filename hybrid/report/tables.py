"""How rows of figures become tables: a cell at a path, an estimate with its interval, a dash for what is undefined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hybrid.report import Table

Cell = Callable[[Any], str]
"""Writes one cell of a row."""


def table_of(title: str, rows: Iterable[Any], columns: Mapping[str, Cell], titles: Iterable[str] = ()) -> Table:
    """Return a table of rows, a cell of each by its column's title. ``titles``: others, in the columns' order."""
    cells = [tuple(cell(row) for cell in columns.values()) for row in rows]
    return Table(title, tuple(titles or columns), cells)


def at(*path: Any, form: str = "") -> Cell:
    """Write what stands at a path; a dash where it is undefined."""

    def cell(row: Any) -> str:
        for key in path:
            row = row[key]
        return "-" if row is None else format(row, form)

    return cell


def with_interval(*path: Any, digits: int = 2) -> Cell:
    """Write the estimate at a path."""

    def cell(row: Any) -> str:
        for key in path:
            row = row[key]
        return estimate(row, digits)

    return cell


def estimate(told: dict[str, Any] | None, digits: int = 2) -> str:
    """Write a value with its interval; a dash where it is undefined."""
    if told is None or told["value"] is None:
        return "-"
    low, high = ("?" if told[end] is None else f"{told[end]:.{digits}f}" for end in ("low", "high"))
    return f"{told['value']:.{digits}f} ({low} to {high})"
