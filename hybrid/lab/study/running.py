"""A study: a design that is run in a folder, where its records stay, and its report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hybrid.cloud.prompt_bounds import BoundedPrompt, BoundedTurn
from hybrid.errors import UsageError
from hybrid.lab.arms import fingerprint
from hybrid.lab.experiments.frame import agreement
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, GridRun, Record, Unit, read_parts
from hybrid.lab.study.design import Design, Power
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.section import Section
from hybrid.lab.study.sections import sections_of
from hybrid.spend import as_usd

# What a token of an answer takes one of two cores, prefixes that are known included, beside the bytes of its models
# by what memory gives (the bundled pair, 2026-11-27). The run's own estimate comes with its first answers.
SECONDS_A_TOKEN, BYTES_A_SECOND = 0.0006, 4e9


@dataclass(frozen=True)
class Study:
    """A design in a folder."""

    design: Design
    folder: Path
    num_processes: int = 2

    @cached_property
    def parts(self) -> list[tuple[Section, tuple[Grid, ...]]]:
        """Each section with its grids. Raises UsageError for sections that cannot be."""
        parts = []
        for section in sections_of(self.design):
            try:
                parts.append((section, section.grids(self.design)))
            except (TypeError, ValueError) as error:
                msg = f"[options] section {section.name} cannot read them: {error}"
                raise UsageError(msg) from None
        return parts

    @cached_property
    def run(self) -> GridRun:
        """All grids of all sections."""
        grids = tuple(grid for _, own in self.parts for grid in own)
        return GridRun(grids, self.design.pairs, self.folder, num_processes=self.num_processes)

    @cached_property
    def keys(self) -> Mapping[str, Unit]:
        """The questions of the grids, equal ones once, by their keys."""
        return {self.run.key(unit): unit for unit in self.run.units}

    def plan(self) -> dict[str, Any]:
        """Return what is left to be run, and the most that it costs. Raises UsageError where no cap bounds that."""
        done = read_parts(self.folder) if self.folder.is_dir() else {}
        left = [
            (self.run.grids[g], self.run.grids[g].questions[q]) for key, (g, q) in self.keys.items() if key not in done
        ]
        tokens, worst, seconds = 0, dict[str, int](), 0.0
        for grid, asked in left:
            pair, most = self.design.pairs[grid.pair], grid.num_answers * asked.max_tokens
            tokens += most
            files = [path for path in (pair.local, getattr(pair, "cloud", None)) if path]
            seconds += most * (SECONDS_A_TOKEN + sum(path.stat().st_size for path in files) / BYTES_A_SECOND)
            if isinstance(pair, EndpointPair):
                worst[grid.pair] = worst.get(grid.pair, 0) + _worst_case(pair, grid, asked.text, asked.max_tokens)
        if self.design.cap is None and (charging := [name for name, nanousd in worst.items() if nanousd]):
            msg = (
                f"{charging[0]} may charge {as_usd(worst[charging[0]])}: write cap = USD, the most to be spent, into it"
            )
            raise UsageError(msg)
        return {
            "questions": len(self.keys),
            "answered_before": len(self.keys) - len(left),
            "answers": sum(grid.num_answers for grid, _ in left),
            "tokens_at_most": tokens,
            "minutes": round(seconds / min(self.num_processes, os.cpu_count() or 1) / 60, 1),
            "worst_nanousd": worst,
            "cap_nanousd": self.design.cap,
        }

    def recorded(self) -> list[list[Record]]:
        """Return the records of a run that was complete. Raises UsageError for another."""
        done = read_parts(self.folder)
        if missing := len(self.keys.keys() - done):
            msg = f"{self.folder}: {missing} questions of this design have no answers yet: hybrid experiment run it"
            raise UsageError(msg)
        return [
            [done[self.run.key((g, q))] for q in range(len(grid.questions))] for g, grid in enumerate(self.run.grids)
        ]

    def report(self, found: Sequence[Sequence[Record]]) -> dict[str, Any]:
        """Return the report as plain data."""
        sections, start, design = dict[str, Any](), 0, self.design
        for section, own in self.parts:
            sections[section.name] = section.report(design, own, found[start : start + len(own)])
            start += len(own)
        records = [found[g][q] for g, q in self.keys.values()]
        files = {path for pair in design.pairs.values() for path in (pair.local, getattr(pair, "cloud", pair.local))}
        return {
            "design": design.name,
            "summary": [said for each in sections.values() for said in each.get("summary", ())],
            "seeds": design.seeds,
            "questions": {name: len(asked) for name, asked in design.questions.items()},
            "power": power_lines(design.power, sections),
            "models": [fingerprint(path) for path in sorted(files)],
            "machine": f"hybrid {version('hybrid-llm')}, {platform.platform()}, {os.cpu_count()} cores",
            "against_the_client": agreement([each for record in records for each in record["checked"]]),
            "sections": sections,
        }


def _worst_case(pair: EndpointPair, grid: Grid, text: str, most: int) -> int:
    """Return nano-dollars for a question's answers where each token is checked and written in requests of its own."""
    read = BoundedPrompt((BoundedTurn.of("user", text),)).published()
    others = sum(arm.policy not in {LOCAL.policy, CLOUD.policy} for arm in grid.arms)
    return pair.price.worst_case(read, most) + others * 2 * most * pair.price.worst_case(read + most, 1)


def power_lines(power: Power, sections: Mapping[str, Any]) -> list[str]:
    """Say how many questions the wanted intervals take, and how wide those of RPI came out."""
    wanted = (("half_width", "a half width of RPI's interval of"), ("difference", "a difference in right answers of"))
    what = " and ".join(f"{said} {getattr(power, name):g}" for name, said in wanted if getattr(power, name))
    where = "assumed" if power.records is None else f"of {power.records}"
    assumed = f"with the gap of {power.gap:.3g} and the discordance of {power.discordance:.3g} {where}"
    lines = [f"{what} takes {power.num_needed} graded questions of a pair {assumed}"] if what else []
    for part in sections.get("threshold", {}).get("parts", ()):
        shares = [row["share"] for row in part["rows"] if None not in row["share"].values()]
        if reached := max(((share["high"] - share["low"]) / 2 for share in shares), default=None):
            lines.append(f"{part['pair']}: with {part['questions']} the widest such interval has {reached:.3f}")
    return lines
