"""The diagnosis of a pair: tables for a terminal, JSON, and one HTML page that asks no host for anything.

The laws (``tests/cli/test_calibrate.py``): every table of the terminal is there; nothing that a model, a file or an
endpoint is called becomes markup; the page names no other host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hybrid.cli.demo.page import POLICY, STYLE
from hybrid.errors import escape_controls
from hybrid.prob import Floats
from hybrid.tune.bought import CERTIFICATES
from hybrid.tune.calibrating import CalibratedPair, choose_drafter, nats_left
from hybrid.tune.report import ReportTable, drafters, headline, plain, proposals, tables

# Charts of a calibration as SVG inside a page: lines, dots and bars, in the page's own colours.
#
# Each says in its text what it shows, for readers who do not see it.

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 26, 44
# Colours of the page, by which its light and its dark look differ; and dashes, for readers who do not see colours.
LINES = (("var(--checked)", ""), ("var(--cloud)", "6 3"), ("var(--faint)", "2 3"), ("var(--ink)", "10 3"))


@dataclass(frozen=True)
class ChartLine:
    """A line: its name, and its points in the axes' units."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """A range, its ticks with their texts, and what it measures."""

    label: str
    least: float
    most: float
    ticks: Sequence[tuple[float, str]]

    def place(self, value: float, start: float, end: float) -> float:
        """Return where a value stands between two ends of the drawing; what is beyond the range stands at its end."""
        inside = min(max(value, self.least), self.most)
        return start + (inside - self.least) / (self.most - self.least) * (end - start)


SHARES = tuple((share / 4, f"{25 * share} %") for share in range(5))


def chart(told: str, across: Axis, up: Axis, lines: Sequence[ChartLine], dots: Sequence[ChartLine] = ()) -> str:
    """Draw lines, and dots with their names."""
    parts = [_frame(across, up)]
    for number, line in enumerate(lines):
        colour, dash = LINES[number % len(LINES)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in _placed(line, across, up))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        row = TOP + 14 + 18 * number
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 8},{row - 4}h22" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>{_svg_text(WIDTH - RIGHT + 34, row, line.name)}'
        )
    for dot in dots:
        for left, top in _placed(dot, across, up):
            parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="var(--ink)"/>')
            parts.append(_svg_text(left + 7, top - 5, dot.name))
    return _svg(told, parts)


def bars(told: str, label: str, names: Sequence[str], shares: Sequence[float]) -> str:
    """Draw a bar for each share."""
    most = max([*shares, 0.01])
    up = Axis("", 0.0, most, ())
    room = (WIDTH - LEFT - RIGHT) / max(1, len(shares))
    parts = [_frame(Axis(label, 0.0, 1.0, ()), up)]
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        x, y = LEFT + number * room, up.place(share, HEIGHT - BOTTOM, TOP)
        parts.append(
            f'<rect x="{x + 2:.1f}" y="{y:.1f}" width="{room - 4:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'fill="var(--checked)"/>{_svg_text(x + room / 2, HEIGHT - BOTTOM + 16, name, "middle")}'
            f"{_svg_text(x + room / 2, y - 5, f'{100 * share:.0f} %', 'middle')}"
        )
    return _svg(told, parts)


def _placed(line: ChartLine, across: Axis, up: Axis) -> list[tuple[float, float]]:
    return [(across.place(x, LEFT, WIDTH - RIGHT), up.place(y, HEIGHT - BOTTOM, TOP)) for x, y in line.points]


def _frame(across: Axis, up: Axis) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="var(--line)"/>']
    for value, name in across.ticks:
        x = across.place(value, LEFT, right)
        parts.append(f'<path d="M{x:.1f},{bottom}v4" stroke="var(--line)"/>{_svg_text(x, bottom + 18, name, "middle")}')
    for value, name in up.ticks:
        y = up.place(value, bottom, TOP)
        parts.append(f'<path d="M{LEFT},{y:.1f}h-4" stroke="var(--line)"/>{_svg_text(LEFT - 7, y + 4, name, "end")}')
    parts.append(_svg_text((LEFT + right) / 2, HEIGHT - 6, across.label, "middle"))
    if up.label:
        parts.append(
            f'<text transform="translate(12,{(TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(up.label)}</text>"
        )
    return "".join(parts)


def _svg_text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _svg(told: str, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(told)}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12" '
        f'fill="var(--ink)" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


# Nats from a thousandth to ten, on a logarithmic axis.
NATS = Axis("nats", -3.0, 1.0, tuple((float(power), f"{10.0**power:g}") for power in range(-3, 2)))
# Policies with dials, and what they are compared with, drawn as lines; the others are dots.
LINED = ("auto", "doubt", "mean log-probability / price", "random")
OWN_STYLE = "svg { width: 100%; height: auto; margin: .5rem 0; } td, th { font-size: .9rem; }"


def page(pairs: Sequence[CalibratedPair]) -> str:
    """Return the whole page."""
    compared = _table(drafters(pairs)) if len(pairs) > 1 else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>hybrid calibrate</title>
