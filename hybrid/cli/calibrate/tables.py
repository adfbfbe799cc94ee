"""A calibration on a terminal. The sentences and figures stand in ``hybrid.tune.report``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hybrid.errors import escape_controls
from hybrid.tune.calibrating import CalibratedPair, choose_drafter, nats_left
from hybrid.tune.report import ReportTable, drafters, headline, plain, proposals, tables

WIDEST = 400


@dataclass(frozen=True)
class CalibrationInForce:
    """Whether a calibration is ``used``, which one is ``in_force``, and which was before it (None: none)."""

    used: bool
    in_force: str
    before: str | None

    def __str__(self) -> str:
        """Say it in one sentence, with the way back."""
        if not self.used:
            return f"In force stays {self.in_force}: this one knows fewer questions, and --use takes it all the same."
        way = "hybrid calibrate --back with the same --local and --cloud takes that back"
        back = "" if self.before is None else f"; before it was {self.before}, and {way}"
        return f"In force is {self.in_force}{back}."


def calibration(pairs: Sequence[CalibratedPair], known: Sequence[CalibrationInForce] = ()) -> Group:
    """Lay out what came of each pair in plain sentences, what is proposed, and what was found."""
    parts: list[RenderableType] = [Text(escape_controls(headline(pairs)), "bold"), Text()]
    if len(pairs) > 1:
        parts += _table(drafters(pairs))
    for number, pair in enumerate(pairs):
        if len(pairs) > 1:
            parts.append(Text(f"{escape_controls(pair.drafter)}\n", "bold"))
        told = [*plain(pair), *map(str, known[number : number + 1])]
        parts += [*(Text(escape_controls(said), "bold") for said in told), Text()]
        parts += [*(Text(escape_controls(said)) for said in proposals(pair)), Text()]
        for each in tables(pair):
            parts += _table(each)
    return Group(*parts)


def to_json(pairs: Sequence[CalibratedPair], known: Sequence[CalibrationInForce] = ()) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    choice = choose_drafter(pairs)
    told = [pair.to_json() | {"nats_left": nats_left(pair)} for pair in pairs]
    for pair, found in zip(told, known, strict=False):
        pair |= {name: value for name, value in asdict(found).items() if name != "before"}
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
