"""How good a calibration's chances are: figures of its questions, each told by folds that it was not in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybrid.defer import Calibration, CalibrationQuestion
from hybrid.tune.fit import MOST_TURNED_DOWN

# Groups of equally many questions. With more of them noise alone looks like an error.
BINS = 15


def auroc(questions: Sequence[CalibrationQuestion]) -> float | None:
    """Return the chance that a turned-down draft was told a higher chance than another; None where all are alike.

    Ties count half.
    """
    down, up = ([each.chance for each in questions if each.turned_down is what] for what in (True, False))
    if not down or not up:
        return None
    above = np.sign(np.array(down)[:, None] - np.array(up)[None])
    return float((above.mean() + 1.0) / 2.0)


def ece(questions: Sequence[CalibrationQuestion]) -> float:
    """Return the expected calibration error: |told - true share| over groups of equal size, by the told chance."""
    told = np.array([each.chance for each in questions])
    true = np.array([each.turned_down for each in questions], dtype=np.float64)
    groups = np.array_split(np.argsort(told, kind="stable"), min(BINS, len(questions)))
    return float(sum(abs(told[each].sum() - true[each].sum()) for each in groups) / len(questions))


def reason_of_loss(calibration: Calibration) -> str:
    """Say in a sentence why the loss is a verdict, or nats."""
    share = float(np.mean([each.turned_down for each in calibration.questions]))
    if calibration.loss == "verdict":
        return f"{share:.0%} of the drafts were turned down by {calibration.judge}: a verdict tells drafts apart"
    return (
        f"{share:.0%} of the drafts were turned down by {calibration.judge}, {MOST_TURNED_DOWN:.0%} or more: a verdict "
        "tells little of a draft, so what is kept is counted in nats of excess loss"
    )
