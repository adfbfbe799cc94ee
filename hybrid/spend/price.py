"""Prices as integers: the cost of a usage, and the most that a request may cost.

An unknown price is ``None`` everywhere, never zero. A known price carries who stated it.

The law of a tariff (``tests/spend/test_tariffs.py``, against a second hand that enumerates). What one request is
charged, with P, C and O the prices of a prompt, a cached and a completion token:

| stated       | prompt of a write          | prompt of a check          | a check's completion  |
|--------------|----------------------------|----------------------------|-----------------------|
| nothing      | told as cached C, rest P   | told as cached C, rest P   | O                     |
| ``uncached`` | told as cached C, rest P   | P                          | O                     |
| ``cached``   | told or repeated C, rest P | told or repeated C, rest P | O                     |
| ``new``      | repeated 0, told beyond it | as a write's               | one a request 0,      |
|              | C, rest P                  |                            | others O              |

*Told*: the tokens that the server says it had cached. *Repeated*: the longest beginning that a prompt shares with an
earlier prompt of the same answer that was answered. So ``new`` <= ``cached`` <= nothing stated <= ``uncached`` for the
same requests, as long as C is not above P; and where nothing is told, the first request of an answer costs the same
under each, but for the completion token that ``new`` leaves free. A tariff is the user's statement, as the prices are:
without one nothing is charged less than the server tells. The worst case knows no tariff: nothing is repeated in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Literal, TypeAlias, get_args

from hybrid.errors import UsageError
from hybrid.types import CloudUsage

NANOUSD_PER_USD = 1_000_000_000
MILLION = 1_000_000
# Decimal's default context rounds a product of more than 28 digits silently, and 1e300000 would take many seconds.
EXACTLY = Context(Emax=30, traps=[InvalidOperation, Inexact, Overflow])


BY_FLAG = "stated by --price"

Tariff: TypeAlias = Literal["uncached", "cached", "new"]
"""How scored tokens and a repeated prefix are charged: in full, at the cached price, or only what is new."""
TARIFFS: tuple[Tariff, ...] = get_args(Tariff)


@dataclass(frozen=True)
class Price:
    """Nano-dollars per million tokens, so that prices like 0.0375 USD per million stay whole; ``request``: for each.

    ``repeated`` is the tariff: how scored tokens and prefixes that an answer sends again are charged, by the table at
    the top of this file. None: as the server tells. ``source`` says who stated the price; equality ignores it.
    """

    prompt: int
    cached_prompt: int
    completion: int
    request: int = 0
    source: str = field(default=BY_FLAG, compare=False)
    repeated: Tariff | None = None

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read ``P/C/O`` (USD per million prompt, cached prompt and completion tokens), ``P/C/O/R`` or ``free``.

        R is USD per request. Behind any of them may stand a tariff: ``:uncached``, ``:cached`` or ``:new``.

        >>> Price.parse("1/0.1/4").completion, Price.parse("1/0.1/4/0.002").request, Price.parse("1/0.1/4:new").repeated
        (4000000000, 2000000, 'new')

        Raises UsageError for anything else.
        """
        amounts, colon, stated = text.partition(":")
        try:
            repeated = read_tariff(stated) if colon else None
            prompt, cached, completion, *request = (
                (0, 0, 0) if amounts == "free" else map(usd_to_nanousd, amounts.split("/"))
            )
            (per_request,) = request or (0,)
        except (ValueError, UsageError):
            msg = (
                f"--price {text!r} is not P/C/O or P/C/O/R (USD per million prompt/cached/completion tokens, and per "
                f"request, as 1/0.1/4) or free, perhaps with :{', :'.join(TARIFFS)} behind it"
            )
            raise UsageError(msg) from None
        return cls(prompt, cached, completion, per_request, repeated=repeated)

    def __str__(self) -> str:
        """Write it as ``parse`` reads it."""
        parts = [self.prompt, self.cached_prompt, self.completion, *([self.request] if self.request else [])]
        amounts = "free" if self.free else "/".join(as_usd(part).removesuffix(" USD") for part in parts)
        return amounts if self.repeated is None else f"{amounts}:{self.repeated}"

    @property
    def free(self) -> bool:
        """Whether nothing is ever charged."""
        return not (self.prompt or self.cached_prompt or self.completion or self.request)

    def charged(self, usage: CloudUsage) -> CloudUsage:
        """Return the usage of one request as this tariff counts it: what is left is charged P, C and O a token."""
        repeated = min(usage.repeated_tokens, usage.prompt_tokens)
        cached = max(usage.cached_tokens, repeated)
        if self.repeated == "uncached" and usage.check_requests:
            return replace(usage, cached_tokens=0)
        if self.repeated == "cached":
            return replace(usage, cached_tokens=cached)
        if self.repeated == "new":
            written = usage.completion_tokens - min(usage.check_requests, usage.completion_tokens)
            fresh, known = usage.prompt_tokens - repeated, cached - repeated
            return replace(usage, prompt_tokens=fresh, completion_tokens=written, cached_tokens=known)
        return usage

    def cost(self, usage: CloudUsage) -> int:
        """Nano-dollars for the usage of one request, rounded up to a whole one."""
        usage = self.charged(usage)
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = (
            fresh * self.prompt + usage.cached_tokens * self.cached_prompt + usage.completion_tokens * self.completion
        )
        return -(-total // MILLION) + usage.requests * self.request

    def worst_case(self, prompt_tokens: int, limit: int, requests: int = 1) -> int:
        """Nano-dollars for a question whose prompts are not cached and whose completions run to their limit."""
        dearest = max(self.prompt, self.cached_prompt)
        return -(-(prompt_tokens * dearest + limit * self.completion) // MILLION) + requests * self.request


def read_tariff(text: object) -> Tariff:
    """Read a tariff's name. Raises UsageError for anything else."""
    for tariff in TARIFFS:
        if text == tariff:
            return tariff
    msg = f"{text!r} is not {', '.join(TARIFFS[:-1])} or {TARIFFS[-1]}"
    raise UsageError(msg)


def as_usd(nanousd: int | None) -> str:
    """Write an amount exactly, as a user reads it. None is written as unknown, not as zero.

    >>> as_usd(93_000), as_usd(2_000_000_000), as_usd(None)
    ('0.000093 USD', '2 USD', 'unknown')
    """
    if nanousd is None:
        return "unknown"
    whole, rest = divmod(nanousd, NANOUSD_PER_USD)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + " USD"


def usd_to_nanousd(text: str, name: str = "") -> int:
    """Read a non-negative amount of USD exactly. Raises UsageError, which begins with the setting's name, for others.

    >>> usd_to_nanousd("0.02")
    20000000
    """
    try:
        amount = EXACTLY.multiply(Decimal(text), NANOUSD_PER_USD)
    except ArithmeticError:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0 or amount != int(amount):
        said = f"{name}: {text!r}" if name else repr(text)
        msg = f"{said} is not an amount of USD (at most nine decimal places, not negative)"
        raise UsageError(msg)
    return int(amount)
