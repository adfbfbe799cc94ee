"""What ``auto`` or ``route`` is expected to ask about a question, before anything is drafted or sent.

The law (``tests/run/test_auto_quote.py``): what is expected is worked out from the question alone and from what is
known of the pair; where nothing is known, nothing is expected, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hybrid.defer import CalibrationQuestion
from hybrid.policy.expectation import AskingExpectation, expect, planned_outcomes
from hybrid.policy.planning import Planner
from hybrid.spend import as_usd


@dataclass(frozen=True)
class AutoQuote:
    """A planner that is bound to a question, and the calibration questions of its pair; none: it is not known."""

    planner: Planner
    questions: tuple[CalibrationQuestion, ...] = ()
    policy: str = "auto"

    @cached_property
    def expected(self) -> AskingExpectation | None:
        """What is to be expected; None: nothing is known of the pair."""
        return expect(planned_outcomes(self.questions, self.planner), self.planner.question.turned_down)

    @property
    def asks(self) -> float | None:
        """The chance that the question is asked about; None: nothing is known of it."""
        cutoff = self.planner.keep_below
        if cutoff is not None and cutoff < 0.0:
            return 1.0
        return None if self.expected is None else self.expected.asks

    @property
    def alone(self) -> float:
        """What the cloud alone would take, for an answer as long as the question lets expect."""
        planner = self.planner
        return float(planner.prices.write(planner.prompt_tokens, planner.question.tokens, 0))

    def lines(self) -> list[str]:
        """Say it, a line each."""
        question, unit = self.planner.question, self.planner.prices.unit
        if self.expected is None:
            if self.asks is not None:
                return [
                    f"{self.policy} asks about every question: nothing is known of this pair that would keep a draft"
                ]
            return [
                f"nothing is known of this pair of models, so what {self.policy} will ask is not (hybrid calibrate)"
            ]
        told = (
            f"from the question alone, nothing drafted: an answer of about {question.tokens:.0f} tokens, turned down "
            f"by {self.planner.score.judge} with chance {question.turned_down:.2f}"
        )
        asks = f"{self.policy} asks about it with chance {self.asks:.2f}"
        share = f"{100 * self.expected.of_cloud:.0f} %"
        seen = f"by {len(self.questions)} calibration questions of this pair"
        if unit != "nanousd":
            return [told, f"{asks}; {share} of what the cloud alone takes ({seen})"]
        bill, alone = as_usd(round(self.expected.of_cloud * self.alone)), as_usd(round(self.alone))
        return [
            told,
            f"{asks}; expected bill {bill}, {share} of the {alone} that the cloud alone takes for that ({seen})",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        question, expected, unit = self.planner.question, self.expected, self.planner.prices.unit
        in_money = expected is not None and unit == "nanousd"
        return {
            "policy": self.policy,
            "answer_tokens": question.tokens,
            "turned_down": question.turned_down,
            "judge": self.planner.score.judge,
            "asks": self.asks,
            "of_cloud": None if expected is None else expected.of_cloud,
            "of_nanousd": round(self.alone) if unit == "nanousd" else None,
            "expected_nanousd": round(expected.of_cloud * self.alone) if expected and in_money else None,
            "calibration_questions": len(self.questions),
        }
