"""The report of ``hybrid bench auto`` from its records: arms, rules with dials, families. This file runs nothing.

RPI is the share of the right answers between the two models that an arm recovers; a bill is a multiple of the cloud's
own on the same problems. A rule's bill at a wanted RPI is that of the cheapest mixture of two of its dials by a coin,
either model alone among them. Two rules are compared on the same resamples. The oracle knows whose answers are right,
and buys whole answers, the cheapest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.lab.experiments.auto_suite import AUTO
from hybrid.lab.experiments.auto_trial import AutoRule, AutoTrial
from hybrid.lab.experiments.frame import (
    SETTINGS,
    Answers,
    CacheAssumption,
    Frame,
    Ways,
    agreement,
    bills,
    column,
    rounded,
    told,
    told_bills,
)
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.prob import Floats
from hybrid.tasks.statistics import auroc, cheapest_bill, expected_calibration_error, oracle_bill, ratio

# The recovered shares at which a bill is told.
WANTED = (0.5, 0.8, 0.9, 0.95)
# A rule with a control's score in the place of its own: what is compared, and against what.
AGAINST = (
    ("auto", "highest entropy"),
    ("auto, one worth", "highest entropy, one worth"),
    ("logistic, one worth", "highest entropy, one worth"),
    ("auto, one worth", "logistic, one worth"),
    ("auto, critic", "auto"),
    ("auto, critic, one worth", "auto, one worth"),
    ("route, critic", "route"),
    ("route, critic, one worth", "route, one worth"),
)
# A family's RPI is told where so many right answers lie between the models, over all seeds.
LEAST_GAP = 30
NOTHING = dict.fromkeys(("value", "low", "high"))


def answers_of(records: Sequence[Record], arm: str) -> Answers:
    """Return the answers of an arm that decides alike under every tariff."""
    return [record["arms"][arm] for record in records]


def frame_of(records: Sequence[Record], setting: CacheAssumption = SETTINGS[0]) -> Frame:
    """Return the frame of problems whose arms include both models alone."""
    local, cloud = answers_of(records, LOCAL.name), answers_of(records, CLOUD.name)
    return Frame(column(local, "right"), column(cloud, "right"), bills(cloud, setting))


def cloud_share(answers: Answers) -> float:
    """Return the share of the shown tokens that the cloud wrote."""
    shown = sum(each["tokens"] for each in answers)
    return round(float(sum(each["cloud_tokens"] for each in answers) / max(1, shown)), 4)


def arm_row(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return an arm's row, with its bill under every setting."""
    answers, frames = answers_of(records, name), {each: frame_of(records, each) for each in SETTINGS}
    right = column(answers, "right")
    return {
        "arm": name,
        "right": int(right.sum()),
        "rpi": told(frames[SETTINGS[0]].shares(right)),
        "bill": {each.name: told(frame.ratios(bills(answers, each))) for each, frame in frames.items()},
        "cloud_tokens": cloud_share(answers),
        "requests": round(float(np.mean([len(each["requests"]) for each in answers])), 3),
        "degraded": sum(each["degraded"] is not None for each in answers),
    }


@dataclass(frozen=True, eq=False)
class AutoTable:
    """The rules of a trial on its problems under one setting."""

    trial: AutoTrial
    records: Sequence[Record]
    setting: CacheAssumption

    @cached_property
    def frame(self) -> Frame:
        """Both models alone."""
        return frame_of(self.records, self.setting)

    @cached_property
    def answers(self) -> Mapping[str, list[Answers]]:
        """What each rule did, by its name: at each of its dials."""
        return {
            rule.name: [
                [each["outcomes"][each["planned"][rule.name][self.setting.name][dial][0]] for each in self.records]
                for dial in range(len(rule.dials))
            ]
            for rule in self.trial.rules
        }

    @cached_property
    def ways(self) -> Mapping[str, Ways]:
        """RPI and bill of each rule's dials, both models alone as the last two."""
        return {name: self._ways(tried) for name, tried in self.answers.items()}

    def _ways(self, tried: Sequence[Answers]) -> Ways:
        right = np.array([column(each, "right") for each in tried])
        return self.frame.ways(right, np.array([bills(each, self.setting) for each in tried]))

    @cached_property
    def oracle(self) -> Mapping[float, Floats]:
        """The oracle's bill at each wanted RPI, shape (1 + R,)."""
        frame, draws = self.frame, self.frame.resamples
        gains, gap = frame.cloud - frame.local, draws.sums(frame.cloud) - draws.sums(frame.local)
        paid = {wanted: oracle_bill(draws, gains, frame.alone, wanted, gap) for wanted in WANTED}
        return {wanted: each / draws.sums(frame.alone) for wanted, each in paid.items()}

    def rule_row(self, rule: AutoRule) -> dict[str, Any]:
        """Return every dial of a rule, and its bill at each wanted RPI."""
        dials = [self._dial(rule, number) for number in range(len(rule.dials))]
        return {"rule": rule.name, "dials": dials, "bill_at": told_bills(self.ways[rule.name], WANTED)}

    def _dial(self, rule: AutoRule, number: int) -> dict[str, Any]:
        shares, paid = (each[number] for each in self.ways[rule.name])
        wanted = np.minimum(shares, self._presets[0].max(axis=0))
        actions = Counter(each["planned"][rule.name][self.setting.name][number][1] for each in self.records)
        return {
            "dial": rule.dials[number],
            "rpi": told(shares),
            "bill": told(paid),
            "over_presets": told(ratio(paid, cheapest_bill(*self._presets, wanted))),
            "cloud_tokens": cloud_share(self.answers[rule.name][number]),
            "actions": {name: round(count / len(self.records), 4) for name, count in sorted(actions.items())},
        }

    @cached_property
    def _presets(self) -> Ways:
        """Cloud, local and ``doubt``: what they, mixed by a coin, take for as much, or for the most they have."""
        names = [arm.name for arm in self.trial.arms if arm.policy in {"cloud", "local", "doubt"}]
        tried = [answers_of(self.records, name) for name in names]
        right, paid = [column(each, "right") for each in tried], [bills(each, self.setting) for each in tried]
        return self.frame.shares(np.array(right)), self.frame.ratios(np.array(paid))

    def compared(self) -> list[dict[str, Any]]:
        """Return rules less their controls at each wanted RPI, and the share of the gap to the oracle so closed."""
        rows = []
        for name, control in AGAINST:
            if name not in self.ways or control not in self.ways:
                continue
            row: dict[str, Any] = {"rule": name, "against": control}
            for at in WANTED:
                ours, theirs = (cheapest_bill(*self.ways[each], at) for each in (name, control))
                closed = ratio(theirs - ours, theirs - self.oracle[at])
                row[f"{at:g}"] = {"difference": told(ours - theirs), "closed": told(closed)}
            rows.append(row)
        return rows


