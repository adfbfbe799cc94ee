"""What ``hybrid ask --explain`` says of each draft: chance, place, prices, and what would change the choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybrid.policy.explanation import PlanExplanation, PlanSwitch, explain
from hybrid.record.events import Event, Planned
from hybrid.spend import as_usd
from hybrid.spend.ask_prices import AskUnit

# What was planned; whether the cloud then answered is told by the answer itself.
_DONE = {
    "keep": "kept unchecked",
    "check": "checked in one request",
    "write": "written by the cloud",
    "spans": "checked in short spans",
    "draft": "drafted first",
}
_UNITS = {"ms": "ms", "tokens": "times a token read"}


class Explainer:
    """Hears an answer's events, and explains its plans once it is over."""

    def __init__(self) -> None:
        """Nothing was planned yet."""
        self._plans: list[Planned] = []

    def observe(self, event: Event) -> None:
        """Keep a plan."""
        if isinstance(event, Planned):
            self._plans.append(event)

    def explained(self) -> list[PlanExplanation]:
        """Explain each plan that was weighed."""
        return [found for each in self._plans if (found := explain(each.position, each.plan))]

    def lines(self) -> list[str]:
        """Say it."""
        told = [line for found in self.explained() for line in told_plan(found)]
        return told or ["nothing was weighed: the cloud was not asked for, or nothing was drafted"]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the same for ``--json``."""
        return [found.to_json() for found in self.explained()]


def told_plan(found: PlanExplanation) -> Iterator[str]:
    """Say why one draft was kept, checked or written; a line each."""
    yield f"{_which(found)}: {_chance(found)}; planned: {_done(found)}"
    yield f"  {_prices(found)}"
    cutoff = found.planner.keep_below
    if cutoff is not None and cutoff < 0.0:
        yield "  no draft is kept unasked, whatever it costs to ask"
    elif cutoff is not None:
        yield f"  --risk keeps a draft where that chance is at most {cutoff:.2g}"
    else:
        yield f"  {_changes(found)}"


def amount(value: float, unit: AskUnit) -> str:
    """Return what something costs, in USD where that is charged."""
    return as_usd(round(value)) if unit == "nanousd" else f"{value:.4g} {_UNITS[unit]}"


def _which(found: PlanExplanation) -> str:
    if not found.num_tokens:
        return "by the question alone"
    first, last = found.position, found.position + found.num_tokens
    return f"draft of tokens {first} to {last - 1}" if found.num_tokens > 1 else f"draft of token {first}"


def _chance(found: PlanExplanation) -> str:
    costs = found.costs
    if found.by_nats:
        return f"expected to lose {found.excess:.2g} nats a token"
    said = f"turned down by {found.planner.score.judge} with chance {costs.turned_down:.2f}"
    return said if costs.place is None else f"{said}, likeliest at token {found.position + costs.place}"


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
    kept = found.num_tokens or found.planner.stream == "early"
    keeping = "to keep it may lose" if kept else "to draft first, with what is waited for longer,"
    told.insert(0, f"{keeping} {amount(costs.keep, unit)}")
    return f"expected: {', '.join(told)} (the cloud alone {amount(costs.alone, unit)})"


def _changes(found: PlanExplanation) -> str:
    told = [
        f"{_DONE[change.becomes]} {where} {_worth(found, change)}"
        for change, where in ((found.less, "below"), (found.more, "above"))
        if change is not None
    ]
    worth, factor = found.named_worth, found.paced_by
    paced = "" if factor is None else f", and the day's cap takes {factor:.3g} of it now"
    at = f" (it is {worth.multiple:.4g}{paced})" if worth.amount is None else ""
    return f"would be {', '.join(told)}{at}" if told else "at any worth it would be the same"


def _worth(found: PlanExplanation, change: PlanSwitch) -> str:
    worth = found.worth_at(change)
    return f"{change.times:.3g} times its worth" if worth is None else f"--worth {worth:.{2 if worth < 100 else 0}f}"
