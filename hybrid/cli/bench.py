"""``hybrid bench``: what the mechanisms cost on this machine, as ratios measured inside one run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.bench_peers import PEERS_EPILOG, peers
from hybrid.cli.command import exit_codes, progress
from hybrid.cli.lab_tables import show
from hybrid.errors import UsageError
from hybrid.report import Document, Table, Text

if TYPE_CHECKING:
    from hybrid.lab.speed.measure import BenchmarkReport, Measurement

EPILOG = """
engine: a drafting step against bare llama.cpp and against create_completion, and the memory of both.

kl: the divergence of one position at a 152k vocabulary.

check: a warm check against a bare decode of as many tokens.

prefix: what a check sends, receives and costs this process as the text before it grows, on the bundled server or on
the one that --cloud names (a model of the bundled vocabulary).

bill: what kl costs behind 500 shared tokens, as a multiple of the large model's own bill, on the bundled server as
three families charge, or on the one that --cloud names (the bundled large model, with room for 1,024 tokens).

overlap: what drafting on during a check saves, and tokens a second by policy and round trip.

parallel: ten questions at once over four contexts and an endpoint that takes 600 ms, an offline question beside one of
the cloud's, and what conversations in turn read again.

ledger: what reserving and settling cost with durability on, alone and beside a check, on the file system of --dir.

batch: 200 lines one at a time and four at a time, over an endpoint that takes 100 ms, as whole processes.

waiting: whole answers and first tokens of every rule as shares of what the cloud alone takes, with a quick drafter and
with a slow one.

serve: the first token and each chunk over the wire of hybrid serve, in turn with the library.

start: whole processes (the version, a help, an offline answer), beside an empty one and the libraries alone.

recurrent: tokens and time of a rejection, with saved states and without, of a mixed and of a purely recurrent model.

growth: an answer of auto with few and many outcomes learned, and the first operation on a small and a large ledger.

engine, check and overlap write a model of random weights themselves (0.5 billion parameters, 152k tokens, 530 MB),
prefix one of 0.2 MB, recurrent two (0.5 and 0.4 billion); all use one thread. On two cores kl, ledger and serve take
seconds, start, engine and check a minute or two, batch, prefix, recurrent about three, overlap about six, parallel ten.

With --local engine, kl, check and overlap measure that model in the place of the random one, after 100, 2,000 and 7,000
tokens where it was trained with as many; kl and overlap take the reference's rows from --cloud, by default from the
same model. On two cores a model of 135 million parameters takes some minutes.
Figures are medians with their quartiles. Bounds are printed, never enforced: a busy machine measures itself.

Examples:

  hybrid bench kl

  hybrid bench engine --json

  hybrid bench overlap --dir /tmp/models --repetitions 60

  hybrid bench engine --local real

  hybrid bench kl --local real:q3 --cloud real

  hybrid bench prefix --cloud http://127.0.0.1:30000 --lengths 100,1000,8000

  hybrid bench bill --cloud http://127.0.0.1:8000 --dialect vllm-tokens