def verdict_rows(trial: AutoTrial, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return how well each score tells which drafts are turned down."""
    turned_down = np.array([record["turned_down"] for record in records])
    rows = []
    for name in trial.scores:
        chances = np.array([record["told"][name] for record in records])
        rows.append(
            {
                "score": name,
                "auroc": rounded(auroc(chances, turned_down)),
                "ece": rounded(expected_calibration_error(chances, turned_down)),
                "told": rounded(float(chances.mean())),
                "turned_down": rounded(float(turned_down.mean())),
            }
        )
    return rows


def problem_report(grids: Sequence[Grid], found: Sequence[Sequence[Record]], default: float) -> dict[str, Any]:
    """Return the report, from the records of every grid's problems. ``default``: the dial of ``auto``."""
    every = [record for records in found for record in records]
    again = [same for record in every for same in record["again"]]
    return {
        "default": default,
        "sections": [_section(grid, records) for grid, records in zip(grids, found, strict=True)],
        "families": family_rows(grids, found, default),
        "planned_again": {"answers": len(again), "same": sum(again)},
        "against_the_client": agreement([each for record in every for each in record["checked"]]),
    }


def _trial(grid: Grid) -> AutoTrial:
    if not isinstance(grid.trial, AutoTrial):
        raise TypeError(grid.trial)
    return grid.trial


def _section(grid: Grid, records: Sequence[Record]) -> dict[str, Any]:
    trial = _trial(grid)
    tables = {each.name: AutoTable(trial, records, each) for each in trial.settings}
    oracles = {name: {f"{at:g}": told(each) for at, each in table.oracle.items()} for name, table in tables.items()}
    return {
        "section": grid.name,
        "problems": len(records),
        "arms": [arm_row(arm.name, records) for arm in trial.arms],
        "rules": {name: [table.rule_row(rule) for rule in trial.rules] for name, table in tables.items()},
        "oracle": oracles,
        "compared": {name: table.compared() for name, table in tables.items()},
        "verdicts": verdict_rows(trial, records),
    }


def family_rows(grids: Sequence[Grid], found: Sequence[Sequence[Record]], default: float) -> list[dict[str, Any]]:
    """Return every family's RPI by arm, over all grids; a problem that two of them drew counts once.

    The arms are those that every grid has, and ``auto`` at its default under each tariff.
    """
    distinct = {each["text"]: (_trial(grid), each) for grid, own in zip(grids, found, strict=True) for each in own}
    arms = [arm.name for arm in grids[0].arms if all(arm in grid.arms for grid in grids)]
    rows = []
    for family in dict.fromkeys(record["kind"] for _, record in distinct.values()):
        own = [(trial, record) for trial, record in distinct.values() if record["kind"] == family]
        records = [record for _, record in own]
        answers = {arm: answers_of(records, arm) for arm in arms} | default_answers(own, AUTO, default)
        rows.append({"family": family} | _family_row(frame_of(records), answers))
    return rows


def default_answers(tried: Sequence[tuple[AutoTrial, Record]], rule: str, dial: float) -> dict[str, Answers]:
    """Return a rule's answers at one dial under each setting, of problems of several trials."""
    answers: dict[str, list[Any]] = {}
    for trial, record in tried:
        for own in trial.rules:
            if own.name != rule:
                continue
            for setting, planned in record["planned"][rule].items():
                outcome = record["outcomes"][planned[own.dials.index(dial)][0]]
                answers.setdefault(f"{rule} {setting}", []).append(outcome)
    return dict(answers)


def _family_row(frame: Frame, answers: Mapping[str, Answers]) -> dict[str, Any]:
    """Return how many problems of a family lie between the models, and each arm's RPI where they are enough."""
    gap, right = int(frame.cloud.sum() - frame.local.sum()), {n: column(each, "right") for n, each in answers.items()}
    others = {name: each for name, each in right.items() if name not in {LOCAL.name, CLOUD.name}}
    return {
        "problems": len(frame.alone),
        "gap": gap,
        "right": {name: int(each.sum()) for name, each in right.items()},
        "rpi": {name: told(frame.shares(each)) if gap >= LEAST_GAP else NOTHING for name, each in others.items()},
    }
