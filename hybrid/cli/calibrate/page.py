"""The diagnosis of a pair as a document, and as JSON. The sentences and figures stand in ``hybrid.tune.report``.

The laws (``tests/tune/test_calibrating.py``): every table of the terminal is on the page; nothing that a model, a file
or an endpoint is called becomes markup; the page names no other host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hybrid.prob import Floats
from hybrid.report import Axis, Block, Chart, Heading, Text, bar_chart
from hybrid.tune.calibrating import CalibratedPair, choose_drafter, nats_left
from hybrid.tune.labels import CERTIFICATES
from hybrid.tune.report import drafters, headline, plain, proposals, tables

# Nats from a thousandth to ten, on a logarithmic axis.
NATS = Axis("nats", -3.0, 1.0, tuple((float(power), f"{10.0**power:g}") for power in range(-3, 2)))
# Policies with dials, and what they are compared with, drawn as lines; the others are dots.
LINED = ("auto", "doubt", "mean log-probability / price", "random")
SHARES = tuple((share / 4, f"{25 * share} %") for share in range(5))


def document(pairs: Sequence[CalibratedPair], known: Sequence[CalibrationInForce] = ()) -> list[Block]:
    """Return what came of each pair in plain sentences, what is proposed, and what was found."""
    several = len(pairs) > 1
    blocks: list[Block] = [Heading(headline(pairs), 1), *([drafters(pairs)] if several else [])]
    for number, pair in enumerate(pairs):
        told = [*plain(pair), *map(str, known[number : number + 1])]
        blocks += [Heading(pair.drafter, page_only=not several), *(Text(said, "strong") for said in told), Text()]
        blocks += [*map(Text, proposals(pair)), Text()]
        charts = {"auto: the bill by its worth": _bill(pair), "Distributions": _distributions(pair)}
        charts |= {"Certified runs": _certified(pair), "Where the drafter starts to be overruled": _places(pair)}
        for table in tables(pair):
            blocks += [table, *([charts[table.heading]] if table.heading in charts else [])]
    return blocks


def _bill(pair: CalibratedPair) -> Chart:
    told = "What is left of the loss, by the share of the cloud's bill: policies with dials, and the others as dots"
    forecasts = pair.forecasts
    curves = {name: [(r.bill.value, 1.0 - r.share.value) for r in forecasts.rows if r.name == name] for name in LINED}
    others = [row for row in forecasts.chosen.values() if row.dial.lines and row.name not in LINED]
    most = max(1.0, *(row.bill.value for row in others))
    ticks = tuple((share, f"{100 * share:.0f} %") for share in np.arange(0.0, most + 0.01, 0.25 if most < 2 else 1.0))
    across = Axis("of the bill of the cloud alone", 0.0, float(most), ticks)
    dots = [(row.name, (row.bill.value, 1.0 - row.share.value)) for row in others]
    return Chart(told, across, Axis("left of the loss", 0.0, 1.0, SHARES), [*curves.items()], dots)


def _distributions(pair: CalibratedPair) -> Chart:
    told = "Cumulative distributions over tokens: KL, excess loss, and the certificate of the greedy rule"
    texts, tree = pair.diagnosis.texts, next(name for name in CERTIFICATES if name.startswith("tree"))
    found = {
        "KL, at most": [text.kl_upper for text in texts],
        "excess loss": [text.excess for text in texts],
        "certificate, greedy": [text.certificates["greedy"] for text in texts],
        "certificate, tree": [text.certificates[tree] for text in texts],
    }
    lines = [(name, _cumulative(np.concatenate(values))) for name, values in found.items()]
    return Chart(told, NATS, Axis("tokens up to it", 0.0, 1.0, SHARES), lines)


def _cumulative(values: Floats) -> list[tuple[float, float]]:
    """Return the share of values up to each of a hundred places of the logarithmic axis."""
    ordered = np.sort(values)
    places = np.linspace(NATS.least, NATS.most, 101)
    shares = np.searchsorted(ordered, 10.0**places, side="right") / max(1, ordered.size)
    return list(zip(places.tolist(), shares.tolist(), strict=True))


def _certified(pair: CalibratedPair) -> Chart:
    shares = [(rule, pair.diagnosis.certified(rule).share) for rule in CERTIFICATES]
    return bar_chart("Share of the tokens that each rule's certificate proves", "certified tokens", shares)


def _places(pair: CalibratedPair) -> Chart:
    found = pair.diagnosis.first_rejections(pair.calibration.judge)
    num = max(1, sum(found.tenths))
    shares = [(f"{10 * part} %", count / num) for part, count in enumerate(found.tenths)]
    told = f"In which tenth of a draft {found.judge} turns it down first"
    return bar_chart(told, f"first rejection by {found.judge}, place in the draft", shares)


@dataclass(frozen=True)
class CalibrationInForce:
    """Whether a calibration is ``used``, which one is ``in_force``, and which was before it (None: none)."""

    used: bool
    in_force: str
    before: str | None

    def __str__(self) -> str:
        """Say it in one sentence, with the way back."""
        if not self.used:
            return f"In force stays {self.in_force}: this one knows fewer questions, and --use takes it all the same."
        way = "hybrid calibrate --back with the same --local and --cloud takes that back"
        back = "" if self.before is None else f"; before it was {self.before}, and {way}"
        return f"In force is {self.in_force}{back}."


def to_json(pairs: Sequence[CalibratedPair], known: Sequence[CalibrationInForce] = ()) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    choice = choose_drafter(pairs)
    told = [pair.to_json() | {"nats_left": nats_left(pair)} for pair in pairs]
    for pair, found in zip(told, known, strict=False):
        pair |= {name: value for name, value in asdict(found).items() if name != "before"}
    return {"pairs": told, "take": choice.best.drafter, "sure": choice.share}
