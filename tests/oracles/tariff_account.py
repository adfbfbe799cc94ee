"""A second hand over tariffs: it goes through each token of each prompt of one answer and says what it is charged.

It remembers every beginning of every prompt that was answered, as text, and looks each one up. It must never import
``hybrid``: it is what a ``Price`` is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

STATED = (None, "uncached", "cached", "new")


@dataclass(frozen=True)
class Asked:
    """One request: its prompt, what it wrote, what the server says it had cached, and how it went."""

    prompt: tuple[int, ...]
    written: int
    check: bool = False
    told: int = 0
    answered: bool = True
    http_requests: int = 1


@dataclass
class TariffAccount:
    """Charges the requests of one answer, one after another, at USD a million tokens."""

    prompt_usd: Fraction
    cached_usd: Fraction
    completion_usd: Fraction
    request_usd: Fraction = Fraction(0)
    stated: str | None = None
    beginnings: set[str] = field(default_factory=set)

    def charge(self, asked: Asked) -> int:
        """Nano-USD for one request."""
        total = Fraction(0)
        for place in range(len(asked.prompt)):
            total += self._of_token(asked, place)
        for number in range(asked.written):
            unwanted = asked.check and number < asked.http_requests
            total += 0 if unwanted and self.stated == "new" else self.completion_usd
        if asked.answered:
            for end in range(1, len(asked.prompt) + 1):
                self.beginnings.add(" ".join(map(str, asked.prompt[:end])))
        return ceil(total * 1000) + int(self.request_usd * 10**9) * asked.http_requests

    def _of_token(self, asked: Asked, place: int) -> Fraction:
        seen = " ".join(map(str, asked.prompt[: place + 1])) in self.beginnings
        told = place < asked.told
        if self.stated == "new" and seen:
            return Fraction(0)
        if self.stated == "cached" and seen:
            return self.cached_usd
        if self.stated == "uncached" and asked.check:
            return self.prompt_usd
        return self.cached_usd if told else self.prompt_usd
