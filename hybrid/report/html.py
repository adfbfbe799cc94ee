"""A document as one HTML page with SVG charts, without scripts and without requests to any host.

The laws (``tests/cli/test_page.py``): every token is there, in order, with who wrote it and its story as hover text;
no value becomes markup; the page names no other host. Who wrote a token is shown by colour, and by line and weight for
readers who do not see the colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from hybrid import report
from hybrid.errors import escape_controls

# Teal and reddish purple stay apart in every common kind of colour blindness (Okabe and Ito 2008); here darkened for
# white paper and lightened for black, above 4.5 to 1 against it either way (WCAG 2.2, 1.4.3).
STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d1d1f; --paper: #ffffff; --faint: #5c5c66; --line: #d5d5dc; --card: #f6f6f9;
  --checked: #00694a; --cloud: #a1256f; --alarm: #b00020;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #ececf1; --paper: #151518; --faint: #a5a5b0; --line: #3a3a44; --card: #1f1f25;
    --checked: #4fcfa4; --cloud: #f490cb; --alarm: #ff8a80;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 0; }
article, .alarm { border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; margin: .8rem 0; }
article { background: var(--card); }
.alarm { border: 2px solid; color: var(--alarm); font-weight: 700; }
.faint { color: var(--faint); font-size: .9rem; }
.answer { margin-top: .7rem; }
.answer > b { margin-right: .5rem; }
.text { font: .95rem/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: .15rem 0; }
.checked { color: var(--checked); text-decoration: underline dotted 1px; text-underline-offset: .25em; }
.cloud { color: var(--cloud); font-weight: 700; text-decoration: underline solid 2px; text-underline-offset: .25em; }
.text span:hover { background: var(--line); }
.why { margin: 0; padding-left: 1.2rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; padding: 0; list-style: none; }
.strong { font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
th, td { text-align: right; font-size: .9rem; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; }
@media (max-width: 40rem) { th, td { white-space: normal; padding: .35rem .25rem; } }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
details { margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
svg { width: 100%; min-width: 32rem; height: auto; margin: .5rem 0; }
"""
# The browser holds the page to its promise: no script, no request.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

# A chart in its own units, and the edges of its frame.
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 432, 26, 256
# Colours of the page, by which its light and its dark look differ; and dashes, for readers who do not see colours.
LINES = (("var(--checked)", ""), ("var(--cloud)", "6 3"), ("var(--faint)", "2 3"), ("var(--ink)", "10 3"))


def page(title: str, document: report.Document) -> str:
    """Return the whole page."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{_text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{"".join(_blocks(document))}</main>
</body>
</html>
"""


def _text(said: str) -> str:
    """Escape markup, and make control characters visible."""
    return escape(escape_controls(said))


def _blocks(document: report.Document) -> Iterable[str]:
    explained = False
    for block in document:
        match block:
            case report.Heading(text, level, _):
                yield f"<h{level}>{_text(text)}</h{level}>\n"
            case report.Text(text, look) if text:
                role = ' role="alert"' if look == "alarm" else ""
                yield f'<p class="{look}"{role}>{_text(text)}</p>\n'
            case report.Table():
                yield _table(block)
            case report.Tokens():
                yield "" if explained else _legend()
                explained = True
                yield _tokens(block)
            case report.Chart():
                yield _chart(block)


def _table(shown: report.Table) -> str:
    heading = f"<h3>{_text(shown.heading)}</h3>\n" if shown.heading else ""
    columns = "".join(f'<th scope="col">{_text(column)}</th>' for column in shown.columns)
    head = f"<thead><tr>{columns}</tr></thead>" if columns else ""
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in shown.rows
    )
    notes = "".join(f'<p class="faint">{_text(note)}</p>\n' for note in shown.notes)
    return f'{heading}<div class="wide" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>\n{notes}'


def _legend() -> str:
    items = (f'<li><span class="{key}">{_text(said)}</span></li>' for key, said in report.LEGEND.items())
    told = '<p class="faint">Point at a token to read who wrote it and why.</p>'
    return f'{told}\n<ul class="legend">{"".join(items)}</ul>\n'


def _tokens(shown: report.Tokens) -> str:
    heading, answers = _text(shown.heading), "".join(map(_answer, shown.answers))
    if shown.folded:
        return f"<details><summary>{heading}</summary>\n{answers}</details>\n"
    return f"<article><h3>{heading}</h3>{answers}</article>\n"


def _answer(shown: report.AnswerTokens) -> str:
    tokens = "".join(
        f'<span class="{key}" title="{_text(story)}">{_text(text)}</span>' for text, key, story in shown.tokens
    )
    notes = "".join(f"<li>{_text(note)}</li>" for note in shown.notes)
    listed = f'<ul class="why faint">{notes}</ul>' if notes else ""
    return (
        f'<div class="answer"><b>{_text(shown.name)}</b><span class="faint">{_text(shown.verdict)}</span>'
        f'<p class="text">{tokens}</p>{listed}</div>\n'
    )


def _chart(shown: report.Chart) -> str:
    right = RIGHT if shown.lines else WIDTH - 8  # beside lines there stand their names

    def place(axis: report.Axis, value: float, start: float, end: float) -> float:
        """Return where a value stands between two ends of the drawing; what is beyond the range stands at its end."""
        inside = min(max(value, axis.least), axis.most)
        return start + (inside - axis.least) / ((axis.most - axis.least) or 1.0) * (end - start)

    def x_of(value: float) -> float:
        return place(shown.across, value, LEFT, right)

    def y_of(value: float) -> float:
        return place(shown.up, value, BOTTOM, TOP)

    parts = [_line(f"M{LEFT},{TOP}V{BOTTOM}H{right}")]
    for value, name in shown.across.ticks:
        parts += [_line(f"M{x_of(value):.1f},{BOTTOM}v4"), _said(x_of(value), BOTTOM + 18, name, "middle")]
    for value, name in shown.up.ticks:
        parts += [_line(f"M{LEFT},{y_of(value):.1f}h-4"), _said(LEFT - 7, y_of(value) + 4, name, "end")]
    parts.append(_said((LEFT + right) / 2, HEIGHT - 6, shown.across.label, "middle"))
    parts.append(_said(-(TOP + BOTTOM) / 2, 12, shown.up.label, "middle", ' transform="rotate(-90)"'))
    for number, (name, points) in enumerate(shown.lines):
        colour, dash = LINES[number % len(LINES)]
        row = TOP + 14 + 18 * number
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        look = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts += [f'<polyline points="{path}" {look}/>', f'<path d="M{RIGHT + 8},{row - 4}h22" {look}/>']
        parts.append(_said(RIGHT + 34, row, name))
        marks = points if len(points) <= report.FEW_POINTS else ()
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in marks]
    for name, (x, y) in shown.dots:
        parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="var(--ink)"/>')
        parts.append(_said(x_of(x) + 7, y_of(y) - 5, name))
    for number, share in enumerate(shown.bars):
        left, width, top = x_of(number) + 2, x_of(number + 1) - x_of(number) - 4, y_of(share)
        size = f'width="{width:.1f}" height="{BOTTOM - top:.1f}"'
        parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="var(--checked)"/>')
        parts.append(_said(left + width / 2, top - 5, f"{100 * share:.0f} %", "middle"))
    return (
        '<div class="wide" tabindex="0">'
        f'<svg role="img" aria-label="{_text(shown.told)}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12" '
        f'fill="var(--ink)" font-family="system-ui, sans-serif">{"".join(parts)}</svg></div>\n'
    )


def _line(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="var(--line)"/>'


def _said(x: float, y: float, said: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{_text(said)}</text>' if said else ""
