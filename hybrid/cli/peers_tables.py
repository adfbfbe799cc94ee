"""How the report of ``hybrid bench peers`` looks on a terminal; ``hybrid.bench.experiments`` decides what it says."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from hybrid.cli.text_tables import WIDTH, agreement_line, aligned_table, estimate


def print_peers_report(report: dict[str, Any]) -> None:
    """Print the dials that were set, or the table of the questions that were tried."""
    console = Console(highlight=False, width=max(Console(highlight=False).width, WIDTH))
    if report["half"] == "calibration":
        for tariff, dials in report["dials"].items():
            console.print(f"\n{report['ground']}, dials for an RPI of {dials['aim']:g} at {tariff}, set on "
                          f"{dials['questions']} questions:")  # fmt: skip
            console.print(_dial_table(dials))
            console.print(
                "The best simple baselines: " + ", ".join(f"{w}: {n}" for w, n in dials["best simple"].items())
            )
        return
    facts = report["facts"]
    console.print(
        f"\n{report['ground']}: {facts['questions']} questions; right: small {facts['local']}, large {facts['cloud']} "
        f"(gained {facts['gained']}, lost {facts['lost']}); mean log-probability finds wrong drafts with AUROC "
        f"{facts['auroc']}"
    )
    for tariff, found in report["tariffs"].items():
        console.print(f"\n{tariff}: dials as they were set (RPI, bill), and the bill with the dial swept:")
        console.print(_row_table(found["rows"]))
        console.print("RPI less that of the best simple baseline at the same bill: " +
                      "; ".join(f"{w}: {n}" for w, n in found["best simple"].items()))  # fmt: skip
        console.print(_difference_table(found["rows"]))
        console.print("Told by the first calibration questions' labels:", _forecast_table(found), sep="\n")
        if found["routers"]:
            console.print(f"Other people's routers, on the first {found['routers'][0]['questions']} questions:")
            console.print(_router_table(found["routers"]), _difference_table(found["routers"]), sep="\n")
    console.print(agreement_line(report["against_the_client"]))


def _dial_table(dials: dict[str, Any]) -> Table:
    shown = aligned_table("arm", "dial", "RPI", "bill")
    for name, arm in dials["arms"].items():
        shown.add_row(name, f"{arm['dials'][arm['chosen']]:.4g}", f"{arm['rpi']:.2f}", f"{arm['bill']:.3f}")
    return shown


def _row_table(rows: list[dict[str, Any]]) -> Table:
    shown = aligned_table("arm", "right", "RPI", "bill", "sent", "requests", *(f"at {at}" for at in rows[0]["bill_at"]))
    for row in rows:
        swept = (estimate(each, 3) if at == "0.9" else _value(each) for at, each in row["bill_at"].items())
        numbers = estimate(row["rpi"]), estimate(row["bill"]), f"{row['sent']:.2f}", f"{row['requests']:.2f}"
        shown.add_row(row["arm"], str(row["right"]), *numbers, *swept)
    return shown


def _router_table(rows: list[dict[str, Any]]) -> Table:
    shown = aligned_table("router", "right", "RPI", "bill", "sent", "requests", "seconds")
    for row in rows:
        numbers = f"{row['sent']:.2f}", f"{row['requests']:.2f}", f"{row['seconds']:.2f}"
        shown.add_row(row["arm"], str(row["right"]), estimate(row["rpi"]), estimate(row["bill"]), *numbers)
    return shown


def _difference_table(rows: list[dict[str, Any]]) -> Table:
    shown = aligned_table("arm", "no labels", "seen", "for 0.02", "as many labels", "seen", "for 0.02")
    for row in rows:
        parts: list[str] = []
        for which in ("no labels", "labels"):
            less = row["less"].get(which)
            parts += ["-"] * 3 if less is None else [estimate(less, 3), f"{less['seen']:.3f}", str(less["needed"])]
        shown.add_row(row["arm"], *parts)
    return shown


def _forecast_table(found: dict[str, Any]) -> Table:
    shown = aligned_table("arm", "bill told", "bill", "told of drafts turned down", "RPI told", "RPI")
    rows = {row["arm"]: row for row in found["rows"]}
    for told in found["forecasts"]:
        (bill, share, rpi), row = (estimate(told[which], 3) for which in ("bill", "share", "rpi")), rows[told["arm"]]
        shown.add_row(row["arm"], bill, _value(row["bill"], 3), share, rpi, _value(row["rpi"], 3))
    return shown


def _value(told: dict[str, Any], digits: int = 2) -> str:
    return "-" if told["value"] is None else f"{told['value']:.{digits}f}"
