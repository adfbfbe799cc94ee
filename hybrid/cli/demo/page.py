"""The demonstration as one HTML page without scripts and without requests to any host.

The laws (``tests/cli/test_page.py``): every token of every hybrid answer is there, in order, with its provenance and
hover text; a model's text never becomes markup; the page names no other host. Provenance is shown by colour, and by
line and weight for readers who do not see the colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from hybrid.cli.demo import report
from hybrid.cli.demo.report import DemoReport, ShownAnswer, ShownQuestion
from hybrid.cli.show import provenance
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
.scores { padding: 0; list-style: none; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
details { margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
"""
# The browser holds the page to its promise: no script, no request.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(shown: DemoReport) -> str:
    """Return the whole page."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>hybrid demo</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{_text(shown.headline)}</h1>
{_warning(shown)}
<p class="faint">Shown: {_text(shown.how_chosen)}. Point at a token to read who wrote it and why.</p>
{_legend()}
{"".join(map(_example, shown.examples))}
<h2>{_text(shown.about_table)}</h2>
{_table(shown)}
{_list("scores", (f"{label}: {value}" for label, value in shown.scores))}
{"".join(f'<p class="faint">{_text(sentence)}</p>' for sentence in shown.notes)}
{_every(shown)}
</main>
</body>
</html>
"""


def _text(said: str) -> str:
    """Escape markup, and make control characters visible."""
    return escape(escape_controls(said))


def _warning(shown: DemoReport) -> str:
    return f'<p class="alarm" role="alert">{_text(shown.warning)}</p>' if shown.warning else ""


def _legend() -> str:
    items = (f'<li><span class="{key}">{_text(said)}</span></li>' for key, said in report.LEGEND.items())
    return f'<ul class="legend">{"".join(items)}</ul>'


def _example(question: ShownQuestion) -> str:
    return f"<article><h3>{_text(question.heading)}</h3>{''.join(map(_answer, question.answers))}</article>\n"


def _every(shown: DemoReport) -> str:
    if not shown.every:
        return ""
    arms = (
        f"<details><summary>{_text(arm.heading)}</summary>\n{''.join(map(_answer, arm.answers))}</details>\n"
        for arm in shown.every
    )
    return f"<h2>Every answer of the hybrids</h2>\n{''.join(arms)}"


def _answer(shown: ShownAnswer) -> str:
    return (
        f'<div class="answer"><b>{_text(shown.heading)}</b><span class="faint">{_text(shown.verdict)}</span>'
        f'<p class="text">{_tokens(shown)}</p>{_list("why faint", report.handoffs(shown.answer))}</div>\n'
    )


def _tokens(shown: ShownAnswer) -> str:
    reasons = report.reasons(shown.answer)
    losses = dict(enumerate(shown.excess_nats))
    return "".join(
        f'<span class="{provenance(token.source, token.how)}"'
        f' title="{_text(report.hover(token, reasons.get(position), losses.get(position)))}">{_text(token.text)}</span>'
        for position, token in enumerate(shown.answer.tokens)
    )


def _table(shown: DemoReport) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in shown.columns)
    body = "".join(map(_row, shown.rows))
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(cells: tuple[str, ...]) -> str:
    first, *rest = cells
    return f'<tr><th scope="row">{_text(first)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in rest)}</tr>'


def _list(kind: str, items: Iterable[str]) -> str:
    found = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f'<ul class="{kind}">{found}</ul>' if found else ""
