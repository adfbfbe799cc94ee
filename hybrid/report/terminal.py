"""A document on a terminal, in colour or without, or as a picture of a terminal. It has no charts."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

from rich import table as rich_table
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from hybrid import report
from hybrid.errors import escape_controls

LOOKS = {"": "", "strong": "bold", "faint": "dim", "alarm": "bold red"}
# By the keys of the legend.
STYLES = {"checked": "green", "local": "", "cloud": "bold magenta"}
# What stands around the cloud's words where no colour can.
OPEN, CLOSE = "[", "]"
# More notes than these are not read beside an answer; the page has them all.
MOST_NOTES = 3
WIDEST = 400
# Wide enough for a table, narrow enough for a README.
PICTURE_WIDTH = 100
# Green and magenta are those of the page's dark mode (``html.py``), which colour-blind people tell apart; the rest of a
# terminal's eight is hardly used.
BLACK, GREEN, MAGENTA, WHITE = (21, 21, 24), (79, 207, 164), (244, 144, 203), (236, 236, 241)
RED, YELLOW, BLUE, CYAN = (255, 138, 128), (230, 200, 110), (130, 170, 255), (120, 210, 220)
COLOURS = [BLACK, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, WHITE]
THEME = TerminalTheme(BLACK, WHITE, COLOURS, COLOURS)
# What rich's pictures fetch from other hosts (fonts), and the line that says who drew them.
_FETCHED = re.compile(r"@font-face\s*\{.*?\}|<!--.*?-->", re.DOTALL)


def show(document: report.Document) -> None:
    """Print a document on standard output. A figure is never cut off."""
    console = Console(highlight=False)
    colours = console.color_system is not None and not console.no_color
    console.print(layout(document, colours=colours), crop=False)


def picture(title: str, document: report.Document) -> str:
    """Return what a terminal would show as SVG that names no other host."""
    # All stated, so that the terminal and the environment at hand have no say; the height is not used.
    look: dict[str, Any] = {"width": PICTURE_WIDTH, "height": 1, "color_system": "truecolor", "no_color": False}
    console = Console(record=True, file=StringIO(), force_terminal=True, **look)
    console.print(layout(document, colours=True))
    head, style, drawing = console.export_svg(title=title, theme=THEME).partition("</style>")
    return _FETCHED.sub("", head) + style + drawing


def layout(document: report.Document, *, colours: bool) -> Group:
    """Lay out a document. Without colours the cloud's tokens stand in brackets."""
    parts: list[RenderableType] = []
    explained = False
    for block in [*document, *report.alarms(document)]:
        match block:
            case report.Heading(text, _, False):
                parts += [_text(text, "strong"), Text()]
            case report.Text(text, look):
                parts += [_text(text, look), *([Text()] if look == "alarm" else [])]
            case report.Table():
                parts += [*_table(block), *(_text(note, "faint") for note in block.notes), Text()]
            case report.Tokens(folded=False):
                parts += [*([] if explained else [_legend(colours=colours)]), _tokens(block, colours=colours)]
                explained = True
    return Group(*parts)


def _text(said: str, look: str = "") -> Text:
    return Text(escape_controls(said), LOOKS[look])


def _table(shown: report.Table) -> list[RenderableType]:
    heading = [_text(shown.heading, "strong")] if shown.heading else []
    if not shown.columns:
        grid = rich_table.Table.grid(padding=(0, 2))
        for name, value in shown.rows:
            grid.add_row(_text(name, "strong"), _text(value))
        return [*heading, grid]
    table = rich_table.Table(header_style="bold", box=SIMPLE, pad_edge=False)
    for number, column in enumerate(shown.columns):
        words = column in shown.words
        table.add_column(_text(column), justify="left" if words or not number else "right", no_wrap=not words)
    for row in shown.rows:
        table.add_row(*map(_text, row))
    if not shown.words:  # a figure is never shortened: a narrow terminal breaks the lines instead
        wide = Console(width=WIDEST)
        table.width = Measurement.get(wide, wide.options, table).maximum
    return [*heading, table]


def _legend(*, colours: bool) -> Text:
    if not colours:
        return Text(f"{OPEN}{report.LEGEND['cloud']}{CLOSE}, all else here\n")
    parts = [Text(report.LEGEND[key], style) for key, style in STYLES.items()]
    return Text(" / ").join(parts).append("\n")


def _tokens(shown: report.Tokens, *, colours: bool) -> Padding:
    grid = rich_table.Table.grid(padding=(0, 2))
    for answer in shown.answers:
        grid.add_row(_text(answer.name, "strong"), _text(answer.verdict), _answer(answer, colours=colours))
        for note in _main_notes(answer):
            grid.add_row("", "", _text(note, "faint"))
    inside = Group(_text(shown.heading, "strong"), Padding(grid, (0, 0, 0, 2), expand=False))
    return Padding(inside, (0, 0, 1, 0))


def _answer(answer: report.AnswerTokens, *, colours: bool) -> Text:
    text, in_cloud = Text(), False
    for said, key, _ in answer.tokens:
        if not colours and in_cloud != (key == "cloud"):
            text.append(CLOSE if in_cloud else OPEN)
            in_cloud = not in_cloud
        text.append(escape_controls(said), STYLES[key])
    return text.append(CLOSE) if in_cloud else text


def _main_notes(answer: report.AnswerTokens) -> list[str]:
    """Return the first notes, and how many more there are; none where nobody but the cloud wrote."""
    said = answer.notes if any(key != "cloud" for _, key, _ in answer.tokens) else ()
    left = len(said) - MOST_NOTES
    return [*said] if left <= 1 else [*said[:MOST_NOTES], f"and {left} more"]
