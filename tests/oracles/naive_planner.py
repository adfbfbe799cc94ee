"""A plan's price by enumeration: where the first rejection falls, one place after the other, with prices of its own.

``Shop`` charges one token after the other and knows what it has seen as a number of first tokens. It must never import
``hybrid``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def place_of_rejection(chance, pieces=None):
    """The mean place of the first rejection at one hazard everywhere, if there is one: an integral, or a sum."""
    if chance < 1e-6:
        return 0.5
    rate = -math.log(1.0 - chance)
    if pieces is None:
        return (1.0 - (1.0 + rate) * math.exp(-rate)) / (rate * chance)
    hazard = 1.0 - math.exp(-rate / pieces)
    return sum((i + 0.5) / pieces * hazard * (1.0 - hazard) ** i for i in range(pieces)) / chance


@dataclass(frozen=True)
class Shop:
    """``scoring``: uncached, cached or new, as the settings of the experiments; ``front``: cached tokens in front."""

    cached: float = 0.1
    written: float = 4.0
    scoring: str = "uncached"
    front: int = 0

    def read(self, tokens: int, known: float, *, reads: bool) -> float:
        total = 0.0
        for place in range(-self.front, tokens):
            seen = place < known
            if self.scoring == "new":
                total += (0.0 if known > 0 else self.cached) if place < 0 else (0.0 if seen else 1.0)
            else:
                total += self.cached if reads and seen and place < tokens - 1 else 1.0
        return total

    def check(self, prefix, span, known):
        closing = 0.0 if self.scoring == "new" else self.written
        return self.read(prefix, known, reads=self.scoring != "uncached") + span + closing

    def write(self, prompt, limit, known):
        return self.read(prompt, known, reads=True) + self.written * limit


@dataclass(frozen=True)
class Case:
    """A whole draft: ``hazard`` by token; ``known`` first tokens of prompt and answer."""

    shop: Shop
    hazard: tuple[float, ...]
    prompt: int
    shown: int
    known: int
    multiple: float

    @property
    def worth(self):
        return self.multiple * self.shop.write(self.prompt, self.shown + len(self.hazard), 0)

    def outcomes(self, until):
        """Yield each place below ``until`` where the first rejection may fall with its chance, then None with its."""
        stands = 1.0
        for place in range(until):
            yield place, stands * self.hazard[place]
            stands *= 1.0 - self.hazard[place]
        yield None, stands

    def keep(self):
        return sum(chance * self.worth for place, chance in self.outcomes(len(self.hazard)) if place is not None)

    def tail(self, left, known, chance, worth):
        """What is cheapest of ``left`` tokens behind the draft, turned down with a chance."""
        at, stands = self.prompt + self.shown + len(self.hazard), place_of_rejection(chance) * left
        checked = self.shop.check(at, left, known) + chance * self.whole(at + stands, max(left - stands, 1.0))
        return min(chance * worth, checked, self.shop.write(at, left, known))

    def whole(self, at, limit):
        """A write after a cached prompt of a part of a token more."""
        full = int(at)
        token = 0.0 if self.shop.scoring == "new" else self.shop.cached
        return self.shop.write(full, limit, full) + (at - full) * token

    def check(self):
        num, start = len(self.hazard), self.prompt + self.shown
        total = self.shop.check(start, num, min(self.known, start))
        for place, chance in self.outcomes(num):
            if place is not None:
                total += chance * self.shop.write(start + place + 1, max(num - place - 1, 1), start + place)
        return total

    def write(self, at):
        start = self.prompt + self.shown + at
        lost = sum(chance for place, chance in self.outcomes(at) if place is not None) * self.worth
        return self.shop.write(start, len(self.hazard) - at, min(self.known, start)) + lost

    def cost_of(self, action, at):
        """What an action costs."""
        return self.write(at) if action == "write" else self.keep() if action == "keep" else self.check()

    def best(self):
        """The action with its place, ties to keep, then to the check, then to the earliest place."""
        writes = [self.write(at) for at in range(len(self.hazard))]
        keep, check, write = self.keep(), self.check(), min(writes)
        if keep <= min(check, write):
            return "keep", len(self.hazard)
        if check <= write:
            return "check", len(self.hazard)
        return "write", writes.index(write)
