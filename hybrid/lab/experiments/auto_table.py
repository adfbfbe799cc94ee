"""What rules with dials reach under each tariff: every dial, the bill at a wanted RPI, and rules against each other.

A rule's bill at a wanted RPI is that of the cheapest mixture of two of its dials by a coin, either model alone among
them. Two rules are compared on the same resamples. The oracle knows whose answers are right, and buys whole answers,
the cheapest first. This file interprets records; it runs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.auto_trial import AutoRule, AutoSection
from hybrid.lab.experiments.problem_table import ArmAnswers, ProblemTable, preset_answers
from hybrid.prob import Floats
from hybrid.tasks.statistics import (
    auroc,
    cheapest_bill,
    estimate,
    expected_calibration_error,
    oracle_bill,
    ratio,
)

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


@dataclass(frozen=True)
class AutoTable:
    """The rules of a section on its problems."""

    section: AutoSection
    records: Sequence[Mapping[str, Any]]

    @cached_property
    def problems(self) -> ProblemTable:
        """Both models alone, and the resamples."""
        return ProblemTable.of(self.records)

    def answers(self, rule: str, setting: str, number: int) -> ArmAnswers:
        """Return a rule's answers in a setting at the dial of a number."""
        key = rule, setting, number
        if key not in self._answers:
            planned = ((record, record["planned"][rule][setting][number][0]) for record in self.records)
            self._answers[key] = ArmAnswers([record["outcomes"][outcome] for record, outcome in planned])
        return self._answers[key]

    @cached_property
    def _answers(self) -> dict[tuple[str, str, int], ArmAnswers]:
        return {}

    @cached_property
    def _ways(self) -> dict[tuple[str, str], tuple[Floats, Floats]]:
        return {}

    def ways(self, rule: AutoRule, setting: str) -> tuple[Floats, Floats]:
        """Return RPI and bill of every dial, shapes (K + 2, 1 + R), both models alone as the last two."""
        key = rule.name, setting
        if key not in self._ways:
            self._ways[key] = self._of_dials(rule, setting)
        return self._ways[key]

    def _of_dials(self, rule: AutoRule, setting: str) -> tuple[Floats, Floats]:
        answers = [self.answers(rule.name, setting, number) for number in range(len(rule.dials))]
        answers += [self.problems.local, self.problems.cloud]
        shares = self.problems.shares(np.array([each.right for each in answers]))
        return shares, self.problems.ratios(np.array([each.bills[setting] for each in answers]), setting)

    def bills_at(self, rule: AutoRule, setting: str) -> dict[float, Floats]:
        """Return the bill at each wanted RPI, shape (1 + R,)."""
        shares, bills = self.ways(rule, setting)
        return {wanted: cheapest_bill(shares, bills, wanted) for wanted in WANTED}

    def oracle(self, setting: str) -> dict[float, Floats]:
        """Return the oracle's bill at each wanted RPI, shape (1 + R,)."""
        table = self.problems
        alone = table.cloud.bills[setting]
        gains, totals = table.cloud.right - table.local.right, table.resamples.sums(alone)
        return {wanted: oracle_bill(table.resamples, gains, alone, wanted, table.gap) / totals for wanted in WANTED}

    def rule_row(self, rule: AutoRule, setting: str) -> dict[str, Any]:
        """Return every dial of a rule, and its bill at each wanted RPI."""
        return {
            "rule": rule.name,
            "dials": [self._dial(rule, setting, number) for number in range(len(rule.dials))],
            "bill_at": {
                f"{at:g}": estimate_to_json(estimate(bill)) for at, bill in self.bills_at(rule, setting).items()
            },
        }

    def _dial(self, rule: AutoRule, setting: str, number: int) -> dict[str, Any]:
        answers = self.answers(rule.name, setting, number)
        actions = Counter(record["planned"][rule.name][setting][number][1] for record in self.records)
        bill = self.problems.ratios(answers.bills[setting], setting)
        return {
            "dial": rule.dials[number],
            "rpi": estimate_to_json(self.problems.rpi(answers)),
            "bill": estimate_to_json(estimate(bill)),
            "over_presets": estimate_to_json(estimate(ratio(bill, self._presets_bill(setting, answers)))),
            "cloud_tokens": round(answers.cloud_share, 4),
            "actions": {name: round(count / len(self.records), 4) for name, count in sorted(actions.items())},
        }

    def _presets_bill(self, setting: str, answers: ArmAnswers) -> Floats:
        """Return what cloud, local and ``doubt``, mixed by a coin, take for as much, or for the most they have."""
        names = [arm.name for arm in self.section.arms if arm.policy in {"cloud", "local", "doubt"}]
        presets = [preset_answers(self.records, name) for name in names]
        shares = self.problems.shares(np.array([each.right for each in presets]))
        bills = self.problems.ratios(np.array([each.bills[setting] for each in presets]), setting)
        return cheapest_bill(shares, bills, np.minimum(self.problems.shares(answers.right), shares.max(axis=0)))

    def compared(self, setting: str) -> list[dict[str, Any]]:
        """Return rules less their controls at each wanted RPI, and the share of the gap to the oracle so closed."""
        rules, oracle = {rule.name: rule for rule in self.section.rules}, self.oracle(setting)
        rows = []
        for name, control in AGAINST:
            if name not in rules or control not in rules:
                continue
            ours, theirs = self.bills_at(rules[name], setting), self.bills_at(rules[control], setting)
            row: dict[str, Any] = {"rule": name, "against": control}
            for at in WANTED:
                closed = ratio(theirs[at] - ours[at], theirs[at] - oracle[at])
                row[f"{at:g}"] = {
                    "difference": estimate_to_json(estimate(ours[at] - theirs[at])),
                    "closed": estimate_to_json(estimate(closed)),
                }
            rows.append(row)
        return rows

    def verdicts(self) -> list[dict[str, Any]]:
        """Return how well each score tells which drafts are turned down."""
        turned_down = np.array([record["turned_down"] for record in self.records])
        rows = []
        for name in self.section.scores:
            told = np.array([record["told"][name] for record in self.records])
            rows.append(
                {
                    "score": name,
                    "auroc": _rounded(auroc(told, turned_down)),
                    "ece": _rounded(expected_calibration_error(told, turned_down)),
                    "told": _rounded(float(told.mean())),
                    "turned_down": _rounded(float(turned_down.mean())),
                }
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return every table, by setting."""
        settings = [setting.name for setting in self.section.settings]
        return {
            "rules": {name: [self.rule_row(rule, name) for rule in self.section.rules] for name in settings},
            "oracle": {
                name: {f"{at:g}": estimate_to_json(estimate(bill)) for at, bill in self.oracle(name).items()}
                for name in settings
            },
            "compared": {name: self.compared(name) for name in settings},
            "verdicts": self.verdicts(),
        }


def default_answers(
    tried: Sequence[tuple[AutoSection, Mapping[str, Any]]], rule: str, dial: float
) -> dict[str, ArmAnswers]:
    """Return a rule's answers at one dial under each setting, of problems of several sections."""
    answers: dict[str, list[Any]] = {}
    for section, record in tried:
        for own in section.rules:
            if own.name != rule:
                continue
            for setting, planned in record["planned"][rule].items():
                outcome = record["outcomes"][planned[own.dials.index(dial)][0]]
                answers.setdefault(f"{rule} {setting}", []).append(outcome)
    return {name: ArmAnswers(found) for name, found in answers.items()}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 4)
