"""``hybrid bench peers``: what ``auto`` and every rule are worth beside simple baselines, at an equal bill."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from hybrid.cli.command import check_writable, exit_codes, progress, write_whole
from hybrid.cli.lab_tables import (
    AsJson,
    BenchSplit,
    Out,
    Processes,
    agreement_line,
    out_folder,
    show,
)
from hybrid.errors import UsageError
from hybrid.report import Block, Document, Table, Text
from hybrid.report.tables import Cell, at, estimate, table_of, with_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybrid.defer import Calibration
    from hybrid.lab.experiments.grid import Grid, Record
    from hybrid.lab.experiments.questions import Half, ProblemSet

    GroundOf: TypeAlias = Callable[[Half, Callable[[str], None]], tuple[ProblemSet, Calibration | None]]

__all__ = ["PEERS_EPILOG", "peers", "peers_document"]


def peers_document(report: dict[str, Any]) -> Document:
    """Return the dials that were set, or the tables of the questions that were tried."""
    blocks: list[Block] = []
    if report["half"] == "calibration":
        for tariff, dials in report["dials"].items():
            what = (f"{report['ground']}, dials for an RPI of {dials['aim']:g} at {tariff}, set on "
                    f"{dials['questions']} questions:")  # fmt: skip
            chosen = [{"arm": name, "dial": arm["dials"][arm["chosen"]]} | arm for name, arm in dials["arms"].items()]
            forms = {"dial": ("dial", ".4g"), "RPI": ("rpi", ".2f"), "bill": ("bill", ".3f")}
            columns = {"arm": at("arm")} | {name: at(key, form=form) for name, (key, form) in forms.items()}
            blocks += [table_of(what, chosen, columns), Text("The best simple baselines: " + _best(dials, ", "))]
        return blocks
    facts = report["facts"]
    said = (
        f"{report['ground']}: {facts['questions']} questions; right: small {facts['local']}, large {facts['cloud']} "
        f"(gained {facts['gained']}, lost {facts['lost']}); mean log-probability finds wrong drafts with AUROC "
        f"{facts['auroc']}"
    )
    blocks += [Text(said), Text()]
    for tariff, found in report["tariffs"].items():
        swept = {f"at {wanted}": with_interval("bill_at", wanted, digits=3) if wanted == "0.9" else
                 at("bill_at", wanted, "value", form=".2f") for wanted in found["rows"][0]["bill_at"]}  # fmt: skip
        what = f"{tariff}: dials as they were set (RPI, bill), and the bill with the dial swept:"
        less = "RPI less that of the best simple baseline at the same bill: " + _best(found, "; ")
        blocks += [
            table_of(what, found["rows"], PEER_COLUMNS | swept),
            table_of(less, found["rows"], DIFFERENCE_COLUMNS, DIFFERENCE_TITLES),
            _forecast_table(found),
        ]
        if routers := found["routers"]:
            what = f"Other people's routers, on the first {routers[0]['questions']} questions:"
            own = {"router": at("arm")} | {name: each for name, each in PEER_COLUMNS.items() if name != "arm"}
            blocks.append(table_of(what, routers, own | {"seconds": at("seconds", form=".2f")}))
            blocks.append(table_of("", routers, DIFFERENCE_COLUMNS, DIFFERENCE_TITLES))
    return [*blocks, agreement_line(report["against_the_client"])]


def _best(found: dict[str, Any], between: str) -> str:
    return between.join(f"{which}: {name}" for which, name in found["best simple"].items())


PEER_COLUMNS = {
    "arm": at("arm"),
    "right": at("right"),
    "RPI": with_interval("rpi"),
    "bill": with_interval("bill"),
    "sent": at("sent", form=".2f"),
    "requests": at("requests", form=".2f"),
}


def _less(which: str, cell: Cell) -> Cell:
    return lambda row: cell(row["less"][which]) if which in row["less"] else "-"


DIFFERENCE_TITLES = ("arm", "no labels", "seen", "for 0.02", "as many labels", "seen", "for 0.02")
_SHOWN = {"less": lambda each: estimate(each, 3), "seen": at("seen", form=".3f"), "needed": at("needed")}
DIFFERENCE_COLUMNS = {
    "arm": at("arm"),
    **{f"{which} {name}": _less(which, cell) for which in ("no labels", "labels") for name, cell in _SHOWN.items()},
}


def _forecast_table(found: dict[str, Any]) -> Table:
    rows = {row["arm"]: row for row in found["rows"]}
    told = [each | {"of": rows[each["arm"]]} for each in found["forecasts"]]
    columns = {
        "arm": at("arm"),
        "bill told": with_interval("bill", digits=3),
        "bill": at("of", "bill", "value", form=".3f"),
        "told of drafts turned down": with_interval("share", digits=3),
        "RPI told": with_interval("rpi", digits=3),
        "RPI": at("of", "rpi", "value", form=".3f"),
    }
    return table_of("Told by the first calibration questions' labels:", told, columns)


PEERS_EPILOG = """
Problems with right answers are answered once by both models and by the presets, in this process; what `auto`, `route`
and whole-question baselines (log-probability, entropy, self-consistency, length, words, a logistic regression, a coin)
would have done follows from the records, and what calibrate tells of it from 300 labels. RPI is the share of the right
answers between the two models that is recovered, a bill a multiple of the large model's alone.

