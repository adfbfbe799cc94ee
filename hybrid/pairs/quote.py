"""What a question would cost, before anything is sent: the cloud alone, one check, and whether checking pays.

The law (``tests/run/test_quote.py``): a quote asks for nothing; its bills are those of ``spend.Price``, its break-even
is that of ``spend.ask_prices``; it says "costs more" or "costs less" only where a share of kept tokens was seen that is
below or above the break-even, or where no share could be enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from hybrid.cloud.probe_result import ProbeResult
from hybrid.defer import CalibrationQuestion
from hybrid.pairs.profile import JudgedTokens
from hybrid.policy import Policy
from hybrid.policy.explanation import ExpectedUsage, expect, planned_outcomes
from hybrid.policy.planning import Planner
from hybrid.spend import CheckRates, Price, Spans, as_percent, as_usd

# What is said where checking can save money, and where it can only save time.
_MONEY = {
    "where": "checking pays where",
    "never": "with such drafts checking never pays, however many of their tokens are kept",
    "more": "costs more",
    "less": "costs less",
}
_TIME = {
    "where": "checking is faster where",
    "never": "with such drafts checking is never faster, however many of their tokens are kept",
    "more": "takes longer",
    "less": "takes less time",
}
# What is assumed of an endpoint that no probe has asked: its checks are one request.
UNPROBED = ProbeResult("", "", "", scoring_method="one request")


@dataclass(frozen=True)
class PriceQuote:
    """The price of a question of ``prompt_tokens`` whose answer has ``answer_tokens``, under a policy.

    ``probed``: what a probe has found of the endpoint. ``seen``: the tokens of this pair that the policy's judge saw.
    """

    price: Price
    policy: Policy
    prompt_tokens: int
    answer_tokens: int
    probed: ProbeResult = UNPROBED
    seen: JudgedTokens = field(default_factory=JudgedTokens)

    @property
    def num_before(self) -> int:
        """Tokens before a draft, on average: the prompt and half of the answer."""
        return self.prompt_tokens + self.answer_tokens // 2

    @property
    def checks(self) -> bool:
        """Whether the policy has drafts scored at all."""
        return "score" in self.policy.needs

    @property
    def in_time(self) -> bool:
        """Whether nothing is charged, so that only time can be saved."""
        return self.price.free

    def cloud_only(self, *, cached: bool = False) -> int:
        """Nano-dollars of the cloud alone; ``cached``: with all of its prompt cached."""
        kept = self.prompt_tokens if cached else 0
        return self.price.cost(self.price.expected_usage(self.prompt_tokens, self.answer_tokens, kept))

    @property
    def batch(self) -> int | None:
        """Nano-dollars of the cloud alone by the provider's batch API, rounded up; None: no factor is stated."""
        return None if self.price.batch is None else math.ceil(self.cloud_only() * self.price.batch)

    @property
    def check(self) -> int:
        """Nano-dollars of a check in the middle of the answer, of the policy's span."""
        span = min(self.policy.span, self.answer_tokens)
        before, told = self.num_before, self.num_before if self.probed.keeps_cache else 0
        usage = self.price.expected_usage(before + span, 1, told)
        return self.price.cost(replace(usage, repeated_tokens=before, check_requests=1))

    @property
    def rates(self) -> CheckRates | None:
        """What checking takes beside writing, in money, or where nothing is charged in time; None: not known."""
        return self.probed.check_rates(self.price)

    @property
    def break_even(self) -> float | None:
        """The least share of kept tokens at which checking pays, with the policy's drafts.

        None: it never does, or nothing is known.
        """
        policy = self.policy
        spans = Spans(min(policy.span, self.answer_tokens), policy.next_span, policy.takes_bonus)
        return None if self.rates is None else self.rates.break_even(self.num_before, spans)

    @property
    def best_break_even(self) -> float | None:
        """The same with drafts of the best length."""
        return None if self.rates is None else self.rates.break_even(self.num_before)

    @property
    def verdict(self) -> Literal["more", "less"] | None:
        """Whether checking takes more or less than the cloud alone; None: nobody knows yet, or nothing is checked."""
        if self.rates is None or not self.checks:
            return None
        least, share = self.break_even, self.seen.share
        if least is None:
            return "more"
        if least == 0.0:
            return "less"
        return None if share is None else "more" if share < least else "less"

    def lines(self) -> list[str]:
        """Say it, a line each; the verdict is the last."""
        alone, cached = as_usd(self.cloud_only()), as_usd(self.cloud_only(cached=True))
        told = [
            f"price: {self.price} ({self.price.source})",
            f"the cloud alone: {alone} for {self.prompt_tokens} tokens and an answer of {self.answer_tokens}"
            + ("" if alone == cached else f" ({cached} with its prompt cached)"),
        ]
        told[1:1] = self.price.terms
        if self.batch is not None:
            amount = as_usd(self.batch)
            told.append(f"the provider's batch API: {amount} for the same, in its own time (hybrid does not use it)")
        if self.policy.planner is not None:
            return told  # what it asks is expected question by question, elsewhere
        if not self.checks:
            return [*told, f"policy {self.policy.name} asks for no check"]
        told.append(f"a check after {self.num_before} tokens, of a draft of {self.policy.span}: {as_usd(self.check)}")
        return [*told, *self._of_checking()]

    def _of_checking(self) -> list[str]:
        if self.rates is None:
            if self.probed.scoring_method is None:
                return ["the endpoint cannot score a draft: there is nothing to check with"]
            return ["nothing is charged; hybrid probe measures what a check takes in time"]
        least, share, words = self.break_even, self.seen.share, _TIME if self.in_time else _MONEY
        shown = "too few to say" if share is None else f"{as_percent(share)} were kept"
        beside = "; what the cloud writes after a rejected one is another request, not in this"
        lines = [
            words["never"]
            if least is None
            else f"{words['where']} {as_percent(least)} of the drafted tokens are kept"
            + beside * (self.policy.handoff_tokens > 0)
        ]
        best = self.best_break_even
        if best is not None and (least is None or as_percent(best) != as_percent(least)):
            kept = f"where {as_percent(best)} are kept" if best else "however few are kept"
            lines.append(f"with drafts of the best length (--span cheap) {kept}")
        lines.append(f"seen of this pair under {self.policy.judge}: {self.seen.judged} drafted tokens, {shown}")
        return lines if self.verdict is None else [*lines, f"checking {words[self.verdict]} than the cloud here"]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``; amounts in nano-dollars, exactly."""
        return {
            "price": str(self.price),
            "source": self.price.source,
            "policy": str(self.policy),
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "cloud_only_nanousd": self.cloud_only(),
            "cloud_only_cached_nanousd": self.cloud_only(cached=True),
            "cloud_only_batch_nanousd": self.batch,
            "terms": self.price.terms,
            "check_nanousd": self.check if self.checks else None,
            "tokens_before_a_draft": self.num_before,
            "break_even": self.break_even if self.checks else None,
            "break_even_at_best_span": self.best_break_even if self.checks else None,
            "break_even_of": None if self.rates is None else "time" if self.in_time else "money",
            "judge": str(self.policy.judge) if self.checks else None,
            "kept": self.seen.kept,
            "judged": self.seen.judged,
            "checking": self.verdict,
        }


# What ``auto`` or ``route`` is expected to ask about a question, before anything is drafted or sent.
#
# The law (``tests/run/test_auto_quote.py``): what is expected is worked out from the question alone and from what is
# known of the pair; where nothing is known, nothing is expected, and that is said.


@dataclass(frozen=True)
class AutoQuote:
    """A planner that is bound to a question, and the calibration questions of its pair; none: it is not known."""

    planner: Planner
    questions: tuple[CalibrationQuestion, ...] = ()
    policy: str = "auto"

    @cached_property
    def expected(self) -> ExpectedUsage | None:
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
