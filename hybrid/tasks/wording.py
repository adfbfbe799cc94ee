"""The wording of an answer: equally good openings, joints and closings, and the place of the final answer.

The laws, tested in ``tests/tasks/test_graders.py``: the final answer follows the last closing and ends the text, or is
the whole text; every wording is accepted; a wrong step before a right final answer counts as right. The first option is
drawn more often than each other one (``PREFERRED``). With even chances the likeliest wording would be an accident of
each model's training; two models would disagree there, and the uncertainty would not be harmless.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hybrid.tasks.problem import Rng

# With four options: 0.4 against 0.2 each, an entropy of 1.33 nats of the 1.39 of even chances.
PREFERRED = 0.4


def draw(rng: Rng, options: Sequence[str]) -> str:
    """Draw the first option with the chance ``PREFERRED``, or one of the others evenly."""
    if len(options) == 1 or rng.random() < PREFERRED:
        return options[0]
    return rng.choice(options[1:])


@dataclass(frozen=True)
class Wording:
    """What may stand before the work and before the final answer; one option each where nothing is free."""

    closings: tuple[str, ...] = ("Answer:",)
    openings: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        """Count the wordings."""
        return len(self.closings) * len(self.openings)

    def text(self, rng: Rng, work: str, final: str) -> str:
        """Return a worked answer in a drawn wording."""
        parts = draw(rng, self.openings), work, draw(rng, self.closings), f"{final}."
        return " ".join(part for part in parts if part)

    def finals(self, text: str) -> Iterator[str]:
        """Yield what could be the final answer: the whole text, and what follows the last of each closing."""
        text = text.strip()
        for closing in ("", *self.closings):
            start = text.rfind(closing) if closing else 0
            if start == 0 or (start > 0 and text[start - 1].isspace()):
                yield text[start + len(closing) :].strip().removesuffix(".").rstrip()
