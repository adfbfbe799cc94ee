"""``--trace FILE``: every event as one JSON object a line, written as it happens."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, TextIO, Unpack

import typer
from rich.console import Console
from rich.text import Text

from hybrid.cli.command import Flags, check_writable, exit_codes, takes_flags, write_whole
from hybrid.cli.show import LocalMarks, Screen
from hybrid.errors import UsageError, escape_controls
from hybrid.record.events import TRACE_VERSION, Event, to_json
from hybrid.report import provenance
from hybrid.settings.setting_info import SettingScope
from hybrid.spend.price import as_usd
from hybrid.store.files import owners

if TYPE_CHECKING:
    from hybrid.record.state import AnswerState
    from hybrid.serve.reducer import AnswerLog


# ``hybrid replay``: a recorded answer, decoded again under another policy.

EPILOG = """
A trace is replayed with the settings it was recorded with, but for those given here; a --policy that is given starts
from its own numbers, gate and judge, not from those of the recording. Where another policy needs a row
that was not recorded, the replay says which and stops: record along the text you want to compare, for instance with
--policy greedy-exact --span 64, which reads both models at every position.

Examples:

  hybrid ask --trace a.jsonl --trace-rows --policy greedy-exact "What is 47 + 86?"

  hybrid replay a.jsonl --policy kl:2

  hybrid replay a.jsonl --policy relaxed --json

Exit codes: 0 decoded, 1 a row is missing, 2 usage.
"""


@takes_flags(SettingScope.REPLAY)
def replay(
    trace: Annotated[Path, typer.Argument(help="A file that --trace and --trace-rows wrote.", metavar="TRACE")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    **flags: Unpack[Flags],
) -> None:
    """Decode a recorded answer under another policy, without a model call."""
    with exit_codes():
        from hybrid.run.replay import replay as decode  # noqa: PLC0415  (help and usage errors need no llama.cpp)
        from hybrid.run.replay_trace import MissingRow  # noqa: PLC0415

        try:
            answer = asyncio.run(decode(trace, (lambda _: None) if as_json else Screen().show, **flags))
        except MissingRow as missing:
            if as_json:
                typer.echo(json.dumps({"missing": missing.what, "position": len(missing.at), "after": missing.at}))
            else:
                typer.echo(f"hybrid: {missing}", err=True)
            raise typer.Exit(1) from None
        if as_json:
            typer.echo(json.dumps(answer.to_json(), ensure_ascii=False))


replay.__doc__ = f"{replay.__doc__}\n{EPILOG}"


# The first line of a trace has 12.
MOST_FIRST_BYTES = 100


class TraceWriter:
    """A trace file, or nothing where none is wanted. A disk that fills up ends the trace, never the answer."""

    def __init__(self, path: Path | None) -> None:
        """Open the file; an older trace makes room. Raises UsageError where that cannot be, or for any other file."""
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            if path.is_file() and path.stat().st_size and not _is_trace(path):
                msg = f"--trace {path}: there is a file that is no trace: name another, or remove it"
                raise UsageError(msg)
            self._file = open(path, "w", encoding="utf-8", buffering=1, opener=owners)  # noqa: SIM115  (see close)
        except OSError as error:
            msg = f"--trace {path}: {error.strerror}"
            raise UsageError(msg) from None
        self._line({"trace": TRACE_VERSION})

    def write(self, event: Event) -> None:
        """Add an event."""
        self._line(to_json(event))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _line(self, value: object) -> None:
        if self._file is None:
            return
        try:
            print(json.dumps(value, ensure_ascii=False), file=self._file)
        except OSError as error:
            typer.echo(f"hybrid: the trace ends here: {error.strerror}", err=True)
            file, self._file = self._file, None
            _abandon(file)


def _is_trace(path: Path) -> bool:
    """Tell whether a file begins as a trace does; no more of it is read."""
    with path.open("rb") as file:
        try:
            first = json.loads(file.readline(MOST_FIRST_BYTES))
        except (ValueError, RecursionError):
            return False
    return isinstance(first, dict) and first.keys() == {"trace"}


def _abandon(file: TextIO) -> None:
    """Close a file that cannot take what it still holds."""
    try:
        file.close()
    except OSError:
        return


# ``hybrid trace``: a recorded answer, drawn as the monitor draws it, or summed up on the terminal.

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
        from hybrid.serve.monitor import recorded_html, recorded_state  # noqa: PLC0415  (help needs none of it)

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
    for token in log.state.tokens:
        text.append(escape_controls(token.text), marks.style(provenance(token.source, token.how), token.model))
    out.print(text)
    for line in trace_lines(log):
        out.print(marks.mark(Text(escape_controls(line), "dim")))


def trace_lines(log: AnswerLog) -> list[str]:
    """Return what is to be said of a recorded answer, a line each."""
    state, head, tokens = log.state, log.head, log.state.tokens
    counts, answer = head["counts"], head["answer"]
    unasked = counts["local"] - counts["accepted"]
    by = Counter(token.model for token in tokens if token.model)
    several = len({token.model for token in tokens if token.source == "local"}) > 1
    asked = f"{len(state.requests)} requests, {head['checks']} checks"
    ended = "never finished" if answer is None else "cut off at its limit" * (answer["finish_reason"] == "length")
    cost = as_usd(head["spent"]) if answer is None else as_usd(answer["bill"])
    alone = "" if answer is None else f" (the cloud alone: {as_usd(answer['cloud_only'])})"
    written = f"{counts['cloud']} by the cloud, {counts['accepted']} checked, {unasked} written here unasked"
    lines = [
        f"policy {state.policy}",
        f"{len(tokens)} tokens: {written}",
        *(["by " + ", ".join(f"{name} {num}" for name, num in by.items())] if several else []),
        *([f"{counts['wording']} tokens kept as another wording"] if counts["wording"] else []),
        _divergences(state),
        f"{asked}; bill {cost}{alone}",
        *(f"hand-off at token {each.position + 1}, {each.tokens} tokens: {each.reason}" for each in state.handoffs),
        *state.notes,
    ]
    if (lost := state.degraded) is not None:
        lines.append(lost.why if lost.kind == "paced" else f"the local model went on alone: {lost.why}")
    return [*lines, ended] if ended else lines


def _divergences(state: AnswerState) -> str:
    known = [token.kl for token in state.tokens if token.kl is not None and math.isfinite(token.kl.lower)]
    unknown = len(state.tokens) - len(known)
    if not known:
        return f"KL not known at any of {unknown} tokens"
    most = max(kl.upper for kl in known)
    largest = f"{most:.3g}" if math.isfinite(most) else "unbounded"
    middle = f"{median(kl.lower for kl in known):.3g}"
    above = "" if state.threshold is None else f", threshold {state.threshold:g}"
    return f"KL at {len(known)} tokens: median {middle}, at most {largest} nats{above}; not known at {unknown}"
