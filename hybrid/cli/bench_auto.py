"""``hybrid bench auto``: what asking where it pays recovers and costs, on problems with right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hybrid.cli.bench_text import write_drawing
from hybrid.cli.exits import exit_codes, progress
from hybrid.cli.text_tables import (
    SETTINGS,
    AsJson,
    BenchSplit,
    Out,
    Processes,
    agreement_line,
    aligned_table,
    estimate,
    out_folder,
    show,
    wide_console,
)
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.defer import Calibration, LabelledQuestion
    from hybrid.lab.experiments.auto_suite import Fitted
    from hybrid.lab.experiments.problem_suite import ProblemPlan
    from hybrid.lab.experiments.section import SectionRun

__all__ = ["AUTO_EPILOG", "SHOWN_DIALS", "WIDTH", "auto", "print_auto_report"]


# How the report of ``hybrid bench auto`` looks on a terminal; ``hybrid.lab.experiments`` decides what it says.

# The widest table has an interval under every tariff.
WIDTH = 200
# Where the dials stand, one under another; the other rules show what their dials reach.
SHOWN_DIALS = ("auto", "auto, one worth", "auto, critic", "auto, critic, one worth")


def print_auto_report(report: dict[str, Any]) -> None:
    """Print every section's tables."""
    console = wide_console(WIDTH)
    for section in report["sections"]:
        console.print(f"\n{section['section']}, {section['problems']} problems (95 % intervals over problems):")
        console.print(_arm_table(section["arms"]))
        for setting, rules in section["rules"].items():
            console.print(f"{section['section']}, {setting}: the dials of auto (default {report['default']:g}):")
            console.print(_dial_table(rules))
            console.print(f"{section['section']}, {setting}: the bill at a wanted RPI, its dials mixed by a coin:")
            console.print(_wanted_table(rules, section["oracle"][setting]))
            if section["compared"][setting]:
                console.print(f"{section['section']}, {setting}: less the bill of a control, and of the gap so closed:")
                console.print(_compared_table(section["compared"][setting]))
        console.print("Which drafts are turned down:", _verdict_table(section["verdicts"]))
    console.print("\nBy family, over all seeds:", _family_table(report["families"]))
    planned = report["planned_again"]
    console.print(f"{planned['same']} of {planned['answers']} planned answers that were written again are the same.")
    console.print(agreement_line(report["against_the_client"]))


def _arm_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = aligned_table("bill, of the cloud's alone", "right", "RPI", *SETTINGS, "cloud tokens", "requests")
    for row in rows:
        shown.add_row(
            row["arm"],
            str(row["right"]),
            estimate(row["rpi"]),
            *(estimate(row["bill"][name]) for name in SETTINGS),
            f"{row['cloud_tokens']:.0%}",
            f"{row['requests']:.2f}",
        )
    return shown


def _dial_table(rules: Sequence[dict[str, Any]]) -> Table:
    actions = ("keep", "check", "write", "write on")
    shown = aligned_table("rule", "dial", "RPI", "bill", "over the presets'", "cloud tokens", *actions)
    for rule in rules:
        if rule["rule"] not in SHOWN_DIALS and len(rule["dials"]) > 1:
            continue
        for dial in rule["dials"]:
            shown.add_row(
                rule["rule"],
                f"{dial['dial']:g}",
                estimate(dial["rpi"]),
                estimate(dial["bill"]),
                estimate(dial["over_presets"]),
                f"{dial['cloud_tokens']:.0%}",
                *(f"{dial['actions'].get(action, 0.0):.0%}" for action in actions),
            )
    return shown


def _wanted_table(rules: Sequence[dict[str, Any]], oracle: Mapping[str, Any]) -> Table:
    shown = aligned_table("bill at RPI", *oracle)
    for rule in rules:
        if len(rule["dials"]) > 1:
            shown.add_row(rule["rule"], *(estimate(each, 3) for each in rule["bill_at"].values()))
    shown.add_row("oracle of whole answers", *(estimate(each, 3) for each in oracle.values()))
    return shown


def _compared_table(rows: Sequence[dict[str, Any]]) -> Table:
    wanted = [name for name in rows[0] if name not in {"rule", "against"}]
    columns = [f"{what} at {at}" for at in wanted for what in ("difference", "closed")]
    shown = aligned_table("rule, against", *columns)
    for row in rows:
        cells = (row[at][what] for at in wanted for what in ("difference", "closed"))
        shown.add_row(f"{row['rule']}, {row['against']}", *(estimate(each, 3) for each in cells))
    return shown


