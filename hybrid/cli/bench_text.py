"""``hybrid bench text``: what every rule recovers and costs on real text, with the models of an installed package."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.exits import exit_codes, progress
from hybrid.cli.text_tables import AsJson, BenchSplit, Out, Processes, out_folder, print_report, show
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.lab.experiments.suite import TextPlan

TEXT_EPILOG = """
Questions to an assistant (`hybrid.tasks.assistant`) are answered by every rule over a pair of real models, in this
process, no prefix decoded twice: the reference is SmolLM2-135M-Instruct, the local model one of

q3: the same, requantised to three bits;

d2: the same, with two layers left out;

d4: with four left out.

The first table holds the two models against each other along the reference's own greedy text. The second has every
rule: the share of the loss between the two models that it recovers (in excess nats, log P(best) - log P(token) under
the reference, and in NLL), and its bill as a multiple of the reference's alone, under five tariffs: U (a check reads no
prefix cache), C (it does), S and SU (the same behind 500 tokens that all share), new (only new tokens are paid).
Whole questions sent at random recover what they pay for: the advantage is over that. One answer in twenty is written
again by the client over the bundled server and compared.

Everything takes about 40 minutes on two idle cores. A run that was interrupted goes on where it stopped.

Examples:

  hybrid bench text

  hybrid bench text --pair q3 --temperature 0 --num 20

  hybrid bench text --json --plot text.svg > text.json

Exit codes: 0 done, 1 output lost, 2 usage (the package is not installed), 3 model unusable, 130 interrupted.
"""


class TextPair(StrEnum):
    """The local model of a pair."""

    q3 = "q3"
    d2 = "d2"
    d4 = "d4"


def text(
    num: Annotated[
        int | None, typer.Option("--num", "--n", help="Questions a section (30 to 300).", metavar="N", min=1)
    ] = None,
    pair: Annotated[TextPair | None, typer.Option(help="One pair only.", show_default=False)] = None,
    temperature: Annotated[
        float | None, typer.Option(help="One temperature only (default: 0, 0.7 and 1).", metavar="T", min=0.0)
    ] = None,
    split: Annotated[BenchSplit, typer.Option(help="Half of the questions that the rules answer.")] = BenchSplit.test,
    seed: Annotated[int, typer.Option(help="Which questions, and all draws.", metavar="S", min=0)] = 0,
    processes: Processes = 2,
    folder: Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw recovered share against bill.", metavar="FILE.svg", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what every rule recovers and costs on real text."""
    with exit_codes():
        report, pictures = _report(
            {"num": num, "pair": pair and pair.value, "temperature": temperature, "split": split.value, "seed": seed},
            folder,
            processes,
        )
        if plot is not None:
            write_drawing(plot, pictures())
        show(report, print_report, as_json=as_json)


def _report(choices: dict[str, Any], folder: Path | None, processes: int) -> tuple[dict[str, Any], Any]:
    """Run what was asked for; return the report and a function that draws it."""
    from hybrid.lab.experiments.plot import svg  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.lab.experiments.suite import TextPlan  # noqa: PLC0415

    plan = TextPlan(**choices)
    with progress("the models are looked for") as report_progress:
        report = _run(plan, out_folder(folder, "bench-text"), processes, report_progress)
    return report, lambda: svg(report)


def _run(plan: TextPlan, folder: Path, processes: int, report_progress: Any) -> dict[str, Any]:
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.lab.experiments.section import ModelPair, SectionRun, run_sections  # noqa: PLC0415
    from hybrid.lab.experiments.suite import PAIRS, REFERENCE, sections  # noqa: PLC0415
    from hybrid.lab.experiments.text_report import text_report  # noqa: PLC0415

    chosen = sections(plan)
    cloud = model_file(REFERENCE, report_progress)
    names = dict.fromkeys(section.pair for section in chosen)
    pairs = {name: ModelPair(model_file(PAIRS[name], report_progress), cloud) for name in names}
    run = SectionRun(chosen, pairs, folder, plan.seed, processes)
    return text_report(chosen, run_sections(run, report_progress))


def write_drawing(path: Path, drawing: str) -> None:
    """Write a picture where ``--plot`` says. Raises UsageError."""
    try:
        path.write_text(drawing, encoding="utf-8")
    except OSError as error:
        msg = f"--plot {path}: {error.strerror}"
        raise UsageError(msg) from None


__all__ = ["TEXT_EPILOG", "text", "write_drawing"]
