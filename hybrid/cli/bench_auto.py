"""``hybrid bench auto``: what asking where it pays recovers and costs, on problems."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import exit_codes, progress
from hybrid.cli.lab_tables import (
    AsJson,
    BenchSplit,
    Out,
    Processes,
    auto_document,
    out_folder,
    show,
)
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.defer import Calibration, LabelledQuestion
    from hybrid.lab.experiments.grid import GridRun
    from hybrid.lab.experiments.questions import Half

__all__ = ["AUTO_EPILOG", "auto", "real_calibration", "shipped_calibration"]


AUTO_EPILOG = """
Problems with right answers (`hybrid.tasks`) are answered by the bundled pair, in this process, no prefix decoded twice,
by the presets and by `auto`. RPI is the share of the right answers between the two models that an arm recovers; its
bill is a multiple of the large model's alone, under five tariffs: U (a check reads no prefix cache), C (it does), S and
SU (the same behind 500 tokens that all share and the cache holds), new (only new tokens are paid).

The table is made of the first seed; the others stand beside it. What is tuned is tried with --split calibration, on
problems that no score was fitted on. One answer in twenty is written again by the client over the bundled server.

With --critic `auto` and `route` decide with what another model of the ladder says of each draft, beside both without.

A run that was interrupted goes on where it stopped.

Examples:

  hybrid bench auto --split calibration --num 10

  hybrid bench auto --json > auto.json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted.
"""


Num = Annotated[
    int | None,
    typer.Option(
        "--num",
        "--n",
        help="Problems a family (50).",
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
    critic: Critic = None,
    as_json: AsJson = False,
) -> None:
    """Tell what asking where it pays recovers and costs, on problems with right answers."""
    with exit_codes():
        if critic is not None and (critic not in {"mid", "small"} or ladder):
            raise UsageError("--critic is mid or small, and goes without --ladder")
        place = out_folder(folder, "bench-auto")
        report = _report(split.value, num, tuple(seed or ()), place, processes, ladder, critic)
        show(report, auto_document, as_json=as_json)


def _report(
    split: Half,
    num: int | None,
    seeds: tuple[int, ...],
    folder: Path,
    processes: int,
    ladder: Path | None,
    critic: str | None,
) -> dict[str, Any]:
    """Run what was not run before and return the report. ``critic``: the other of ``mid`` and ``small`` drafts."""
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.lab.experiments import questions as drawn  # noqa: PLC0415
    from hybrid.lab.experiments.auto_suite import Fitted, auto_grid, auto_grids  # noqa: PLC0415
    from hybrid.lab.experiments.auto_trial import PAIR  # noqa: PLC0415
    from hybrid.lab.experiments.grid import GridRun, ModelPair, run_grids  # noqa: PLC0415
    from hybrid.lab.experiments.problem_report import problem_report  # noqa: PLC0415
    from hybrid.settings.names import MODELS  # noqa: PLC0415
    from hybrid.tune.fit import fit  # noqa: PLC0415

    local, cloud = (BUNDLED_LOCAL, BUNDLED_CLOUD) if ladder is None else (ladder / "small.gguf", ladder / "large.gguf")
    reads = None if critic is None else MODELS / f"{critic}.gguf"
    if reads is not None:
        local = MODELS / f"{'small' if critic == 'mid' else 'mid'}.gguf"
    with progress("the problems are drawn") as report_progress:
        run = GridRun((), {PAIR: ModelPair(local, cloud, reads)}, folder, num_processes=processes)
        problems = None if ladder is None else ladder / "problems.jsonl"
        fits = (
            drawn.as_questions(drawn.fitted_problems())
            if problems is None
            else drawn.read_problems(problems, "calibration")
        )
        labelled = label_questions(run, fits, report_progress)
        who = partial(fit, labelled, local="bench", cloud="bench", judge=f"kl:{drawn.THRESHOLD:g}")
        own = None if reads is None else identify(reads)
        shipped = shipped_calibration(local) if ladder is None else None
        with_critic = None if own is None else shipped_calibration(local, own) or who(critic=own)
        fitted = Fitted(shipped or who(), who(trees=False), labelled, with_critic)
        if problems is None:
            grids = auto_grids(fitted, split, num or drawn.NUM_TRIED, seeds or drawn.SEEDS)
        else:
            grids = (auto_grid(f"{problems.parent.name}, {split}", drawn.read_problems(problems, split), fitted),)
        found = run_grids(replace(run, grids=grids), report_progress)
        return problem_report(grids, found, fitted.calibration.worth)


def label_questions(run: GridRun, questions: Any, report_progress: Any) -> list[LabelledQuestion]:
    """Label questions as a check of their whole drafts would, in the run's processes and folder."""
    from hybrid.lab.experiments.auto_trial import PAIR  # noqa: PLC0415
    from hybrid.lab.experiments.grid import run_grids  # noqa: PLC0415
    from hybrid.lab.experiments.questions import THRESHOLD  # noqa: PLC0415
    from hybrid.lab.experiments.trials import label_grid, labelled_question  # noqa: PLC0415

    [found] = run_grids(replace(run, grids=(label_grid(PAIR, questions, THRESHOLD),)), report_progress)
    return [labelled_question(each) for each in found]


def shipped_calibration(local: Path | None = None, critic: str | None = None) -> Calibration | None:
    """Return what is shipped of the bundled pair, not what the user knows of it; None: nothing.

    ``local``: another model of the ladder in the small one's place. ``critic``: the identity of a critic.
    """
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.lab.experiments.questions import THRESHOLD  # noqa: PLC0415
    from hybrid.pairs.store import calibration_for  # noqa: PLC0415

    own, judge = identify(local or BUNDLED_LOCAL), f"kl:{THRESHOLD:g}"
    found = calibration_for(own, BUNDLED_CLOUD.stem, judge, critic=critic, shipped_only=True)
    return found if found is None or found.critic == critic else None


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