def _verdict_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = aligned_table("score", "AUROC", "ECE", "told", "turned down")
    for row in rows:
        numbers = (row[name] for name in ("auroc", "ece", "told", "turned_down"))
        shown.add_row(row["score"], *("-" if number is None else f"{number:.3f}" for number in numbers))
    return shown


def _family_table(rows: Sequence[dict[str, Any]]) -> Table:
    arms = list(rows[0]["rpi"]) if rows else []
    shown = aligned_table("RPI", "problems", "gap", *arms)
    for row in rows:
        told = (row["rpi"][arm]["value"] for arm in arms)
        cells = ("-" if value is None else f"{value:.2f}" for value in told)
        shown.add_row(row["family"], str(row["problems"]), str(row["gap"]), *cells)
    return shown


AUTO_EPILOG = """
Problems with right answers (`hybrid.tasks`) are answered by the bundled pair, in this process, no prefix decoded twice,
by the presets and by `auto`. RPI is the share of the right answers between the two models that an arm recovers; its
bill is a multiple of the large model's alone, under five tariffs: U (a check reads no prefix cache), C (it does), S and
SU (the same behind 500 tokens that all share and the cache holds), new (only new tokens are paid).

The table is made of the first seed; the others stand beside it. What is tuned is tried with --split calibration, on
problems that no score was fitted on. One answer in twenty is written again by the client over the bundled server.

With --real open text of the real pairs (`hybrid models --real`) is put before the planner: what it recovers of the loss
between the models, at dials that were read off other questions, and what it costs.

With --critic `auto` and `route` decide with what another model of the ladder says of each draft, beside both without.

A run that was interrupted goes on where it stopped.

Examples:

  hybrid bench auto --split calibration --num 10

  hybrid bench auto --json --plot auto.svg > auto.json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted.
"""


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
    split: Annotated[BenchSplit, typer.Option(help="Where the problems are drawn from.")] = BenchSplit.test,
    seed: Annotated[
        list[int] | None, typer.Option(help="Draw problems with it; may be repeated (1, 0, 2).", metavar="S", min=0)
    ] = None,
    processes: Processes = 2,
    folder: Out = None,
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
    critic: Critic = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw RPI against bill.", metavar="FILE.svg", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what asking where it pays recovers and costs, on problems with right answers."""
    with exit_codes():
        if real and (ladder is not None or plot is not None):
            raise UsageError("--real is tried alone, and has neither --ladder nor --plot")
        if critic is not None and (critic not in {"mid", "small"} or real or ladder or plot):
            raise UsageError("--critic is mid or small, and has neither --real, --ladder nor --plot")
        choices = {"split": split.value} | ({"num": num} if num else {}) | ({"seeds": tuple(seed)} if seed else {})
        if real:
            from hybrid.cli.bench_routed import print_routed_report, routed  # noqa: PLC0415

            report = routed(num, split.value, seed[0] if seed else 0, folder, processes)
            show(report, print_routed_report, as_json=as_json)
            return
        report = _report(choices, out_folder(folder, "bench-auto"), processes, ladder, critic)
        if plot is not None:
            from hybrid.lab.experiments.plot import auto_svg  # noqa: PLC0415

            write_drawing(plot, auto_svg(report))
        show(report, print_auto_report, as_json=as_json)


def _report(
    choices: dict[str, Any], folder: Path, processes: int, ladder: Path | None, critic: str | None
) -> dict[str, Any]:
    from hybrid.lab.experiments.problem_suite import ProblemPlan  # noqa: PLC0415  (help needs no llama.cpp)

    plan = ProblemPlan(**choices)
    with progress("the problems are drawn") as report_progress:
        if critic is not None:
            return _run_critic(plan, critic, folder, processes, report_progress)
        if ladder is not None:
            return _run_ladder(plan, ladder, folder, processes, report_progress)
        return _run(plan, folder, processes, report_progress)


def _run(plan: ProblemPlan, folder: Path, processes: int, report_progress: Any) -> dict[str, Any]:
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.lab.experiments.auto_suite import auto_sections  # noqa: PLC0415
    from hybrid.lab.experiments.problem_suite import THRESHOLD, as_questions, fitted_problems  # noqa: PLC0415

    run = _empty_run(BUNDLED_LOCAL, BUNDLED_CLOUD, folder, processes)
    labelled = label_questions(run, as_questions(fitted_problems()), THRESHOLD, report_progress)
    fitted = fit_scores(labelled, THRESHOLD, shipped_calibration(THRESHOLD))
    return _finished(run, auto_sections(plan, fitted), fitted.calibration.worth, report_progress)


