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
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.frame import Answers, Frame, Ways, bills, column, paid_ratio, told, told_bills
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, ModelPair, Record
from hybrid.lab.experiments.peers_report import best_share
from hybrid.lab.experiments.problem_report import answers_of, cloud_share
from hybrid.lab.study.answers import answers_grids, kl_arms, rule_of
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.row_sections import noise_floor
from hybrid.lab.study.rows import rows_grids
from hybrid.lab.study.section import Section
from hybrid.prob import Floats
from hybrid.report import Axis, Block, Chart, Document, Heading, Table, Text
from hybrid.report.tables import at, estimate, table_of, with_interval
from hybrid.tasks.statistics import cheapest_bill, wilson

RECOVERED = (0.5, 0.8)
# Some 1,000 positions: enough for the 99 % point of how far a row moves.
NUM_READ = 20
BOTH, COIN, HELD = (LOCAL.name, CLOUD.name), "sent at random", "picked on other questions"
ENDS = ("value", "low", "high")
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
    """Return what the KL hand-off recovers and pays, its dial picked on every other question and tried on the rest.

    None where the gap between the models is not clear in either half.
    """
    halves, held = (records[::2], records[1::2]), list[Record]()
    for tried, others in (halves, halves[::-1]):
        ways = ways_of(others, kl, measure, tariff)
        if np.isnan(ways[0][0, 0]):
            return None
        name = kl[_best_dial(ways, range(len(kl)))].name
        held += [each | {"arms": each["arms"] | {HELD: each["arms"][name]}} for each in tried]
    shares, paid = ways_of(held, [Arm(HELD, "kl")], measure, tariff)
    return shares[:1], paid[:1]


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


VERDICTS = ("beats", "is not shown to beat", "loses to")


def _said(part: Mapping[str, Any]) -> str:
    """Say under which tariffs the KL hand-off beats whole questions at random, by the paired difference's interval."""
    tariffs, where = dict[str, list[str]](), f"{_where(part)} ({part['questions']} questions)"
    for tariff, beside in part["beside_kl"].items():
        if beside is not None:
            low, high = ((beside["held_out"][end] or 0.0) for end in ("low", "high"))
            tariffs.setdefault(VERDICTS[0 if low > 0.0 else 2 if high < 0.0 else 1], []).append(tariff)
    if not tariffs:
        known = part["rows"][0]["share"]["value"] is not None
        return f"{where}: {'no KL hand-off was run' if known else 'the gap between the two models is not clear'}."
    won = (f"{verdict} it under {', '.join(tariffs[verdict])}" for verdict in VERDICTS if verdict in tariffs)
    return f"{where}, the KL hand-off beside sending whole questions at random, at an equal bill: {'; '.join(won)}."


def _where(part: Mapping[str, Any]) -> str:
    return part["pair"] if part["measure"] == "right" else f"{part['pair']}, {part['measure']}"


def first_table(rows: Sequence[Mapping[str, Any]]) -> Document:
    """Return the table that a study's report begins with, some rows a pair and tariff; nothing without any."""
    cells, notes = list[tuple[str, ...]](), [NOTE] + [PICKED] * any(row["picked_of"] > 1 for row in rows)
    for row in rows:
        arms, cheaper = [row, row["random"], row["other"], row["cheaper"]], row["cheaper"] or {"arm": None}
        for arm in {each["arm"]: each for each in arms if each}.values():
            name = f"{arm['arm']}, cheaper" if arm["arm"] == cheaper["arm"] else arm["arm"]
            where = (f"{_where(row)}, {row['tariff']}", name, str(row["questions"])) if arm is row else ("", name, "")
            cells.append((*where, estimate(arm["share"]), estimate(arm["bill"])))
    notes += [
        f"{where}: {CERTAIN.format(row['differ'])}"
        for where, row in {_where(row): row for row in rows}.items()
        if row["share"]["low"] == row["share"]["high"]
    ]
    columns = ("pair, tariff", "arm", "n", "recovered", "bill")
    return [Table("", columns, cells, tuple(notes), columns[:2])] if rows else []


NOTE = (
    "The KL hand-off; whole questions sent at random for its bill, at most the cloud alone's; the best other arm. "
    "Recovered: of the gap between the local model (0) and the cloud (1). Bill: 1 is the cloud alone's. In brackets: "
    "95 % intervals. Cheaper: its own bill is clearly below the KL hand-off's, and here it recovers as much."
)
PICKED = (
    "The threshold is picked on these same questions: of those that recover half, where one does, it recovers most "
    "beyond its bill. So its figures are somewhat too good. The other arm is picked in the same way. The verdict in "
    "words is of thresholds that were picked on every other question and tried on the rest."
)
CERTAIN = (
    "the two models differ on {} questions, on which the gap rests. An interval without a width is that of few "
    "questions, and no certainty."
)


