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
from functools import cache, cached_property
from typing import Any

import numpy as np

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.auto_suite import AUTO
from hybrid.lab.experiments.auto_trial import AutoRule, AutoSection
from hybrid.lab.experiments.section import CLOUD, LOCAL
from hybrid.lab.experiments.tariffs import PRICES, SETTINGS, CountedRequest, cost
from hybrid.lab.experiments.text_report import agreement
from hybrid.prob import Floats
from hybrid.tasks.statistics import (
    Estimate,
    Resamples,
    auroc,
    cheapest_bill,
    estimate,
    expected_calibration_error,
    oracle_bill,
    ratio,
)

PRICE = PRICES[0]


@dataclass(frozen=True)
class ArmAnswers:
    """One arm's answers to the problems of a table, in their order, from their records."""

    records: Sequence[Mapping[str, Any]]

    @cached_property
    def right(self) -> Floats:
        """Whether each is right, shape (N,)."""
        return np.array([each["right"] for each in self.records], dtype=np.float64)

    @cached_property
    def bills(self) -> Mapping[str, Floats]:
        """What each cost in prompt tokens, shape (N,), by the name of the setting, once it is asked for."""
        return _Bills([tuple(map(tuple, each["requests"])) for each in self.records])

    @property
    def cloud_share(self) -> float:
        """Share of the shown tokens that the cloud wrote."""
        shown = sum(each["tokens"] for each in self.records)
        return float(sum(each["cloud_tokens"] for each in self.records) / max(1, shown))


class _Bills(dict[str, Floats]):
    """Bills by setting, from the requests of each problem."""

    def __init__(self, requests: Sequence[tuple[tuple[Any, ...], ...]]) -> None:
        super().__init__()
        self._requests = requests

    def __missing__(self, name: str) -> Floats:
        self[name] = np.array([_bill(each, name) for each in self._requests], dtype=np.float64)
        return self[name]


@cache
def _bill(requests: tuple[tuple[Any, ...], ...], name: str) -> float:
    """Return what requests cost in a setting: a problem has some ten outcomes, and hundreds of dials lead to them."""
    [setting] = [each for each in SETTINGS if each.name == name]
    return cost([CountedRequest(*sent) for sent in requests], setting, PRICE)


@dataclass(frozen=True)
class ProblemTable:
    """Problems with the answers of both models alone and of any arms beside them; resampled together."""

    local: ArmAnswers
    cloud: ArmAnswers

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> ProblemTable:
        """Take the records of problems whose arms include both models alone."""
        return cls(preset_answers(records, LOCAL.name), preset_answers(records, CLOUD.name))

    @cached_property
    def resamples(self) -> Resamples:
        """The problems, drawn again."""
        return Resamples(len(self.local.records))

    @cached_property
    def gap(self) -> Floats:
        """Right answers between the models, shape (1 + R,)."""
        return self.resamples.sums(self.cloud.right) - self.resamples.sums(self.local.right)

    def shares(self, right: Floats) -> Floats:
        """Return the RPI of right answers, shape (..., N) -> (..., 1 + R)."""
        return self.resamples.shares(self.local.right, right, self.cloud.right)

    def ratios(self, bills: Floats, setting: str) -> Floats:
        """Return bills as multiples of the cloud's own under a setting, shape (..., N) -> (..., 1 + R)."""
        ratios: Floats = self.resamples.sums(bills) / self.resamples.sums(self.cloud.bills[setting])
        return ratios

    def rpi(self, answers: ArmAnswers) -> Estimate | None:
        """Return an arm's RPI."""
        return estimate(self.shares(answers.right))

    def bill(self, answers: ArmAnswers, setting: str) -> Estimate | None:
        """Return an arm's bill."""
        return estimate(self.ratios(answers.bills[setting], setting))

    def row(self, name: str, answers: ArmAnswers) -> dict[str, Any]:
        """Return an arm's row, with its bill under every setting."""
        return {
            "arm": name,
            "right": int(answers.right.sum()),
            "rpi": estimate_to_json(self.rpi(answers)),
            "bill": {setting.name: estimate_to_json(self.bill(answers, setting.name)) for setting in SETTINGS},
            "cloud_tokens": round(answers.cloud_share, 4),
            "requests": round(float(np.mean([len(each["requests"]) for each in answers.records])), 3),
            "degraded": sum(each["degraded"] is not None for each in answers.records),
        }


def preset_answers(records: Sequence[Mapping[str, Any]], arm: str) -> ArmAnswers:
    """Return the answers of an arm that decides alike under every tariff."""
    return ArmAnswers([record["arms"][arm] for record in records])


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


# A family's RPI is told where so many right answers lie between the models, over all seeds.
LEAST_GAP = 30


def problem_report(
    sections: Sequence[AutoSection], found: Mapping[tuple[int, int], dict[str, Any]], default: float
) -> dict[str, Any]:
    """Return the report, from the records of every problem by section and number. ``default``: the dial of ``auto``."""
    records = [[found[number, i] for i in range(len(each.questions))] for number, each in enumerate(sections)]
    every = [record for section in records for record in section]
    again = [same for record in every for same in record["again"]]
    return {
        "default": default,
        "sections": [_section(section, own) for section, own in zip(sections, records, strict=True)],
        "families": family_rows(sections, records, default),
        "planned_again": {"answers": len(again), "same": sum(again)},
        "against_the_client": agreement([each for record in every for each in record["checked"]]),
    }


def _section(section: AutoSection, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    table = AutoTable(section, records)
    return {
        "section": section.name,
        "problems": len(records),
        "arms": [table.problems.row(arm.name, preset_answers(records, arm.name)) for arm in section.arms],
        **table.to_json(),
    }


def family_rows(
    sections: Sequence[AutoSection], records: Sequence[Sequence[dict[str, Any]]], default: float
) -> list[dict[str, Any]]:
    """Return every family's RPI by arm, over all sections; a problem that two of them drew counts once.

    The arms are those that every section has, and ``auto`` at its default under each tariff.
    """
    distinct = {
        record["text"]: (section, record) for section, own in zip(sections, records, strict=True) for record in own
    }
    arms = [arm.name for arm in sections[0].arms if all(arm in section.arms for section in sections)]
    rows = []
    for family in dict.fromkeys(record["kind"] for _, record in distinct.values()):
        own = [(section, record) for section, record in distinct.values() if record["kind"] == family]
        told = [record for _, record in own]
        answers = {arm: preset_answers(told, arm) for arm in arms} | default_answers(own, AUTO, default)
        rows.append({"family": family} | _family_row(ProblemTable.of(told), answers))
    return rows


def _family_row(table: ProblemTable, answers: Mapping[str, ArmAnswers]) -> dict[str, Any]:
    """Return how many problems of a family lie between the models, and each arm's RPI where they are enough."""
    gap = int(np.sum(table.cloud.right) - np.sum(table.local.right))
    told = {name: estimate_to_json(table.rpi(each) if gap >= LEAST_GAP else None) for name, each in answers.items()}
    return {
        "problems": len(table.local.records),
        "gap": gap,
        "right": {name: int(each.right.sum()) for name, each in answers.items()},
        "rpi": {name: each for name, each in told.items() if name not in {LOCAL.name, CLOUD.name}},
    }
