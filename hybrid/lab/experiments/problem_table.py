"""What every arm is right about and what it costs, by tariff, with intervals over problems. This file runs nothing.

RPI is the share of the right answers between the two models that an arm recovers; a bill is a multiple of the cloud's
own on the same problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.section import CLOUD, LOCAL
from hybrid.lab.experiments.tariffs import PRICES, SETTINGS, CountedRequest, cost
from hybrid.prob import Floats
from hybrid.tasks.statistics import Estimate, Resamples, estimate

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
