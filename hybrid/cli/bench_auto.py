"""``hybrid bench auto``: what asking where it pays recovers and costs, on problems with right answers."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.bench_text import write_drawing
from hybrid.cli.exits import exit_codes
from hybrid.cli.progress import progress
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.bench.experiments.problem_suite import ProblemPlan
    from hybrid.bench.experiments.section_run import SectionRun

AUTO_EPILOG = """
Problems with right answers (`hybrid.tasks`) are answered by the bundled pair, in this process, no prefix decoded twice,
by the presets and by `auto`. RPI is the share of the right answers between the two models that an arm recovers; its
bill is a multiple of the large model's alone, under five tariffs: U (a check reads no prefix cache), C (it does), S and
SU (the same behind 500 tokens that all share and the cache holds), new (only new tokens are paid).

The table is made of the first seed; the others stand beside it. What is tuned is tried with --split calibration, on
problems that no score was fitted on. One answer in twenty is written again by the client over the bundled server.

With --real open text of the real pairs (`hybrid models --real`) is put before the planner: what it recovers of the loss
between the models, at dials that were read off other questions, and what it costs.

With --real --chat both pairs answer by `route` over an endpoint that takes messages, beside `auto`, `doubt` and both
models alone, and every answer of `route` and of the cloud is written again by the client over that endpoint.

With --critic `auto` and `route` decide with what another model of the ladder says of each draft, beside both without.

With --learning streams of the problems are decided from labels: started with nothing, after a shift to other kinds of
problems, at a level of risk, and on a day with a burst under a cap. With --split calibration the problems are those
that the shipped score was fitted on, which no stream but a level of risk knows beforehand.

A run that was interrupted goes on where it stopped.

Examples:

  hybrid bench auto --split calibration --num 10

  hybrid bench auto --json --plot auto.svg > auto.json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted.
"""


class ProblemSplit(StrEnum):
    """Which problems are answered."""

    calibration = "calibration"
    test = "test"


Num = Annotated[
    int | None,
    typer.Option(
        "--num",
        "--n",
        help="Problems a family (50), or of --real questions a section (its own number).",
        metavar="N",
        min=1,
        max=100,
        show_default=False,
    ),
]
Critic = Annotated[
    str | None,
    typer.Option(
        help="Try what a critic adds: mid reads what small drafts, or small what mid drafts.",
        metavar="mid|small",
        show_default=False,
    ),
]


def auto(
    num: Num = None,
    split: Annotated[ProblemSplit, typer.Option(help="Where the problems are drawn from.")] = ProblemSplit.test,
    seed: Annotated[
        list[int] | None, typer.Option(help="Draw problems with it; may be repeated (1, 0, 2).", metavar="S", min=0)
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes, one thread each.", metavar="P", min=1, max=64)] = 2,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Keep what was found here (default: in your cache).", metavar="DIR"),
    ] = None,
    ladder: Annotated[
        Path | None,
        typer.Option(
            help="Try another pair: small.gguf, large.gguf and problems.jsonl of a folder.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Put open text of the real pairs before the planner instead.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="With --real: route over an endpoint that takes messages, beside others.")
    ] = False,
    learning: Annotated[
        bool, typer.Option("--learning", help="Try what is learned online: cold starts, shifts, risks, paced days.")
    ] = False,
    critic: Critic = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw RPI against bill.", metavar="FILE.svg", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Tell what asking where it pays recovers and costs, on problems with right answers."""
    with exit_codes():
        if chat and not real:
            raise UsageError("--chat is tried with --real")
        if (real or learning) and (ladder is not None or plot is not None or (real and learning)):
            raise UsageError("--real and --learning are tried alone, and have neither --ladder nor --plot")
        if critic is not None and (critic not in {"mid", "small"} or real or learning or ladder or plot):
            raise UsageError("--critic is mid or small, and has neither --real, --learning, --ladder nor --plot")
        choices = {"split": split.value} | ({"num": num} if num else {}) | ({"seeds": tuple(seed)} if seed else {})
        if real:
            _real(num, split, seed, folder, processes, chat=chat, as_json=as_json)
        elif learning:
            _learning(choices, folder, processes, as_json=as_json)
        else:
            _show(_report(choices, folder, processes, ladder, critic), plot, as_json=as_json)


def _show(report: dict[str, Any], plot: Path | None, *, as_json: bool) -> None:
    """Draw and print the report of the problems."""
    if plot is not None:
        from hybrid.bench.experiments.auto_plot import auto_svg  # noqa: PLC0415

        write_drawing(plot, auto_svg(report))
    if as_json:
        typer.echo(json.dumps(report))
    else:
        from hybrid.cli.auto_tables import print_auto_report  # noqa: PLC0415

        print_auto_report(report)


def _real(
    num: int | None,
    split: ProblemSplit,
    seeds: list[int] | None,
    folder: Path | None,
    processes: int,
    *,
    chat: bool,
    as_json: bool,
) -> None:
    """Print the report of the real pairs."""
    from hybrid.cli.bench_routed import routed  # noqa: PLC0415
    from hybrid.cli.routed_tables import print_chat_report, print_routed_report  # noqa: PLC0415

    report = routed(num, split.value, seeds[0] if seeds else 0, folder, processes, chat=chat)
    if as_json:
        typer.echo(json.dumps(report))
    elif chat:
        print_chat_report(report)
    else:
        print_routed_report(report)


