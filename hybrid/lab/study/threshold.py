"""What is recovered of the gap between two models, against KL's threshold and against the bill: answers, or a loss.

RPI is the 2023 draft's (correct_hybrid - correct_small) / (correct_large - correct_small). The area is RouteLLM's APGR
(arXiv:2406.18665) over the bill, from the local model alone (0) to the cloud alone (1), CPT the bill at a share. A
rule's dials are mixed by a coin with each other and with both models, so none is below sending at random: 0.5, and the
share. What a rule is worth without that coin is its share less its bill.

The laws (``tests/bench/test_study_threshold.py``): an area is that of the mixtures, enumerated; the models alone stand
at 0 and 1; two seeds are drawn again independently of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.frame import Answers, Frame, Ways, bills, column, paid_ratio, told, told_bills
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.lab.experiments.peers_report import best_share
from hybrid.lab.experiments.problem_report import answers_of, cloud_share
from hybrid.lab.study.answers import answers_grids, kl_arms, rule_of
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.section import Section
from hybrid.prob import Floats
from hybrid.report import Axis, Block, Chart, Document, Heading, Text
from hybrid.report.tables import at, estimate, table_of, with_interval
from hybrid.tasks.statistics import cheapest_bill, loss_shares, wilson

RECOVERED = (0.5, 0.8)
BOTH, COIN = (LOCAL.name, CLOUD.name), "sent at random"
# The axis ends there; an infinite threshold stands at its end.
MOST_NATS = 8.0
SHARES = tuple((share / 4, f"{25 * share} %") for share in range(5))
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
    clear = np.isfinite(loss_shares(frame.resamples, -scores[-2], -scores[-1], -scores[-1])[0])
    return (shares if clear else np.full_like(shares, np.nan)), ratios


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


def recovery_report(
    measures: Mapping[str, Measure], design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]
) -> dict[str, Any]:
    """Return what every pair's arms recover in each measure: the seeds pooled, and one less the other."""
    parts = []
    for pair in design.pairs:
        for name, measure in measures.items():
            of_seeds = {
                grid.seed: measured
                for grid, records in zip(grids, found, strict=True)
                if grid.pair == pair
                and (measured := [each for each in records if each["arms"][CLOUD.name].get(name) is not None])
            }
            if of_seeds:
                part = _part(design, [each for some in of_seeds.values() for each in some], name, measure)
                seeds = [*_differences(design, of_seeds, measure)]
                parts.append({"pair": pair, "measure": name} | part | {"seeds": seeds})
    return {"parts": parts, "summary": [said for part in parts for said in _said(part)]}


def _part(design: Design, records: Sequence[Record], name: str, measure: Measure) -> dict[str, Any]:
    nats = {arm.name: min(limit, MOST_NATS) for limit, arm in kl_arms(design)}
    kl = [arm for _, arm in kl_arms(design)]
    arms = [*kl, *(arm for arm in design.arms if arm.name not in nats)]
    ways = {tariff.name: ways_of(records, arms, measure, tariff) for tariff in design.tariffs}
    rules = {tariff: rule_ways(arms, each) for tariff, each in ways.items()}

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
        "rows": [row(i, arm) for i, arm in enumerate([*arms, LOCAL, CLOUD])],
        "areas": {tariff: areas(each) for tariff, each in rules.items()},
        "beside_kl": {tariff: _beside_kl([*nats], ways[tariff], each) for tariff, each in rules.items()},
        "kinds": [kind(each) for each in dict.fromkeys(each["kind"] for each in records)],
    }


def _beside_kl(kl: Sequence[str], ways: Ways, rules: Mapping[str, Ways]) -> dict[str, Any] | None:
    """Return the KL hand-off at its best dial here, and every other rule beside it.

    Best is what is farthest above the coin, of the dials that recover half where one does. ``more``: what another
    recovers beyond it at its bill; ``less``: what as much costs less. None: nothing is told.
    """
    shares, paid = ways
    if not kl or np.isnan(shares[0, 0]):
        return None
    half = [i for i in range(len(kl)) if shares[i, 0] >= RECOVERED[0]]
    best = max(half or range(len(kl)), key=lambda i: shares[i, 0] - paid[i, 0])
    share, bill = shares[best], paid[best]
    others = {
        rule: {"more": told(best_share(*each, bill) - share), "less": told(bill - cheapest_bill(*each, share))}
        for rule, each in rules.items()
        if rule != "kl"
    }
    return {"arm": kl[best], "share": told(share), "bill": told(bill), "others": others}


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


def _said(part: Mapping[str, Any]) -> list[str]:
    """Say under each tariff what recovers as much as the KL hand-off for less, the cheapest first."""
    said, where = [], f"{part['pair']}, {part['measure']}"
    for tariff, beside in part["beside_kl"].items():
        if beside is not None:
            best = f"{beside['arm']} recovers {estimate(beside['share'])} at {estimate(beside['bill'])} of the bill"
            less = {rule: each["less"] for rule, each in beside["others"].items() if (each["less"]["value"] or 0.0) > 0}
            won = [f"{rule} by {estimate(each)}" for rule, each in sorted(less.items(), key=lambda e: -e[1]["value"])]
            coin = "; a coin is better" if beside["share"]["value"] < beside["bill"]["value"] else ""
            said.append(f"{where}, {tariff}: {best}{coin}; cheaper for as much: {', '.join(won) or 'nothing'}.")
    return said or [f"{where}: the gap between the two models is not clear."]


