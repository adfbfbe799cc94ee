"""The report of ``hybrid bench peers`` as plain data: dials of the calibration half, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.defer import Calibration, LabelledQuestion
from hybrid.errors import UsageError
from hybrid.lab.experiments.foreign_peers import ForeignRecord, foreign_answers
from hybrid.lab.experiments.frame import Ways, agreement, rounded, told, told_bills
from hybrid.lab.experiments.grid import Record
from hybrid.lab.experiments.peers import TARIFFS, DialResults, PeerArm, PricedQuestions, peer_arms, stacked
from hybrid.lab.experiments.questions import NUM_LABELS, THRESHOLD
from hybrid.lab.experiments.trials import labelled_question
from hybrid.prob import Floats
from hybrid.tasks.statistics import auroc, cheapest_bill

# The tables of ``hybrid bench peers``: dials that are set on the calibration half, and what they come to elsewhere.
#
# A dial is chosen by the questions after the labels: the cheapest that recovers the wanted share there. On other
# questions it stands where it was set, and beside it the bill of every wanted share with the dial swept, two dials
# mixed by a coin. Two arms are compared at an equal bill: the first at its own dial, the other swept to that bill in
# each resample, which flatters the other. No model is run.
#
# The laws (``tests/bench/test_peers.py``): an arm less itself at its own bill is never above 0; the share at a bill is
# the most that a mixture of two ways has.

WANTED = (0.5, 0.8, 0.9, 0.95)
# The share that dials are set for.
AIM = 0.9
NO_LABELS, MOST_LABELS = "no labels", "1000 labels"
# A difference that is to be seen, and how many standard errors of it are seen in four of five runs.
SEEN, STANDARD_ERRORS = 0.02, 2.8


def labels_of(name: str) -> str:
    """Return how many labels an arm was fitted to; what comes with a pair counts as the most.

    >>> [labels_of(each) for each in ("random", "auto, 300 labels", "auto, shipped")]
    ['no labels', '300 labels', '1000 labels']
    """
    last = name.rpartition(", ")[2]
    return MOST_LABELS if last == "shipped" else last if last.endswith(" labels") else NO_LABELS


def best_share(shares: Floats, bills: Floats, bill: Floats) -> Floats:
    """Return the most that is recovered at a bill, two ways mixed by a coin, shapes (K, C), (K, C), (C,) -> (C,).

    >>> best_share(np.array([[0.0], [0.6], [1.0]]), np.array([[0.0], [0.3], [1.0]]), np.array([0.15]))
    array([0.3])
    """
    lost: Floats = cheapest_bill(-bills, -shares, -bill)
    return -lost


@dataclass(frozen=True, eq=False)
class PeersTable:
    """All arms on some questions."""

    arms: Sequence[PeerArm]
    questions: PricedQuestions

    @cached_property
    def tried(self) -> Mapping[str, DialResults]:
        """What each arm did, by its name."""
        return {arm.name: arm.tried(self.questions) for arm in self.arms}

    @cached_property
    def ways(self) -> Mapping[str, Ways]:
        """RPI and bill of each arm's dials, both models alone as the last two."""
        return {name: self.questions.frame.ways(each.right, each.paid) for name, each in self.tried.items()}

    def less(self, name: str, dial: int, other: str) -> Floats:
        """Return an arm's RPI at a dial less another's at the same bill, shape (1 + R,)."""
        shares, bills = self.ways[name]
        difference: Floats = shares[dial] - best_share(*self.ways[other], bills[dial])
        return difference

    def chosen(self, name: str) -> int:
        """Return the number of the cheapest dial that recovers the aim here; none does: of the one nearest to it."""
        shares, bills = (each[:-2, 0] for each in self.ways[name])
        enough = np.flatnonzero(shares >= AIM)
        return int(enough[np.argmin(bills[enough])]) if enough.size else int(np.argmax(shares))

    def best_simple(self) -> dict[str, str]:
        """Return the baselines whose bill at the aim is the least here: without labels, and by how many it has."""
        best: dict[str, str] = {}
        for arm in self.arms:
            which = labels_of(arm.name)
            if arm.simple and (which not in best or self._bill_here(arm.name) < self._bill_here(best[which])):
                best[which] = arm.name
        return best

    def _bill_here(self, name: str) -> float:
        return float(np.nan_to_num(cheapest_bill(*self.ways[name], AIM)[0], nan=math.inf))

    def dials(self) -> dict[str, Any]:
        """Return every arm's dials, and which was chosen here, as plain data."""
        arms = {}
        for arm in self.arms:
            number = self.chosen(arm.name)
            shares, bills = (float(each[number, 0]) for each in self.ways[arm.name])
            arms[arm.name] = {
                "dials": list(arm.dials),
                "chosen": number,
                "rpi": rounded(shares),
                "bill": rounded(bills),
            }
        return {"questions": len(self.questions.records), "aim": AIM, "best simple": self.best_simple(), "arms": arms}

    def rows(self, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each arm at the dials that were fixed. Raises UsageError where they are others now."""
        return [self._row(arm, fixed) for arm in self.arms]

    def _row(self, arm: PeerArm, fixed: Mapping[str, Any]) -> dict[str, Any]:
        own = fixed["arms"].get(arm.name)
        same = own is not None and len(own["dials"]) == len(arm.dials)
        if not same or not np.allclose(own["dials"], arm.dials, rtol=1e-6, atol=1e-12):
            msg = f"the dials of {arm.name} are not those that were fixed: set them anew on the calibration half"
            raise UsageError(msg)
        swept = told_bills(self.ways[arm.name], WANTED)
        row = self.row(arm.name, own["chosen"], fixed["best simple"])
        every = [
            {"dial": dial, "rpi": told(share), "bill": told(bill)}
            for dial, share, bill in zip(arm.dials, *(each[:-2] for each in self.ways[arm.name]), strict=True)
        ]
        return row | {"simple": arm.simple, "dial": arm.dials[own["chosen"]], "dials": every, "bill_at": swept}

    def row(self, name: str, dial: int, best: Mapping[str, str]) -> dict[str, Any]:
        """Return what an arm comes to at the dial of a number, and that less the best simple baselines' at its bill.

        ``best``: by the labels they have; it is held against the one without and the one with as many.
        """
        tried, (shares, bills) = self.tried[name], self.ways[name]
        own = labels_of(name)
        known = {NO_LABELS: best[NO_LABELS]} | ({"labels": best[own]} if own in best and own != NO_LABELS else {})
        differences = {which: self.less(name, dial, other) for which, other in known.items() if other != name}
        return {
            "arm": name,
            "right": int(tried.right[dial].sum()),
            "rpi": told(shares[dial]),
            "bill": told(bills[dial]),
            "sent": rounded(float(tried.sent[dial].mean())),
            "requests": rounded(float(tried.requests[dial].mean())),
            "less": {which: told(found) | self._power(found) for which, found in differences.items()},
        }

    def _power(self, difference: Floats) -> dict[str, float | None]:
        """Return which difference is seen in four of five runs, and of how many questions one of 0.02 would be."""
        spread = float(np.nanstd(difference[1:]))
        needed = len(self.questions.records) * (STANDARD_ERRORS * spread / SEEN) ** 2
        return {"seen": rounded(STANDARD_ERRORS * spread), "needed": round(needed)}

    def facts(self) -> dict[str, Any]:
        """Return what the questions are."""
        of, frame = self.questions, self.questions.frame
        gained = frame.cloud - frame.local
        doubt = np.array([-float(own.logprob.mean()) if len(own) else 0.0 for own in of.signals])
        return {
            "questions": len(of.records),
            "local": int(frame.local.sum()),
            "cloud": int(frame.cloud.sum()),
            "gained": int((gained > 0).sum()),
            "lost": int((gained < 0).sum()),
            "turned_down": sum(each.draft.first_rejection is not None for each in of.labelled),
            "auroc": rounded(auroc(doubt, frame.local == 0.0)),
        }


NUMS_OF_LABELS = (100, 300, 1000)
Records = Sequence[Record]
Say = Callable[[str], None]
FitCalibration = Callable[[Sequence[LabelledQuestion]], Calibration]


@dataclass(frozen=True)
class CalibrationRecords:
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
        labelled = [labelled_question(each) for each in self.records[: self.num_labels]]
        return {num: self.fit(labelled[:num]) for num in NUMS_OF_LABELS if num <= len(labelled)}

    def _table(self, tariff: str, tried: Records) -> PeersTable:
        dialled = PricedQuestions(self.records[self.num_labels :], TARIFFS[tariff])
        arms = peer_arms(self.fitted, dialled, f"kl:{THRESHOLD:g}", self.shipped)
        return PeersTable(arms, PricedQuestions(tried, TARIFFS[tariff]))

    def _router_row(
        self, records: Sequence[ForeignRecord], tariff: str, tried: Records, best: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return what a router did beside the baselines, all on the questions that it was asked."""
        name, answers = records[0].peer, stacked([foreign_answers(records, TARIFFS[tariff].written)])
        table = self._table(tariff, tried[: len(records)])
        baselines = [arm for arm in table.arms if arm.name in best.values()]
        beside = PeersTable([*baselines, PeerArm(name, (0.0,), lambda _: answers)], table.questions)
        row = beside.row(name, 0, best)
        return row | {"questions": len(records), "seconds": round(float(np.mean([e.seconds for e in records])), 3)}
