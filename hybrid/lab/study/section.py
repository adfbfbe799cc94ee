"""A section of a study's report, as a value. Its files import this; ``sections`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hybrid.lab.experiments.grid import Grid, Record
from hybrid.lab.study.design import Design
from hybrid.report import Document


class Section(NamedTuple):
    """A part of a report.

    ``grids``: what is run for it; grids of equal content are run once. ``report``: plain data, every number with its n
    and its interval, from the records of each grid. ``document``: made of that data alone. ``options``: the names in a
    design's table ``[options]`` that it reads. ``needs_rows``: whether an endpoint, which shows texts, cannot serve it.
    """

    name: str
    title: str
    grids: Callable[[Design], tuple[Grid, ...]]
    report: Callable[[Design, Sequence[Grid], Sequence[Sequence[Record]]], dict[str, Any]]
    document: Callable[[dict[str, Any]], Document]
    options: tuple[str, ...] = ()
    needs_rows: bool = True
