"""A document as Markdown. A chart is a table of its points; the cloud's part of an answer stands in white brackets.

The law (``tests/cli/test_page.py``): what others wrote is shown as text; no value becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from hybrid import report
from hybrid.errors import escape_controls

# What may begin markup, HTML or a link; and what makes a line a heading, a rule or an item of a list.
_WITHIN = r"[\\`*_{}\[\]<>#|~&!@$]|:(?=//)|(?<=www)\."
_INSIDE, _MARKS = (re.compile(f"({each})", re.IGNORECASE) for each in (_WITHIN, rf"{_WITHIN}|^[-+=]|(?<=^\d)[.)]"))
WRITTEN = "In answers, what stands between \u27e6 and \u27e7 was written by the cloud, all else here."


def markdown(title: str, document: report.Document) -> str:
    """Return the whole text."""
    return "\n".join((f"# {_plain(title)}\n", *_blocks(document)))


def _plain(said: str, marks: re.Pattern[str] = _MARKS) -> str:
    """Escape markup, and make control characters visible; white space is one space."""
    return marks.sub(r"\\\1", " ".join(escape_controls(said).split()))


def _cell(said: str) -> str:
    return _plain(said, _INSIDE)


def _blocks(document: report.Document) -> Iterable[str]:
    explained = False
    for block in document:
        match block:
            case report.Heading(text, level, _):
                yield f"{'#' * max(2, level)} {_plain(text)}\n"
            case report.Text(text, look) if text:
                yield f"**{_plain(text)}**\n" if look in {"strong", "alarm"} else f"{_plain(text)}\n"
            case report.Table():
                columns = block.columns or ("", "")
                heading = [f"{_plain(block.heading)}\n"] if block.heading else []
                rows = ([*map(_cell, each)] for each in block.rows)
                lines = [[*map(_cell, columns)], ["---", *["---:"] * (len(columns) - 1)], *rows]
                notes = (f"{_plain(note)}\n" for note in block.notes)
                yield "\n".join((*heading, *(f"| {' | '.join(line)} |" for line in lines), "", *notes))
            case report.Tokens():
                yield "" if explained else f"{WRITTEN}\n"
                explained = True
                yield f"{_plain(block.heading)}\n"
                for each in block.answers:
                    notes = (f"  - {_plain(note)}" for note in each.notes)
                    yield "\n".join((f"- {_plain(f'{each.name} ({each.verdict}): {_said(each)}')}", *notes, ""))
            case report.Chart():
                yield from _blocks([_points(block)])


def _said(answer: report.AnswerTokens) -> str:
    parts = groupby(answer.tokens, lambda token: token[1] == "cloud")
    texts = ((cloud, "".join(text for text, _, _ in tokens)) for cloud, tokens in parts)
    return "".join(f"\u27e6{text}\u27e7" if cloud else text for cloud, text in texts)


def _points(chart: report.Chart) -> report.Table:
    """Return a chart's points, a row a line; of many, how many there are."""
    bars = zip((name for _, name in chart.across.ticks), chart.bars, strict=False)
    rows = [(name, f"{100 * share:.0f} %") for name, share in bars]
    for name, points in (*chart.lines, *((name, (point,)) for name, point in chart.dots)):
        told = "; ".join(f"{x:.3g}: {y:.3g}" for x, y in points)
        rows.append((name, told if len(points) <= report.FEW_POINTS else f"{len(points)} points, drawn on the page"))
    axes = " of ".join(filter(None, (chart.up.label, chart.across.label)))
    return report.Table(chart.told, ("", axes), rows)
