"""``hybrid bench auto --real``: the real pairs, and what is known of them; the report is ``routed_report``'s."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hybrid.cli.exits import progress
from hybrid.cli.text_tables import agreement_line, aligned_table, estimate, out_folder, wide_console
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.defer import Calibration
    from hybrid.tasks.assistant import QuestionSplit


# How the report of ``hybrid bench auto --real`` looks on a terminal.

SHARES = ("0.5", "0.8", "0.95")
SHOWN_ACTIONS = ("write", "spans", "other")


def print_routed_report(report: dict[str, Any]) -> None:
    """Print every section's tables."""
    console = wide_console()
    for section in report["sections"]:
        console.print(
            f"\n{section['section']}: {section['questions']} questions, dials from {section['calibrated_on']} others "
            "(95 % intervals over questions; bills as multiples of the reference's):"
        )
        console.print(_dial_table(section["tariffs"]))
        console.print("The bill at a recovered share, the dial swept over these questions, excess / NLL:")
        console.print(_swept_table(section))
        if any(each["right"] for each in section["tariffs"]):
            first = section["tariffs"][0]
            console.print(f"Right answers on the graded ones, tariff {first['tariff']}:", _right_table(first["right"]))
    console.print(agreement_line(report["against_the_client"]))


def _dial_table(tariffs: Sequence[dict[str, Any]]) -> Table:
    columns = ("recovered, excess", "recovered, NLL", "bill", "advantage, excess", "advantage, NLL", *SHOWN_ACTIONS)
    shown = aligned_table("tariff, dial", "worth", *columns)
    for tariff in tariffs:
        for row in tariff["dials"]:
            shares = (estimate(row["recovered"][f"{loss} per_token"]) for loss in ("excess", "nll"))
            gains = (estimate(row["advantage"][loss]) for loss in ("excess", "nll"))
            actions = (f"{row['actions'][action]:.0%}" for action in SHOWN_ACTIONS)
            worth = "-" if row["worth"] is None else f"{row['worth']:.2f}"
            shown.add_row(f"{tariff['tariff']}, {row['dial']}", worth, *shares, estimate(row["bill"]), *gains, *actions)
    return shown


def _swept_table(section: dict[str, Any]) -> Table:
    shown = aligned_table("tariff", *(f"at {share}" for share in SHARES))
    for tariff in section["tariffs"]:
        shown.add_row(tariff["tariff"], *_both(tariff["bill_at"]))
    for order in section["orders"]:
        shown.add_row(f"U, {order['rule']}", *_both(order["bill_at"]))
    return shown


def _both(bill_at: dict[str, dict[str, float | None]]) -> list[str]:
    pairs = ((bill_at[loss][share] for loss in ("excess", "nll")) for share in SHARES)
    return [" / ".join("-" if bill is None else f"{bill:.2f}" for bill in pair) for pair in pairs]


def _right_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = aligned_table("dial", "questions", "local", "cloud", "so", "RPI", "bill")
    for row in rows:
        told = (estimate(row[name]) for name in ("local", "cloud", "right", "rpi", "bill"))
        shown.add_row(row["dial"], str(row["questions"]), *told)
    return shown


def routed(num: int | None, split: QuestionSplit, seed: int, folder: Path | None, processes: int) -> dict[str, Any]:
    """Run what was not run before and return the report. Raises UsageError, EngineError."""
    from hybrid.engine.real_models import model_file  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.lab.experiments.routed_report import pair_models, routed_report, routed_sections  # noqa: PLC0415
    from hybrid.lab.experiments.section import ModelPair, SectionRun, run_sections  # noqa: PLC0415

    with progress("the models are made ready") as report_progress:
        pairs = {
            pair: ModelPair(*(model_file(name, report_progress) for name in names))
            for pair, names in pair_models().items()
        }
        known = {pair: real_calibration(*names, pairs[pair].local) for pair, names in pair_models().items()}
        sections = routed_sections(num, split, seed)
        run = SectionRun(sections, pairs, out_folder(folder, "bench-auto"), seed, processes)
        return routed_report(sections, run_sections(run, report_progress), known)


def real_calibration(local: str, cloud: str, model: Path) -> Calibration:
    """Return the shipped calibration of a pair. Raises UsageError where this llama.cpp made another model."""
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.pairs.store import calibration_for  # noqa: PLC0415

    found = calibration_for(identify(model), model_file(cloud).stem, shipped_only=True)
    if found is None:
        msg = (
            f"no calibration of {local} beside {cloud} comes with this version: the model was made by another llama.cpp"
        )
        raise UsageError(msg)
    return found
