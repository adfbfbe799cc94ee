"""Sections made of both models' rows: truncation, certificates, temperature.

The laws (``tests/bench/test_study_rows.py``): a list's interval holds KL of the dense rows; no rule rejects a favourite
whose KL, on dense rows, is below its certificate (A. Sharma 2026, arXiv:2606.30265; ``prob.certificates``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any

import numpy as np

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.frame import bills, paid_ratio, resampled, told
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.lab.experiments.position_table import THRESHOLDS, Positions, flattened, run_lengths, weighted_spearman
from hybrid.lab.study.design import Design
from hybrid.lab.study.rows import (
    DIGITS,
    EXACT_GREEDY,
    HEATED_K,
    RULES,
    SLACK_NATS,
    TEXTS,
    TOP_KS,
    TextReading,
    rows_grids,
)
from hybrid.lab.study.section import Section
from hybrid.report import Axis, Chart, Document
from hybrid.report.tables import Cell, at, estimate, table_of, with_interval
from hybrid.tasks.statistics import ratio

FLOORS, SHARES, WIDTHS = ("cloud", "local", "difference"), (0.5, 0.9, 0.99, 1.0), (0.5, 0.9)
COLUMNS = ("agrees", "kl", "overlap", "entropy")
SOURCES, CERTIFICATES = ("full", *(f"{k}" for k in TOP_KS)), (*RULES, "tree of 3")
# Powers of ten, thresholds in nats, at which a chart has a point.
POWERS = np.linspace(-5.0, 1.0, 25)
# KL as a multiple of the certificate: below 1 nothing is rejected.
MULTIPLES = (0.0, 1.0, 2.0, 4.0, 8.0)
TRUNCATION, TEMPERATURE = ("thresholds", "temperatures", "read"), ("temperatures", "read")
HEATED, MEANS = ("both", "local alone"), ("truth", "lower", "upper")


def pair_texts(
    grids: Sequence[Grid], found: Sequence[Sequence[Record]]
) -> Iterator[tuple[dict[str, Any], list[TextReading]]]:
    """Yield the names of each pair and text with their counts, and what was read of it, question by question."""
    for grid, records in zip(grids, found, strict=True):
        for name in TEXTS:
            read = [record["texts"][name] for record in records]
            num = sum(len(each["positions"]) for each in read)
            yield {"pair": grid.pair, "text": name, "questions": len(read), "positions": num}, read


# Truncation: what a list of the k likeliest tokens leaves of KL, beside what decoding does to it.


def noise_floor(records: Sequence[Record]) -> dict[str, Any]:
    """Return quantiles over positions, in nats, of KL between two readings of a row: the cloud's, the local one's.

    ``difference``: how much KL between the models moves. A threshold below its 99 % point hangs on how a row was read.
    """
    flat, all_of = flattened([[e for text in r["texts"].values() for e in text["positions"]] for r in records])
    values = np.array([each["floor"] for each in flat]).reshape(-1, len(FLOORS))
    return {"questions": len(records), "positions": len(flat)} | {
        name: {f"{share:g}": estimate_to_json(all_of.quantile(own, share), DIGITS) for share in SHARES}
        for name, own in zip(FLOORS, values.T, strict=True)
    }


def truncation_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return how far the models are apart by pair and text, what each list of k leaves of it, and each pair's floor.

    Option ``thresholds``, nats: verdicts that a list leaves open, and how often either end of it decides rightly.
    """
    limits, apart, rows = np.atleast_1d(design.options.get("thresholds", THRESHOLDS)).tolist(), [], []
    for own, read in pair_texts(grids, found):
        flat, all_of = flattened([text["positions"] for text in read])
        agrees, kl, overlap, entropy = (np.array([e[n] for e in flat], dtype=np.float64) for n in COLUMNS)
        means = {name: all_of.mean(each) for name, each in zip(COLUMNS, (agrees, kl, overlap, entropy), strict=True)}
        means |= {"kl median": all_of.quantile(kl, 0.5), "auroc": all_of.auroc(entropy, agrees == 0.0)}
        apart.append(own | {name: estimate_to_json(each) for name, each in means.items()})
        for number, k in enumerate(TOP_KS):
            lower, upper = np.array([each["intervals"][number] for each in flat]).reshape(-1, 2).T
            decided = {"covered": (lower <= kl + SLACK_NATS) & (kl <= upper + SLACK_NATS)}
            for limit in limits:
                decided[f"open at {limit:g}"] = (lower <= limit) & (limit < upper)
                decided[f"lower at {limit:g}"] = (lower > limit) == (kl > limit)
                decided[f"upper at {limit:g}"] = (upper > limit) == (kl > limit)
            row = own | {"k": k} | {name: estimate_to_json(all_of.mean(each)) for name, each in decided.items()}
            for share in WIDTHS:
                row[f"width {share:g}"] = estimate_to_json(all_of.quantile(upper - lower, share), DIGITS)
            row["open"] = [(p, float(np.mean((lower <= 10**p) & (10**p < upper)))) for p in POWERS.tolist() if flat]
            rows.append(row)
    floors = {grid.pair: noise_floor(records) for grid, records in zip(grids, found, strict=True)}
    said = "{}: two readings of a row move KL between the models by at most {:.2g} nats at 99 % of {} positions."
    summary = [said.format(pair, e["difference"]["0.99"]["value"] or 0.0, e["positions"]) for pair, e in floors.items()]
    return {"thresholds": limits, "apart": apart, "rows": rows, "floors": floors, "summary": summary}


