"""Charts of a calibration as SVG inside a page: lines, dots and bars, in the page's own colours.

Each says in its text what it shows, for readers who do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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
            f'stroke-dasharray="{dash}"/>{_text(WIDTH - RIGHT + 34, row, line.name)}'
        )
    for dot in dots:
        for left, top in _placed(dot, across, up):
            parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="var(--ink)"/>')
            parts.append(_text(left + 7, top - 5, dot.name))
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
            f'fill="var(--checked)"/>{_text(x + room / 2, HEIGHT - BOTTOM + 16, name, "middle")}'
            f"{_text(x + room / 2, y - 5, f'{100 * share:.0f} %', 'middle')}"
        )
    return _svg(told, parts)


def _placed(line: ChartLine, across: Axis, up: Axis) -> list[tuple[float, float]]:
    return [(across.place(x, LEFT, WIDTH - RIGHT), up.place(y, HEIGHT - BOTTOM, TOP)) for x, y in line.points]


def _frame(across: Axis, up: Axis) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="var(--line)"/>']
    for value, name in across.ticks:
        x = across.place(value, LEFT, right)
        parts.append(f'<path d="M{x:.1f},{bottom}v4" stroke="var(--line)"/>{_text(x, bottom + 18, name, "middle")}')
    for value, name in up.ticks:
        y = up.place(value, bottom, TOP)
        parts.append(f'<path d="M{LEFT},{y:.1f}h-4" stroke="var(--line)"/>{_text(LEFT - 7, y + 4, name, "end")}')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 6, across.label, "middle"))
    if up.label:
        parts.append(
            f'<text transform="translate(12,{(TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(up.label)}</text>"
        )
    return "".join(parts)


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _svg(told: str, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(told)}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12" '
        f'fill="var(--ink)" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )
