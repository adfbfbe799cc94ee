"""A comparison on a terminal, in colour, or as a picture of a terminal. The sentences stand in ``report.py``."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from hybrid.cli.demo import report
from hybrid.cli.demo.report import DemoReport, ShownQuestion
from hybrid.cli.show import STYLES, styled
from hybrid.errors import escape_controls
from hybrid.lab.arms import LARGE, SMALL, Comparison
from hybrid.lab.calibration import choose_arms
from hybrid.record.answer import Answer

# Wide enough for the table, narrow enough for a README.
PICTURE_WIDTH = 100
# Figures are never shortened: a narrower terminal breaks the lines of the table instead.
TABLE_WIDTH = 66
# Green and magenta are those of the page's dark mode (``page.py``), which colour-blind people tell apart; the rest of a
# terminal's eight is hardly used.
BLACK, GREEN, MAGENTA, WHITE = (21, 21, 24), (79, 207, 164), (244, 144, 203), (236, 236, 241)
RED, YELLOW, BLUE, CYAN = (255, 138, 128), (230, 200, 110), (130, 170, 255), (120, 210, 220)
COLOURS = [BLACK, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, WHITE]
THEME = TerminalTheme(BLACK, WHITE, COLOURS, COLOURS)
# What stands around the cloud's words where no colour can.
OPEN, CLOSE = "[", "]"
# What rich's pictures fetch from other hosts (fonts), and the line that says who drew them.
_FETCHED = re.compile(r"@font-face\s*\{.*?\}|<!--.*?-->", re.DOTALL)


def demonstration(shown: DemoReport, *, colours: bool) -> Group:
    """Lay out a demonstration. Without colours the cloud's tokens stand in brackets."""
    table = _table(shown.columns)
    table.width = TABLE_WIDTH
    for row in shown.rows:
        table.add_row(*row)
    scores = Table.grid(padding=(0, 2))
    for label, value in shown.scores:
        scores.add_row(Text(label, "bold"), value)
    return Group(
        *_warning(shown.warning),
        _paragraph(f"Shown: {shown.how_chosen}."),
        _legend(colours=colours),
        *(_example(question, colours=colours) for question in shown.examples),
        table,
        Text(),
        *((scores, Text()) if shown.scores else ()),
        *map(_paragraph, shown.notes),
        *_warning(shown.warning),
    )


def calibration(comparison: Comparison) -> Group:
    """Lay out a calibration: a row for each arm, and what it would choose."""
    best = {arm.name for arm in choose_arms(comparison).values()}
    named, correct, share, *_, ratio = report.COLUMNS
    table = _table((named, correct, "RPI (95 %\ninterval)", share, ratio, ""))
    for name in comparison.trials:
        _, correct, share, *_, ratio = report.row(comparison, name)
        rpi = "" if name in {SMALL.name, LARGE.name} else report.interval(comparison.rpi(name))
        mark = "*" if name in best else ""
        table.add_row(name, correct, rpi, share, ratio, mark, style="bold" if mark else "")
    return Group(
        *_warning(report.warning(comparison.trials)),
        table,
        Text(),
        *(Text(f"* {said}") for said in report.choice(comparison)),
        Text(),
        *(_paragraph(said) for said in (report.about_rpi(comparison), *report.notes(comparison))),
    )


def picture(shown: RenderableType) -> str:
    """Return what a terminal would show as SVG that names no other host."""
    # All stated, so that the terminal and the environment at hand have no say; the height is not used.
    look: dict[str, Any] = {"width": PICTURE_WIDTH, "height": 1, "color_system": "truecolor", "no_color": False}
    console = Console(record=True, file=StringIO(), force_terminal=True, **look)
    console.print(shown)
    return _FETCHED.sub("", console.export_svg(title="hybrid demo", theme=THEME))


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(header_style="bold", box=SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right" if column else "left", no_wrap=True)
    return table


def _warning(said: str | None) -> list[RenderableType]:
    return [Padding(Text(escape_controls(said), "bold red"), (0, 0, 1, 0), expand=False)] if said else []


def _paragraph(said: str) -> Text:
    return Text(escape_controls(said), "dim")


def _legend(*, colours: bool) -> Text:
    if not colours:
        return Text(f"{OPEN}{report.LEGEND['cloud']}{CLOSE}, all else here\n")
    parts = [Text(report.LEGEND[key], style) for key, style in STYLES.items()]
    return Text(" / ").join(parts).append("\n")


def _example(question: ShownQuestion, *, colours: bool) -> Padding:
    grid = Table.grid(padding=(0, 2))
    for shown in question.answers:
        grid.add_row(Text(shown.heading, "bold"), shown.verdict, _tokens(shown.answer, colours=colours))
        for said in report.main_handoffs(shown.answer):
            grid.add_row("", "", _paragraph(said))
    return Padding(
        Group(Text(escape_controls(question.heading), "bold"), Padding(grid, (0, 0, 0, 2), expand=False)), (0, 0, 1, 0)
    )


def _tokens(answer: Answer, *, colours: bool) -> Text:
    text, pen = Text(), "local"
    for token in answer.tokens:
        if not colours and token.source != pen:
            text.append(OPEN if token.source == "cloud" else CLOSE)
            pen = token.source
        text.append_text(styled(token))
    return text.append(CLOSE) if pen == "cloud" else text
