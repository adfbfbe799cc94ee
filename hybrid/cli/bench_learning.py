"""``hybrid bench auto --learning``: what is learned online, on streams; the report is ``learning_report``'s."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hybrid.cli.text_tables import WIDTH, agreement_line, aligned_table
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.bench.experiments.problem_suite import ProblemPlan
    from hybrid.bench.experiments.section_run import SectionRun


def learning_of(run: SectionRun, plan: ProblemPlan, report_progress: Any) -> dict[str, Any]:
    """Teach what was not taught before, and return the report. Raises UsageError, EngineError."""
    from hybrid.bench.experiments.learning_report import learning_report  # noqa: PLC0415
    from hybrid.bench.experiments.learning_trial import taught_question  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import (  # noqa: PLC0415
        THRESHOLD,
        as_questions,
        draw_problems,
        fitted_problems,
    )
    from hybrid.bench.experiments.text_report import agreement  # noqa: PLC0415
    from hybrid.cli.auto_scores import shipped_calibration  # noqa: PLC0415
    from hybrid.tune.fit import fit  # noqa: PLC0415

    if (fitted := shipped_calibration(THRESHOLD)) is None:
        raise UsageError("no calibration of the bundled pair comes with this version")
    records = _teach(run, as_questions(fitted_problems()), report_progress)
    taught, unseen = [taught_question(each) for each in records], plan.split == "test"
    asked = taught
    if unseen:
        drawn = dict.fromkeys(each for seed in plan.seeds for each in draw_problems(plan.split, plan.num, seed))
        records = _teach(run, as_questions(tuple(drawn)), report_progress)
        asked = [taught_question(each) for each in records]
    who = partial(fit, local="bench", cloud="bench", judge=fitted.judge, trees=False)
    report = learning_report(taught, asked, who, fitted, unseen=unseen)
    return report | {"against_the_client": agreement([each for record in records for each in record["checked"]])}


def _teach(run: SectionRun, questions: Any, report_progress: Any) -> list[dict[str, Any]]:
    """Judge problems in the run's processes; return their records."""
    from hybrid.bench.experiments.learning_trial import TeachingSection  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import PAIR, THRESHOLD  # noqa: PLC0415
    from hybrid.bench.experiments.section_run import run_sections  # noqa: PLC0415

    section = TeachingSection("teaching", PAIR, tuple(questions), THRESHOLD)
    found = run_sections(replace(run, sections=(section,)), report_progress)
    return [found[0, number] for number in range(len(section.questions))]


def print_learning_report(report: dict[str, Any]) -> None:
    """Print every table."""
    console = Console(highlight=False, width=max(Console(highlight=False).width, WIDTH))
    console.print(f"\n{report['questions']} problems under tariff U; one check of each draft (once):", end=" ")
    console.print(f"RPI {report['once']['rpi']:.2f} at {report['once']['bill']:.2f} of the cloud's bill.")
    console.print("\nStarted with nothing, means over orders; the dial is what losing an answer is worth:")
    console.print(_cold_table(report["cold"]))
    console.print("\nA score that was fitted to other kinds of problems:")
    console.print(_shift_table([*report["shifts"], *report["left_out"]]))
    console.print("\nKept and turned down, of all questions, over splits:")
    console.print(_risk_table(report["risk"]))
    console.print("\nA day with a burst under a cap:")
    console.print(_day_table(report["days"]))
    console.print(agreement_line(report["against_the_client"]))


def _cold_table(cold: dict[str, Any]) -> Table:
    shown = aligned_table("dial", "questions", "RPI", "bill", "kept")
    for name, parts in cold.items():
        for part in parts:
            shown.add_row(name, part["part"], f"{part['rpi']:.2f}", f"{part['bill']:.2f}", f"{part['kept']:.0%}")
    return shown


def _shift_table(shifts: list[dict[str, Any]]) -> Table:
    shown = aligned_table("met for the first time", "questions", "RPI", "bill", "kept", "told")
    for shift in shifts:
        for part in shift["parts"]:
            rpi = "-" if part["rpi"] is None else f"{part['rpi']:.2f}"
            told = str(len(shift["said"]))
            shown.add_row(
                ", ".join(shift["kinds"]), part["part"], rpi, f"{part['bill']:.2f}", f"{part['kept']:.0%}", told
            )
    return shown


def _risk_table(levels: list[dict[str, Any]]) -> Table:
    shown = aligned_table("asked for", "realised", "standard error", "kept")
    for each in levels:
        error = f"{each['standard_error']:.4f}"
        shown.add_row(f"{each['level']:g}", f"{each['lost']:.4f}", error, f"{each['kept']:.0%}")
    return shown


def _day_table(days: list[dict[str, Any]]) -> Table:
    shown = aligned_table("cap, of the cloud's bill", "day", "spent of the cap", "by the burst's end", "RPI")
    for day in days:
        rpi = day["figures"]["rpi"]
        by_burst = f"{day['spent_by_burst']:.0%}"
        shown.add_row(f"{day['cap']:g}", str(day["number"]), f"{day['spent']:.1%}", by_burst, f"{rpi:.2f}")
    return shown
