"""A report as values: headings, sentences, tables, charts, and answers token by token. No colour, no markup.

``terminal`` and ``html`` draw any list of them. The law (``tests/cli/test_page.py``, ``test_tables.py``): what a model,
a file or an endpoint wrote is shown as text, in whatever medium, and every value stands where it was put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

# Who wrote a token, and what is said of that.
LEGEND = {
    "checked": "drafted here, checked by the cloud",
    "local": "written here, nobody asked",
    "cloud": "written by the cloud",
}

# So many points of a line are marked one by one, and told in words where there is no picture.
FEW_POINTS = 24


@dataclass(frozen=True)
class Heading:
    """A heading of a level from 1. With ``page_only`` a terminal leaves it out."""

    text: str
    level: int = 2
    page_only: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph; an empty one is a blank line of a terminal, which tells an ``alarm`` again at the end."""

    text: str = ""
    look: Literal["", "strong", "faint", "alarm"] = ""


@dataclass(frozen=True)
class Table:
    """Figures under their columns, the first of which names the rows; no columns: a value beside each name.

    ``notes``: what must be known to read the table. ``words``: columns of words, which a narrow terminal wraps.
    """

    heading: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerTokens:
    """An answer under a name, what is said of it, and of each token its text, its key of ``LEGEND`` and its story."""

    name: str
    verdict: str
    tokens: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tokens:
    """Answers below a heading. ``folded``: a page shows them when asked to, a terminal does not."""

    heading: str
    answers: tuple[AnswerTokens, ...]
    folded: bool = False


@dataclass(frozen=True)
class Axis:
    """A range, its ticks with their texts, and what it measures."""

    label: str
    least: float
    most: float
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Chart:
    """Lines by their names, dots by theirs, or the heights of bars, each one unit wide; a terminal has no charts.

    ``told``: what it shows, for readers who do not see it.
    """

    told: str
    across: Axis
    up: Axis
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]] = ()
    dots: Sequence[tuple[str, tuple[float, float]]] = ()
    bars: Sequence[float] = ()


Block: TypeAlias = Heading | Text | Table | Tokens | Chart
Document: TypeAlias = Sequence[Block]


def provenance(source: str, how: str) -> str:
    """Return the key of ``LEGEND`` that a token belongs to, by who wrote it and how it came to stand."""
    return "cloud" if source == "cloud" else "checked" if how == "accepted" else "local"


def bar_chart(told: str, label: str, shares: Sequence[tuple[str, float]]) -> Chart:
    """Return a chart of shares by their names."""
    ticks = [(number + 0.5, name) for number, (name, _) in enumerate(shares)]
    bars = [share for _, share in shares]
    return Chart(told, Axis(label, 0.0, len(bars), ticks), Axis("", 0.0, max([*bars, 0.01])), bars=bars)


def alarms(document: Document) -> list[Text]:
    """Return what nobody should overlook."""
    return [block for block in document if isinstance(block, Text) and block.look == "alarm"]