The calibration half first: scores are fitted to its first 1,000 questions, dials set on those after them, and written
to --dials. The test half is then tried at these dials alone. Without --ladder the ground is the bundled pair; arms
without the shipped score know nothing of it. A ladder is a folder with small.gguf, large.gguf and problems.jsonl
(examples/train_reference_models/write_ladder.py).

A run that was interrupted goes on where it stopped.

Examples:

  hybrid bench peers --split calibration --dials dials.json

  hybrid bench peers --ladder my/ladder --split calibration --dials dials.json

  hybrid bench peers --ladder my/ladder --dials dials.json --json > peers.json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted.
"""


def peers(
    dials: Annotated[
        Path, typer.Option(help="Where the dials are kept that the calibration half sets.", metavar="FILE")
    ],
    split: Annotated[
        BenchSplit, typer.Option(help="Set dials on the calibration half, or try them.")
    ] = BenchSplit.test,
    ladder: Annotated[
        Path | None, typer.Option(help="Another pair with its problems.", metavar="DIR", show_default=False)
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="The graded questions of a real pair (hybrid models real); a few minutes.")
    ] = False,
    num: Annotated[
        int | None,
        typer.Option("--num", "--n", help="Test problems a kind (all; 100 of the bundled pair's).", min=1, metavar="N"),
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask another package's router the first test problems, too (pip install '.[peers]'); may be repeated.",
            metavar="cascadeflow|switchyard-auto|switchyard-capability|switchyard-escalation",
            show_default=False,
        ),
    ] = None,
    router_num: Annotated[int, typer.Option(help="So many of them.", min=1, metavar="N")] = 300,
    processes: Processes = 2,
    folder: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tell what every rule is worth beside simple baselines, at an equal bill."""
    with exit_codes():
        if real and ladder is not None:
            raise UsageError("--real and --ladder are two grounds: give one of them")
        if split == BenchSplit.calibration and (router or num):
            raise UsageError("--router and --num are of the test half")
        routed = dict.fromkeys(router or (), router_num)
        report = _report(dials, split.value, _ground_of(ladder, num, real=real), routed, processes, folder)
        show(report, peers_document, as_json=as_json)


