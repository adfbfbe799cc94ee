"""A study: a design that is run in a folder, where its records stay, and its report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.cloud.prompt_bounds import BoundedPrompt, BoundedTurn
from hybrid.errors import UsageError
from hybrid.lab.arms import fingerprint
from hybrid.lab.experiments.frame import Frame, agreement, bills, column, rounded, told
from hybrid.lab.experiments.grid import CLOUD, LOCAL, GridRun, Record, read_parts, run_grids
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.sections import sections_of
from hybrid.report.tables import estimate as estimate_text
from hybrid.spend import as_usd
from hybrid.tasks.statistics import estimate, loss_shares

# Seconds that a token of an answer took on two cores, beside its models' bytes by what memory gives (measured
# 2026-11-27: see the notebook). It is told as an estimate; the run's own comes with its first answers.
SECONDS_A_TOKEN, BYTES_A_SECOND = 0.002, 4e9


@dataclass(frozen=True)
class Study:
    """A design in a folder. Raises UsageError for sections that cannot be."""

    design: Design
    folder: Path
    num_processes: int = 2

    @cached_property
    def parts(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Each section with its grids."""
        return [(section, section.grids(self.design)) for section in sections_of(self.design)]

    @cached_property
    def run(self) -> GridRun:
        """All grids of all sections."""
        grids = tuple(grid for _, own in self.parts for grid in own)
        return GridRun(grids, self.design.pairs, self.folder, num_processes=self.num_processes)

    def plan(self) -> dict[str, Any]:
        """Return what is run and what it costs at the most. Raises UsageError where it is bought without a cap."""
        run, design = self.run, self.design
        keys = {run.key(unit): unit for unit in run.units}
        done = read_parts(self.folder).keys() if self.folder.is_dir() else {}
        left = [unit for key, unit in keys.items() if key not in done]
        answers = sum(run.grids[g].num_answers for g, _ in left)
        ends = [name for name, pair in design.pairs.items() if isinstance(pair, EndpointPair)]
        worst = {name: sum(self._worst(unit) for unit in left if run.grids[unit[0]].pair == name) for name in ends}
        if design.cap is None and (charging := [name for name in ends if worst[name]]):
            msg = (
                f"{charging[0]} may charge {as_usd(worst[charging[0]])}: write cap = USD, the most to be spent, into it"
            )
            raise UsageError(msg)
        return {
            "questions": len(keys),
            "answered_before": len(keys) - len(left),
            "answers": answers,
            "tokens_at_most": sum(run.grids[g].num_answers * run.grids[g].questions[q].max_tokens for g, q in left),
            "minutes": round(sum(map(self._seconds, left)) / min(self.num_processes, os.cpu_count() or 1) / 60, 1),
            "worst_nanousd": worst,
            "cap_nanousd": design.cap,
            "power": design.power.model_dump() | {"needed": design.power.num_needed},
        }

    def _seconds(self, unit: tuple[int, int]) -> float:
        grid = self.run.grids[unit[0]]
        pair = self.design.pairs[grid.pair]
        files = [pair.local] if isinstance(pair, EndpointPair) else [pair.local, pair.cloud]
        each = SECONDS_A_TOKEN + sum(path.stat().st_size for path in files) / BYTES_A_SECOND
        return grid.num_answers * grid.questions[unit[1]].max_tokens * each

    def _worst(self, unit: tuple[int, int]) -> int:
        """Return the most that a question's answers cost: each token is checked and written in requests of its own."""
        grid = self.run.grids[unit[0]]
        question, pair = grid.questions[unit[1]], self.design.pairs[grid.pair]
        assert isinstance(pair, EndpointPair)
        most, read = question.max_tokens, BoundedPrompt((BoundedTurn.of("user", question.text),)).published()
        others = sum(arm.policy not in {LOCAL.policy, CLOUD.policy} for arm in grid.arms)
        return pair.price.worst_case(read, most) + others * 2 * most * pair.price.worst_case(read + most, 1)

    def answer(self, report_progress: Callable[[str], None]) -> list[list[Record]]:
        """Run what was not run before. Raises EngineError."""
        return run_grids(self.run, report_progress)

    def recorded(self) -> list[list[Record]]:
        """Return the records of a run that was complete. Raises UsageError for another."""
        run, done = self.run, read_parts(self.folder)
        if missing := sum(run.key(unit) not in done for unit in run.units):
            msg = f"{self.folder}: {missing} questions of this design have no answers yet: hybrid experiment run it"
            raise UsageError(msg)
        return [[done[run.key((g, q))] for q in range(len(grid.questions))] for g, grid in enumerate(run.grids)]

    def report(self, found: Sequence[Sequence[Record]]) -> dict[str, Any]:
        """Return the report as plain data."""
        grids, sections, start, design = self.run.grids, dict[str, Any](), 0, self.design
        for section, own in self.parts:
            sections[section.name] = section.report(design, own, found[start : start + len(own)])
            start += len(own)
        unique = {self.run.key((g, q)): each for g, records in enumerate(found) for q, each in enumerate(records)}
        seeds: dict[str, dict[int, list[Record]]] = {}
        for grid, records in zip(grids, found, strict=True):
            if kept := _graded(records):
                seeds.setdefault(grid.pair, {}).setdefault(grid.seed, kept)
        reached = [reached_by(pair, [*chain(*kept.values())], design.tariffs[0]) for pair, kept in seeds.items()]
        files = {path for pair in design.pairs.values() for path in (pair.local, getattr(pair, "cloud", pair.local))}
        return {
            "design": design.name,
            "summary": [each["verdict"] for each in reached]
            + [said for each in sections.values() for said in each.get("summary", ())],
            "reached": reached,
            "power": design.power.model_dump() | {"needed": design.power.num_needed},
            "seeds": design.seeds,
            "questions": {name: len(asked) for name, asked in design.questions.items()},
            "models": [fingerprint(path) for path in sorted(files)],
            "machine": f"hybrid {version('hybrid-llm')}, {platform.platform()}, {os.cpu_count()} cores",
            "against_the_client": agreement([each for record in unique.values() for each in record["checked"]]),
            "sections": sections,
        }


