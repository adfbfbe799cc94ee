"""``hybrid calibrate``: labels bought once for a pair of models, a score fitted to them, and a report of the pair."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import (
    EXIT_PARTLY,
    check_writable,
    exit_codes,
    print_report,
    progress,
    run_until_interrupted,
    takes_flags,
)
from hybrid.errors import CloudError, EngineError, UsageError, escape_controls
from hybrid.settings.setting_info import SettingScope

if TYPE_CHECKING:
    from hybrid.cli.calibrate.labels import PairLabels
    from hybrid.cli.calibrate.page import CalibrationInForce
    from hybrid.tune.calibrating import CalibratedPair

EPILOG = """
For each question the local model drafts an answer, the endpoint checks it in one request, and writes its own in
another: two requests a question, reserved and settled like any others. They are kept in your state folder (no question
is, but as a hash; answers as the numbers of their tokens), so that nothing is bought twice: killed, interrupted or at
its cap, the same command goes on where it ended, and another --judge or --price buys nothing. --cap counts for all runs
with the same models and endpoint. Then a score is fitted (with scikit-learn, if it is installed: pip install
'hybrid-llm[calibrate]'; else by logistic regression), and kept for policy auto.

FILE has a question a line: a text as it stands, or JSON as hybrid batch reads it, of which the prompt or messages,
system, raw and max_tokens count. Without it the bundled models are asked generated problems, all others questions to an
assistant, all of them from splits that nothing was trained or tested on. --local may be given again: the drafters
are compared, and the one to take is named. With --critic another local model reads every draft, for nothing, and the
score is fitted to what it says, too; it is kept beside the one without, and labels that were bought before serve both.

Every policy is priced from the labels, and the cheapest that recovers the share --recover of what the drafts lose is
named, with the lines that set it; the worth with which auto recovers it is kept with the calibration.

