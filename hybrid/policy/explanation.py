"""Why a draft was kept, checked or written anew, and at which worth it would be another action.

The law (``tests/policy/test_explanation.py``): just beyond a worth that is named the planner chooses what is said to
follow there, and between that and the present one nothing else than at present. Nothing here is asked of anybody: a
plan is made again, from the signals that it was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hybrid.policy.plan import DraftPlan, PlanCosts, Worth
from hybrid.policy.planning import Planner

# Worths are tried in such steps, to so many times more and less; a change in between is found to a thousandth.
STEP, MOST_TIMES, PRECISION = 1.25, 1000.0, 1.001


@dataclass(frozen=True)
class WorthChange:
    """Another choice: what would be done at ``times`` the worth and a little beyond."""

    times: float
    becomes: str


@dataclass(frozen=True)
class PlanExplanation:
    """A plan of one draft, from the answer's token ``position`` on, and what would have been planned at other worths.

    ``num_tokens`` 0: it was made by the question alone.
    ``action``: keep, check, write, or spans (check in short ones). ``excess``: the expected mean excess loss, in nats a
    token. ``by_nats``: it is what keeping loses. ``less``, ``more``: the next other choice at a lower and a higher
    worth; None: there is none.
    """

    position: int
    num_tokens: int
    action: str
    at: int
    limit: int | None
    floor: bool
    costs: PlanCosts
    excess: float
    planner: Planner
    less: WorthChange | None = None
    more: WorthChange | None = None

    @property
    def by_nats(self) -> bool:
        """Whether what keeping loses is counted in nats."""
        return self.planner.mean_excess is not None

    def worth_at(self, change: WorthChange) -> float | None:
        """Return a changed worth as ``--worth`` writes it, before any pacing; None where the dial is an amount."""
        worth = self.named_worth
        return worth.multiple * change.times if worth.amount is None else None

    @property
    def named_worth(self) -> Worth:
        """The worth before a day's pacing lowers it: that which ``--worth`` sets."""
        return self.planner.unpaced_worth or self.planner.worth

    @property
    def paced_by(self) -> float | None:
        """What a day's pacing multiplies a worth by that is given in multiples; None where it lowers none."""
        unpaced, worth = self.planner.unpaced_worth, self.planner.worth
        return worth.multiple / unpaced.multiple if unpaced and unpaced.amount is None and unpaced.multiple else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``; costs in the ``unit`` of the prices."""
        costs, worth = self.costs, self.named_worth
        told = {"keep": costs.keep, "check": costs.check, "write": costs.write, "spans": costs.spans}
        changes = [
            {"times_the_worth": change.times, "worth": self.worth_at(change), "action": change.becomes}
            for change in (self.less, self.more)
            if change is not None
        ]
        return {
            "position": self.position,
            "tokens": self.num_tokens,
            "action": self.action,
            "at": self.at,
            "limit": self.limit,
            "random_check": self.floor,
            "turned_down": costs.turned_down,
            "place": costs.place,
            "excess_nats": self.excess,
            "loss": "nats" if self.by_nats else "verdict",
            "unit": self.planner.prices.unit,
            "costs": told,
            "alone": costs.alone,
            "value": costs.worth,
            "worth": worth.multiple if worth.amount is None else None,
            "paced_by": self.paced_by,
            "keep_below": self.planner.keep_below,
            "would_change": changes,
        }


def explain(position: int, plan: DraftPlan) -> PlanExplanation | None:
    """Explain a plan of a draft that begins at the answer's token ``position``, or of a question before any draft.

    None for the later ones of short spans, of which nothing is weighed.
    """
    signals, costs, case = plan.signals, plan.costs, plan.case
    if costs is None or case is None:
        return None
    planner, chosen = case.planner, action_of(plan)

    def at(times: float) -> str:
        again = _at_worth(planner, times)
        if signals is None:
            return action_of(again.opening())
        return action_of(again.plan(signals, final=case.final, known=case.known))

    weighed = at(1.0)
    moves = planner.keep_below is None and _is_priced(costs)
    return PlanExplanation(
        position,
        0 if signals is None else len(signals),
        chosen,
        plan.at,
        plan.limit,
        plan.floor,
        costs,
        planner.question.excess if plan.forecast is None else float(plan.forecast.excess.mean()),
        planner,
        _next_change(at, weighed, 1.0 / STEP) if moves else None,
        _next_change(at, weighed, STEP) if moves else None,
    )


def action_of(plan: DraftPlan) -> str:
    """Return the action, and for checks in short spans ``spans``."""
    return "spans" if plan.action == "check" and plan.limit == 0 else plan.action


def _is_priced(costs: PlanCosts) -> bool:
    return any(cost is not None for cost in (costs.check, costs.write, costs.spans))


def _at_worth(planner: Planner, times: float) -> Planner:
    return replace(planner, worth=planner.worth.times(times), unpaced_worth=None, floor=0.0)


def _next_change(action_at: Callable[[float], str], chosen: str, step: float) -> WorthChange | None:
    """Return the nearest worth in a direction at which another action is chosen."""
    near, far = 1.0, step
    while action_at(far) == chosen:
        near, far = far, far * step
        if not 1.0 / MOST_TIMES < far < MOST_TIMES:
            return None
    while max(far / near, near / far) > PRECISION:
        middle = (near * far) ** 0.5
        near, far = (middle, far) if action_at(middle) == chosen else (near, middle)
    return WorthChange(far, action_at(far))
