"""What ``hybrid probe`` and ``hybrid price`` say of a break-even: words for numbers that ``hybrid.spend`` works out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybrid.spend import as_percent

if TYPE_CHECKING:
    from hybrid.assemble import ProbeReport
    from hybrid.cloud.probe_result import ProbeResult
    from hybrid.run.pair_record import JudgedTokens
    from hybrid.spend import CheckRates

# Tokens before a draft: a short question, and one with a text to read.
LENGTHS = (100, 1000)


def told_break_even(rates: CheckRates, num_before: int, *, cheaper: str = "cheaper") -> str:
    """Say at which share of kept tokens checking pays."""
    after = f"after {num_before} tokens of text"
    least = rates.break_even(num_before)
    if least is None:
        return f"{after} checking is never {cheaper} than the cloud alone, however many drafted tokens are kept"
    if least == 0.0:
        return f"{after} checking is {cheaper} than the cloud alone, however few drafted tokens are kept"
    return (
        f"{after} checking is {cheaper} than the cloud alone where {as_percent(least)} of the drafted tokens are kept"
    )


def told_times(found: ProbeResult) -> Iterator[str]:
    """Say what a token takes, where that was measured."""
    if found.written_ms is not None and found.scored_ms is not None and found.check_ms is not None:
        ratio = found.scored_ms / found.written_ms
        took = f"{found.scored_ms:g} ms scored, {found.written_ms:g} ms written ({ratio:.2g} : 1)"
        again = "" if found.reread_ms is None else f"{found.reread_ms:g} ms for each token before its draft, and "
        yield f"what a token takes: {took}; a check takes {again}{found.check_ms:g} ms besides"


def told_of_probe(probed: ProbeReport) -> Iterator[str]:
    """Say what a probe shows of checking: the time of a token, and the break-even of the price or of that time."""
    found, price = probed.findings, probed.price
    yield from told_times(found)
    if (rates := found.check_rates(price)) is not None:
        of = "in time" if price is None or price.free else f"at {price}"
        cheaper = "faster" if price is None or price.free else "cheaper"
        told = [told_break_even(rates, length, cheaper=cheaper) for length in LENGTHS]
        yield from (f"{of}, {each}" for each in told)
        for judge, seen in probed.seen.items():
            yield from _told_seen(rates, judge, seen, in_time=price is None or price.free)


def _told_seen(rates: CheckRates, judge: str, seen: JudgedTokens, *, in_time: bool) -> Iterator[str]:
    """Say what was seen of the pair under a judge, and what follows from it for a short question."""
    if seen.share is None:
        yield f"seen of this pair under {judge}: {seen.judged} drafted tokens, too few to say"
        return
    yield f"seen of this pair under {judge}: {seen.judged} drafted tokens, {as_percent(seen.share)} were kept"
    least = rates.break_even(LENGTHS[0])
    if least is None or seen.share < least:
        yield f"under {judge} checking {'takes longer' if in_time else 'costs more'} than the cloud here"


def break_evens(rates: CheckRates | None) -> dict[str, float | None] | None:
    """Return the same for ``--json``, by the length of the text; None: nothing is known."""
    return None if rates is None else {str(length): rates.break_even(length) for length in LENGTHS}
