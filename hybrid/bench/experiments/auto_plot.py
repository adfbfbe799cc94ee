"""What ``auto`` recovers by its bill, as a picture: one panel a tariff, dials as lines, presets as points.

Only the first section is drawn, as SVG text without a script. Every point has its intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hybrid.bench.experiments.plot import GAP, MARGIN, SIZE, draw_axes, draw_point, x_of, y_of

# Okabe and Ito's colours (2008), as in plot.py.
COLOURS = {
    "auto": "#0072b2",
    "auto, one worth": "#56b4e9",
    "logistic, one worth": "#cc79a7",
    "highest entropy, one worth": "#d55e00",
}
PRESET, ORACLE = "#009e73", "#999999"


def auto_svg(report: Mapping[str, Any]) -> str:
    """Return the picture of a report's first section."""
    section = report["sections"][0]
    settings = list(section["rules"])
    width, height = 2 * (SIZE + MARGIN) + 240, (len(settings) + 1) // 2 * (SIZE + GAP) + MARGIN
    panels = "".join(
        f'<g transform="translate({MARGIN + number % 2 * (SIZE + MARGIN)},{MARGIN + number // 2 * (SIZE + GAP)})">'
        f"{_panel(section, setting, report['default'])}</g>"
        for number, setting in enumerate(settings)
    )
    legend = f'<g transform="translate({2 * (SIZE + MARGIN) + 20},{MARGIN})">{_legend(section)}</g>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>{panels}{legend}</svg>\n'
    )


def _panel(section: Mapping[str, Any], setting: str, default: float) -> str:
    title = f"{setting}: RPI by bill; {section['section']}, {section['problems']} problems"
    drawn = [f'<text x="0" y="-14" font-weight="bold">{escape(title)}</text>', draw_axes()]
    rules = {rule["rule"]: rule["dials"] for rule in section["rules"][setting]}
    drawn += [_line(rules[name], colour) for name, colour in COLOURS.items() if name in rules]
    oracle = [(each["value"], float(at)) for at, each in section["oracle"][setting].items()]
    drawn.append(_path([(0.0, 0.0), *oracle], ORACLE))
    for number, row in enumerate(section["arms"], start=1):
        drawn.append(draw_point(number, row["arm"], row["bill"][setting], row["rpi"], PRESET))
    for dial in rules.get("auto", ()):
        if dial["dial"] == default:
            drawn.append(draw_point(0, f"auto {default:g}", dial["bill"], dial["rpi"], COLOURS["auto"]))
    return "".join(drawn)


def _line(dials: Sequence[Mapping[str, Any]], colour: str) -> str:
    points = [(dial["bill"]["value"], dial["rpi"]["value"]) for dial in dials]
    dots = "".join(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2" fill="{colour}"/>' for x, y in points)
    return _path(points, colour) + dots


def _path(points: Sequence[tuple[float, float]], colour: str) -> str:
    corners = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points if x is not None and y is not None)
    return f'<polyline points="{corners}" fill="none" stroke="{colour}"/>'


def _legend(section: Mapping[str, Any]) -> str:
    names = list(COLOURS.items())
    names += [("oracle of whole answers", ORACLE), ("0: auto at its default", COLOURS["auto"])]
    names += [(f"{number} {row['arm']}", PRESET) for number, row in enumerate(section["arms"], start=1)]
    return "".join(
        f'<text x="0" y="{10 + 15 * row}" fill="{colour}">{escape(name)}</text>'
        for row, (name, colour) in enumerate(names)
    )
