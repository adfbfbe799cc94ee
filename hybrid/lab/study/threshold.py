"""What is recovered of the gap between two models, against KL's threshold and against the bill: answers, or a loss.

RPI is the 2023 draft's (correct_hybrid - correct_small) / (correct_large - correct_small). The area is RouteLLM's APGR
(arXiv:2406.18665) over the bill, from the local model alone (0) to the cloud alone (1), CPT the bill at a share. A
rule's dials are mixed by a coin with each other and with both models, so none is below sending at random: 0.5, and the
share. What a rule is worth without that coin is its share less its bill.

The laws (``tests/bench/test_study_answers.py``): an area is that of the mixtures, enumerated; the models alone stand
at 0 and 1; two seeds are drawn again independently of each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.frame import (
    Answers,
    Frame,
    Ways,
    answers_of,
    bills,
    cloud_share,
    column,
    paid_ratio,
    told,
    told_bills,
)
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, ModelPair, Record
from hybrid.lab.experiments.peers_report import best_share
from hybrid.lab.study.answers import answers_grids, kl_arms, rule_of
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.recovery import BOTH, COIN, RECOVERED, recovery_document, where_of
from hybrid.lab.study.row_sections import noise_floor
from hybrid.lab.study.rows import rows_grids
from hybrid.lab.study.section import Section
from hybrid.prob import Floats
from hybrid.report.tables import estimate
from hybrid.tasks.statistics import cheapest_bill, wilson

# Some 1,000 positions: enough for the 99 % point of how far a row moves.
NUM_READ = 20
HELD = "picked on other questions"
ENDS = ("value", "low", "high")
# The axis ends there; an infinite threshold stands at its end.
MOST_NATS = 8.0
Measure: TypeAlias = Callable[[Answers], Floats]


def _per_token(name: str, answers: Answers) -> Floats:
    return -column(answers, name) / np.maximum(1.0, column(answers, "tokens"))


RIGHT: Mapping[str, Measure] = {"right": lambda answers: column(answers, "right")}
LOSS: Mapping[str, Measure] = {name: partial(_per_token, name) for name in ("excess", "nll")}


def ways_of(records: Sequence[Record], arms: Sequence[Arm], measure: Measure, tariff: NamedTariff) -> Ways:
    """Return what every arm recovers and pays, then both models alone; nothing where the gap is not clear."""
    answers = [answers_of(records, arm.name) for arm in (*arms, LOCAL, CLOUD)]
    paid = np.array([bills(each, tariff.setting, tariff.prices) for each in answers])
    scores = np.array([measure(each) for each in answers])
    frame = Frame(scores[-2], scores[-1], paid[-1])
    shares, ratios = frame.ways(scores[:-2], paid[:-2])
    return (shares if frame.clear else np.full_like(shares, np.nan)), ratios


def rule_ways(arms: Sequence[Arm], ways: Ways) -> dict[str, Ways]:
    """Return the ways of each policy, its dials and both models alone, and of the coin, which has these."""
    rules, both = [rule_of(arm) for arm in arms], [len(arms), len(arms) + 1]
    places = {rule: [i for i, name in enumerate(rules) if name == rule] + both for rule in rules} | {COIN: both}
    return {rule: (ways[0][own], ways[1][own]) for rule, own in places.items()}


def area_under(shares: Floats, paid: Floats) -> Floats:
    """Return the area under the best mixtures between the bills 0 and 1, shapes (K, C), (K, C) -> (C,).

    Between two of the ways' own bills the best mixture is a straight line.
    """
    places = np.sort(np.clip(paid, 0.0, 1.0), axis=0)
    heights = np.array([best_share(np.nan_to_num(shares), paid, place) for place in places])
    areas = (np.diff(places, axis=0) * (heights[1:] + heights[:-1]) / 2).sum(axis=0)
    return np.where(np.isnan(shares).any(axis=0), np.nan, areas)


def recovery_grids(design: Design) -> tuple[Grid, ...]:
    """Return the answers, and where rows are told some questions whose texts are read twice: for the noise floor."""
    few = {
        name: design.questions[name][:NUM_READ] for name, pair in design.pairs.items() if isinstance(pair, ModelPair)
    }
    read = replace(design, pairs={name: design.pairs[name] for name in few}, drawn={design.seeds[0]: few})
    return (*answers_grids(design), *rows_grids(read))


def recovery_report(
    measures: Mapping[str, Measure], design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]
) -> dict[str, Any]:
    """Return what every pair's arms recover in each measure: the seeds pooled, and one less the other."""
    every, parts = [*zip(grids, found, strict=True)], []
    floors = {grid.pair: noise_floor(records) for grid, records in every if records and "texts" in records[0]}
    for pair in design.pairs:
        for name, measure in measures.items():
            of_seeds = {
                grid.seed: measured
                for grid, records in every
                if grid.pair == pair
                and (measured := [each for each in records if each["arms"][CLOUD.name].get(name) is not None])
            }
            if of_seeds:
                part = _part(design, [each for some in of_seeds.values() for each in some], name, measure)
                part |= {"seeds": [*_differences(design, of_seeds, measure)], "floor": floors.get(pair)}
                of_pair = (each for grid, records in every if grid.pair == pair for each in records)
                part["ungraded"] = sum("texts" not in each for each in of_pair) - part["questions"]
                parts.append({"pair": pair, "measure": name} | part)
    first = [
        {key: part[key] for key in ("pair", "measure", "questions", "differ")} | {"tariff": tariff} | beside
        for part in parts
        for tariff, beside in part["beside_kl"].items()
        if beside is not None
    ]
    ungraded = [f"{pair}: nothing is graded." for pair in design.pairs if pair not in {part["pair"] for part in parts}]
    return {"parts": parts, "first": first, "summary": [*map(_said, parts), *ungraded]}


