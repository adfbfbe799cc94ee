"""The first table: how far two models are apart along the reference's own text, and what a top-k list shows of it.

Every number stands with its count and an interval over questions. This file interprets records; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid.bench.comparison import estimate_to_json
from hybrid.bench.experiments.bootstrap import Positions
from hybrid.bench.experiments.positions import CERTIFICATES, TOP_KS
from hybrid.prob import Floats

THRESHOLDS = (0.5, 1.5, 3.0)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# What is added to an interval before it is asked whether the value lies in it: rows are rounded numbers.
SLACK_NATS = 1e-6
# Offsets in a drafted span, and parts of a text, at which acceptance is told.
SPAN = 8
PARTS = ((0, 8), (8, 16), (16, 32), (32, 64), (64, None))


def position_table(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the table of a section from the records of its questions."""
    texts = [record["positions"] for record in records]
    flat = [position for text in texts for position in text]
    owners = np.array([number for number, text in enumerate(texts) for _ in text], dtype=np.int64)
    all_of = Positions(owners, len(texts))
    columns = {
        name: np.array([each[name] for each in flat]) for name in ("agrees", "kl", "entropy", "overlap", "beyond")
    }
    agrees, kl = columns["agrees"].astype(bool), columns["kl"]
    return {
        "questions": len(texts),
        "positions": len(flat),
        "agreement": estimate_to_json(all_of.mean(agrees)),
        "kl_mean": estimate_to_json(all_of.mean(kl)),
        "kl_median": estimate_to_json(all_of.quantile(kl, 0.5)),
        "kl_above": {f"{limit:g}": estimate_to_json(all_of.mean(kl > limit)) for limit in THRESHOLDS},
        "entropy_auroc": estimate_to_json(all_of.auroc(columns["entropy"], ~agrees)),
        "beyond_top_20": {
            "median": estimate_to_json(all_of.quantile(columns["beyond"], 0.5)),
            "p90": estimate_to_json(all_of.quantile(columns["beyond"], 0.9)),
        },
        "intervals": {str(k): _interval(all_of, kl, flat, i) for i, k in enumerate(TOP_KS)},
        "acceptance": _acceptance(texts, all_of, columns["overlap"]),
        "certificates": _certificates(kl, flat),
    }


def _interval(all_of: Positions, kl: Floats, flat: Sequence[dict[str, Any]], which: int) -> dict[str, Any]:
    """Say how wide a top-k list's interval is, whether the value lies in it, and how well it decides at 0.5 nats."""
    lower, upper = (np.array([each["intervals"][which][end] for each in flat]) for end in (0, 1))
    width = np.where(np.isfinite(upper), upper - lower, np.inf)
    covered = (lower <= kl + SLACK_NATS) & (kl <= upper + SLACK_NATS)
    limit = THRESHOLDS[0]
    return {
        "width_median": estimate_to_json(all_of.quantile(width, 0.5)),
        "width_p90": estimate_to_json(all_of.quantile(width, 0.9)),
        "covered": estimate_to_json(all_of.mean(covered)),
        "undecided_at_0.5": estimate_to_json(all_of.mean((lower <= limit) & (limit < upper))),
        "lower_end_right_at_0.5": estimate_to_json(all_of.mean((lower > limit) == (kl > limit))),
        "upper_end_right_at_0.5": estimate_to_json(all_of.mean((upper > limit) == (kl > limit))),
    }


def _acceptance(texts: Sequence[Sequence[dict[str, Any]]], all_of: Positions, overlap: Floats) -> dict[str, Any]:
    """Tell how many drafted tokens stand: by the offset in a span, and by the place in the text.

    ``span``: of the greedy drafts that begin anywhere and have stood so far, the share that stands at the next token.
    """
    places = np.array([place for text in texts for place in range(len(text))], dtype=np.int64)
    agrees = np.array([each["agrees"] for text in texts for each in text], dtype=bool)
    stood = [_stood(text) for text in texts]
    span = []
    for offset in range(SPAN):
        tried = sum(sum(run >= offset and at + offset < len(runs) for at, run in enumerate(runs)) for runs in stood)
        kept = sum(sum(run > offset for run in runs) for runs in stood)
        span.append({"offset": offset, "tried": tried, "kept": round(kept / tried, 4) if tried else None})
    parts = []
    for first, end in PARTS:
        inside = (places >= first) & (places < (end or places.size + 1))
        here = Positions(all_of.owners[inside], all_of.num_texts)
        parts.append(
            {"from": first, "to": end, "positions": int(inside.sum())}
            | {
                "greedy": estimate_to_json(here.mean(agrees[inside])),
                "sampled": estimate_to_json(here.mean(overlap[inside])),
            }
        )
    return {"sampled": estimate_to_json(all_of.mean(overlap)), "span": span, "parts": parts}


def _stood(text: Sequence[dict[str, Any]]) -> list[int]:
    """Return for every position how many tokens from there on the two models agree."""
    runs, run = [], 0
    for each in reversed(text):
        run = run + 1 if each["agrees"] else 0
        runs.append(run)
    return runs[::-1]


def _certificates(kl: Floats, flat: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tell the quantiles of each certificate, and how many positions it proves: those with a smaller divergence."""
    found = {}
    for which, name in enumerate(CERTIFICATES):
        values = np.array([each["certificates"][which] for each in flat])
        upper = np.array([each["intervals"][TOP_KS.index(20)][1] for each in flat])
        quantiles = np.quantile(values, QUANTILES, method="inverted_cdf") if values.size else []
        found[name] = {
            "quantiles": {
                f"{share:g}": round(float(value), 4) for share, value in zip(QUANTILES, quantiles, strict=False)
            },
            "certified_by_the_full_rows": round(float((kl < values).mean()), 4) if values.size else None,
            "certified_by_the_top_20": round(float((upper < values).mean()), 4) if values.size else None,
        }
    return found
