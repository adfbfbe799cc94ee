"""``hybrid budget``: the caps, what has gone against them, and what nobody told of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hybrid.cli.command import exit_codes
from hybrid.errors import UsageError, escape_controls
from hybrid.report import Table, terminal
from hybrid.settings.names import complete_address
from hybrid.settings.sources import ledger_file, load
from hybrid.spend import StoredCapScope, as_usd, endpoint_id, usd_to_nanousd

if TYPE_CHECKING:
    from hybrid.spend.durable import LedgerAdmin, LedgerEntry

budget = typer.Typer(
    name="budget",
    help="Caps on what is spent, and the ledger they are kept in.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CODES = "Exit codes: 0 done, 1 output lost, 2 usage, or the ledger cannot be used."
SHOW_EPILOG = f"""
Days and months are those of UTC. What is reserved counts against every cap until the charge is known.

Examples:

  hybrid budget show

  hybrid budget show --json

{CODES}
"""
SET_EPILOG = f"""
Amounts are USD; none removes a cap. A question is one answer, a conversation what --conversation names. Every client
that uses the same ledger keeps these caps together; hybrid ask --cap bounds one client besides.

Examples:

  hybrid budget set --total 20 --month 5 --day 0.50

  hybrid budget set --request 0.01

  hybrid budget set --day none

{CODES}
"""
LOG_EPILOG = f"""
A line is a request: what is reserved for it, what it was charged, and its state, where it is not simply charged:

\b
  not sent    reserved; given back once its process is dead
  sent        reserved in full, until the charge is known
  disputed    charged; the charge exceeded the reservation
  by hand     charged, as stated with hybrid budget reconcile
  given back  not charged: its process died before it was sent

What is reserved counts against every cap as what was charged does. A request that was left half way is charged at the
most that it can cost: its state is blank, and hybrid budget reconcile ID --charged USD corrects it.

Examples:

  hybrid budget log

  hybrid budget log --n 100 --json

{CODES}
"""
RECONCILE_EPILOG = f"""
Without arguments it lists the entries that are open or disputed, and the endpoints that are closed.

An entry is open while its request is under way. An entry stays open if its process died or the endpoint never reported
the cost: what is reserved for it counts against every cap. Look up in your provider's account what was charged, and
state it. While no hybrid runs, nothing that is listed is still under way. Any other entry can be corrected in the same
way.

An entry is disputed if the charge exceeded the reservation. The charge counts, and the endpoint is closed. Find out why
(a wrong price?), correct the entry, and reopen the endpoint. Correcting the entry does not reopen the endpoint, and the
reverse.

Examples:

  hybrid budget reconcile

  hybrid budget reconcile 17 --charged 0.0042

  hybrid budget reconcile --all-as-charged

  hybrid budget reconcile --reopen https://api.example.com

