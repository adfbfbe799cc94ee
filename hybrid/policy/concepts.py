"""Which divergences are wording: the tokens of a concept say the same, but in code and JSON each says its own.

The law (``tests/policy/test_concepts.py``): a test that knows no concepts finds no wording, and none is found where the
text is formal. What is formal is read from the answer's text alone: inside a code fence or inline code, and everywhere
in an answer that begins as JSON does. (JSON that was asked for as a format never comes here: such a request is relayed
to the cloud.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hybrid.policy.gates import number_text
from hybrid.prob import Dense, Partition, TextRow, TopK, concept_kl, kl_with_noise
from hybrid.types import Divergence, Ids

# A fence as CommonMark has it (section 4.5): up to three spaces, then three or more of one mark.
_FENCE = re.compile(rb"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Concepts:
    """Which tokens say the same. ``piece``: the bytes of one; ``prompt``: what the answer continues."""

    partition: Partition
    piece: Callable[[int], bytes]
    prompt: Ids = ()

    @cached_property
    def opening(self) -> bytes:
        """The prompt's text."""
        return b"".join(map(self.piece, self.prompt))

    def hold_after(self, at: Ids) -> bool:
        """Whether a token may stand for another of its concept, after so much of the answer."""
        return not is_formal(b"".join(map(self.piece, at)), self.opening)


@dataclass(frozen=True)
class WordingTest:
    """Whether a divergence of tokens is none of concepts: KL(cloud || local) over these is within ``threshold`` nats.

    The same ``end`` of the interval decides as does of tokens, moved outwards by the rows' noise. ``concepts``: None
    where none are known; then nothing is wording.
    """

    threshold: float
    end: Literal["lower", "upper"] = "lower"
    concepts: Concepts | None = None

    def measure(self, at: Ids, target: TopK, draft: Dense) -> Divergence | None:
        """Return KL over concepts after ``at``; None where there are none."""
        known = self.concepts is not None and not isinstance(target, TextRow) and self.concepts.hold_after(at)
        return concept_kl(target, draft, self.concepts.partition) if known and self.concepts else None

    def is_wording(self, measured: Divergence | None) -> bool:
        """Whether what was measured is within the threshold."""
        return measured is not None and self.deciding(measured) <= self.threshold

    def deciding(self, measured: Divergence) -> float:
        """Return the deciding end, moved outwards by the noise."""
        end, noise = (measured.lower, -measured.noise) if self.end == "lower" else (measured.upper, measured.noise)
        return kl_with_noise(end, noise if self.threshold > 0.0 else 0.0)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return f"concept:{number_text(self.threshold)}"


def is_formal(text: bytes, opening: bytes = b"") -> bool:
    r"""Whether what follows a text is code or JSON. ``opening``: what stands before it, which may have begun a fence.

    >>> is_formal(b"So:\n```python\nx = "), is_formal(b"Call `len"), is_formal(b' {"a": '), is_formal(b"It is `x`, so")
    (True, True, True, False)
    """
    if text.lstrip()[:1] in {b"{", b"["}:
        return True
    whole, fence = opening + text, b""
    for mark in _FENCE.findall(whole):
        if not fence:
            fence = mark
        elif mark[:1] == fence[:1] and len(mark) >= len(fence):
            fence = b""
    return bool(fence) or whole.rpartition(b"\n")[2].count(b"`") % 2 == 1


__all__ = ["Concepts", "WordingTest", "is_formal"]
