"""``hybrid bench vocabulary``: a local model of another vocabulary beside one of the cloud's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.exits import exit_codes, progress
from hybrid.cli.text_tables import AsJson, aligned_table, estimate, show, wide_console

if TYPE_CHECKING:
    from hybrid.lab.experiments.wordings import Tried

__all__ = ["WORDINGS_EPILOG", "vocabulary", "wordings"]


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
        show(report, _print, as_json=as_json)


async def _measure(num: int, models: list[str], policies: list[str], report_progress: Any) -> dict[str, Any]:
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.lab.experiments import other_words as room  # noqa: PLC0415  (help needs no llama.cpp)
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
    wide_console(110).print(table)


# ``hybrid bench wordings``: what concepts are worth on the pair whose models say the same in other words.

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
        show(report, _print_wordings, as_json=as_json)


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

        async def tried(split: Any, arms: Any) -> Mapping[str, Sequence[Tried]]:
            problems = room.draw_problems(split, num)
            tell = lambda number: report_progress(f"{split} problem {number + 1} of {len(problems)}")  # noqa: E731
            return await room.try_arms(world, arms, problems, true, tell)

        arms = {arm.name: arm for rule in room.RULES for arm in room.arms_of(rule)}
        calibration = await tried("calibration", [*arms.values()])
        chosen = {
            rule: [each for tariff in room.TARIFFS for each in room.choose_arms(calibration, rule, tariff)]
            for rule in room.RULES
        }
        named = dict.fromkeys([*room.DEFAULTS, *(each.arm for rule in room.RULES for each in chosen[rule])])
        test = await tried("test", [arms[name] for name in named])
        compared = await room.compare_tokens(world, room.draw_problems("test", num), true)
        pairs = room.count_pairs(world.partition, true, room.words_of(world.local))
    return {"pairs": pairs.to_json(), "compared": compared.to_json()} | room.wordings_report(calibration, test, chosen)


def _print_wordings(report: dict[str, Any]) -> None:
    """Print both splits, and what concepts are worth at equal bills."""
    console = wide_console()
    pairs = report["pairs"]
    console.print(
        f"Pairs of words that are held for one: {pairs['found']}, true {pairs['true']}; precision "
        f"{estimate(pairs['precision'])}, recall {estimate(pairs['recall'])}."
    )
    compared = report["compared"]
    console.print(
        f"Along the large model's answers, {compared['tokens']} tokens: mean KL {estimate(compared['kl'])} nats, over "
        f"concepts {estimate(compared['concept_kl'])}; beyond 0.5 {estimate(compared['beyond'])}, of these wording "
        f"{estimate(compared['of_these_wording'])}."
    )
    for split in ("calibration", "test"):
        tariffs = [f"{what} {tariff}" for tariff in ("U", "C") for what in ("bill", "over a coin")]
        table = aligned_table(split, "right", *tariffs, "hand-overs", "wording", "kept")
        for name, arm in report[split].items():
            paid = [estimate(arm[what][tariff]) for tariff in ("U", "C") for what in ("bill", "over_a_coin")]
            counts = (str(arm["handoffs"]), estimate(arm["wording"]), str(arm["kept"]))
            table.add_row(name, estimate(arm["right"]), *paid, *counts)
        console.print(table)
    for each in report["concepts_over_kl"]:
        console.print(
            f"{each['tariff']}, within {each['budget']:g} of the large model's bill: {each['arm']} is right more often "
            f"than {each['other']} by {estimate(each)}."
        )
