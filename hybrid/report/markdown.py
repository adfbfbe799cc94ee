"""A document as Markdown. A chart is what it shows, in words; the cloud's part of an answer stands in brackets.

The law (``tests/cli/test_page.py``): what others wrote is shown as text; no value becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from hybrid import report
from hybrid.errors import escape_controls

# What may begin markup, HTML or a link; and what makes a line a heading, a rule or an item of a list.
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~&!@$]|:(?=//)|(?<=www)\.|^[-+=]|(?<=^\d)[.)])", re.IGNORECASE)


def markdown(title: str, document: report.Document) -> str:
    """Return the whole text."""
    return "\n".join((f"# {_plain(title)}\n", *_blocks(document)))


def _plain(said: str) -> str:
    """Escape markup, and make control characters visible; white space is one space."""
    return _MARKS.sub(r"\\\1", " ".join(escape_controls(said).split()))


def _blocks(document: report.Document) -> Iterable[str]:
    for block in document:
        match block:
            case report.Heading(text, level, _):
                yield f"{'#' * max(2, level)} {_plain(text)}\n"
            case report.Text(text, look) if text:
                yield f"**{_plain(text)}**\n" if look in {"strong", "alarm"} else f"{_plain(text)}\n"
            case report.Table():
                columns = block.columns or ("", "")
                heading = [f"{_plain(block.heading)}\n"] if block.heading else []
                rows = ([*map(_plain, each)] for each in block.rows)
                lines = [[*map(_plain, columns)], ["---", *["---:"] * (len(columns) - 1)], *rows]
                notes = (f"{_plain(note)}\n" for note in block.notes)
                yield "\n".join((*heading, *(f"| {' | '.join(line)} |" for line in lines), "", *notes))
            case report.Tokens():
                yield f"{_plain(block.heading)}\n"
                for each in block.answers:
                    notes = (f"  - {_plain(note)}" for note in each.notes)
                    yield "\n".join((f"- {_plain(f'{each.name} ({each.verdict}): {_said(each)}')}", *notes, ""))
            case report.Chart():
                yield f"{_plain(block.told)}\n"


def _said(answer: report.AnswerTokens) -> str:
    parts = groupby(answer.tokens, lambda token: token[1] == "cloud")
    texts = ((cloud, "".join(text for text, _, _ in tokens)) for cloud, tokens in parts)
    return "".join(f"[{text}]" if cloud else text for cloud, text in texts)
