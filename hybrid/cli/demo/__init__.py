"""``hybrid demo``: what the hybrids are worth on this machine, in under a minute and without a download."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import check_writable, exit_codes, is_shown_on_a_terminal, print_report, progress
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.lab.arms import Arm, ReportAnswer
    from hybrid.report import Document

EPILOG = """
The bundled pair answers generated problems it was not trained on, in five ways: the small model alone, the policies
auto, kl and doubt, and the large model alone, behind a real HTTP server that is started once. Shown are some answers,
token by token, and what each way got right, asked and cost at fixed prices. HYBRID_* variables and hybrid.toml change
nothing, nor does what was learned from questions of yours.

Examples:

  hybrid demo

  hybrid demo --json --n 280 --seed 1

  hybrid demo --html demo.html --svg demo.svg

Exit codes: 0 done, 1 output lost, 2 usage, 3 local model unusable, 4 server unusable, 130 interrupted (143 terminated).
"""


def demo(
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            "--n",
            "--num",
            help="How many problems, of all kinds alike (70).",
            metavar="N",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which problems.", metavar="S", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the result as a page, too.", metavar="FILE")] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Write what a terminal shows as a picture, too.", metavar="FILE")
    ] = None,
    scoring_keeps_cache: Annotated[
        bool,
        typer.Option("--scoring-keeps-cache", help="Let checks read the server's prefix cache, as SGLang does."),
    ] = False,
) -> None:
    """Show what the hybrids are worth on this machine."""
    with exit_codes():
        for flag, path in (("--html", html), ("--svg", svg)):
            if path:
                check_writable(flag, path)
        if html and svg and html.resolve() == svg.resolve():
            raise UsageError("--html and --svg name the same file")
        shown, found = _demonstrate(tasks, seed, keeps_cache=scoring_keeps_cache)
        told = json.dumps(found, ensure_ascii=False, allow_nan=False) if as_json else None
        print_report("hybrid demo", shown, told, html=html, svg=svg)


demo.__doc__ = f"{demo.__doc__}\n{EPILOG}"


def _demonstrate(tasks: int | None, seed: int, *, keeps_cache: bool) -> tuple[Document, dict[str, Any]]:
    from hybrid.cli.demo import report  # noqa: PLC0415
    from hybrid.lab import demo as room  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.lab.arms import Plan, compare  # noqa: PLC0415

    plan = Plan(room.NUM_PROBLEMS if tasks is None else tasks, "test", seed, keeps_cache)
    with progress("the server starts") as tell:
        comparison = asyncio.run(compare(room.ARMS, plan, _teller(room.ARMS, plan.num_problems, tell)))
    return report.demonstration(comparison), room.to_json(comparison)


def _teller(arms: Sequence[Arm], num_problems: int, tell: Callable[[str], None]) -> ReportAnswer:
    """Say how far the arms are: on a terminal after each answer, elsewhere where an arm has finished."""
    turn = {arm.name: f"({number} of {len(arms)})" for number, arm in enumerate(arms, start=1)}
    every = is_shown_on_a_terminal()

    def told(arm: Arm, num_done: int) -> None:
        if every:
            tell(f"{arm.name} {turn[arm.name]}: {num_done} of {num_problems}")
        elif num_done == num_problems:
            tell(f"{arm.name} has answered {num_done} problems {turn[arm.name]}")

    return told
