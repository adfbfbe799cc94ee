"""Prices, as integers. A price that is not known is ``None`` everywhere, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow

from hybrid.errors import UsageError
from hybrid.types import CloudUsage

NANOUSD_PER_USD = 1_000_000_000
MILLION = 1_000_000
# By default a product of more than 28 digits is rounded in silence, and 1e300000 is an amount, of many seconds' work.
EXACTLY = Context(Emax=30, traps=[InvalidOperation, Inexact, Overflow])


@dataclass(frozen=True)
class Price:
    """Nano-dollars per million tokens, so that prices like 0.0375 USD per million stay whole."""

    prompt: int
    cached_prompt: int
    completion: int

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read ``P/C/O`` (USD per million prompt, cached prompt and completion tokens) or ``free``.

        >>> Price.parse("1/0.1/4").completion
        4000000000

        Raises UsageError for anything else.
        """
        if text == "free":
            return cls(0, 0, 0)
        try:
            prompt, cached, completion = (usd_to_nanousd(part) for part in text.split("/"))
        except (ValueError, UsageError):
            msg = f"--price {text!r} is not P/C/O (USD per million prompt/cached/completion tokens, as 1/0.1/4) or free"
            raise UsageError(msg) from None
        return cls(prompt, cached, completion)

    def cost(self, usage: CloudUsage) -> int:
        """Nano-dollars for one request, rounded up to a whole one."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = (
            fresh * self.prompt + usage.cached_tokens * self.cached_prompt + usage.completion_tokens * self.completion
        )
        return -(-total // MILLION)

    def worst_case(self, prompt_tokens: int, limit: int) -> int:
        """Nano-dollars for a request whose prompt is not cached and whose completion runs to its limit."""
        dearest = max(self.prompt, self.cached_prompt)
        return -(-(prompt_tokens * dearest + limit * self.completion) // MILLION)


def as_usd(nanousd: int | None) -> str:
    """Write an amount exactly, as a user reads it; what is not known is unknown, not zero.

    >>> as_usd(93_000), as_usd(2_000_000_000), as_usd(None)
    ('0.000093 USD', '2 USD', 'unknown')
    """
    if nanousd is None:
        return "unknown"
    whole, rest = divmod(nanousd, NANOUSD_PER_USD)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + " USD"


def usd_to_nanousd(text: str) -> int:
    """Read a non-negative amount of USD exactly. Raises UsageError for anything else.

    >>> usd_to_nanousd("0.02")
    20000000
    """
    try:
        amount = EXACTLY.multiply(Decimal(text), NANOUSD_PER_USD)
    except ArithmeticError:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0 or amount != int(amount):
        msg = f"{text!r} is not an amount of USD (at most nine decimal places, not negative)"
        raise UsageError(msg)
    return int(amount)