<style>{STYLE}{OWN_STYLE}</style>
</head>
<body>
<main>
<h1>{_text(headline(pairs))}</h1>
{compared}
{"".join(map(_pair, pairs))}
</main>
</body>
</html>
"""


def _pair(pair: CalibratedPair) -> str:
    told = "".join(f"<li>{_text(said)}</li>" for said in [*plain(pair), *proposals(pair)])
    charts = {"auto: the bill by its worth": _bill(pair), "Distributions": _distributions(pair)}
    charts |= {"Certified runs": _certified(pair), "Where the drafter starts to be overruled": _places(pair)}
    parts = "".join(_table(each, charts.get(each.heading, "")) for each in tables(pair))
    return f"<h2>{_text(pair.drafter)}</h2><ul>{told}</ul>{parts}"


def _table(shown: ReportTable, drawn: str = "") -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in shown.columns)
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in shown.rows
    )
    notes = "".join(f'<p class="faint">{_text(note)}</p>' for note in shown.notes)
    return (
        f"<h3>{_text(shown.heading)}</h3>{drawn}"
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{notes}"
    )


def _bill(pair: CalibratedPair) -> str:
    told = "What is left of the loss, by the share of the cloud's bill: policies with dials, and the others as dots"
    forecasts = pair.forecasts
    curves = {name: [(r.bill.value, 1.0 - r.share.value) for r in forecasts.rows if r.name == name] for name in LINED}
    others = [row for row in forecasts.chosen.values() if row.dial.lines and row.name not in LINED]
    most = max(1.0, *(row.bill.value for row in others))
    ticks = tuple((share, f"{100 * share:.0f} %") for share in np.arange(0.0, most + 0.01, 0.25 if most < 2 else 1.0))
    across = Axis("of the bill of the cloud alone", 0.0, float(most), ticks)
    lines = [ChartLine(name, points) for name, points in curves.items()]
    dots = [ChartLine(row.name, [(row.bill.value, 1.0 - row.share.value)]) for row in others]
    return chart(told, across, Axis("left of the loss", 0.0, 1.0, SHARES), lines, dots)


def _distributions(pair: CalibratedPair) -> str:
    told = "Cumulative distributions over tokens: KL, excess loss, and the certificate of the greedy rule"
    texts, tree = pair.diagnosis.texts, next(name for name in CERTIFICATES if name.startswith("tree"))
    found = {
        "KL, at most": [text.kl_upper for text in texts],
        "excess loss": [text.excess for text in texts],
        "certificate, greedy": [text.certificates["greedy"] for text in texts],
        "certificate, tree": [text.certificates[tree] for text in texts],
    }
    lines = [ChartLine(name, _cumulative(np.concatenate(values))) for name, values in found.items()]
    return chart(told, NATS, Axis("tokens up to it", 0.0, 1.0, SHARES), lines)


def _cumulative(values: Floats) -> list[tuple[float, float]]:
    """Return the share of values up to each of a hundred places of the logarithmic axis."""
    ordered = np.sort(values)
    places = np.linspace(NATS.least, NATS.most, 101)
    shares = np.searchsorted(ordered, 10.0**places, side="right") / max(1, ordered.size)
    return list(zip(places.tolist(), shares.tolist(), strict=True))


def _certified(pair: CalibratedPair) -> str:
    shares = [pair.diagnosis.certified(rule).share for rule in CERTIFICATES]
    return bars("Share of the tokens that each rule's certificate proves", "certified tokens", [*CERTIFICATES], shares)


def _places(pair: CalibratedPair) -> str:
    found = pair.diagnosis.first_rejections(pair.calibration.judge)
    num = max(1, sum(found.tenths))
    names = [f"{10 * part} %" for part in range(len(found.tenths))]
    told = f"In which tenth of a draft {found.judge} turns it down first"
    return bars(
        told, f"first rejection by {found.judge}, place in the draft", names, [count / num for count in found.tenths]
    )


def _text(said: str) -> str:
    """Escape markup, and make control characters visible."""
    return escape(escape_controls(said))


# A calibration on a terminal. The sentences and figures stand in ``hybrid.tune.report``.

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
        parts += _console_table(drafters(pairs))
    for number, pair in enumerate(pairs):
        if len(pairs) > 1:
            parts.append(Text(f"{escape_controls(pair.drafter)}\n", "bold"))
        told = [*plain(pair), *map(str, known[number : number + 1])]
        parts += [*(Text(escape_controls(said), "bold") for said in told), Text()]
        parts += [*(Text(escape_controls(said)) for said in proposals(pair)), Text()]
        for each in tables(pair):
            parts += _console_table(each)
    return Group(*parts)


def to_json(pairs: Sequence[CalibratedPair], known: Sequence[CalibrationInForce] = ()) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    choice = choose_drafter(pairs)
    told = [pair.to_json() | {"nats_left": nats_left(pair)} for pair in pairs]
    for pair, found in zip(told, known, strict=False):
        pair |= {name: value for name, value in asdict(found).items() if name != "before"}
    return {"pairs": told, "take": choice.best.drafter, "sure": choice.share}


def _console_table(shown: ReportTable) -> list[RenderableType]:
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
