"""Prices as integers: the cost of a usage, and the most that a request may cost.

An unknown price is ``None`` everywhere, never zero. A known price carries who stated it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow

from hybrid.errors import UsageError
from hybrid.types import CloudUsage

NANOUSD_PER_USD = 1_000_000_000
MILLION = 1_000_000
# Decimal's default context rounds a product of more than 28 digits silently, and 1e300000 would take many seconds.
EXACTLY = Context(Emax=30, traps=[InvalidOperation, Inexact, Overflow])


BY_FLAG = "stated by --price"


@dataclass(frozen=True)
class Price:
    """Nano-dollars per million tokens, so that prices like 0.0375 USD per million stay whole; ``request``: for each.

    ``source`` says who stated the price; equality ignores it.
    """

    prompt: int
    cached_prompt: int
    completion: int
    request: int = 0
    source: str = field(default=BY_FLAG, compare=False)

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read ``P/C/O`` (USD per million prompt, cached prompt and completion tokens), ``P/C/O/R`` or ``free``.

        R is USD per request.

        >>> Price.parse("1/0.1/4").completion, Price.parse("1/0.1/4/0.002").request
        (4000000000, 2000000)

        Raises UsageError for anything else.
        """
        if text == "free":
            return cls(0, 0, 0)
        try:
            prompt, cached, completion, *request = (usd_to_nanousd(part) for part in text.split("/"))
            (per_request,) = request or (0,)
        except (ValueError, UsageError):
            msg = (
                f"--price {text!r} is not P/C/O or P/C/O/R (USD per million prompt/cached/completion tokens, and per "
                "request, as 1/0.1/4) or free"
            )
            raise UsageError(msg) from None
        return cls(prompt, cached, completion, per_request)

    def __str__(self) -> str:
        """Write it as ``parse`` reads it."""
        if self.free:
            return "free"
        parts = [self.prompt, self.cached_prompt, self.completion, *([self.request] if self.request else [])]
        return "/".join(as_usd(part).removesuffix(" USD") for part in parts)

    @property
    def free(self) -> bool:
        """Whether nothing is ever charged."""
        return not (self.prompt or self.cached_prompt or self.completion or self.request)

    def cost(self, usage: CloudUsage) -> int:
        """Nano-dollars for a usage, rounded up to a whole one."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = (
            fresh * self.prompt + usage.cached_tokens * self.cached_prompt + usage.completion_tokens * self.completion
        )
        return -(-total // MILLION) + usage.requests * self.request

    def worst_case(self, prompt_tokens: int, limit: int, requests: int = 1) -> int:
        """Nano-dollars for a question whose prompts are not cached and whose completions run to their limit."""
        dearest = max(self.prompt, self.cached_prompt)
        return -(-(prompt_tokens * dearest + limit * self.completion) // MILLION) + requests * self.request


def as_usd(nanousd: int | None) -> str:
    """Write an amount exactly, as a user reads it. None is written as unknown, not as zero.

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
