"""How far a batch is: lines, money, the rate of late, and the time that is left by it.

The law: lines that an earlier run has answered count as done and never as fast; what earlier runs spent counts as
spent, and what is reserved is told apart from it (``tests/cli/test_batch_progress.py``). Where it is shown, and how
often, is said by who asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hybrid.run.spending import Spent
from hybrid.spend import as_usd

# The rate is that of so many lines at most: of late, and steady enough to tell a time by.
RECENT_LINES = 64


@dataclass
class BatchProgress:
    """Counts lines as they are finished. ``total``: None where nobody knows; times are seconds of one clock."""

    began_s: float
    total: int | None = None
    cap: str | None = None
    spent_before_nanousd: int | None = 0
    reserved_before_nanousd: int = 0
    done: int = 0
    _finished_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LINES + 1))

    def __post_init__(self) -> None:
        """Measure the first line from the beginning on."""
        self.begin(self.began_s)

    def begin(self, at_s: float) -> None:
        """Measure the rate from a time on: before it nothing was answered."""
        self._finished_s.clear()
        self._finished_s.append(at_s)

    def finish(self, at_s: float) -> None:
        """Count a line that was answered at a time."""
        self.done += 1
        self._finished_s.append(at_s)

    def rate(self, now_s: float) -> float | None:
        """Return lines a second, of late; None before the first is finished.

        >>> progress = BatchProgress(began_s=100.0)
        >>> progress.finish(102.0), progress.rate(104.0)
        (None, 0.25)
        """
        took = now_s - self._finished_s[0]
        lines = len(self._finished_s) - 1
        return lines / took if lines and took > 0 else None

    def text(self, spent: Spent, now_s: float) -> str:
        """Say it all; ``spent`` is what this run has spent, with what is reserved for its requests."""
        parts = [
            f"{self.done} of {self.total} lines" if self.total is not None else f"{self.done} lines",
            self._money(spent),
        ]
        if (rate := self.rate(now_s)) is not None:
            parts.append(f"{rate:.2g} lines/s" if rate < 10 else f"{rate:.0f} lines/s")
            if self.total is not None and self.total > self.done:
                parts.append(f"{duration((self.total - self.done) / rate)} left")
        return ", ".join(parts)

    def _money(self, spent: Spent) -> str:
        """Say what is spent, apart from what is reserved and may be given back."""
        before, reserved = self.spent_before_nanousd, self.reserved_before_nanousd + spent.reserved_nanousd
        if before is None or spent.nanousd is None:
            return "cost unknown"
        said = as_usd(before + spent.nanousd - spent.reserved_nanousd).removesuffix(" USD")
        if reserved:
            said += f" spent and {as_usd(reserved).removesuffix(' USD')} reserved"
        return f"{said} USD" if self.cap is None else f"{said} of {self.cap} USD"


def duration(seconds: float) -> str:
    """Say a time as a clock shows it.

    >>> duration(59.6), duration(3_725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
