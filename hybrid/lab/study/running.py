"""A study: a design that is run in a folder, where its records stay, and its report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hybrid.assemble import ClientOpener
from hybrid.cloud.prompt_bounds import BoundedPrompt, BoundedTurn
from hybrid.engine.llama import Weights
from hybrid.engine.vocabulary import VocabularyFile
from hybrid.errors import UsageError
from hybrid.lab.arms import fingerprint
from hybrid.lab.experiments.frame import agreement
from hybrid.lab.experiments.grid import CLOUD, LOCAL, GradedQuestion, Grid, GridRun, Record, Unit, read_parts
from hybrid.lab.study.design import Design, Pair, Power, within
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.recovery import first_table
from hybrid.lab.study.section import Section
from hybrid.lab.study.sections import sections_of
from hybrid.policy.choices import SPAN
from hybrid.report import Document, Heading, Text
from hybrid.settings.policy_choices import span_limits
from hybrid.spend import as_usd
from hybrid.types import Message

# What a token of an answer takes one of two cores, prefixes that are known included, beside the bytes of its models
# by what memory gives (the bundled pair, 2026-11-27). The run's own estimate comes with its first answers.
SECONDS_A_TOKEN, BYTES_A_SECOND = 0.0006, 4e9
CUT_OFF = "what was cut off is in hybrid budget log, too"
DIFFERENCE = "see a difference of {:g} in right answers in four of five runs"

READING = """\
Recovered (RPI): how much of the gap between the two models an arm closes: (its right answers - the local model's) /
(the cloud's - the local model's). 0 is the local model alone, 1 the cloud alone. Of a loss it is the same.

Bill: what an arm's requests cost, as a multiple of what the cloud alone costs. Whole questions sent to the cloud at
random recover as much as they cost: half of the gap for half of the bill.

A tariff 1/0.1/4: what a prompt token, a cached one and a written one cost. Cached is, U, what a write reads, but not
what a check reads; C, both; S and SU, as C and U behind 500 tokens that all questions share; new, only new tokens cost.

KL, in nats, tells how far the cloud's next token is from the local model's: 0 where both expect the same. Where it is
above its threshold, the cloud writes. n: questions. A dash: nothing can be told of that."""


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
        tokens, seconds, costs = 0, 0.0, dict[str, list[tuple[int, int]]]()
        for name in dict.fromkeys(grid.pair for grid, _ in left):
            pair, own = self.design.pairs[name], [(grid, asked) for grid, asked in left if grid.pair == name]
            files = [path for path in (pair.local, getattr(pair, "cloud", None)) if path]
            with within(Path(name)):
                prompts = _prompt_tokens(pair, [asked for _, asked in own])
            most = sum(grid.num_answers * asked.max_tokens for grid, asked in own)
            tokens += most
            seconds += most * (SECONDS_A_TOKEN + sum(path.stat().st_size for path in files) / BYTES_A_SECOND)
            if isinstance(pair, EndpointPair):
                ClientOpener(pair.settings)  # a key that is not there is refused here
                costs[name] = [_costs(pair, *each, num) for each, num in zip(own, prompts, strict=True)]
        expected, worst = ({name: sum(each[i] for each in of) for name, of in costs.items()} for i in (0, 1))
        if self.design.cap is None and (charging := [name for name, nanousd in worst.items() if nanousd]):
            name = charging[0]
            about, most_usd = as_usd(expected[name]), as_usd(worst[name])
            msg = f"{name} may charge about {about}, {most_usd} at most: write cap = USD, the most to be spent, into it"
            raise UsageError(msg)
        return {
            "questions": len(self.keys),
            "answered_before": len(self.keys) - len(left),
            "answers": sum(grid.num_answers for grid, _ in left),
            "tokens_at_most": tokens,
            "minutes": round(seconds / min(self.num_processes, os.cpu_count() or 1) / 60, 1),
            "worst_nanousd": worst,
            "expected_nanousd": expected,
            "cap_nanousd": self.design.cap,
        }

    def claim(self) -> None:
        """Name who spends in this folder. Raises UsageError where its cap would begin anew."""
        for pair in self.design.pairs.values():
            if isinstance(pair, EndpointPair):
                pair.spender(self.folder)

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
        ends = {name: pair for name, pair in design.pairs.items() if isinstance(pair, EndpointPair)}
        named: dict[str, list[str]] = {}  # one endpoint under several names has one bill
        for name, pair in ends.items():
            named.setdefault(pair.key(), []).append(name)
        spent = {", ".join(names): ends[names[0]].spent(self.folder) for names in named.values()}
        files = {path for pair in design.pairs.values() for path in (pair.local, getattr(pair, "cloud", pair.local))}
        return {
            "design": design.name,
            "first": [row for each in sections.values() for row in each.get("first", ())],
            "summary": [said for each in sections.values() for said in each.get("summary", ())],
            "seeds": design.seeds,
            "questions": {name: len(asked) for name, asked in design.questions.items()},
            "power": power_lines(design.power, sections)
            + [
                f"{name}: the answers in this folder cost {as_usd(nanousd)}; {CUT_OFF}"
                for name, nanousd in spent.items()
            ],
            "spent_nanousd": spent,
            "models": [fingerprint(path) for path in sorted(files)],
            "machine": f"hybrid {version('hybrid-llm')}, {platform.platform()}, {os.cpu_count()} cores",
            "against_the_client": agreement([each for record in records for each in record["checked"]]),
            "sections": sections,
        }

    def summary(self, found: Mapping[str, Any]) -> Document:
        """Return what the report begins with: how the KL hand-off fares, then a sentence of each section and pair."""
        said = (*(Text(line, "strong") for line in found["summary"]), *(Text(f"{line}.") for line in found["power"]))
        return [Heading("Summary"), *first_table(found["first"]), *said, Text()]


def _costs(pair: EndpointPair, grid: Grid, asked: GradedQuestion, prompt: int) -> tuple[int, int]:
    """Return nano-dollars for a question: all checked once and written once, and each token in requests of its own."""
    read, most, prices = BoundedPrompt((BoundedTurn.of("user", asked.text),)).published(), asked.max_tokens, pair.price
    others = [arm for arm in grid.arms if arm.policy not in {LOCAL.policy, CLOUD.policy}]
    spans = [span_limits(arm.choices.get("span"))[0] or SPAN for arm in others]
    checks = sum(prices.worst_case(prompt + at, 1) for span in spans for at in range(min(span, most), most + 1, span))
    worst = prices.worst_case(read, most) + len(others) * 2 * most * prices.worst_case(read + most, 1)
    return checks + (1 + len(others)) * prices.worst_case(prompt, most), worst


def _prompt_tokens(pair: Pair, asked: Sequence[GradedQuestion]) -> list[int]:
    """Return the tokens of prompts. Raises UsageError where one with its answer is longer than a model holds."""
    with ExitStack() as stack:
        stack.callback((words := VocabularyFile(pair.local)).close)
        prompts = [len(words.render((Message("user", each.text),))) for each in asked]
        taken = ((num + each.max_tokens, each.text) for num, each in zip(prompts, asked, strict=True))
        wanted, text = max(taken, default=(0, ""))
        for path in (pair.local, getattr(pair, "cloud", pair.local)) if wanted > 512 else ():  # no model holds less
            stack.callback((weights := Weights(path)).close)
            held = weights.default_length if isinstance(pair, EndpointPair) else weights.longest_context or wanted
            if wanted > held:
                msg = f"{text[:40]!r} and its max_tokens take {wanted} tokens, and {path.name} holds {held}: shorten it"
                raise UsageError(msg)
    return prompts


def power_lines(power: Power, sections: Mapping[str, Any]) -> list[str]:
    """Say how many questions the wanted intervals take, and how wide those of RPI came out."""
    wanted = (("half_width", "know the recovered share (RPI) to {:g} either way"), ("difference", DIFFERENCE))
    what = " and ".join(said.format(getattr(power, name)) for name, said in wanted if getattr(power, name))
    where = "assumed" if power.records is None else f"measured in {power.records}"
    known = f"{where}: a gap of {power.gap:.3g} between the models, {power.discordance:.3g} of the questions"
    said = f"{power.num_needed} graded questions of a pair are needed to {what} ({known} answered right by one alone)"
    lines = [said] if what else []
    for part in sections.get("threshold", {}).get("parts", ()):
        shares = [row["share"] for row in part["rows"] if None not in row["share"].values()]
        if reached := max(((share["high"] - share["low"]) / 2 for share in shares), default=None):
            lines.append(
                f"{part['pair']} has {part['questions']}: the least certain arm's is known to {reached:.2f} either way"
            )
    return lines