What is in force for a pair is the newest of your own calibrations, else the package's. One by fewer questions than what
is in force is shown, and takes its place with --use alone. --back puts in force again what was before it (given again:
what was before that, at last the package's, and then your own once more); nothing is removed by it.

Examples:

  hybrid calibrate --price 1/0.1/4

  hybrid calibrate --local qwen.gguf --cloud https://api.example.com/v1 --cloud-model large-1 --price 1/0.1/4 --cap 0.50

  hybrid calibrate --questions mine.txt --cap 0.20 --report pair.html

  hybrid calibrate --local real:q3 --local real:d2 --cloud real --n 150

  hybrid calibrate --forget

Exit codes: 0 calibrated, 1 output lost, 2 usage, or too few labels, 3 local model unusable, 4 endpoint unusable, 5
calibrated, but by fewer questions than were asked for, 130 interrupted (143 terminated).
"""


@takes_flags(SettingScope.CALIBRATE)
def calibrate(
    *,
    questions: Annotated[
        Path | None, typer.Option(help="Questions of your own, one a line; - reads standard input.", metavar="FILE")
    ] = None,
    num: Annotated[
        int | None, typer.Option("--n", "--num", help="How many questions (200; of FILE: all).", metavar="N", min=1)
    ] = None,
    local: Annotated[
        list[str] | None,
        typer.Option("--local", help="GGUF file of a local model, or its name; may be given again.", metavar="GGUF"),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Whose verdict is forecast: kl:NATS, concept:NATS or excess:NATS (proposed).", metavar="NAME:X"
        ),
    ] = None,
    recover: Annotated[
        float | None,
        typer.Option(
            help="Share of what the drafts lose that a policy must recover (0.9).", metavar="SHARE", min=0.01, max=1
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the diagnosis as a page.", metavar="FILE")] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove all that is kept of these models with this endpoint.")
    ] = False,
    use: Annotated[
        bool, typer.Option("--use", help="Take it in the place of a calibration by more questions, too.")
    ] = False,
    back: Annotated[
        bool, typer.Option("--back", help="Put in force again what was before your newest calibration.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    **flags: Any,
) -> None:
    """Buy labels for a pair of models once, fit a score, propose a threshold and a worth, and tell what the pair is."""
    with exit_codes():
        if forget and (questions or num or judge or recover or report or use or back):
            raise UsageError("--forget removes what is kept: it takes no questions, judge or report")
        if back and (questions or num or judge or recover or report or use):
            raise UsageError("--back changes what is in force: it takes no questions, judge or report")
        if report:
            check_writable("--report", report)
        if forget:
            _forget(local, flags, as_json=as_json)
        elif back:
            _take_back(local, flags, as_json=as_json)
        else:
            chosen = {name: each for name, each in (("judge", judge), ("recover", recover)) if each is not None}
            _calibrate(local, flags, chosen, questions=questions, num=num, report=report, use=use, as_json=as_json)


calibrate.__doc__ = f"{calibrate.__doc__}\n{EPILOG}"


def _calibrate(
    local: list[str] | None,
    flags: dict[str, Any],
    chosen: dict[str, Any],
    *,
    questions: Path | None,
    num: int | None,
    report: Path | None,
    use: bool,
    as_json: bool,
) -> None:
    from hybrid.cli.calibrate import page  # noqa: PLC0415  (help needs no llama.cpp)
    from hybrid.cli.calibrate.labels import asked_by, label_pairs  # noqa: PLC0415
    from hybrid.settings.sources import load  # noqa: PLC0415
    from hybrid.tune.buying import bundled_families  # noqa: PLC0415
    from hybrid.tune.fit import FEWEST  # noqa: PLC0415
    from hybrid.tune.labels import read_judge  # noqa: PLC0415

    if "judge" in chosen:
        read_judge(chosen["judge"])
    families = bundled_families(load(**flags).cloud)  # only a bundled model shares the vocabulary of another one
    asked = asked_by(questions, num, flags, families)
    if len(asked) < FEWEST:
        msg = f"{len(asked)} questions: a calibration needs {FEWEST} at the least, so none was asked"
        raise UsageError(msg)
    try:
        with progress("the local model is loaded") as tell:
            labelled = run_until_interrupted(lambda: label_pairs([*local] if local else [None], flags, asked, tell))
            pairs = [_fitted(each, chosen, tell) for each in labelled]
            tell("the tables are worked out")
            known = [_kept(each, use=use) for each in pairs]
            told = json.dumps(page.to_json(pairs, known), allow_nan=False) if as_json else None
            shown = page.document(pairs, known)
    except (KeyboardInterrupt, OSError, EngineError, CloudError):
        typer.echo("hybrid: what was bought is kept; the same command goes on from there", err=True)
        raise
    print_report("hybrid calibrate", shown, told, html=report)
    for each in labelled:
        if each.bought.ended is not None:
            why = escape_controls(each.bought.ended[1])
            typer.echo(f"hybrid: {each.drafter}: {each.told}: {why}; the same command goes on from there", err=True)
    if any(each.bought.ended is not None for each in labelled):
        raise typer.Exit(EXIT_PARTLY)


def _fitted(labelled: PairLabels, chosen: dict[str, Any], tell: Callable[[str], None]) -> CalibratedPair:
    """Fit. Raises UsageError, with the reason why there are no more labels."""
    from hybrid.tune.calibrating import calibrate_pair  # noqa: PLC0415

    bought = labelled.bought
    tell(f"{labelled.drafter}: a score is fitted to {len(bought.questions)} questions")
    try:
        return calibrate_pair(
            labelled.drafter, labelled.names, bought.questions, labelled.prices, critic=labelled.critic, **chosen
        )
    except UsageError as error:
        raise UsageError(f"{error} ({labelled.told}: {bought.ended[1]})" if bought.ended else str(error)) from None


def _kept(pair: CalibratedPair, *, use: bool) -> CalibrationInForce:
    """Keep what was fitted, unless it would take the place of what knows more questions, and nobody said so."""
    from hybrid.cli.calibrate.labels import in_force, told_calibration  # noqa: PLC0415
    from hybrid.cli.calibrate.page import CalibrationInForce  # noqa: PLC0415
    from hybrid.pairs.store import calibration_for, keep_calibration  # noqa: PLC0415

    new = pair.calibration
    of_pair = partial(calibration_for, new.local, new.cloud, critic=new.critic)
    before = [each for each in (of_pair(), of_pair(new.judge)) if each is not None and each.critic == new.critic]
    larger = max(before, key=lambda each: len(each.questions), default=None)
    used = use or larger is None or len(larger.questions) <= len(new.questions)
    if used:
        keep_calibration(new)
    replaced = told_calibration(before[0]) if before else None
    return CalibrationInForce(used, in_force(new.local, new.cloud, new.critic), replaced)


def _take_back(local: list[str] | None, flags: dict[str, Any], *, as_json: bool) -> None:
    from hybrid.cli.calibrate.labels import take_back_pair  # noqa: PLC0415

    drafters: list[str | None] = [*local] if local else [None]
    found = [asyncio.run(take_back_pair(each, flags)) for each in drafters]
    if as_json:
        typer.echo(json.dumps({"pairs": found}))
        return
    for each in found:
        for model, told in each.items():
            if model != "local":
                what = "in force now" if told["changed"] else "nothing of your own was in force, or set aside; in force"
                typer.echo(escape_controls(f"{each['local']} beside {model}: {what}: {told['in_force']}"))


def _forget(local: list[str] | None, flags: dict[str, Any], *, as_json: bool) -> None:
    from hybrid.cli.calibrate.labels import forget_pair  # noqa: PLC0415

    drafters: list[str | None] = [*local] if local else [None]
    removed = [asyncio.run(forget_pair(each, flags)) for each in drafters]
    if as_json:
        typer.echo(json.dumps({"removed": removed}))
        return
    for each in removed:
        told = ", ".join(f"{num} {what}" for what, num in each.items() if what != "local" and num)
        typer.echo(f"{each['local']}: {told or 'nothing was kept'}{' removed' if told else ''}")
