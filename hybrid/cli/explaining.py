"""What ``hybrid ask --explain`` says of each draft: chance, place, prices, and what would change the choice."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid.policy.explanation import PlanExplanation, WorthChange
from hybrid.spend import as_usd
from hybrid.spend.ask_prices import AskUnit

_DONE = {
    "keep": "kept unchecked",
    "check": "checked in one request",
    "write": "written by the cloud",
    "spans": "checked in short spans",
}
_UNITS = {"ms": "ms", "tokens": "times a token read"}


def told_plan(found: PlanExplanation) -> Iterator[str]:
    """Say why one draft was kept, checked or written; a line each."""
    yield f"{_which(found)}: {_chance(found)}; {_done(found)}"
    yield f"  {_prices(found)}"
    if found.planner.keep_below is not None:
        yield f"  --risk keeps a draft where that chance is at most {found.planner.keep_below:.2g}"
    else:
        yield f"  {_changes(found)}"


def amount(value: float, unit: AskUnit) -> str:
    """Return what something costs, in USD where that is charged."""
    return as_usd(round(value)) if unit == "nanousd" else f"{value:.4g} {_UNITS[unit]}"


def _which(found: PlanExplanation) -> str:
    first, last = found.position, found.position + found.num_tokens
    return f"draft of tokens {first} to {last - 1}" if found.num_tokens > 1 else f"draft of token {first}"


def _chance(found: PlanExplanation) -> str:
    costs = found.costs
    said = f"turned down by {found.planner.score.judge} with chance {costs.turned_down:.2f}"
    if costs.place is not None:
        said += f", likeliest at token {found.position + costs.place}"
    if found.by_nats:
        said += f"; it loses {found.excess:.2g} nats a token"
    return said


def _done(found: PlanExplanation) -> str:
    done = _DONE[found.action]
    if found.action == "write" and found.at:
        done += f" from token {found.position + found.at}"
    if found.floor:
        done += ", by chance: one in so many that would be kept is, to learn from"
    return done


def _prices(found: PlanExplanation) -> str:
    costs, unit = found.costs, found.planner.prices.unit
    asked = {"a check": costs.check, "the cloud's writing": costs.write, "short spans": costs.spans}
    told = [f"{name} {amount(cost, unit)}" for name, cost in asked.items() if cost is not None]
    told.insert(0, f"to keep it may lose {amount(costs.keep, unit)}")
    return f"expected: {', '.join(told)} (the cloud alone {amount(costs.alone, unit)})"


def _changes(found: PlanExplanation) -> str:
    told = [
        f"{_DONE[change.becomes]} {where} {_worth(found, change)}"
        for change, where in ((found.less, "below"), (found.more, "above"))
        if change is not None
    ]
    worth = found.planner.worth
    at = f" (it is {worth.multiple:.3g})" if worth.amount is None else ""
    return f"would be {', '.join(told)}{at}" if told else "at any worth it would be the same"


def _worth(found: PlanExplanation, change: WorthChange) -> str:
    worth = found.worth_at(change)
    return f"{change.times:.3g} times its worth" if worth is None else f"--worth {worth:.3g}"