def _learning(choices: dict[str, Any], folder: Path | None, processes: int, *, as_json: bool) -> None:
    """Print the report of what is learned online."""
    from platformdirs import user_cache_path  # noqa: PLC0415  (help and usage errors need no llama.cpp)

    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import ProblemPlan  # noqa: PLC0415
    from hybrid.cli.bench_learning import learning_of, print_learning_report  # noqa: PLC0415
    from hybrid.folders import home_folder  # noqa: PLC0415

    with progress("the problems are drawn") as report_progress:
        place = folder or home_folder(user_cache_path) / "bench-auto"
        run = _empty_run(BUNDLED_LOCAL, BUNDLED_CLOUD, place, processes)
        report = learning_of(run, ProblemPlan(**choices), report_progress)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        print_learning_report(report)


def _report(
    choices: dict[str, Any], folder: Path | None, processes: int, ladder: Path | None, critic: str | None
) -> dict[str, Any]:
    from platformdirs import user_cache_path  # noqa: PLC0415  (help and usage errors need no llama.cpp)

    from hybrid.bench.experiments.problem_suite import ProblemPlan  # noqa: PLC0415
    from hybrid.folders import home_folder  # noqa: PLC0415

    with progress("the problems are drawn") as report_progress:
        place = folder or home_folder(user_cache_path) / "bench-auto"
        plan = ProblemPlan(**choices)
        if critic is not None:
            return _run_critic(plan, critic, place, processes, report_progress)
        return (
            _run(plan, place, processes, report_progress)
            if ladder is None
            else _run_ladder(plan, ladder, place, processes, report_progress)
        )


def _run(plan: ProblemPlan, folder: Path, processes: int, report_progress: Any) -> dict[str, Any]:
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.bench.experiments.auto_suite import auto_sections  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import THRESHOLD, as_questions, fitted_problems  # noqa: PLC0415
    from hybrid.cli.auto_scores import fit_scores, label_questions, shipped_calibration  # noqa: PLC0415

    run = _empty_run(BUNDLED_LOCAL, BUNDLED_CLOUD, folder, processes)
    labelled = label_questions(run, as_questions(fitted_problems()), THRESHOLD, report_progress)
    fitted = fit_scores(labelled, THRESHOLD, shipped_calibration(THRESHOLD))
    return _finished(run, auto_sections(plan, fitted), fitted.calibration.worth, report_progress)


def _run_critic(plan: ProblemPlan, critic: str, folder: Path, processes: int, report_progress: Any) -> dict[str, Any]:
    """Try a critic of the ladder: the other of ``mid`` and ``small`` drafts."""
    from hybrid.assemble import BUNDLED_CLOUD  # noqa: PLC0415
    from hybrid.bench.experiments.auto_suite import critic_sections  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import PAIR, THRESHOLD, as_questions, fitted_problems  # noqa: PLC0415
    from hybrid.bench.experiments.section_run import ModelPair  # noqa: PLC0415
    from hybrid.cli.auto_scores import fit_scores, label_questions, shipped_calibration  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.model_names import MODELS  # noqa: PLC0415

    reads, local = MODELS / f"{critic}.gguf", MODELS / f"{'small' if critic == 'mid' else 'mid'}.gguf"
    run = replace(
        _empty_run(local, BUNDLED_CLOUD, folder, processes), pairs={PAIR: ModelPair(local, BUNDLED_CLOUD, reads)}
    )
    labelled = label_questions(run, as_questions(fitted_problems()), THRESHOLD, report_progress)
    own = identify(reads)
    shipped = shipped_calibration(THRESHOLD, local), shipped_calibration(THRESHOLD, local, own)
    fitted = fit_scores(labelled, THRESHOLD, shipped[0], own, shipped[1])
    return _finished(run, critic_sections(plan, fitted), fitted.calibration.worth, report_progress)


def _run_ladder(plan: ProblemPlan, ladder: Path, folder: Path, processes: int, report_progress: Any) -> dict[str, Any]:
    """Try another pair: ``small.gguf``, ``large.gguf`` and ``problems.jsonl`` of a folder."""
    from hybrid.bench.experiments.auto_suite import auto_section  # noqa: PLC0415
    from hybrid.bench.experiments.filed_problems import read_problems  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import THRESHOLD  # noqa: PLC0415
    from hybrid.cli.auto_scores import fit_scores, label_questions  # noqa: PLC0415

    problems = ladder / "problems.jsonl"
    run = _empty_run(ladder / "small.gguf", ladder / "large.gguf", folder, processes)
    labelled = label_questions(run, read_problems(problems, "calibration"), THRESHOLD, report_progress)
    fitted = fit_scores(labelled, THRESHOLD, None)
    section = auto_section(f"{ladder.name}, {plan.split}", read_problems(problems, plan.split), fitted)
    return _finished(run, (section,), fitted.calibration.worth, report_progress)


def _empty_run(local: Path, cloud: Path, folder: Path, processes: int) -> SectionRun:
    from hybrid.bench.experiments.problem_suite import PAIR  # noqa: PLC0415
    from hybrid.bench.experiments.section_run import ModelPair, SectionRun  # noqa: PLC0415

    return SectionRun((), {PAIR: ModelPair(local, cloud)}, folder, num_processes=processes)


def _finished(run: SectionRun, sections: Any, default: float, report_progress: Any) -> dict[str, Any]:
    from hybrid.bench.experiments.problem_report import problem_report  # noqa: PLC0415
    from hybrid.bench.experiments.section_run import run_sections  # noqa: PLC0415

    return problem_report(sections, run_sections(replace(run, sections=sections), report_progress), default)


__all__ = ["AUTO_EPILOG", "auto"]