ROWS = {
    "arm": at("arm"),
    "right answers": with_interval("level"),
    "recovered": with_interval("share"),
    "tokens by the cloud": at("cloud_tokens", form=".0%"),
    "requests a question": at("requests", form=".1f"),
    "texts equal to the local model's": at("as", "local"),
    "texts equal to the cloud's": at("as", "cloud"),
}
AREAS = {
    "rule": at("rule"),
    "area (at random: 0.5)": with_interval("area"),
    **{f"bill for {share:.0%} of the gap": with_interval(f"{share:g}") for share in RECOVERED},
    "recovers more than KL for KL's bill": with_interval("more"),
    "costs less than KL for as much": with_interval("less"),
}
SEEDS = {"threshold": at("arm"), "seeds": at("seeds"), "difference": with_interval("difference")}
TABLES = {"bill": "the bill (the cloud alone: 1)", "over_coin": "recovered less the bill (at random: 0)"}
MIXED = "a rule's thresholds mixed at random with each other and with both models alone"


def recovery_document(report: dict[str, Any]) -> Document:
    """Return tables and charts of each pair."""
    blocks: list[Block] = []
    for part in report["parts"]:
        name, tariffs = f"{part['pair']}, {part['measure']}, {part['questions']} questions", [*part["areas"]]
        clear = part["rows"][0]["share"]["value"] is not None
        rows = {what: cell for what, cell in ROWS.items() if clear or what != "recovered"}
        titles = [what if part["measure"] == "right" else what.replace("right answers", "loss") for what in rows]
        blocks += [Heading(name, 3), table_of(f"{name}: every arm", part["rows"], rows, titles)]
        if part["ungraded"]:
            asked = part["ungraded"] + part["questions"]
            blocks.append(Text(f"Not graded, and not counted here: {part['ungraded']} of {asked} questions."))
        for key, what in TABLES.items() if clear else ():
            columns = {"arm": at("arm")} | {tariff: with_interval(key, tariff) for tariff in tariffs}
            blocks.append(table_of(f"{name}: {what}", part["rows"], columns))
        for tariff in tariffs if clear else ():
            others = (part["beside_kl"][tariff] or {"others": {}})["others"]
            ways = [row | others.get(row["rule"], {"more": None, "less": None}) for row in part["areas"][tariff]]
            blocks.append(table_of(f"{name}: {tariff}, {MIXED}", ways, AREAS))
        seen = {arm for kind in part["kinds"] for arm, share in kind["shares"].items() if share["value"] is not None}
        shares = {arm: with_interval("shares", arm) for arm in part["kinds"][0]["shares"] if arm in seen}
        columns = {"kind": at("kind"), "n": at("questions")} | {model: with_interval(model) for model in BOTH} | shares
        what = "both models, and what is recovered, by kind" if shares else "both models by kind"
        blocks.append(table_of(f"{name}: {what}", part["kinds"], columns))
        known = [each["difference"] for each in part["seeds"] if None not in each["difference"].values()]
        num = sum(each["low"] > 0.0 or each["high"] < 0.0 for each in known)
        said = f"{num} of {len(known)} differences of two seeds exclude 0."
        blocks += [table_of(f"{name}: two seeds", part["seeds"], SEEDS), Text(said)] if part["seeds"] else []
        if part["floor"]:
            said = f"KL moves by up to {_floor(part):.3g} nats at 99 % of {part['floor']['positions']} positions"
            blocks.append(Text(f"{said} where rows are read in another way: a threshold below hangs on that."))
        blocks += _charts(part, tariffs[0])
    return blocks


def _floor(part: Mapping[str, Any]) -> float:
    floor: float = part["floor"]["difference"]["0.99"]["value"]
    return floor


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
    kl = [(rule, [(dial, share) for dial, _, share in own if dial is not None]) for rule, own in rules.items()]
    floor = [("noise floor", [(_floor(part), 0.0), (_floor(part), 1.0)])] if part["floor"] else []
    dials = _axis("threshold, nats", max((dial for _, own in kl for dial, _ in own), default=1.0))
    yield Chart(f"{part['pair']}: recovered, by KL's threshold", dials, up, [*(e for e in kl if e[1]), *floor])
    paid = _axis(f"bill, {tariff}; the cloud alone: 1", max(1.0, *(bill for _, bill, _ in points)))
    lines = [(rule, [(bill, share) for _, bill, share in own]) for rule, own in rules.items() if rule not in BOTH]
    yield Chart(f"{part['pair']}: recovered, by the bill", paid, up, [(COIN, [(0.0, 0.0), (1.0, 1.0)]), *lines])


def _axis(label: str, most: float) -> Axis:
    """Return an axis from 0 to a little beyond the most, with at most eight ticks."""
    step = next((each for each in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if most <= 7 * each), most / 7)
    return Axis(label, 0.0, 1.03 * most, [(step * each, f"{step * each:g}") for each in range(int(most / step) + 1)])


WHERE = "against KL's threshold and the bill"
THRESHOLD_SECTION = Section(
    "threshold", f"RPI {WHERE}", recovery_grids, partial(recovery_report, RIGHT), recovery_document, needs_rows=False
)
LOSS_SECTION = Section(
    "loss", f"Recovered loss {WHERE}", recovery_grids, partial(recovery_report, LOSS), recovery_document
)
