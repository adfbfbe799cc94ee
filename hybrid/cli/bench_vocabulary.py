"""``hybrid bench vocabulary``: a local model of another vocabulary beside one of the cloud's own."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.console import Console

from hybrid.cli.exits import exit_codes
from hybrid.cli.progress import progress
from hybrid.cli.text_tables import aligned_table, estimate

VOCABULARY_EPILOG = """
The bundled small model spells as the large one does, alien in other tokens. Both answer problems of the test split
before the large model, by each policy, and alone. RPI is the share that is recovered of the gap between the model alone
and the large one (95 % interval over problems), the bill a share of the large model's alone, a written token at four
times a read one, nothing cached. "Same text": answers that are the large model's own. "In vain": bytes that were
drafted and never shown, for each that was shown. Four problems of each family take some four minutes on two cores.

Examples:

  hybrid bench vocabulary

  hybrid bench vocabulary --num 12 --policy kl:0.3 --policy auto

  hybrid bench vocabulary --model small --model mine.gguf --json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted (143 terminated).
"""
POLICIES = ("greedy-exact", "kl", "once")


def vocabulary(
    num: Annotated[int, typer.Option("--num", "--n", help="Problems of each family.", metavar="N", min=1, max=150)] = 4,
    model: Annotated[
        list[str] | None, typer.Option(help="Local model, again for another (small, alien).", metavar="NAME|FILE")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy, again for another (greedy-exact, kl, once).", metavar="P")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Tell what a local model of another vocabulary recovers and costs, beside one of the cloud's own."""
    with exit_codes():
        with progress("the models are loaded") as report_progress:
            report = asyncio.run(_measure(num, model or ["small", "alien"], policy or [*POLICIES], report_progress))
        if as_json:
            typer.echo(json.dumps(report))
        else:
            _print(report)


async def _measure(num: int, models: list[str], policies: list[str], report_progress: Any) -> dict[str, Any]:
    from hybrid.bench.experiments import other_words as room  # noqa: PLC0415  (help needs no llama.cpp)
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.tasks import FAMILIES, distinct  # noqa: PLC0415

    problems = [each for family in FAMILIES for each in distinct(family, "test", num, seed=1)]
    asked = list(dict.fromkeys(["local", "cloud", *policies]))
    files = {name: model_file(name) for name in models}
    return room.words_report(
        {name: await room.try_policies(file, asked, problems, report_progress) for name, file in files.items()}
    )


def _print(report: dict[str, Any]) -> None:
    """Print a table."""
    table = aligned_table("", "policy", "right", "RPI", "bill", "same text", "in vain")
    for model, told in report.items():
        for policy, found in told.items():
            right = f"{round(found['right']['value'] * found['num'])} of {found['num']}"
            recovered = "" if found["recovered"] is None else estimate(found["recovered"])
            cells = (right, recovered, f"{found['bill']:.2f}", str(found["same"]), f"{found['in_vain']:.2f}")
            table.add_row(model, policy, *cells)
    Console(highlight=False, width=max(Console().width, 110)).print(table)


__all__ = ["vocabulary"]