ROWS = {
    "arm": at("arm"),
    "right, or loss": with_interval("level"),
    "recovered": with_interval("share"),
    "by the cloud": at("cloud_tokens", form=".0%"),
    "requests": at("requests", form=".1f"),
    "text as the local's": at("as", "local"),
    "as the cloud's": at("as", "cloud"),
}
AREAS = {
    "rule": at("rule"),
    "area": with_interval("area"),
    **{f"bill at {share:.0%}": with_interval(f"{share:g}") for share in RECOVERED},
    "more than KL at its bill": with_interval("more"),
    "less bill for as much": with_interval("less"),
}
SEEDS = {"threshold": at("arm"), "seeds": at("seeds"), "difference": with_interval("difference")}
TABLES = {"bill": "the bill of the cloud's", "over_coin": "recovered, less the bill: above 0 it beats a coin"}


def recovery_document(report: dict[str, Any]) -> Document:
    """Say first what beats the KL hand-off; then tables and charts of each pair."""
    blocks: list[Block] = [Text(said, "strong") for said in report["summary"]]
    for part in report["parts"]:
        name, tariffs = f"{part['pair']}, {part['measure']}, {part['questions']} questions", [*part["areas"]]
        blocks += [Heading(name, 3), table_of(f"{name}: every arm", part["rows"], ROWS)]
        for key, what in TABLES.items():
            columns = {"arm": at("arm")} | {tariff: with_interval(key, tariff) for tariff in tariffs}
            blocks.append(table_of(f"{name}: {what}", part["rows"], columns))
        for tariff in tariffs:
            others = (part["beside_kl"][tariff] or {"others": {}})["others"]
            rows = [row | others.get(row["rule"], {"more": None, "less": None}) for row in part["areas"][tariff]]
            blocks.append(table_of(f"{name}: {tariff}", rows, AREAS))
        shares = {arm: with_interval("shares", arm) for arm in part["kinds"][0]["shares"]}
        columns = {"kind": at("kind"), "n": at("questions")} | {model: with_interval(model) for model in BOTH} | shares
        blocks.append(table_of(f"{name}: recovered, by kind and threshold", part["kinds"], columns))
        known = [each["difference"] for each in part["seeds"] if None not in each["difference"].values()]
        num = sum(each["low"] > 0.0 or each["high"] < 0.0 for each in known)
        said = f"{num} of {len(known)} differences of two seeds exclude 0."
        blocks += [table_of(f"{name}: two seeds", part["seeds"], SEEDS), Text(said)] if part["seeds"] else []
        blocks += _charts(part, tariffs[0])
    return blocks


def _charts(part: Mapping[str, Any], tariff: str) -> Iterator[Chart]:
    """Draw what is recovered against the threshold, and against the bill under a tariff."""
    rules: dict[str, list[tuple[float | None, float, float]]] = {}
    for row in part["rows"]:
        if (share := row["share"]["value"]) is not None:
            rules.setdefault(row["rule"], []).append((row["nats"], row["bill"][tariff]["value"], share))
    if not rules:
        return
    points = [point for own in rules.values() for point in own]
    up = Axis("recovered", 0.0, max(1.0, *(share for _, _, share in points)), SHARES)
    nats = Axis("threshold, nats", 0.0, MOST_NATS, [(float(each), f"{each}") for each in range(9)])
    kl = [(rule, [(dial, share) for dial, _, share in own if dial is not None]) for rule, own in rules.items()]
    yield Chart(f"{part['pair']}: recovered, by KL's threshold", nats, up, [line for line in kl if line[1]])
    most = max(1.0, *(bill for _, bill, _ in points))
    ticks = [(each / 2, f"{each / 2:g}") for each in range(int(2 * most) + 1)]
    paid = Axis(f"bill of the cloud's, {tariff}", 0.0, most, ticks)
    lines = [(rule, [(bill, share) for _, bill, share in own]) for rule, own in rules.items()]
    coin = (COIN, [(0.0, 0.0), (1.0, 1.0)])
    dots = [(rule, of[0]) for rule, of in lines if len(of) == 1]
    yield Chart(f"{part['pair']}: recovered, by the bill", paid, up, [coin, *(e for e in lines if len(e[1]) > 1)], dots)


WHERE = "against KL's threshold and the bill"
THRESHOLD_SECTION = Section(
    "threshold", f"RPI {WHERE}", answers_grids, partial(recovery_report, RIGHT), recovery_document, needs_rows=False
)
LOSS_SECTION = Section(
    "loss", f"Recovered loss {WHERE}", answers_grids, partial(recovery_report, LOSS), recovery_document
)