def _part(design: Design, records: Sequence[Record], name: str, measure: Measure) -> dict[str, Any]:
    nats = {arm.name: min(limit, MOST_NATS) for limit, arm in kl_arms(design)}
    kl = [arm for _, arm in kl_arms(design)]
    arms = [*kl, *(arm for arm in design.arms if arm.name not in nats)]
    others = [arm.name for arm in arms[len(kl) :]]
    local, cloud = (measure(answers_of(records, model)) for model in BOTH)
    ways = {tariff.name: ways_of(records, arms, measure, tariff) for tariff in design.tariffs}
    rules = {tariff: rule_ways(arms, each) for tariff, each in ways.items()}
    beside = {tariff: _beside_kl([*nats], others, ways[tariff], each) for tariff, each in rules.items()}
    for tariff, each in zip(design.tariffs, beside.values(), strict=True):
        if each is not None:
            found = _held_out(records, kl, measure, tariff)
            each["held_out"] = dict.fromkeys(ENDS) if found is None else told((found[0] - found[1])[0])

    def level(some: Sequence[Record], arm: str) -> dict[str, float | None]:
        values = measure(answers_of(some, arm))
        if name == "right":
            return estimate_to_json(wilson(int(values.sum()), values.size))
        return told(paid_ratio(-values, np.ones_like(values)))

    def row(i: int, arm: Arm) -> dict[str, Any]:
        answers, shares = answers_of(records, arm.name), next(iter(ways.values()))[0][i]
        texts = {model: zip(answers, answers_of(records, model), strict=True) for model in BOTH}
        return {
            "arm": arm.name,
            "rule": rule_of(arm),
            "nats": nats.get(arm.name),
            "level": level(records, arm.name),
            "share": told(shares),
            "bill": {tariff: told(paid[i]) for tariff, (_, paid) in ways.items()},
            "over_coin": {tariff: told(shares - paid[i]) for tariff, (_, paid) in ways.items()},
            "cloud_tokens": cloud_share(answers),
            "requests": round(float(np.mean([len(each["requests"]) for each in answers])), 3),
            "degraded": sum(each["degraded"] is not None for each in answers),
            "as": {model: sum(a["answer"] == b["answer"] for a, b in both) for model, both in texts.items()},
        }

    def kind(name: str) -> dict[str, Any]:
        some = [each for each in records if each["kind"] == name]
        shares = ways_of(some, kl, measure, design.tariffs[0])[0]
        own = {arm: told(share) for arm, share in zip(nats, shares, strict=False)}
        return {"kind": name, "questions": len(some), "shares": own} | {model: level(some, model) for model in BOTH}

    def areas(of: Mapping[str, Ways]) -> list[dict[str, Any]]:
        return [{"rule": e, "area": told(area_under(*own))} | told_bills(own, RECOVERED) for e, own in of.items()]

    return {
        "questions": len(records),
        "differ": int(np.count_nonzero(local != cloud)),
        "rows": [row(i, arm) for i, arm in enumerate([*arms, LOCAL, CLOUD])],
        "areas": {tariff: areas(each) for tariff, each in rules.items()},
        "beside_kl": beside,
        "kinds": [kind(each) for each in dict.fromkeys(each["kind"] for each in records)],
    }


def _best_dial(ways: Ways, dials: Sequence[int]) -> int:
    """Return the one that is farthest above the coin, of those that recover half where one does."""
    shares, paid = ways[0][:, 0], ways[1][:, 0]
    return max([i for i in dials if shares[i] >= RECOVERED[0]] or dials, key=lambda i: shares[i] - paid[i])


