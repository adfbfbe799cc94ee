"""``hybrid bench text`` and ``wordings``: what every rule recovers on real text, and what concepts are worth."""

from __future__ import annotations

import asyncio
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import exit_codes, progress
from hybrid.cli.lab_tables import (
    AsJson,
    BenchSplit,
    Out,
    Processes,
    out_folder,
    show,
    text_document,
    wordings_document,
    write_drawing,
)

if TYPE_CHECKING:
    from hybrid.lab.experiments.wordings import Tried

__all__ = ["TEXT_EPILOG", "WORDINGS_EPILOG", "text", "wordings"]

TEXT_EPILOG = """
Questions to an assistant (`hybrid.tasks.assistant`) are answered by every rule over a pair of real models, in this
process, no prefix decoded twice: the reference is SmolLM2-135M-Instruct, the local model one of

q3: the same, requantised to three bits;

d2: the same, with two layers left out;

d4: with four left out.

The first table holds the two models against each other along the reference's own greedy text. The second has every
rule: the share of the loss between the two models that it recovers (in excess nats, log P(best) - log P(token) under
the reference, and in NLL), and its bill as a multiple of the reference's alone, under five tariffs: U (a check reads no
prefix cache), C (it does), S and SU (the same behind 500 tokens that all share), new (only new tokens are paid).
Whole questions sent at random recover what they pay for: the advantage is over that. One answer in twenty is written
again by the client over the bundled server and compared.

Everything takes about 40 minutes on two idle cores. A run that was interrupted goes on where it stopped.

Examples:

  hybrid bench text

  hybrid bench text --pair q3 --temperature 0 --num 20

  hybrid bench text --json --plot text.svg > text.json

Exit codes: 0 done, 1 output lost, 2 usage (the package is not installed), 3 model unusable, 130 interrupted.
"""


class RealModelName(StrEnum):
    """The local model of a pair."""

    q3 = "q3"
    d2 = "d2"
    d4 = "d4"


def text(
    num: Annotated[
        int | None, typer.Option("--num", "--n", help="Questions a section (30 to 300).", metavar="N", min=1)
    ] = None,
    pair: Annotated[RealModelName | None, typer.Option(help="One pair only.", show_default=False)] = None,
    temperature: Annotated[
        float | None, typer.Option(help="One temperature only (default: 0, 0.7 and 1).", metavar="T", min=0.0)
    ] = None,
    split: Annotated[BenchSplit, typer.Option(help="Half of the questions that the rules answer.")] = BenchSplit.test,
    seed: Annotated[int, typer.Option(help="Which questions, and all draws.", metavar="S", min=0)] = 0,
    processes: Processes = 2,
    folder: Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw recovered share against bill.", metavar="FILE.svg", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what every rule recovers and costs on real text."""
    with exit_codes():
        from hybrid.engine.real_models import model_file  # noqa: PLC0415  (help and usage errors need no llama.cpp)
        from hybrid.lab.experiments.grid import GridRun, ModelPair, run_grids  # noqa: PLC0415
        from hybrid.lab.experiments.plot import svg  # noqa: PLC0415
        from hybrid.lab.experiments.questions import PAIRS, REFERENCE  # noqa: PLC0415
        from hybrid.lab.experiments.text import text_grids, text_report  # noqa: PLC0415

        with progress("the models are looked for") as report_progress:
            grids = text_grids(num, pair and pair.value, temperature, split.value, seed)
            cloud = model_file(REFERENCE, report_progress)
            names = dict.fromkeys(grid.pair for grid in grids)
            pairs = {name: ModelPair(model_file(PAIRS[name], report_progress), cloud) for name in names}
            run = GridRun(grids, pairs, out_folder(folder, "bench-text"), seed, processes)
            report = text_report(grids, run_grids(run, report_progress))
        if plot is not None:
            write_drawing(plot, svg(report))
        show(report, text_document, as_json=as_json)


# ``hybrid bench wordings``: the pair whose models say the same in other words.

WORDINGS_EPILOG = """
wordings-small and wordings-large answer problems of their world in this process, no prefix decoded twice, greedily. Two
rules have one threshold each, and are tried at twelve of them on the calibration split:

kl: the pen changes hands where KL over tokens exceeds the threshold;

concepts: only where KL over concepts does, too. Which words say the same is known of this world; with --concepts it is
what a file says (`hybrid concepts build --local wordings-small`).

What does best on the calibration split within 0.6, 0.8, 1 and 2.5 times the large model's own bill is then asked the
test split, beside both at their default. A bill is that of the requests, a written token at four times a read one,
under two tariffs: U (a check pays its whole prefix) and C (it reads the prefix cache). Over a coin is what is recovered
of the gap between the models less that bill: whole questions sent at random have 0. A hand-over was wording where both
models would have said the same concept. Intervals are 95 %, over problems. It takes two minutes on one core.

Examples:

  hybrid bench wordings

  hybrid bench wordings --num 20 --json

  hybrid bench wordings --concepts concepts.json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted (143 terminated).
"""


def wordings(
    num: Annotated[
        int, typer.Option("--num", "--n", help="Problems of each family and split.", metavar="N", min=2, max=150)
    ] = 60,
    concepts: Annotated[
        Path | None, typer.Option(help="Which words say the same (default: what is true).", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what KL over concepts is worth where most divergence is wording."""
    with exit_codes():
        with progress("the models are loaded") as report_progress:
            report = asyncio.run(_measure_wordings(num, concepts, report_progress))
        show(report, wordings_document, as_json=as_json)


async def _measure_wordings(num: int, concepts: Path | None, report_progress: Any) -> dict[str, Any]:
    from hybrid.engine.llama import Weights  # noqa: PLC0415
    from hybrid.lab.experiments import wordings as room  # noqa: PLC0415  (help needs no llama.cpp)
    from hybrid.lab.experiments.world import open_world  # noqa: PLC0415
    from hybrid.partitions.partition_file import load_partition  # noqa: PLC0415
    from hybrid.settings.names import MODELS  # noqa: PLC0415

    local, cloud = (MODELS / f"wordings-{size}.gguf" for size in ("small", "large"))
    with closing(Weights(local)) as weights:
        given = None if concepts is None else load_partition(concepts, weights.vocabulary_digest, weights.num_tokens)
    async with open_world(local, cloud) as world:
        true = room.world_partition(world.local)
        world.partition = true if given is None else given

        async def tried(split: Any, arms: Any) -> Tried:
            problems = room.problems_with_wordings(split, num)
            tell = lambda number: report_progress(f"{split} problem {number + 1} of {len(problems)}")  # noqa: E731
            return await room.try_arms(world, arms, problems, true, tell)

        arms = {arm.name: arm for rule in room.RULES for arm in room.arms_of(rule)}
        calibration = await tried("calibration", [*arms.values()])
        chosen = {
            rule: [each for tariff in room.TARIFFS for each in room.best_arms(calibration, rule, tariff)]
            for rule in room.RULES
        }
        named = dict.fromkeys([*room.DEFAULTS, *(each.arm for rule in room.RULES for each in chosen[rule])])
        test = await tried("test", [arms[name] for name in named])
        compared = await room.compare_tokens(world, room.problems_with_wordings("test", num), true)
        pairs = room.count_pairs(world.partition, true, room.words_of(world.local))
    return {"pairs": pairs.to_json(), "compared": compared.to_json()} | room.wordings_report(calibration, test, chosen)