def _run_critic(plan: ProblemPlan, critic: str, folder: Path, processes: int, report_progress: Any) -> dict[str, Any]:
    """Try a critic of the ladder: the other of ``mid`` and ``small`` drafts."""
    from hybrid.assemble import BUNDLED_CLOUD  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.lab.experiments.auto_suite import critic_sections  # noqa: PLC0415
    from hybrid.lab.experiments.problem_suite import PAIR, THRESHOLD, as_questions, fitted_problems  # noqa: PLC0415
    from hybrid.lab.experiments.section import ModelPair  # noqa: PLC0415
    from hybrid.settings.names import MODELS  # noqa: PLC0415

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
    from hybrid.lab.experiments.auto_suite import auto_section  # noqa: PLC0415
    from hybrid.lab.experiments.peers_suite import read_problems  # noqa: PLC0415
    from hybrid.lab.experiments.problem_suite import THRESHOLD  # noqa: PLC0415

    problems = ladder / "problems.jsonl"
    run = _empty_run(ladder / "small.gguf", ladder / "large.gguf", folder, processes)
    labelled = label_questions(run, read_problems(problems, "calibration"), THRESHOLD, report_progress)
    fitted = fit_scores(labelled, THRESHOLD, None)
    section = auto_section(f"{ladder.name}, {plan.split}", read_problems(problems, plan.split), fitted)
    return _finished(run, (section,), fitted.calibration.worth, report_progress)


def _empty_run(local: Path, cloud: Path, folder: Path, processes: int) -> SectionRun:
    from hybrid.lab.experiments.problem_suite import PAIR  # noqa: PLC0415
    from hybrid.lab.experiments.section import ModelPair, SectionRun  # noqa: PLC0415

    return SectionRun((), {PAIR: ModelPair(local, cloud)}, folder, num_processes=processes)


# The scores of ``hybrid bench auto``: labels from a world, and what is fitted to them.


def label_questions(run: SectionRun, questions: Any, threshold: float, report_progress: Any) -> list[LabelledQuestion]:
    """Label questions as a check of their whole drafts would, in the run's processes and folder."""
    from hybrid.lab.experiments.auto_trial import LabelSection, labelled_question  # noqa: PLC0415
    from hybrid.lab.experiments.problem_suite import PAIR  # noqa: PLC0415
    from hybrid.lab.experiments.section import run_sections  # noqa: PLC0415

    section = LabelSection("labels", PAIR, tuple(questions), threshold)
    found = run_sections(replace(run, sections=(section,)), report_progress)
    return [labelled_question(found[0, i]) for i in range(len(section.questions))]


def fit_scores(
    labelled: list[LabelledQuestion],
    threshold: float,
    shipped: Calibration | None,
    critic: str | None = None,
    shipped_critic: Calibration | None = None,
) -> Fitted:
    """Fit what is tried to labels; ``shipped`` stands for the trees, where a pair has it. Raises UsageError.

    ``critic``: the identity of the critic that read the labelled drafts; what is shipped of it counts in the same way.
    """
    from hybrid.lab.experiments.auto_suite import Fitted  # noqa: PLC0415
    from hybrid.tune.fit import fit  # noqa: PLC0415

    who = partial(fit, labelled, local="bench", cloud="bench", judge=f"kl:{threshold:g}")
    with_critic = None if critic is None else shipped_critic or who(critic=critic)
    return Fitted(shipped or who(), who(trees=False), labelled, with_critic)


def shipped_calibration(threshold: float, local: Path | None = None, critic: str | None = None) -> Calibration | None:
    """Return what is shipped of the bundled pair, not what the user knows of it; None: nothing.

    ``local``: another model of the ladder in the small one's place. ``critic``: the identity of a critic.
    """
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.pairs.store import calibration_for  # noqa: PLC0415

    judge = f"kl:{threshold:g}"
    own = identify(local or BUNDLED_LOCAL)
    found = calibration_for(own, BUNDLED_CLOUD.stem, judge, critic=critic, shipped_only=True)
    return found if found is None or found.critic == critic else None


def _finished(run: SectionRun, sections: Any, default: float, report_progress: Any) -> dict[str, Any]:
    from hybrid.lab.experiments.problem_report import problem_report  # noqa: PLC0415
    from hybrid.lab.experiments.section import run_sections  # noqa: PLC0415

    return problem_report(sections, run_sections(replace(run, sections=sections), report_progress), default)
