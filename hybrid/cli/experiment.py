"""``hybrid experiment``: a study of anybody's pair, from a file that says what is run to a report with intervals."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import check_writable, exit_codes, progress, write_whole
from hybrid.cli.lab_tables import AsJson, Processes, agreement_line
from hybrid.errors import UsageError
from hybrid.report import Block, Document, Heading, Table, Text, html, terminal
from hybrid.report.markdown import markdown
from hybrid.spend import as_usd

if TYPE_CHECKING:
    from hybrid.lab.study.running import Study

experiment = typer.Typer(
    name="experiment",
    help="Try any policies on any pair and questions, and write a report: new, run, report.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DESIGNS = Path(__file__).parents[1] / "lab" / "study" / "designs"
# So many questions of each pair take about three minutes on the bundled pair.
QUICK = 20
Folder = Annotated[Path, typer.Option("--out", help="Keep records and report here.", metavar="DIR")]


@experiment.command("new")
def new(
    name: Annotated[str, typer.Argument(help="A design that ships, or your own pair's.", metavar="NAME")] = "own",
    listed: Annotated[bool, typer.Option("--list", help="List the designs that ship.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write it here (NAME.toml).", metavar="FILE")] = None,
) -> None:
    """Write a design file with comments, to be changed and run. A file that is there is never overwritten."""
    with exit_codes():
        designs = {path.stem: path for path in sorted(DESIGNS.glob("*.toml"))}
        if listed:
            for each, path in designs.items():
                typer.echo(f"{each}: {path.read_text(encoding='utf-8').partition(chr(10))[0].lstrip('# ')}")
            return
        if name not in designs:
            msg = f"there is no design {name}: {', '.join(designs)}"
            raise UsageError(msg)
        target = out or Path(f"{name}.toml")
        if target.exists():
            msg = f"{target} is there already: give another file with --out"
            raise UsageError(msg)
        check_writable("--out", target)
        text = designs[name].read_text(encoding="utf-8")
        write_whole(target, text)
        first = "write its ladders as its comments say, then " if "write_ladder.py" in text else ""
        typer.echo(f"{target} is written: {first}hybrid experiment run {target} --out {target.stem}-study")


@experiment.command("run")
def run(
    path: Annotated[Path, typer.Argument(help="What is run.", metavar="DESIGN.toml")],
    out: Folder,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"At most {QUICK} questions of a pair, the first seed.")
    ] = False,
    processes: Processes = 2,
    as_json: AsJson = False,
) -> None:
    """Run what a design says, or what is left of it, and write the report beside the records."""
    with exit_codes():
        from hybrid.lab.experiments.grid import read_parts, run_grids  # noqa: PLC0415  (help needs no models)
        from hybrid.lab.study.design import read_design, within  # noqa: PLC0415
        from hybrid.lab.study.running import Study, power_lines  # noqa: PLC0415
        from hybrid.store.files import LineFile, make_folder  # noqa: PLC0415

        most, folder = QUICK if quick else None, out.resolve()
        study = Study(read_design(path, most), folder, processes)
        with within(path):
            plan = study.plan()
        before = _begun(folder)
        if before and before[0] != path.resolve() and read_parts(folder) and not plan["answered_before"]:
            msg = f"--out {out} holds the records of {before[0]}, and none of this design: give another folder"
            raise UsageError(msg)
        for line in [*plan_lines(plan), *power_lines(study.design.power, {})]:
            typer.echo(f"hybrid: {line}", err=True)
        try:
            make_folder(folder)
        except OSError as error:
            msg = f"--out {out}: {error.strerror}"
            raise UsageError(msg) from None
        words = ["hybrid", "experiment", "run", str(path), "--out", str(out), *(["--quick"] if quick else [])]
        command = shlex.join(words)
        with closing(LineFile(folder / "run.lock", "another run is at work in this folder")):
            study.claim()
            write_whole(folder / path.name, path.read_text(encoding="utf-8"))
            begun = {"design": str(path.resolve()), "most": most, "command": command}
            write_whole(folder / "run.json", json.dumps(begun) + "\n")
            try:
                with progress("the models are loaded") as report_progress:
                    found = run_grids(study.run, report_progress)
            except KeyboardInterrupt:
                typer.echo(f"hybrid: interrupted; what was answered is kept: {command} goes on", err=True)
                raise
            _write(study, study.report(found) | {"command": command}, as_json=as_json)


@experiment.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="DIR")], as_json: AsJson = False
) -> None:
    """Write the report again from the records; nothing is run."""
    with exit_codes():
        from hybrid.lab.study.design import read_design  # noqa: PLC0415
        from hybrid.lab.study.running import Study  # noqa: PLC0415

        if (begun := _begun(folder)) is None:
            msg = f"{folder} holds no run of hybrid experiment (the same command as before begins it again)"
            raise UsageError(msg)
        design, most, command = begun
        study = Study(read_design(folder / design.name, most, design.parent), folder.resolve())
        _write(study, study.report(study.recorded()) | {"command": command}, as_json=as_json)


def _begun(folder: Path) -> tuple[Path, int | None, str] | None:
    """Return the design of a folder, how many questions were wanted at most, and the command; None: there is none."""
    try:
        begun = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return Path(begun["design"]), begun["most"], begun["command"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """Say what will be run, what it takes, and what it costs at the most."""
    before = f" ({plan['answered_before']} were answered before)" if plan["answered_before"] else ""
    most = f"{plan['answers']} answers of {plan['tokens_at_most']} tokens at most, about {plan['minutes']:g} min"
    lines = [f"{plan['questions']} questions{before}: {most}"]
    for pair, worst in plan["worst_nanousd"].items():
        cap = "no cap is needed" if plan["cap_nanousd"] is None else f"the cap is {as_usd(plan['cap_nanousd'])}"
        about = f"about {as_usd(plan['expected_nanousd'][pair])} for answers of full length"
        lines.append(f"{pair}: {about}; at most {as_usd(worst)}, if every token is a request; {cap}")
    return lines


def study_document(study: Study, found: dict[str, Any]) -> Document:
    """Return the whole report: a summary, each section, and how it was made."""
    from hybrid.lab.study.running import READING  # noqa: PLC0415  (help needs no models)

    blocks: list[Block] = [*study.summary(found), Heading("How to read this"), *map(Text, READING.split("\n\n"))]
    for section, _ in study.parts:
        blocks += [Heading(section.title), *section.document(found["sections"][section.name])]
    rows = [("command", found["command"]), ("seeds", ", ".join(map(str, found["seeds"])))]
    rows += [(f"questions of {pair}", str(num)) for pair, num in found["questions"].items()]
    rows += [(f"sha256 of {each['file']}", each["sha256"]) for each in found["models"]]
    return [*blocks, Heading("How it was made"), Table("", (), [*rows, ("machine", found["machine"])]),
            agreement_line(found["against_the_client"])]  # fmt: skip


def _write(study: Study, found: dict[str, Any], *, as_json: bool) -> None:
    """Write the report in three forms, and print it."""
    title, document = f"Experiment {found['design']}", study_document(study, found)
    write_whole(study.folder / "report.json", json.dumps(found) + "\n")
    write_whole(study.folder / "report.html", html.page(title, [Heading(title, 1), *document]))
    write_whole(study.folder / "report.md", markdown(title, document))
    if as_json:
        typer.echo(json.dumps(found))
    else:
        terminal.show([*study.summary(found), agreement_line(found["against_the_client"])])
        typer.echo(f"{study.folder / 'report.html'}, report.md and report.json are written")
