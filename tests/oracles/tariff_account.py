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
    """One request: its prompt, what it wrote, what the server says it had cached, and how it went.

    ``writes``: how many tokens, at the prompt's end, the server says it wrote to its cache; None: it does not say.
    """

    prompt: tuple[int, ...]
    written: int
    check: bool = False
    told: int = 0
    answered: bool = True
    http_requests: int = 1
    writes: int | None = None


@dataclass
class TariffAccount:
    """Charges the requests of one answer, one after another, at USD a million tokens.

    ``write_usd``: of a prompt token that is written to the cache; None: as any other. ``least_cached``: what a repeated
    beginning needs to be cached. ``beyond``: more prompt tokens than these have the second price list.
    """

    prompt_usd: Fraction
    cached_usd: Fraction
    completion_usd: Fraction
    request_usd: Fraction = Fraction(0)
    stated: str | None = None
    write_usd: Fraction | None = None
    least_cached: int = 0
    beyond: tuple[int, tuple[Fraction, Fraction, Fraction, Fraction]] | None = None
    beginnings: set[str] = field(default_factory=set)

    def charge(self, asked: Asked) -> int:
        """Nano-USD for one request."""
        total = Fraction(0)
        for place in range(len(asked.prompt)):
            total += self._of_token(asked, place)
        completion_usd = self._prices(asked)[2]
        for number in range(asked.written):
            unwanted = asked.check and number < asked.http_requests
            total += 0 if unwanted and self.stated == "new" else completion_usd
        if asked.answered:
            for end in range(1, len(asked.prompt) + 1):
                self.beginnings.add(" ".join(map(str, asked.prompt[:end])))
        return ceil(total * 1000) + int(self.request_usd * 10**9) * asked.http_requests

    def _prices(self, asked: Asked) -> tuple[Fraction, Fraction, Fraction, Fraction]:
        """Prompt, cached, completion, written to the cache."""
        if self.beyond is not None and len(asked.prompt) > self.beyond[0]:
            return self.beyond[1]
        written = self.prompt_usd if self.write_usd is None else self.write_usd
        return self.prompt_usd, self.cached_usd, self.completion_usd, written

    def _of_token(self, asked: Asked, place: int) -> Fraction:
        prompt_usd, cached_usd, _, write_usd = self._prices(asked)
        seen = self._was_sent(asked, place)
        told = place < asked.told
        wrote = place >= len(asked.prompt) - asked.writes if asked.writes is not None else self._caches(asked)
        if self.stated == "new" and seen:
            return Fraction(0)
        if self.stated == "cached" and seen and (not self.least_cached or self._num_sent(asked) >= self.least_cached):
            return cached_usd
        if told and not (self.stated == "uncached" and asked.check):
            return cached_usd
        return write_usd if wrote else prompt_usd

    def _caches(self, asked: Asked) -> bool:
        return len(asked.prompt) >= self.least_cached

    def _was_sent(self, asked: Asked, place: int) -> bool:
        return " ".join(map(str, asked.prompt[: place + 1])) in self.beginnings

    def _num_sent(self, asked: Asked) -> int:
        return sum(self._was_sent(asked, place) for place in range(len(asked.prompt)))
