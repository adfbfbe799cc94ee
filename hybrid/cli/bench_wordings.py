"""``hybrid bench wordings``: what concepts are worth where most of what divides two models is wording."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import exit_codes, progress
from hybrid.cli.lab_tables import AsJson, show, wordings_document

if TYPE_CHECKING:
    from hybrid.lab.experiments.wordings import Tried

__all__ = ["WORDINGS_EPILOG", "wordings"]

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
