"""``hybrid trace``: a recorded answer, drawn as the monitor draws it, or summed up on the terminal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from hybrid.cli.exits import exit_codes
from hybrid.cli.show import LocalMarks, provenance
from hybrid.cli.whole_file import check_writable, write_whole
from hybrid.errors import escape_controls
from hybrid.spend.price import as_usd

if TYPE_CHECKING:
    from hybrid.serve.answer_log import AnswerLog

trace = typer.Typer(name="trace", help="Look at a recorded answer.", no_args_is_help=True, rich_markup_mode=None)

SHOW_EPILOG = """
A trace that was recorded with --trace-rows also holds what both models would have written at each token. The page is
one file that asks nothing of any host; whoever has it can read the prompt and the answer.

Examples:

  hybrid ask --trace a.jsonl --trace-rows "What is 47 + 86?"

  hybrid trace show a.jsonl

  hybrid trace show a.jsonl --html a.html

Exit codes: 0 done, 2 usage.
"""


@trace.callback()
def root() -> None:
    """Look at a recorded answer."""


@trace.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A file that --trace wrote.", metavar="FILE")],
    *,
    html: Annotated[Path | None, typer.Option(help="Write a page in one file.", metavar="OUT")] = None,
) -> None:
    """Show a recorded answer: on the terminal, or as the monitor's page in one file."""
    with exit_codes():
        from hybrid.serve.recorded import recorded_html, recorded_state  # noqa: PLC0415  (help needs none of it)

        if html is None:
            _print(recorded_state(file)[1])
            return
        check_writable("--html", html)
        write_whole(html, recorded_html(file))
        typer.echo(f"{html} is written")


show.__doc__ = f"{show.__doc__}\n{SHOW_EPILOG}"


def _print(log: AnswerLog) -> None:
    out = Console(highlight=False, soft_wrap=True)
    text, marks = Text(), LocalMarks()
    for token in log.tokens.items:
        style = marks.style(provenance(token["source"], token["how"]), token["model"])
        text.append(escape_controls(token["text"]), style)
    out.print(text)
    for line in summary(log):
        out.print(marks.mark(Text(escape_controls(line), "dim")))


def summary(log: AnswerLog) -> list[str]:
    """Return what is to be said of a recorded answer, a line each."""
    head, counts = log.head, log.head["counts"]
    total, answer = len(log.tokens.items), head["answer"]
    unasked = counts["local"] - counts["accepted"]
    by = Counter(token["model"] for token in log.tokens.items if token["model"])
    several = len({token["model"] for token in log.tokens.items if token["source"] == "local"}) > 1
    asked = f"{len(log.requests.items)} requests, {head['checks']} checks"
    ended = (
        "never finished" if answer is None else "cut off at its limit" if answer["finish_reason"] == "length" else ""
    )
    cost = as_usd(head["spent"]) if answer is None else as_usd(answer["bill"])
    alone = "" if answer is None else f" (the cloud alone: {as_usd(answer['cloud_only'])})"
    lines = [
        f"policy {head['policy']}",
        f"{total} tokens: {counts['cloud']} by the cloud, {counts['accepted']} checked, {unasked} written here unasked",
        *(["by " + ", ".join(f"{name} {num}" for name, num in by.items())] if several else []),
        *([f"{counts['wording']} tokens kept as another wording"] if counts["wording"] else []),
        _divergences(log),
        f"{asked}; bill {cost}{alone}",
        *(f"hand-off at token {position + 1}, {tokens} tokens: {why}" for position, why, tokens in head["handoffs"]),
        *head["notes"],
    ]
    if degraded := head["degraded"]:
        lines.append(
            degraded["why"] if degraded["kind"] == "paced" else f"the local model went on alone: {degraded['why']}"
        )
    return [*lines, ended] if ended else lines


def _divergences(log: AnswerLog) -> str:
    known = [kl for token in log.tokens.items if (kl := token["kl"]) is not None and kl[0] is not None]
    unknown = len(log.tokens.items) - len(known)
    if not known:
        return f"KL not known at any of {unknown} tokens"
    largest = "unbounded" if any(kl[1] is None for kl in known) else f"{max(kl[1] for kl in known):.3g}"
    middle = f"{median(kl[0] for kl in known):.3g}"
    above = "" if log.head["threshold"] is None else f", threshold {log.head['threshold']:g}"
    return f"KL at {len(known)} tokens: median {middle}, at most {largest} nats{above}; not known at {unknown}"
