"""What is recovered, as a document: the table that a report begins with, and a pair's tables and charts.

Made of the data of ``threshold.recovery_report`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hybrid.lab.experiments.grid import CLOUD, LOCAL
from hybrid.report import Axis, Block, Chart, Document, Heading, Table, Text
from hybrid.report.tables import at, estimate, table_of, with_interval

RECOVERED = (0.5, 0.8)
BOTH, COIN = (LOCAL.name, CLOUD.name), "sent at random"
SHARES = tuple((share / 4, f"{25 * share} %") for share in range(5))


def where_of(part: Mapping[str, Any]) -> str:
    """Name a pair, and what is measured where that is not right answers."""
    return part["pair"] if part["measure"] == "right" else f"{part['pair']}, {part['measure']}"


def first_table(rows: Sequence[Mapping[str, Any]]) -> Document:
    """Return the table that a study's report begins with, some rows a pair and tariff; nothing without any."""
    cells, notes = list[tuple[str, ...]](), [NOTE] + [PICKED] * any(row["picked_of"] > 1 for row in rows)
    for row in rows:
        arms, cheaper = [row, row["random"], row["other"], row["cheaper"]], row["cheaper"] or {"arm": None}
        for arm in {each["arm"]: each for each in arms if each}.values():
            name = f"{arm['arm']}, cheaper" if arm["arm"] == cheaper["arm"] else arm["arm"]
            where = (f"{where_of(row)}, {row['tariff']}", name, str(row["questions"])) if arm is row else ("", name, "")
            cells.append((*where, estimate(arm["share"]), estimate(arm["bill"])))
    notes += [
        f"{where}: {CERTAIN.format(row['differ'])}"
        for where, row in {where_of(row): row for row in rows}.items()
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
    "words is of thresholds that were picked on one half of each kind and tried on the other; its interval takes the "
    "picks as given."
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
        for key, what in TABLES.items() if clear else [*TABLES.items()][:1]:  # a bill needs no gap
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
