"""``hybrid bench auto --learning``: what is learned online, on streams; the report is ``learning_trial``'s."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hybrid.cli.text_tables import agreement_line, aligned_table, wide_console
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hybrid.defer import Calibration, LabelledQuestion
    from hybrid.lab.experiments.auto_suite import Fitted
    from hybrid.lab.experiments.problem_suite import ProblemPlan
    from hybrid.lab.experiments.section import SectionRun


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


def learning_of(run: SectionRun, plan: ProblemPlan, report_progress: Any) -> dict[str, Any]:
    """Teach what was not taught before, and return the report. Raises UsageError, EngineError."""
    from hybrid.lab.experiments.learning_trial import learning_report, taught_question  # noqa: PLC0415
    from hybrid.lab.experiments.problem_suite import (  # noqa: PLC0415
        THRESHOLD,
        as_questions,
        draw_problems,
        fitted_problems,
    )
    from hybrid.lab.experiments.text_report import agreement  # noqa: PLC0415
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
    from hybrid.lab.experiments.learning_trial import TeachingSection  # noqa: PLC0415
    from hybrid.lab.experiments.problem_suite import PAIR, THRESHOLD  # noqa: PLC0415
    from hybrid.lab.experiments.section import run_sections  # noqa: PLC0415

    section = TeachingSection("teaching", PAIR, tuple(questions), THRESHOLD)
    found = run_sections(replace(run, sections=(section,)), report_progress)
    return [found[0, number] for number in range(len(section.questions))]


def print_learning_report(report: dict[str, Any]) -> None:
    """Print every table."""
    console = wide_console()
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