def _graded(records: Sequence[Record]) -> list[Record]:
    """Return the records in which every arm's answer is right or wrong, both models' among them."""
    kept = [each for each in records if {LOCAL.name, CLOUD.name} <= each.get("arms", {}).keys()]
    return [each for each in kept if all(arm.get("right") is not None for arm in each["arms"].values())]


def reached_by(pair: str, records: Sequence[Record], tariff: NamedTariff) -> dict[str, Any]:
    """Return what a pair's graded answers came to: the gap, the widest interval of an RPI, and which arm is best.

    Best is what recovers most beyond its bill: a coin that sends whole questions to the large model has nothing there.
    """
    answers = {arm: [record["arms"][arm] for record in records] for arm in records[0]["arms"]}
    paid = {arm: bills(each, tariff.setting, tariff.prices) for arm, each in answers.items()}
    right = {arm: column(each, "right") for arm, each in answers.items()}
    frame = Frame(right[LOCAL.name], right[CLOUD.name], paid[CLOUD.name])
    shares = {arm: frame.shares(right[arm]) for arm in answers if arm not in {LOCAL.name, CLOUD.name}}
    beyond = {arm: each - frame.ratios(paid[arm]) for arm, each in shares.items()}
    widths = [(high - low) / 2 for e in shares.values() if (i := estimate(e)) for low, high in [(i.low, i.high)]]
    gap = told(frame.resamples.sums(right[CLOUD.name] - right[LOCAL.name]) / len(records))
    said = f"{pair}, {len(records)} graded questions, {tariff.name}: "
    clear = np.isfinite(loss_shares(frame.resamples, -frame.local, -frame.cloud, -frame.cloud)[0])
    if not widths or not clear:
        said += f"RPI is not defined: the large model is right more often by {estimate_text(gap)}."
    else:
        best = max(beyond, key=lambda arm: float(np.nan_to_num(beyond[arm][0], nan=-np.inf)))
        over = told(beyond[best])
        wins, loses = (over["low"] or 0.0) > 0.0, (over["value"] or 0.0) <= 0.0
        said += f"{best} wins" if wins else "the baseline wins" if loses else "no arm is shown to beat the baseline"
        said += (
            f", a coin between the models at an equal bill: {best} recovers {estimate_text(told(shares[best]))} for "
        )
        said += f"{estimate_text(told(frame.ratios(paid[best])))} of the bill, {estimate_text(over)} beyond the coin's."
    return {
        "pair": pair,
        "questions": len(records),
        "gap": gap,
        "discordance": rounded(float(np.mean(right[CLOUD.name] != right[LOCAL.name]))),
        "half_width": rounded(max(widths)) if widths and np.isfinite(max(widths)) else None,
        "nanousd": {arm: sum(e["nanousd"] or 0 for e in each) for arm, each in answers.items() if "nanousd" in each[0]},
        "verdict": said,
    }
