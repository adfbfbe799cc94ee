"""Prices as integers: the cost of a usage, and the most that a request may cost.

An unknown price is ``None`` everywhere, never zero. A known price carries who stated it.

A prompt token is cached, written to the cache or neither, never two of them. The law of a tariff
(``tests/spend/test_tariffs.py``, against a second hand that goes token by token). What one request is charged, with P,
C, W and O the prices of a prompt token, one that is cached, one that is written to the cache, and a completion token
(thoughts are completion):

| stated       | prompt of a write          | prompt of a check          | a check's completion  |
|--------------|----------------------------|----------------------------|-----------------------|
| nothing      | told as cached C, rest P   | told as cached C, rest P   | O                     |
| ``uncached`` | told as cached C, rest P   | P                          | O                     |
| ``cached``   | told or repeated C, rest P | told or repeated C, rest P | O                     |
| ``new``      | repeated 0, told beyond it | as a write's               | one a request 0,      |
|              | C, rest P                  |                            | others O              |

*Told*: the tokens that the server says it had cached. *Repeated*: the longest beginning that a prompt shares with an
earlier prompt of the same answer that was answered; under ``cached`` it counts from ``cache_min_tokens`` on. Of the
*rest*, as many as the server says it wrote to its cache are charged W; where it does not say, all of them, but none of
a prompt below ``cache_min_tokens``. A prompt of more than ``long_context.above_tokens`` has that price, whole. So
``new`` <= ``cached`` <= nothing stated <= ``uncached`` for the same requests, as long as C <= P <= W; and where nothing
is told, the first request of an answer costs the same under each, but for the completion token that ``new`` leaves
free. A tariff is the user's statement, as the prices are: without one nothing is charged less than the server tells.
The worst case knows no tariff: nothing is repeated in it, and each prompt token is the dearest of P, C and W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from fractions import Fraction
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
class LongContext:
    """What a request is charged whose prompt has more than ``above_tokens``; the amounts are those of a ``Price``."""

    above_tokens: int
    prompt: int
    cached_prompt: int
    completion: int
    cache_write: int | None = None


@dataclass(frozen=True)
class Price:
    """Nano-dollars per million tokens, so that prices like 0.0375 USD per million stay whole; ``request``: for each.

    ``repeated`` is the tariff: how scored tokens and prefixes that an answer sends again are charged, by the table at
    the top of this file. None: as the server tells. ``source`` says who stated the price; equality ignores it.
    ``cache_write``: of a prompt token that is written to the cache, never below ``prompt``; None: as any other.
    Forecasts know that nothing is cached of a prompt below ``cache_min_tokens``, or ``cache_lifetime_s`` after it was
    read last (None: not known). ``batch``: the factor of the provider's batch API, which hybrid does not use.
    """

    prompt: int
    cached_prompt: int
    completion: int
    request: int = 0
    source: str = field(default=BY_FLAG, compare=False)
    repeated: Tariff | None = None
    cache_write: int | None = None
    cache_min_tokens: int = 0
    cache_lifetime_s: int | None = None
    batch: Fraction | None = None
    long_context: LongContext | None = None

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read ``P/C/O``, ``P/C/W/O``, ``P/C/W/O/R`` or ``free``: USD per million tokens, and R USD per request.

        P: a prompt token, C: one that is cached, W: one that is written to the cache, O: a completion token. Behind any
        of them may stand a tariff: ``:uncached``, ``:cached`` or ``:new``. Four parts were ``P/C/O/R`` once; so they
        are read only where they cannot be that: P < W <= O, as no request costs what a million tokens do.

        >>> Price.parse("1/0.1/4").completion, Price.parse("2/0.1/2.5/10").cache_write
        (4000000000, 2500000000)
        >>> Price.parse("1/0.1/1/4/0.002:new") == Price(10**9, 10**8, 4 * 10**9, request=2 * 10**6, repeated="new")
        True

        Raises UsageError for anything else.
        """
        amounts, colon, stated = text.partition(":")
        try:
            repeated = read_tariff(stated) if colon else None
            parts = (0, 0, 0) if amounts == "free" else tuple(map(usd_to_nanousd, amounts.split("/")))
        except UsageError:
            parts = ()
        match parts:
            case (prompt, cached, completion):
                write, request = prompt, 0
            case (prompt, cached, write, completion):
                request = 0
            case (prompt, cached, write, completion, request):
                pass
            case _:
                msg = (
                    f"--price {text!r} is not P/C/O, P/C/W/O or P/C/W/O/R (USD per million prompt/cached/cache-write/"
                    "completion tokens, and per request, as 1/0.1/4) or free, perhaps with "
                    f":{', :'.join(TARIFFS)} behind it"
                )
                raise UsageError(msg)
        if write < prompt or (len(parts) == 4 and not 0 < prompt < write <= completion):
            raise UsageError(_doubt(text, amounts.split("/"), colon + stated, cheap=write < prompt))
        return cls(prompt, cached, completion, request, repeated=repeated, cache_write=surcharge(write, prompt))

    def __str__(self) -> str:
        """Write it as ``parse`` reads it; what no such text holds is in ``terms``."""
        write = self.cache_write
        if write is not None and not self.request and 0 < self.prompt < write <= self.completion:
            return self._text(self.prompt, self.cached_prompt, write, self.completion)
        return self.in_full

    @property
    def in_full(self) -> str:
        """The text that never has four parts, for files that outlive a version: four were ``P/C/O/R`` once."""
        if self.cache_write is None and not self.request:
            return self._text(self.prompt, self.cached_prompt, self.completion)
        write = self.prompt if self.cache_write is None else self.cache_write
        return self._text(self.prompt, self.cached_prompt, write, self.completion, self.request)

    def _text(self, *parts: int) -> str:
        amounts = "free" if not any(parts) else "/".join(as_usd(part).removesuffix(" USD") for part in parts)
        return amounts if self.repeated is None else f"{amounts}:{self.repeated}"

    @property
    def terms(self) -> list[str]:
        """What a price file states beside the amounts, a phrase each."""
        found = []
        if self.cache_min_tokens:
            found.append(f"nothing is cached of a prompt below {self.cache_min_tokens} tokens")
        if self.cache_lifetime_s is not None:
            found.append(f"the cache forgets a prompt after {self.cache_lifetime_s} s")
        if self.long_context is not None:
            beyond = self.at(self.long_context.above_tokens + 1)
            found.append(f"{beyond} for a request with more than {self.long_context.above_tokens} prompt tokens")
        if self.batch is not None:
            found.append(f"{float(self.batch):g} of it by the provider's batch API")
        return found

    @property
    def free(self) -> bool:
        """Whether nothing is ever charged."""
        beyond = self.long_context
        here = self.prompt or self.cached_prompt or self.cache_write or self.completion or self.request
        return not (
            here or (beyond and (beyond.prompt or beyond.cached_prompt or beyond.cache_write or beyond.completion))
        )

    def at(self, prompt_tokens: float) -> Price:
        """Return the price of a request whose prompt has so many tokens, without another one beyond it."""
        beyond = self.long_context
        if beyond is None:
            return self
        if prompt_tokens <= beyond.above_tokens:
            return replace(self, long_context=None)
        return replace(
            self,
            prompt=beyond.prompt,
            cached_prompt=beyond.cached_prompt,
            completion=beyond.completion,
            cache_write=beyond.cache_write,
            long_context=None,
        )

    @property
    def written_nanousd(self) -> int:
        """The price of a prompt token that is written to the cache, per million."""
        return self.prompt if self.cache_write is None else self.cache_write

    def caches(self, prompt_tokens: float) -> bool:
        """Whether a prompt of so many tokens is long enough to be cached."""
        return prompt_tokens >= self.cache_min_tokens

    def expected_usage(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> CloudUsage:
        """Return the usage of one request whose prompt is found in the cache up to ``cached_tokens``.

        What is not found there is written to it; of fewer than ``cache_min_tokens`` nothing is found or written.
        """
        cached = cached_tokens if self.caches(cached_tokens) else 0
        writes = prompt_tokens - cached if self.caches(prompt_tokens) else 0
        return CloudUsage(prompt_tokens, completion_tokens, cached, cache_write_tokens=writes)

    def bands(self) -> list[tuple[int, Price, bool]]:
        """Return from which prompt length on which price holds, shortest first, and whether prompts are cached there.

        >>> [(start, caches) for start, _, caches in replace(Price.parse("1/0.1/4"), cache_min_tokens=1024).bands()]
        [(0, False), (1024, True)]
        """
        beyond = self.long_context
        starts = {0, self.cache_min_tokens, *(() if beyond is None else (beyond.above_tokens + 1,))}
        return [(start, self.at(start), self.caches(start)) for start in sorted(starts)]

    def charged(self, usage: CloudUsage) -> CloudUsage:
        """Return the usage of one request as this tariff counts it: what is left is charged P, C, W and O a token."""
        repeated = min(usage.repeated_tokens, usage.prompt_tokens)
        if self.repeated == "uncached" and usage.check_requests:
            return replace(usage, cached_tokens=0)
        if self.repeated == "cached":
            repeated = repeated if repeated >= self.cache_min_tokens else 0
            return _with_cached(usage, max(usage.cached_tokens, repeated))
        if self.repeated == "new":
            written = usage.completion_tokens - min(usage.check_requests, usage.completion_tokens)
            cached = max(usage.cached_tokens, repeated)
            fresh, known = usage.prompt_tokens - repeated, cached - repeated
            return _with_cached(replace(usage, prompt_tokens=fresh, completion_tokens=written), known)
        return usage

    def cost(self, usage: CloudUsage) -> int:
        """Nano-dollars for the usage of one request, rounded up to a whole one.

        Several HTTP requests in one usage count as one prompt for ``long_context``, which is never cheaper.
        """
        price, caches, usage = self.at(usage.prompt_tokens), self.caches(usage.prompt_tokens), self.charged(usage)
        fresh = usage.prompt_tokens - usage.cached_tokens
        untold = fresh if caches else 0
        writes = untold if usage.cache_write_tokens is None else min(usage.cache_write_tokens, fresh)
        total = (
            (fresh - writes) * price.prompt
            + writes * price.written_nanousd
            + usage.cached_tokens * price.cached_prompt
            + usage.completion_tokens * price.completion
        )
        return -(-total // MILLION) + usage.requests * self.request

    def worst_case(self, prompt_tokens: int, limit: int, requests: int = 1) -> int:
        """Nano-dollars for a question whose prompt tokens are the dearest, and whose completions run to their limit."""
        price = self.at(prompt_tokens)
        dearest = max(price.prompt, price.cached_prompt, price.written_nanousd)
        return -(-(prompt_tokens * dearest + limit * price.completion) // MILLION) + requests * self.request


def surcharge(write: int, prompt: int) -> int | None:
    """Return a price of cache writes; None where it is the prompt's."""
    return None if write == prompt else write


def _with_cached(usage: CloudUsage, cached: int) -> CloudUsage:
    """Return a usage with other cached tokens. What is told as written is the prompt's end, as far as it is left."""
    writes = usage.cache_write_tokens
    writes = None if writes is None else min(writes, usage.prompt_tokens - cached)
    return replace(usage, cached_tokens=cached, cache_write_tokens=writes)


def _doubt(text: str, parts: Sequence[str], tariff: str, *, cheap: bool) -> str:
    """Return the sentence about parts that cannot be what their places say. ``cheap``: W is below P."""
    if len(parts) == 5:
        return f"--price {text!r}: a prompt token that is written to the cache ({parts[2]}) costs no less than another"
    prompt, cached, third, fourth = parts
    other = "" if cheap else f", or {prompt}/{cached}/{third}/{fourth}/0{tariff} if it is the completion's price"
    return (
        f"--price {text!r}: four parts are P/C/W/O, with W (a prompt token that is written to the cache) above P and "
        f"at most O, and this may be P/C/O/R: write {prompt}/{cached}/{prompt}/{third}/{fourth}{tariff} if the last is "
        f"USD per request{other}"
    )


def read_tariff(text: object) -> Tariff:
    """Read a tariff's name. Raises UsageError for anything else."""
    for tariff in TARIFFS:
        if text == tariff:
            return tariff
    msg = f"{text!r} is not {', '.join(TARIFFS[:-1])} or {TARIFFS[-1]}"
    raise UsageError(msg)


def as_usd(nanousd: int | None) -> str:
    """Write an amount exactly, as a user reads it. None is written as unknown, not as zero.

    >>> as_usd(93_000), as_usd(2_000_000_000), as_usd(-17_961_000), as_usd(None)
    ('0.000093 USD', '2 USD', '-0.017961 USD', 'unknown')
    """
    if nanousd is None:
        return "unknown"
    whole, rest = divmod(abs(nanousd), NANOUSD_PER_USD)
    return "-" * (nanousd < 0) + f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + " USD"


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
