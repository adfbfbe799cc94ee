"""The first section of ``hybrid bench auto`` as a picture, SVG text without scripts: RPI by the bill, with intervals.

A panel a tariff, with the diagonal of random routing: dials as lines, presets as points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

SIZE, MARGIN, GAP = 360, 56, 90
MOST_BILL = 2.0
# Okabe and Ito's colours (2008) stay apart in every common kind of colour blindness.
COLOURS = {
    "auto": "#0072b2",
    "auto, one worth": "#56b4e9",
    "logistic, one worth": "#cc79a7",
    "highest entropy, one worth": "#d55e00",
}
PRESET, LINE = "#009e73", "#999999"


def auto_svg(report: Mapping[str, Any]) -> str:
    """Return the picture of a report's first section."""
    section = report["sections"][0]
    settings = list(section["rules"])
    panels = [
        _group(
            MARGIN + number % 2 * (SIZE + MARGIN),
            MARGIN + number // 2 * (SIZE + GAP),
            _auto_panel(section, setting, report["default"]),
        )
        for number, setting in enumerate(settings)
    ]
    names = [*COLOURS.items(), ("oracle of whole answers", LINE), ("0: auto at its default", COLOURS["auto"])]
    names += [(f"{number} {row['arm']}", PRESET) for number, row in enumerate(section["arms"], start=1)]
    panels.append(_group(2 * (SIZE + MARGIN) + 20, MARGIN, _legend(names)))
    width, height = 2 * (SIZE + MARGIN) + 240, (len(settings) + 1) // 2 * (SIZE + GAP) + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n'
    )


def _group(left: int, top: int, inside: str) -> str:
    return f'<g transform="translate({left},{top})">{inside}</g>'


def _legend(names: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f'<text x="0" y="{10 + 15 * row}" fill="{colour}">{escape(name)}</text>'
        for row, (name, colour) in enumerate(names)
    )


def _auto_panel(section: Mapping[str, Any], setting: str, default: float) -> str:
    drawn = [_axes(f"{setting}: RPI by bill; {section['section']}, {section['problems']} problems")]
    rules = {rule["rule"]: rule["dials"] for rule in section["rules"][setting]}
    for name, colour in COLOURS.items():
        if name in rules:
            points = [(dial["bill"]["value"], dial["rpi"]["value"]) for dial in rules[name]]
            drawn.append(_path(points, colour))
            drawn += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2" fill="{colour}"/>' for x, y in points]
    oracle = [(each["value"], float(at)) for at, each in section["oracle"][setting].items()]
    drawn.append(_path([(0.0, 0.0), *oracle], LINE))
    for number, row in enumerate(section["arms"], start=1):
        drawn.append(_point(number, row["arm"], row["bill"][setting], row["rpi"], PRESET))
    for dial in rules.get("auto", ()):
        if dial["dial"] == default:
            drawn.append(_point(0, f"auto {default:g}", dial["bill"], dial["rpi"], COLOURS["auto"]))
    return "".join(drawn)


def _point(number: int, name: str, bill: dict[str, Any], share: dict[str, Any], colour: str) -> str:
    """Draw a point with its intervals; its number stands in the legend, its name in the hover text."""
    x, y = x_of(bill["value"]), y_of(share["value"])
    bars = "".join(
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-opacity="0.4"/>'
        for x1, y1, x2, y2 in (
            (x_of(_end(bill, "low")), y, x_of(_end(bill, "high")), y),
            (x, y_of(_end(share, "low")), x, y_of(_end(share, "high"))),
        )
    )
    label = f'<text x="{x + 5:.1f}" y="{y - 4:.1f}" fill="{colour}" font-size="9">{number}</text>'
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{escape(name)}</title></circle>'
    return bars + dot + label


def _axes(title: str) -> str:
    """Draw a title, the frame, both scales and the diagonal of random routing."""
    ends = f'x1="{x_of(0):.1f}" y1="{y_of(0):.1f}" x2="{x_of(1):.1f}" y2="{y_of(1):.1f}"'
    # Random routing of whole questions: what is recovered is what is paid, up to the cloud alone.
    diagonal = f'<line {ends} stroke="{LINE}" stroke-dasharray="4"/>'
    shares = "".join(
        f'<text x="-8" y="{y_of(share) + 4:.1f}" text-anchor="end">{share:g}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    bills = "".join(
        f'<text x="{x_of(bill):.1f}" y="{SIZE + 16}" text-anchor="middle">{bill:g}</text>'
        for bill in (0, 0.5, 1, 1.5, 2)
    )
    caption = f'<text x="{SIZE / 2}" y="{SIZE + 32}" text-anchor="middle">bill, of the cloud alone</text>'
    frame = f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="{LINE}"/>'
    return f'<text x="0" y="-14" font-weight="bold">{escape(title)}</text>{frame}{diagonal}{shares}{bills}{caption}'


def x_of(bill: float) -> float:
    """Return where a bill stands; one beyond the frame stands on it."""
    return SIZE * min(max(bill, 0.0), MOST_BILL) / MOST_BILL


def y_of(share: float) -> float:
    """Return where a recovered share stands; one beyond the frame stands on it."""
    return SIZE * (1.1 - min(max(share, -0.1), 1.1)) / 1.2


def _end(estimate: dict[str, Any], which: str) -> float:
    """Return an end of an interval; an unbounded one reaches the frame."""
    value = estimate[which]
    beyond = -1.0 if which == "low" else 10.0
    return beyond if value is None else float(value)


def _path(points: Sequence[tuple[float, float]], colour: str) -> str:
    corners = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points if x is not None and y is not None)
    return f'<polyline points="{corners}" fill="none" stroke="{colour}"/>'
