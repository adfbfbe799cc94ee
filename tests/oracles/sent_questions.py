"""Which questions a worth sends, by the rule itself."""

from __future__ import annotations

from typing import Any

from hybrid.defer import QuestionCosts


def is_sent(asked: QuestionCosts, worth: float) -> Any:
    """Tell which questions a worth sends, shape (N,): keeping them is expected to lose more than they cost."""
    return worth * asked.paid.mean() * asked.told / asked.mean_excess > asked.expected