def truncation_document(report: dict[str, Any]) -> Document:
    """Return what the lists hold and decide, the floors, and a chart a pair along the cloud's text."""
    columns: dict[str, Cell] = {"pair, text, k": lambda row: f"{row['pair']}, {row['text']}, {row['k']}"}
    columns |= {"positions": at("positions"), "holds KL": with_interval("covered", digits=4)}
    columns |= {f"width, {share:.0%}": at(f"width {share:g}", "value", form=".2g") for share in WIDTHS}
    verdicts = [f"{what} at {limit:g}" for limit in report["thresholds"] for what in ("open", "lower", "upper")]
    columns |= {what: with_interval(what, digits=3) for what in verdicts}
    floors = [{"of": f"{pair}, {which}"} | floor[which] for pair, floor in report["floors"].items() for which in FLOORS]
    shares = {"pair, of": at("of")} | {f"{share:.0%}": at(f"{share:g}", "value", form=".2g") for share in SHARES}
    what = "The noise floor: KL between two readings of a row, and the difference they make to KL between the models"
    held = table_of("What k log-probabilities tell of KL, in nats", report["rows"], columns)
    means: dict[str, Cell] = {"pair": at("pair"), "text": at("text"), "positions": at("positions")}
    means |= {name: with_interval(name, digits=3) for name in (*COLUMNS, "kl median", "auroc")}
    apart = table_of(
        "The two models: agreement, KL, overlap, local entropy (AUROC: of it for disagreement)", report["apart"], means
    )
    return [apart, held, table_of(what, floors, shares), *(_open_chart(pair, report) for pair in report["floors"])]


def _open_chart(pair: str, report: dict[str, Any]) -> Chart:
    rows = [row for row in report["rows"] if (row["pair"], row["text"]) == (pair, CLOUD.name)]
    lines = [(f"k = {row['k']}", row["open"]) for row in rows]
    if mark := report["floors"][pair]["difference"]["0.99"]["value"]:
        lines.append(("noise floor, 99 %", [(float(np.log10(mark)), share) for share in (0.0, 1.0)]))
    across = Axis(f"{pair}: threshold, nats", -5.0, 1.0, [(p, f"1e{p}") for p in range(-5, 2)])
    up = Axis("verdicts left open", 0.0, 1.0, [(0.0, "0"), (1.0, "1")])
    return Chart(f"Share of verdicts that a list of {pair} leaves open, by threshold", across, up, lines)


# Certificates: how far a draft may be before a rule can reject it, and where rules did reject.