Needs the packages of the extra bench: pip install '.[bench]'. Exit codes: 0 done, 1 output lost, 2 usage, 3 model
unusable, 4 server unusable, 130 interrupted (143 terminated).
"""


# What can be measured; ``hybrid.lab.speed`` has a function by each name.
TITLES: Mapping[str, str] = {
    "engine": "a drafting step",
    "kl": "the divergence of one position",
    "check": "a warm check",
    "prefix": "what a check costs as the text before it grows",
    "bill": "what kl costs behind a long shared prompt",
    "overlap": "what drafting on during a check saves",
    "ledger": "what reserving and settling cost",
    "recurrent": "what a rejection costs a model with recurrent layers",
    "parallel": "what questions at once cost one another",
    "batch": "what several lines of a batch at once save",
    "serve": "what the endpoint's wire costs over the library",
    "waiting": "how long a user waits, beside the cloud alone",
    "chain": "what a chain of local models takes, beside each alone and what was chosen",
    "start": "what a process costs before it answers",
    "growth": "what an answer and a ledger's first operation take by how much is kept",
}


bench = typer.Typer(
    name="bench",
    help="Measure what the mechanisms cost on this machine, and what the rules do on problems and on real text.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _command(what: str) -> Callable[..., None]:
    """Return the command that measures one thing."""

    def command(
        repetitions: Annotated[
            int | None, typer.Option(help="Pairs of runs a figure (30 to 300).", metavar="N", min=1)
        ] = None,
        folder: Annotated[
            Path | None, typer.Option("--dir", help="Keep the random models here and use them again.", metavar="DIR")
        ] = None,
        local: Annotated[
            str | None,
            typer.Option(
                help="engine, kl, check, overlap: measure this model.", metavar="NAME|FILE", show_default=False
            ),
        ] = None,
        cloud: Annotated[
            str | None,
            typer.Option(
                help="prefix, bill: measure this server; kl, overlap: the reference of --local.",
                metavar="URL|NAME|FILE",
                show_default=False,
            ),
        ] = None,
        dialect: Annotated[
            str | None,
            typer.Option(help="prefix, bill: its dialect (default: discovered).", metavar="NAME", show_default=False),
        ] = None,
        lengths: Annotated[
            str | None, typer.Option(help="prefix: after how many tokens (100,1000,8000).", metavar="N,...")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    ) -> None:
        with exit_codes():
            pair = _read_pair(what, local, cloud)
            server = _read_server(what, None if pair else cloud, dialect, lengths)
            report = _measure(what, repetitions, folder, server, pair)
            show(report.to_json(), lambda _: _document(report), as_json=as_json)

    return command


for _benchmark, _title in TITLES.items():
    bench.command(_benchmark, help=f"Measure {_title}.\n{EPILOG}")(_command(_benchmark))
bench.command("peers", help=f"{peers.__doc__}\n{PEERS_EPILOG}")(peers)


def _read_pair(what: str, local: str | None, cloud: str | None) -> tuple[str, str] | None:
    """Return the names of the model to measure and of its reference; None without --local."""
    if local is None:
        return None
    if what not in {"engine", "kl", "check", "overlap"}:
        msg = f"hybrid bench {what} has a local model of its own: --local is for engine, kl, check and overlap"
        raise UsageError(msg)
    if cloud is not None and what not in {"kl", "overlap"}:
        msg = f"hybrid bench {what} measures one model: leave --cloud away"
        raise UsageError(msg)
    return local, local if cloud is None else cloud


def _read_server(what: str, cloud: str | None, dialect: str | None, lengths: str | None) -> dict[str, Any] | None:
    """Return the flags about a running server as keywords; None without --cloud."""
    if cloud is None:
        if dialect or lengths:
            raise UsageError("--dialect and --lengths are about the server that --cloud names")
        return None
    if what not in {"prefix", "bill"}:
        msg = f"hybrid bench {what} measures its own server: --cloud is for prefix and bill"
        raise UsageError(msg)
    if lengths and what != "prefix":
        msg = f"--lengths is for prefix: hybrid bench {what} has texts of its own"
        raise UsageError(msg)
    try:
        numbers = tuple(int(number) for number in lengths.split(",")) if lengths else ()
    except ValueError:
        msg = f"--lengths {lengths}: numbers of tokens with commas between them"
        raise UsageError(msg) from None
    return {"url": cloud, "dialect": dialect} | ({"lengths": numbers} if numbers else {})


def _measure(
    what: str,
    repetitions: int | None,
    folder: Path | None,
    server: dict[str, Any] | None,
    pair: tuple[str, str] | None,
) -> BenchmarkReport:
    try:
        from hybrid.engine.real_models import model_file  # noqa: PLC0415
        from hybrid.lab import speed  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    except ModuleNotFoundError as error:
        msg = f"hybrid bench needs the package {error.name}: pip install '.[bench]'"
        raise UsageError(msg) from None
    running = speed.MeasuredServer(**server) if server else None
    with _model_folder(folder) as models, progress("the model is written") as report_progress:
        named = speed.NamedPair(*(model_file(name, report_progress) for name in pair)) if pair else None
        return speed.run(what, models, report_progress, repetitions, running, named)


@contextmanager
def _model_folder(folder: Path | None) -> Iterator[Path]:
    """Give a folder for models: the user's, or one that is gone afterwards."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="hybrid-bench-") as temporary:
            yield Path(temporary)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        msg = f"--dir {folder}: {error.strerror}"
        raise UsageError(msg) from None
    yield folder


def _document(report: BenchmarkReport) -> Document:
    from hybrid.lab.speed.measure import machine  # noqa: PLC0415

    columns = ("", "median", "quartiles", "bound", "note")
    table = Table("", columns, [*map(_cells, report.figures)], words=("", "bound", "note"))
    return [table, Text(f"{report.setting}."), Text(f"{machine()}.")]


def _cells(figure: Measurement) -> tuple[str, ...]:
    value, unit = figure.value, "" if figure.unit == "ratio" else f" {figure.unit}"
    low, median, high = (f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}" for x in (value.low, value.median, value.high))
    quartiles = f"{low} to {high}" if value.num > 1 else ""
    return figure.name, f"{median}{unit}", quartiles, _bound(figure), figure.note


def _bound(figure: Measurement) -> str:
    """Say what was promised of a figure's median, and whether it is missed."""
    sign, _, number = (figure.bound or "").partition(" ")
    far = figure.value.median - float(number or "nan")
    return f"{figure.bound}, missed" if (far > 0 if sign == "<=" else far < 0) else figure.bound or ""