def _held_out(records: Sequence[Record], kl: Sequence[Arm], measure: Measure, tariff: NamedTariff) -> Ways | None:
    """Return what the KL hand-off recovers and pays, its dial picked on half of the questions and tried on the rest.

    Halves are of every kind and do not hang on the order. None where the gap is not clear in either of them. One dial
    is no pick.
    """
    mixed = sorted(records, key=lambda each: (each["kind"], hashlib.sha256(each["text"].encode()).digest()))
    halves, held = (mixed[::2], mixed[1::2]), list[Record]()
    if len(kl) == 1:
        return ways_of(records, kl, measure, tariff)
    for tried, others in (halves, halves[::-1]):
        ways = ways_of(others, kl, measure, tariff)
        if np.isnan(ways[0][0, 0]):
            return None
        name = kl[_best_dial(ways, range(len(kl)))].name
        held += [each | {"arms": each["arms"] | {HELD: each["arms"][name]}} for each in tried]
    shares, paid = ways_of(held, [Arm(HELD, "kl")], measure, tariff)
    return shares, paid


def _beside_kl(
    kl: Sequence[str], others: Sequence[str], ways: Ways, rules: Mapping[str, Ways]
) -> dict[str, Any] | None:
    """Return the KL hand-off at its best dial here, beside every other rule and arm. None: nothing is told.

    Best is that of ``_best_dial``. ``more``: what another rule recovers beyond it at
    its bill; ``less``: what as much costs less. ``cheaper``: the arm that costs least of those whose own bill is
    clearly less, the cloud alone among them, and that recovers as much here.
    """
    shares, paid = ways
    if not kl or np.isnan(shares[0, 0]):
        return None

    names, rest = [*kl, *others, *BOTH], range(len(kl), len(kl) + len(others))
    best = _best_dial(ways, range(len(kl)))
    share, bill = shares[best], paid[best]
    beside = {
        rule: {"more": told(best_share(*each, bill) - share), "less": told(bill - cheapest_bill(*each, share))}
        for rule, each in rules.items()
        if rule != "kl"
    }
    found = {
        i: {"arm": names[i], "share": told(shares[i]), "bill": told(paid[i]), "less": told(bill - paid[i])}
        for i in (*rest, len(names) - 1)
    }
    less = [each for i, each in found.items() if (each["less"]["low"] or 0.0) > 0.0 and shares[i, 0] >= share[0]]
    return {
        "arm": kl[best],
        "picked_of": len(kl),
        "share": told(share),
        "bill": told(bill),
        "random": {"arm": "at random"} | dict.fromkeys(("share", "bill"), told(np.minimum(bill, 1.0))),
        "others": beside,
        "other": found[_best_dial(ways, rest)] if rest else None,
        "cheaper": min(less, key=lambda each: each["bill"]["value"], default=None),
    }


def _differences(
    design: Design, of_seeds: Mapping[int, Sequence[Record]], measure: Measure
) -> Iterator[dict[str, Any]]:
    """Yield the KL hand-off's share with one seed less that with another, each drawn again for itself."""
    kl, tariff = [arm for _, arm in kl_arms(design)], design.tariffs[0]
    shares = {seed: ways_of(records, kl, measure, tariff)[0] for seed, records in of_seeds.items()}
    for (one, ours), (other, theirs) in combinations(shares.items(), 2):
        for i, arm in enumerate(kl):
            # As many questions are drawn alike: in another order, the two do not go up and down together.
            difference = told(ours[i] - np.roll(theirs[i][::-1], 1))
            yield {"seeds": f"{one} less {other}", "arm": arm.name, "difference": difference}


VERDICTS = (
    "beats",
    "is not shown to beat",
    "loses to",
    "has too few questions to pick a threshold, so nothing is said of",
)


def _said(part: Mapping[str, Any]) -> str:
    """Say under which tariffs the KL hand-off beats whole questions at random, by the paired difference's interval."""
    tariffs, where = dict[str, list[str]](), f"{where_of(part)} ({part['questions']} questions)"
    for tariff, beside in part["beside_kl"].items():
        if beside is not None:
            value, low, high = ((beside["held_out"][end]) for end in ENDS)
            verdict = 3 if value is None else 0 if (low or 0.0) > 0.0 else 2 if (high or 0.0) < 0.0 else 1
            tariffs.setdefault(VERDICTS[verdict], []).append(tariff)
    if not tariffs:
        if part["rows"][0]["share"]["value"] is not None:
            return f"{where}: no KL hand-off was run."
        both = ", ".join(f"{row['arm']} {estimate(row['level'])}" for row in part["rows"] if row["arm"] in BOTH)
        return f"{where}: the gap between the two models is not clear ({both})."
    won = (f"{verdict} it under {', '.join(tariffs[verdict])}" for verdict in VERDICTS if verdict in tariffs)
    return f"{where}, the KL hand-off beside sending whole questions at random, at an equal bill: {'; '.join(won)}."


WHERE = "against KL's threshold and the bill"
THRESHOLD_SECTION = Section(
    "threshold", f"RPI {WHERE}", recovery_grids, partial(recovery_report, RIGHT), recovery_document, needs_rows=False
)
LOSS_SECTION = Section(
    "loss", f"Recovered loss {WHERE}", recovery_grids, partial(recovery_report, LOSS), recovery_document
)