def _report(
    dials: Path, half: Half, ground_of: GroundOf, routers: dict[str, int], processes: int, folder: Path | None
) -> dict[str, Any]:
    from hybrid.cli.peers_forecasts import NUM_BOUGHT, add_forecasts, bought_grid  # noqa: PLC0415
    from hybrid.lab.experiments.foreign_peers import check_peer, run_peer  # noqa: PLC0415
    from hybrid.lab.experiments.grid import GridRun, ModelPair, run_grids  # noqa: PLC0415
    from hybrid.lab.experiments.peers_report import CalibrationRecords  # noqa: PLC0415
    from hybrid.lab.experiments.questions import CHECK_SHARE, THRESHOLD  # noqa: PLC0415
    from hybrid.tune.fit import fit  # noqa: PLC0415

    kept = _read(dials)
    for name in routers:
        check_peer(name)
    if half == "calibration":
        check_writable("--dials", dials)
    place = out_folder(folder, "bench-peers")

    def records(grid: Grid) -> list[Record]:
        pairs = {grid.pair: ModelPair(calibration.local, calibration.cloud)}
        run = GridRun((grid,), pairs, place, num_processes=processes, check_share=CHECK_SHARE)
        return run_grids(run, report_progress)[0]

    with progress("the problems are drawn") as report_progress:
        calibration, shipped = ground_of("calibration", report_progress)
        if half == "test" and calibration.name not in kept:
            msg = f"{dials} has no dials of {calibration.name}: run this with --split calibration first"
            raise UsageError(msg)
        if len(calibration.questions) <= calibration.num_labels:
            msg = f"{calibration.name} has no calibration question after its {calibration.num_labels} labels for dials"
            raise UsageError(msg)
        fitted = partial(fit, local="bench", cloud="bench", judge=f"kl:{THRESHOLD:g}")
        found = records(calibration.grid)
        known = CalibrationRecords(calibration.name, found, fitted, shipped, calibration.num_labels)
        if half == "test":
            ground = ground_of("test", report_progress)[0]
            tried = records(ground.grid)
            asked = [run_peer(name, ground, place, most, report_progress) for name, most in routers.items()]
            report = known.tried(tried, kept[calibration.name], report_progress, asked)
            add_forecasts(report, known, records(bought_grid(ground.name, calibration.questions[:NUM_BOUGHT])))
            return report
        report = known.calibrated(report_progress)
        kept[calibration.name] = report["dials"]
        write_whole(dials, json.dumps(kept, indent=1) + "\n")
        return report


def _ground_of(ladder: Path | None, num: int | None, *, real: bool) -> GroundOf:
    """Return what draws a half of the ground that was asked for, beside the calibration that comes with its pair."""

    def drawn(half: Half, report_progress: Callable[[str], None]) -> tuple[ProblemSet, Calibration | None]:
        from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415  (llama.cpp is loaded with it)
        from hybrid.engine.real_models import model_file  # noqa: PLC0415
        from hybrid.lab.experiments import questions as drawn  # noqa: PLC0415

        if real:
            local, cloud = (model_file(name, report_progress) for name in drawn.REAL_MODELS)
            return drawn.real_ground(local, cloud, half), _real_calibration(*drawn.REAL_MODELS, local)
        if ladder is not None:
            return drawn.ladder_ground(ladder, half, num if half == "test" else None), None
        own = num if half == "test" else None
        return drawn.bundled_ground(BUNDLED_LOCAL, BUNDLED_CLOUD, half, own), _shipped_calibration()

    return drawn


def _shipped_calibration() -> Calibration | None:
    """Return what is shipped of the bundled pair, not what the user knows of it; None: nothing."""
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.lab.experiments.questions import THRESHOLD  # noqa: PLC0415
    from hybrid.pairs.store import calibration_for  # noqa: PLC0415

    return calibration_for(identify(BUNDLED_LOCAL), BUNDLED_CLOUD.stem, f"kl:{THRESHOLD:g}", shipped_only=True)


def _real_calibration(local: str, cloud: str, model: Path) -> Calibration:
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


def _read(dials: Path) -> dict[str, Any]:
    """Read the dials that were kept; none where there is no such file yet. Raises UsageError for what is not such."""
    if not dials.exists():
        return {}
    try:
        kept = json.loads(dials.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{dials} cannot be read as dials: {error}"
        raise UsageError(msg) from None
    grounds = kept.values() if isinstance(kept, dict) else [None]
    tariffs = [each for ground in grounds for each in (ground.values() if isinstance(ground, dict) else [None])]
    if not all(isinstance(each, dict) and {"arms", "best simple"} <= each.keys() for each in tariffs):
        msg = f"{dials} holds no dials"
        raise UsageError(msg)
    return dict(kept)
