"""The report of ``hybrid bench peers`` as plain data: dials of the calibration half, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.bench.experiments.foreign_peers import ForeignAnswers, ForeignRecord
from hybrid.bench.experiments.learning_suite import FitCalibration
from hybrid.bench.experiments.learning_trial import taught_question
from hybrid.bench.experiments.peers_arms import TARIFFS, PeerArm, PricedQuestions, TriedDials, peer_arms
from hybrid.bench.experiments.peers_suite import NUM_LABELS
from hybrid.bench.experiments.peers_table import PeersTable
from hybrid.bench.experiments.problem_suite import THRESHOLD
from hybrid.bench.experiments.text_report import agreement
from hybrid.defer import Calibration

NUMS_OF_LABELS = (100, 300, 1000)
Records = Sequence[Mapping[str, Any]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class GroundRecords:
    """The records of a ground's calibration half; how a score is fitted to some of them; what comes with the pair.

    ``num_labels``: scores are fitted to so many of the first; dials are set on those after them.
    """

    name: str
    records: Records
    fit: FitCalibration
    shipped: Calibration | None = None
    num_labels: int = NUM_LABELS

    def calibrated(self, say: Say) -> dict[str, Any]:
        """Set the dials of every arm."""
        dials = {}
        for tariff in TARIFFS:
            say(f"{self.name}: dials at {tariff}")
            dials[tariff] = self._table(tariff, self.records[self.num_labels :]).dials()
        return {"ground": self.name, "half": "calibration", "dials": dials}

    def tried(
        self, tried: Records, fixed: Mapping[str, Any], say: Say, routers: Sequence[Sequence[ForeignRecord]] = ()
    ) -> dict[str, Any]:
        """Try the fixed dials on other questions. Raises UsageError where arms have other dials now.

        ``routers``: what other people's routers did with the first of these questions, by router.
        """
        found, facts = {}, {}
        for tariff in TARIFFS:
            say(f"{self.name}: {len(tried)} questions at {tariff}")
            table = self._table(tariff, tried)
            facts = table.facts()
            own, best = fixed[tariff], fixed[tariff]["best simple"]
            foreign = [self._router_row(each, tariff, tried, best) for each in routers]
            found[tariff] = {"best simple": best, "rows": table.rows(own), "routers": foreign}
        again = agreement([each for record in tried for each in record["checked"]])
        return {"ground": self.name, "half": "test", "facts": facts, "tariffs": found, "against_the_client": again}

    @cached_property
    def fitted(self) -> Mapping[int, Calibration]:
        """What is fitted to so many of the first labels."""
        labelled = [taught_question(each).labelled for each in self.records[: self.num_labels]]
        return {num: self.fit(labelled[:num]) for num in NUMS_OF_LABELS if num <= len(labelled)}

    def _table(self, tariff: str, tried: Records) -> PeersTable:
        dialled = PricedQuestions(self.records[self.num_labels :], TARIFFS[tariff])
        arms = peer_arms(self.fitted, dialled, f"kl:{THRESHOLD:g}", self.shipped)
        return PeersTable(arms, PricedQuestions(tried, TARIFFS[tariff]))

    def _router_row(
        self, records: Sequence[ForeignRecord], tariff: str, tried: Records, best: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return what a router did beside the baselines, all on the questions that it was asked."""
        name, own = records[0].peer, ForeignAnswers.of(records, TARIFFS[tariff].written)
        answers = TriedDials.of([(own.right, own.paid, own.num_requests, own.sent)])
        table = self._table(tariff, tried[: len(records)])
        baselines = [arm for arm in table.arms if arm.name in best.values()]
        beside = PeersTable([*baselines, PeerArm(name, (0.0,), lambda _: answers)], table.questions)
        row = beside.row(name, 0, best)
        return row | {"questions": len(records), "seconds": round(float(np.mean([e.seconds for e in records])), 3)}