{CODES}
"""

WIDE = 160
# More entries than a ledger can hold: SQLite numbers them in 63 bits.
EVERY = 2**63 - 1
# What a line says of an entry; one that was settled needs no word.
STATES = {
    "reserved": "not sent",
    "sent": "sent",
    "disputed": "disputed",
    "reconciled": "by hand",
    "returned": "given back",
}
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
LedgerFlag = Annotated[
    Path | None, typer.Option("--ledger", help="The ledger's file (HYBRID_LEDGER, or your own).", metavar="FILE")
]


@budget.command("show")
def show(as_json: AsJson = False, ledger: LedgerFlag = None) -> None:
    """Show every cap, what has gone against it, and what is left."""
    with exit_codes(), _books(ledger) as (books, path):
        _tell(_shown(books, path), as_json=as_json)


@budget.command("set")
def set_(
    total: Annotated[str | None, typer.Option(help="Most to spend at all.", metavar="USD")] = None,
    month: Annotated[str | None, typer.Option(help="Most in a month.", metavar="USD")] = None,
    day: Annotated[str | None, typer.Option(help="Most in a day.", metavar="USD")] = None,
    conversation: Annotated[str | None, typer.Option(help="Most for one conversation.", metavar="USD")] = None,
    request: Annotated[str | None, typer.Option(help="Most for one question.", metavar="USD")] = None,
    as_json: AsJson = False,
    ledger: LedgerFlag = None,
) -> None:
    """Set caps, in USD; none removes one."""
    given: dict[StoredCapScope, str | None] = {
        "total": total, "month": month, "day": day, "conversation": conversation, "request": request
    }  # fmt: skip
    with exit_codes(), _books(ledger) as (books, path):
        caps = {level: _amount(level, text) for level, text in given.items() if text is not None}
        if not caps:
            raise UsageError("say which cap: --total, --month, --day, --conversation or --request")
        for level, nanousd in caps.items():
            books.set_cap(level, nanousd)
        _tell(_shown(books, path), as_json=as_json)


@budget.command("log")
def log(
    num: Annotated[int, typer.Option("--n", "--num", help="How many entries.", metavar="N", min=1)] = 20,
    as_json: AsJson = False,
    ledger: LedgerFlag = None,
) -> None:
    """List the last entries, the newest first."""
    with exit_codes(), _books(ledger) as (books, path):
        entries = books.log(num) if books.exists() else []
        if as_json:
            typer.echo(json.dumps({"ledger": str(path), "entries": [_plain(entry) for entry in entries]}))
        elif entries:
            _print_entries(entries)
        else:
            typer.echo("Nothing was spent yet.")


@budget.command("reconcile")
def reconcile(
    entry: Annotated[int | None, typer.Argument(help="An entry's number.", metavar="ID", show_default=False)] = None,
    charged: Annotated[str | None, typer.Option(help="What the entry was charged in all.", metavar="USD")] = None,
    all_as_charged: Annotated[
        bool, typer.Option("--all-as-charged", help="Count every open entry as charged in full.")
    ] = False,
    reopen: Annotated[str | None, typer.Option(help="Reopen a closed endpoint.", metavar="URL")] = None,
    clock: Annotated[
        bool, typer.Option("--clock", help="Re-date entries from the future to now (use after the clock was wrong).")
    ] = False,
    as_json: AsJson = False,
    ledger: LedgerFlag = None,
) -> None:
    """State what entries were charged, and reopen endpoints."""
    with exit_codes(), _books(ledger) as (books, path):
        if (entry is None) != (charged is None):
            raise UsageError(
                "an entry and what it was charged belong together: hybrid budget reconcile 17 --charged 0.0042"
            )
        if not books.exists():
            if entry is not None or reopen is not None:
                msg = f"nothing was spent yet: there is no ledger {path}"
                raise UsageError(msg)
            typer.echo(json.dumps({"done": []} | _open(books, path)) if as_json else "Nothing was spent yet.")
            return
        stated = None if entry is None or charged is None else (entry, usd_to_nanousd(charged))
        done = []
        for sentence in _mend(books, stated, all_as_charged=all_as_charged, reopen=reopen, clock=clock):
            done.append(sentence)
            if not as_json:  # at once: what comes next may be refused
                typer.echo(escape_controls(sentence))
        if as_json:
            typer.echo(json.dumps({"done": done} | _open(books, path)))
        else:
            _print_open(books)


for _command, _epilog in ((show, SHOW_EPILOG), (set_, SET_EPILOG), (log, LOG_EPILOG), (reconcile, RECONCILE_EPILOG)):
    _command.__doc__ = f"{_command.__doc__}\n{_epilog}"


@contextmanager
def _books(flag: Path | None) -> Iterator[tuple[LedgerAdmin, Path]]:
    """Open the ledger that the flag, the environment or the settings name. No file is made by looking."""
    from hybrid.spend.durable import FileLedger, LedgerAdmin  # noqa: PLC0415  (help needs no SQLite)

    path = ledger_file(load(ledger=flag))
    if path is None:
        raise UsageError("no ledger is kept: the setting ledger is none")
    ledger = FileLedger(path.expanduser())
    try:
        yield LedgerAdmin(ledger), path
    finally:
        ledger.close()


def _mend(
    books: LedgerAdmin, stated: tuple[int, int] | None, *, all_as_charged: bool, reopen: str | None, clock: bool
) -> Iterator[str]:
    """Do what was asked for, and say what was done, a sentence for each thing. ``stated``: an entry, and nano-USD."""
    if stated is not None:
        before = next((each for each in books.log(EVERY) if each.id == stated[0]), None)
        entry = books.reconcile(*stated)
        was = f" (was: {_held(before)})" if before else ""
        yield f"entry {entry.id}: charged {as_usd(entry.charged_nanousd)}{was}"
    if all_as_charged:
        entries = [books.reconcile(each.id, None) for each in books.open_entries()]
        total = as_usd(sum(each.charged_nanousd for each in entries))
        yield f"{_entries(len(entries))} charged in full, {total} in all" if entries else "no entry was open"
    if reopen is not None:
        endpoint = reopen if "://" not in complete_address(reopen) else endpoint_id(reopen)
        books.reopen(endpoint)
        yield f"{endpoint} is open again"
    if clock:
        moved = books.set_clock()
        yield f"{_entries(moved)} re-dated to now" if moved else "no entry was later than this clock"


def _held(entry: LedgerEntry) -> str:
    reserved = entry.state in {"reserved", "sent"}
    amount = as_usd(entry.reserved_nanousd if reserved else entry.charged_nanousd)
    return f"{amount} {'reserved' if reserved else 'charged'}"


def _entries(num: int) -> str:
    return "1 entry" if num == 1 else f"{num} entries"


def _amount(level: str, text: str) -> int | None:
    try:
        return None if text == "none" else usd_to_nanousd(text)
    except UsageError as error:
        msg = f"--{level}: {error}; none removes the cap"
        raise UsageError(msg) from None


def _shown(books: LedgerAdmin, path: Path) -> dict[str, Any]:
    exists = books.exists()
    rows = [asdict(row) for row in books.rows()] if exists else []
    entries = books.open_entries() if exists else []
    for row in rows:
        known = row["cap_nanousd"] is not None and row["spent_nanousd"] is not None
        row["left_nanousd"] = row["cap_nanousd"] - row["spent_nanousd"] - row["reserved_nanousd"] if known else None
    return {
        "ledger": str(path),
        "caps": rows,
        "num_open": len(entries),
        "open_nanousd": sum(entry.reserved_nanousd for entry in entries),
        "closed": [asdict(closed) for closed in books.closed()] if exists else [],
        "clock_behind_s": books.ahead_s() if exists else 0,
    }


def _open(books: LedgerAdmin, path: Path) -> dict[str, Any]:
    exists = books.exists()
    return {
        "ledger": str(path),
        "open": [_plain(entry) for entry in books.open_entries()] if exists else [],
        "disputed": [_plain(entry) for entry in books.disputed()] if exists else [],
        "closed": [asdict(closed) for closed in books.closed()] if exists else [],
        "clock_behind_s": books.ahead_s() if exists else 0,
    }


def _plain(entry: LedgerEntry) -> dict[str, Any]:
    return asdict(entry) | {"at": _moment(entry.at)}


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _console() -> Console:
    """Never narrower than the tables: an amount that lost a digit would be another amount."""
    return Console(highlight=False, soft_wrap=True, width=max(Console().width, WIDE))


def _usd(nanousd: int | None, unknown: str = "") -> str:
    return unknown if nanousd is None else as_usd(nanousd).removesuffix(" USD")


def _left(nanousd: int | None) -> str:
    """Say what is left under a cap: nothing, where it is exceeded, and by how much."""
    return _usd(nanousd) if nanousd is None or nanousd >= 0 else f"0, over by {_usd(-nanousd)}"


def _tell(found: dict[str, Any], *, as_json: bool) -> None:
    """Show the caps, for programs or for people."""
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print_caps(found)


def _print_caps(found: dict[str, Any]) -> None:
    console = _console()
    if not found["caps"]:
        console.print(f"Nothing was spent yet and no cap is set: {found['ledger']} does not exist.", markup=False)
        return
    rows = []
    for row in found["caps"]:
        amounts = (
            _usd(row["cap_nanousd"], "none"),
            *(_usd(row[f"{name}_nanousd"]) for name in ("spent", "reserved")),
            _left(row["left_nanousd"]),
        )
        rows.append((row["level"], row["window"] or ("each" if row["spent_nanousd"] is None else ""), *amounts))
    terminal.show([Table("", ("USD", "window", "cap", "spent", "reserved", "left"), rows)])
    console.print(Text(f"Kept in {found['ledger']}."))
    if found["num_open"]:
        held = f"{as_usd(found['open_nanousd'])} reserved, whatever is charged"
        console.print(f"{found['num_open']} open ({held}): hybrid budget reconcile lists them.", markup=False)
    _print_closed(found["closed"], found["clock_behind_s"])


def _print_closed(closed: list[dict[str, Any]], behind_s: int) -> None:
    console = _console()
    for each in closed:
        said = f"{each['endpoint']} is closed since {_moment(each['at'])}: {each['why']}."
        console.print(
            Text(escape_controls(said), "yellow"),
            Text(f"Reopen it: hybrid budget reconcile --reopen {each['endpoint']}"),
        )
    if behind_s:
        said = (
            f"The last entry is {behind_s} s later than this clock; it counts in every day and month until then. "
            "If this clock is right: hybrid budget reconcile --clock"
        )
        console.print(Text(said, "yellow"))


def _print_entries(entries: list[LedgerEntry]) -> None:
    """Show entries in 80 columns: an endpoint stands once above all that follow one another, since it may be long."""
    rows = [("", "UTC", "requests", "reserved", "charged", "state"), *map(_cells, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, "><>>><", widths, strict=True)).rstrip()
        for row in rows
    ]
    typer.echo(head)
    for before, entry, line in zip([None, *entries], entries, lines, strict=False):
        if before is None or before.endpoint != entry.endpoint:
            typer.echo(escape_controls(entry.endpoint))
        typer.echo(line)
    typer.echo("Amounts in USD.")


def _cells(entry: LedgerEntry) -> tuple[str, ...]:
    reserved = _usd(entry.reserved_nanousd) if entry.reserved_nanousd else ""
    moment, state = _moment(entry.at)[:-1], STATES.get(entry.state, "")
    return f"{entry.id}", moment, f"{entry.num_requests}", reserved, _usd(entry.charged_nanousd), state


def _print_open(books: LedgerAdmin) -> None:
    if entries := books.open_entries() + books.disputed():
        _print_entries(entries)
    else:
        typer.echo("Nothing is open.")
    _print_closed([asdict(closed) for closed in books.closed()], books.ahead_s())
