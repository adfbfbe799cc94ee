"""What each action costs for one draft: to keep it, to check it, to let the cloud write from each of its places.

The rule and its laws stand in ``planning``, which asks for these prices and takes the least.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import Forecast
from hybrid.prob import Floats

if TYPE_CHECKING:
    from hybrid.policy.planning import Planner

# Spans beyond this cost more a token wherever a check in spans pays at all.
LONGEST_CHECKED_SPAN = 64
# The cloud after a local beginning loses something all the same: on two real pairs a tenth and a sixth of what the
# local model loses.
AFTER_LOCAL = 1 / 6
# What checks in short spans leave of that loss: on the calibration questions of both pairs the tokens that excess:0.5
# keeps hold 0.045 and 0.013 of it.
LET_THROUGH = 1 / 20
# What a chance may be at most where its logarithm is taken.
_SURE = 1.0 - 1e-9


def place_of_rejection(chance: float) -> float:
    """Return where in a draft that is turned down with a chance that is expected, as a share of it.

    The hazard is the same everywhere: that of a truncated exponential. 1/2 where the chance is small.

    >>> [round(place_of_rejection(chance), 2) for chance in (0.0, 0.5, 0.77, 0.98)]
    [0.5, 0.44, 0.38, 0.24]
    """
    sure = min(chance, _SURE)
    return 0.5 if sure < 1e-6 else float(-1.0 / np.log1p(-sure) - (1.0 - sure) / sure)


class PricedDraft:
    """A draft that is being priced. ``total``: the tokens that the answer is expected to have."""

    def __init__(
        self,
        planner: Planner,
        num: int,
        shown: int,
        known: int,
        forecast: Forecast,
        *,
        final: bool,
    ) -> None:
        """Take a forecast of ``num`` tokens after ``shown``; ``known`` and ``final`` are as in ``Planner.plan``."""
        self.planner, self.prices, self.num, self.forecast = planner, planner.prices, num, forecast
        self.survival = forecast.survival
        self.start = planner.prompt_tokens + shown
        self.known = float(known)
        # What is expected beyond a block: what the question lets expect; half as much again where it has outgrown that.
        self.tail = 0.0 if final else max(planner.question.tokens - shown - num, num / 2, 1.0)
        self.total = shown + num + self.tail
        self.alone = float(self.prices.write(planner.prompt_tokens, self.total, 0))
        self.worth = planner.worth.of(self.alone)
        self.can_check = {"score", "write"} <= planner.abilities
        excess = planner.mean_excess
        # V for a nat of one token.
        self.nat = 0.0 if excess is None else min(self.worth, self.worth / max(excess * self.total, 1e-12))

    def lost(self, chance: float, tokens: Floats, excess: float) -> Floats:
        """Return what it costs to keep each number of tokens: turned down with a chance, or of so many nats each."""
        if self.planner.mean_excess is None:
            return np.full(tokens.shape, self.worth * chance)
        return self.nat * excess * tokens

    def kept(self, num: int) -> float:
        """Return what it costs to keep the first tokens of the draft."""
        return float(self._kept_all[num])

    @cached_property
    def _kept_all(self) -> Floats:
        """What it costs to keep the first 0 to n tokens, shape (n + 1,)."""
        if self.planner.mean_excess is None:
            return self.worth * (1.0 - self.survival)
        return self.nat * np.concatenate([[0.0], np.cumsum(self.forecast.excess)])

    # ---- what follows -----------------------------------------------------------------------------------------------

    def ahead(self, known: float) -> float:
        """Return what the tail of a block is expected to cost, where so many tokens are known by then.

        The cheapest of three: to keep it, to check it, to have it written.
        """
        if not self.tail:
            return 0.0
        planner, question, left = self.planner, self.planner.question, self.tail
        rate = -np.log1p(-min(question.turned_down, _SURE)) / max(question.tokens, 1.0)
        chance, at = float(-np.expm1(-rate * left)), float(self.start + self.num)
        kept = place_of_rejection(chance) * left
        costs = [float(self.lost(chance, np.array([left]), question.excess)[0])]
        if self.can_check and planner.mean_excess is None:
            rest = self.prices.write(at + kept, max(left - kept, 1.0), at + kept)
            costs.append(float(self.prices.check(at, left, known) + chance * rest))
        if "write" in planner.abilities:
            costs.append(float(self.prices.write(at, left, known)))
        return min(costs)

    def rest(self, at: Floats, left: Floats, known: Floats) -> Floats:
        """Return the price of the rest, where the cloud writes after ``at``. Shapes as ``at``.

        Under nats it costs what it loses behind a local beginning, too.
        """
        rest = cast(Floats, self.prices.write(at, np.maximum(left, 1.0), known))
        if self.planner.mean_excess is None:
            return rest
        begun = at > self.planner.prompt_tokens
        return rest + self.nat * AFTER_LOCAL * self.planner.mean_excess * left * begun

    # ---- the actions ------------------------------------------------------------------------------------------------

    def check_cost(self) -> float:
        """Return the expected cost of a check of the whole draft. The token that replaces a rejected one is paid."""
        falls = self.survival[:-1] - self.survival[1:]
        at: Floats = np.arange(self.num, dtype=np.float64) + float(self.start)
        left = self.start + self.num - 1.0 - at + self.tail
        after = self.rest(at + 1.0, left, at)
        check = float(self.prices.check(self.start, self.num, min(self.known, self.start)))
        tail = self.ahead(float(self.start + self.num))
        return check + float(falls @ after) + float(self.survival[-1]) * tail

    def best_write(self) -> tuple[float | None, int]:
        """Return the cost of the best place to let the cloud write the rest from, and the place."""
        offsets = np.arange(self.num + (1 if self.tail else 0), dtype=np.float64)
        at, left = offsets + float(self.start), self.num - offsets + self.tail
        known = cast(Floats, np.minimum(self.known, at))
        costs = self.rest(at, left, known) + self._kept_all[: len(offsets)]
        costs[~self._can_write_from(offsets)] = np.inf
        best = int(np.argmin(costs)) if len(costs) else 0
        if not len(costs) or costs[best] == np.inf:
            return None, 0
        return float(costs[best]), best

    def _can_write_from(self, offsets: Floats) -> NDArray[np.bool_]:
        """Where the endpoint can write from, and where a level of risk allows that nothing before it is checked."""
        needs = np.where(self.start + offsets > self.planner.prompt_tokens, "write", "open")
        able = np.isin(needs, sorted(self.planner.abilities))
        return able if self.planner.keep_below is None else able & (offsets == 0)

    def short_spans(self) -> tuple[int, float | None]:
        """Return the best short span and what the rest of the answer costs if it is checked in such; None: not known.

        Each check brings ``E = (1 - p^s) / (1 - p)`` tokens: those kept, and the one that corrects the first that is
        not. Its own last token is new to the next check; what the first one reads of the prompt, later ones find.
        """
        share, able = self.planner.kept_share, self.planner.abilities
        if share is None or self.planner.mean_excess is None or not {"score", "ids"} <= able:
            return 0, None
        left = self.num + self.tail
        spans = np.arange(1, max(1, min(LONGEST_CHECKED_SPAN, int(left))) + 1)
        brings = np.cumsum(share ** (spans - 1.0))
        before = self.start + left / 2
        costs = np.asarray(self.prices.check(before, spans.astype(np.float64), before - 1.0)) / brings
        best = int(np.argmin(costs))
        start = float(self.start)
        first = float(self.prices.check(start, 0.0, self.known)) - float(self.prices.check(start, 0.0, start - 1.0))
        lost = LET_THROUGH * self.nat * self.planner.mean_excess * left
        return int(spans[best]), lost + first + float(costs[best]) * left