def certificates_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return what is certified and rejected by pair, text and rule, and the drafters of one cloud."""
    rows = [
        own | {"rule": rule} | rule_row([text["positions"] for text in read], number)
        for own, read in pair_texts(grids, found)
        for number, rule in enumerate(CERTIFICATES)
    ]
    compared = drafters(design, grids, found, rows)
    said = (
        "{tariff}: certificates select the drafter {selected}; greedy-exact pays least with {cheapest}, by {} of the "
    )
    said += "cloud's bill (n = {questions})."
    return {"rows": rows, "drafters": compared, "summary": [said.format(estimate(e["less"], 3), **e) for e in compared]}


def rule_row(texts: Sequence[Sequence[dict[str, Any]]], rule: int) -> dict[str, Any]:
    """Return what a rule's certificates tell of some texts, by ``SOURCES``: dense rows, and lists of k.

    ``certified``: the share of positions where KL (by a list: its upper end) is below the certificate; ``run``: how
    many are so from a position on; ``below``: rejected all the same. ``bins``: positions by KL as a multiple of the
    certificate. ``first``: the median KL of a text's first rejection; ``predicted``: that of its certificate there;
    ``rank``: the rank correlation of both; ``points``: both, by dense rows.
    """
    flat, all_of = flattened(texts)
    kl = np.array([each["kl"] for each in flat])
    rejected = np.array([each["rejected"][rule] for each in flat], dtype=bool)
    least = {shown: np.array([e["certificates"][i][rule] for e in flat]) for i, shown in enumerate(SOURCES)}
    where = np.flatnonzero(rejected)
    first = where[np.unique(all_of.owners[where], return_index=True)[1]]
    answers = Positions(np.arange(first.size), first.size)
    row: dict[str, Any] = {name: {} for name in ("certified", "run", "below", "predicted", "rank")}
    for number, (shown, own) in enumerate(least.items()):
        most = np.array([each["intervals"][number - 1][1] for each in flat]) if number else kl
        proved = most < own - SLACK_NATS
        runs = [run for text in range(len(texts)) for run in run_lengths(proved[all_of.owners == text].tolist())]
        row["certified"][shown] = estimate_to_json(all_of.mean(proved))
        row["run"][shown] = estimate_to_json(all_of.mean(np.array(runs)))
        row["below"][shown] = int((rejected & proved).sum())
        row["predicted"][shown] = estimate_to_json(answers.quantile(own[first], 0.5))
        row["rank"][shown] = estimate_to_json(answers.estimate(weighted_spearman(own[first], kl[first])))
    multiple = np.divide(kl, least["full"], out=np.full(kl.size, np.inf), where=least["full"] > 0.0)
    bins = [np.digitize(multiple, MULTIPLES[1:]) == number for number in range(len(MULTIPLES))]
    shares = [Positions(all_of.owners[inside], len(texts)).mean(rejected[inside]) for inside in bins]
    row["bins"] = [
        {"positions": int(inside.sum())} | estimate_to_json(share) for inside, share in zip(bins, shares, strict=True)
    ]
    points = np.stack([least["full"][first], kl[first]], axis=1)
    return row | {"first": estimate_to_json(answers.quantile(points[:, 1], 0.5)), "points": points.tolist()}


def drafters(
    design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return, by tariff, the local models of one cloud: certified runs, and greedy-exact's bill for common questions.

    ``selected``: the one with the longest runs along the cloud's text; ``cheapest``: that with the least bill;
    ``less``: the first one's bill less the second one's, as a share of the cloud's own.
    """
    families: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for grid, records in zip(grids, found, strict=True):
        answered = {record["text"]: record["arms"] for record in records}
        families[getattr(design.pairs[grid.pair], "cloud", None)][grid.pair] = answered
    runs = {row["pair"]: row["run"]["full"] for row in rows if (row["text"], row["rule"]) == (CLOUD.name, "greedy")}
    compared = []
    for family, tariff in product(families.values(), design.tariffs):
        common = [text for text in next(iter(family.values())) if all(text in own for own in family.values())]
        if len(family) < 2 or not common:
            continue
        price = (tariff.setting, tariff.prices)
        paid = {pair: bills([own[e][EXACT_GREEDY.name] for e in common], *price) for pair, own in family.items()}
        selected = max(family, key=lambda pair: runs[pair]["value"] or 0.0)
        cheapest = min(family, key=lambda pair: float(paid[pair].sum()))
        alone = bills([family[cheapest][text][CLOUD.name] for text in common], *price)
        compared.append({
            "tariff": tariff.name, "questions": len(alone), "selected": selected, "cheapest": cheapest,
            "runs": {pair: runs[pair] for pair in family},
            "bills": {pair: told(paid_ratio(each, alone)) for pair, each in paid.items()},
            "less": told(paid_ratio(paid[selected] - paid[cheapest], alone)),
        })  # fmt: skip
    return compared


def certificates_document(report: dict[str, Any]) -> Document:
    """Return what is certified, first rejections along local texts with a chart a pair and rule, and the drafters."""
    name: dict[str, Cell] = {"pair, text, rule": lambda row: f"{row['pair']}, {row['text']}, {row['rule']}"}
    proved = name | {"positions": at("positions"), "run": with_interval("run", "full", digits=1)}
    proved |= {f"certified, {shown}": with_interval("certified", shown, digits=3) for shown in SOURCES}
    proved |= {"rejected though certified": lambda row: str(sum(row["below"].values()))}
    first = name | {"rejections": lambda row: str(len(row["points"])), "KL": with_interval("first", digits=3)}
    first |= {
        f"{what}, {shown}": with_interval(what, shown) for what in ("predicted", "rank") for shown in ("full", "1")
    }
    ends = (f"to {high:g} times" for high in MULTIPLES[1:]), ("times or more",)
    bins = (f"rejected at {low:g} {end}" for low, end in zip(MULTIPLES, chain(*ends), strict=True))
    first |= {title: with_interval("bins", i) for i, title in enumerate(bins)}
    chosen: dict[str, Cell] = {each: at(each) for each in ("tariff", "questions", "selected", "cheapest")}
    chosen |= {each: _named(each) for each in ("runs", "bills")} | {"bill less": with_interval("less", digits=3)}
    local = [row for row in report["rows"] if row["text"] == LOCAL.name]
    what = "First rejections along the local text, beside the certificates there; positions by KL over certificate"
    return [
        table_of(
            "Favourites certified, by dense rows and by lists of k, and how many in a row", report["rows"], proved
        ),
        table_of(what, local, first),
        *(_rejection_chart(row) for row in local if row["points"]),
        table_of("Drafters of one cloud: the longest certified runs, the least bill", report["drafters"], chosen),
    ]


