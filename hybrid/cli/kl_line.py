"""One line of an answer's divergence: a bar for each token, by KL(cloud || local) beside the policy's threshold.

The law (``tests/cli/test_kl_line.py``): a token that was not measured is a gap, never a low bar; a bar is in the upper
half exactly where the certain KL, the interval's lower end, is above the threshold; where several tokens share a
column, the largest of them is drawn. Knows no terminal but its width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.text import Text

from hybrid.run.answer import Token

BARS = "▁▂▃▄▅▆▇█"
HALF = len(BARS) // 2
GAP = " "
LEFT, RIGHT = "KL │", "│"
WITHIN, BEYOND = "cyan", "bold red"
# As ``Policy`` writes itself: a judge of the KL, or else what decides by it when the pen goes back.
_NUMBER = r"(?:[0-9.e+-]+|inf)"
_THRESHOLD = re.compile(rf"\b(?:judge|handback)=(?:kl|concept(?::{_NUMBER}:kl)?):({_NUMBER})")


def threshold_of(policy: str) -> float | None:
    """Return the threshold of KL in nats by which a composed policy decides; None: it decides by something else.

    >>> threshold_of("auto span=512 plan=worth:2.2 judge=kl:0.7 hold=512"), threshold_of("local span=1 gate=never")
    (0.7, None)
    >>> threshold_of("concepts judge=concept:0.1:kl:0.5"), threshold_of("auto judge=concept:0.4 hold=4")
    (0.5, 0.4)
    """
    found = _THRESHOLD.search(policy)
    return None if found is None else float(found[1])


def kl_line(tokens: Sequence[Token], threshold: float | None, width: int) -> Text:
    """Return the bars within ``width`` columns, and in words what they are: beside them, or below where they are long.

    Several tokens share a column where there are more than fit.
    """
    known = [None if token.kl is None else token.kl.lower for token in tokens]
    measured = [nats for nats in known if nats is not None]
    if not measured:
        return Text(f"KL: none of {len(tokens)} tokens was measured", "dim")
    most, step = max(measured), math.ceil(len(known) / max(1, width - len(LEFT) - len(RIGHT)))
    line = Text.assemble((LEFT, "dim"))
    for start in range(0, len(known), step):
        here = [nats for nats in known[start : start + step] if nats is not None]
        beyond = threshold is not None and any(nats > threshold for nats in here)
        line.append(_bar(max(here), threshold, most) if here else GAP, BEYOND if beyond else WITHIN)
    said = [f"{len(measured)} of {len(known)} tokens measured"]
    said += [f"{step} in a column"] if step > 1 else []
    said.append(f"most {most:.3g} nats at token {known.index(most) + 1}")
    said += [] if threshold is None else [f"threshold {threshold:g}"]
    words = ", ".join(said)
    beside = len(line) + len(RIGHT) + len(words) < width
    return line.append(f"{RIGHT}{' ' if beside else chr(10)}{words}", "dim")


def _bar(nats: float, threshold: float | None, most: float) -> str:
    """Return the bar of a KL: the threshold stands in the middle, and twice as much is on top.

    Without one, or where nothing can be above it, the most that was measured is on top.
    """
    if threshold is None or threshold == math.inf:
        return BARS[0] if not most else BARS[_height(1.0 if nats == most else nats / most, len(BARS))]
    if nats <= threshold:
        return BARS[_height(nats / threshold if threshold else 0.0, HALF)]
    return BARS[HALF + _height((nats - threshold) / threshold if threshold else 1.0, HALF)]


def _height(share: float, num_bars: int) -> int:
    return int(min(num_bars - 1.0, num_bars * min(1.0, share)))
