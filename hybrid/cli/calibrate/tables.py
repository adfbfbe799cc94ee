"""A calibration on a terminal. The sentences and figures stand in ``hybrid.tune.report``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hybrid.errors import escape_controls
from hybrid.tune.calibrating import CalibratedPair
from hybrid.tune.drafters import choose_drafter, nats_left
from hybrid.tune.report import ReportTable, drafters, headline, proposals, tables

WIDEST = 400


def calibration(pairs: Sequence[CalibratedPair]) -> Group:
    """Lay out what is proposed for each pair, and what was found."""
    parts: list[RenderableType] = [Text(escape_controls(headline(pairs)), "bold"), Text()]
    if len(pairs) > 1:
        parts += _table(drafters(pairs))
    for pair in pairs:
        if len(pairs) > 1:
            parts.append(Text(f"{escape_controls(pair.drafter)}\n", "bold"))
        parts += [*(Text(escape_controls(said)) for said in proposals(pair)), Text()]
        for each in tables(pair):
            parts += _table(each)
    return Group(*parts)


def to_json(pairs: Sequence[CalibratedPair]) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    choice = choose_drafter(pairs)
    told = [pair.to_json() | {"nats_left": nats_left(pair)} for pair in pairs]
    return {"pairs": told, "take": choice.best.drafter, "sure": choice.share}


def _table(shown: ReportTable) -> list[RenderableType]:
    table = Table(
        title=Text(shown.heading, "bold"), title_justify="left", header_style="bold", box=SIMPLE, pad_edge=False
    )
    for number, column in enumerate(shown.columns):
        table.add_column(Text(column), justify="right" if number else "left", no_wrap=True)
    for row in shown.rows:
        table.add_row(*map(escape_controls, row))
    # A figure is never shortened: a narrow terminal breaks the lines instead.
    wide = Console(width=WIDEST)
    table.width = Measurement.get(wide, wide.options, table).maximum
    return [table, *(Text(escape_controls(note), "dim") for note in shown.notes), Text()]