def _named(key: str) -> Cell:
    return lambda row: ", ".join(f"{name} {estimate(each)}" for name, each in row[key].items())


def _rejection_chart(row: Mapping[str, Any]) -> Chart:
    what, most = f"{row['pair']}, {row['rule']}", max(kl for _, kl in row["points"])
    across, up = (
        Axis(label, 0.0, most, [(most, f"{most:.2g}")]) for label in (f"{what}: certificate, nats", "KL, nats")
    )
    dots = [("", (least, kl)) for least, kl in row["points"]]
    told = f"KL of first rejections by certificate, {what}"
    return Chart(told, across, up, [("KL = certificate", [(0.0, 0.0), (most, most)])], dots)


# Temperature: KL between the two models, temperature by temperature, and what a list leaves of it.


def temperature_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return mean KL over positions by pair, text, temperature and who is heated: the truth, and a list's two ends."""
    del design
    rows = []
    for own, read in pair_texts(grids, found):
        draws, num = resampled(len(read)), np.array([len(text["positions"]) for text in read])
        for temperature in read[0]["heated"] if read else ():
            sums = np.array([text["heated"][temperature] for text in read]).T.reshape(len(HEATED), 4, -1)
            sums[np.isinf(sums)] = np.nan  # no mean is told of what is not bounded
            for heated, (*nats, outside) in zip(HEATED, sums, strict=True):
                means = [told(ratio(draws.sums(each), draws.sums(num))) for each in nats]
                row = {"temperature": float(temperature), "heated": heated, "outside": int(outside.sum())}
                rows.append(own | row | dict(zip(MEANS, means, strict=True)))
    return {"k": HEATED_K, "rows": rows}


def temperature_document(report: dict[str, Any]) -> Document:
    """Return the table, and a chart a pair along the cloud's text."""
    columns: dict[str, Cell] = {"pair, text": lambda row: f"{row['pair']}, {row['text']}", "at T": at("heated")}
    columns |= {"T": at("temperature")} | {name: with_interval(name, digits=3) for name in MEANS}
    columns |= {"outside": at("outside"), "positions": at("positions")}
    what = f"Mean KL in nats, and the ends that the {report['k']} likeliest tokens at that temperature leave"
    along = [
        row for row in report["rows"] if row["text"] == CLOUD.name and None not in [row[e]["value"] for e in MEANS]
    ]
    lines = dict.fromkeys((row["pair"], row["heated"]) for row in along)
    charts = [_heat_chart(*each, [row for row in along if (row["pair"], row["heated"]) == each]) for each in lines]
    return [table_of(what, report["rows"], columns), *charts]


def _heat_chart(pair: str, who: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the truth and a list's ends; the dots are the ends of the truth's intervals."""
    lines = [(name, [(row["temperature"], row[name]["value"]) for row in rows]) for name in MEANS]
    dots = [("", (row["temperature"], row["truth"][end])) for row in rows for end in ("low", "high")]
    most = max([row["upper"]["value"] for row in rows] + [nats for _, (_, nats) in dots]) or 1.0
    ticks = [(row["temperature"], f"{row['temperature']:g}") for row in rows]
    across = Axis(f"{pair}, {who} at a temperature of", 0.0, max(ticks)[0], ticks)
    up = Axis("mean KL, nats", 0.0, most, [(0.0, "0"), (most, f"{most:.2g}")])
    return Chart(f"Mean KL along the cloud's texts of {pair}, {who} at each temperature", across, up, lines, dots)


ROW_SECTIONS = (
    Section("truncation", "What a list tells of KL", rows_grids, truncation_report, truncation_document, TRUNCATION),
    Section("certificates", "First rejections", rows_grids, certificates_report, certificates_document, TEMPERATURE),
    Section("temperature", "KL by temperature", rows_grids, temperature_report, temperature_document, TEMPERATURE),
)
