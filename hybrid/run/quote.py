"""What a question would cost, before anything is sent: the cloud alone, one check, and whether checking pays.

The law (``tests/run/test_quote.py``): a quote asks for nothing; its bills are those of ``spend.Price``, its break-even
is that of ``spend.break_even``; it says "costs more" or "costs less" only where a share of kept tokens was seen that is
below or above the break-even, or where no share could be enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hybrid.cloud.probe_result import ProbeResult
from hybrid.policy import Policy
from hybrid.run.pair_record import JudgedTokens
from hybrid.spend import CheckRates, Price, as_percent, as_usd

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
        """The least share of kept tokens at which checking pays, with drafts of the policy's span at most.

        None: it never does, or nothing is known.
        """
        return None if self.rates is None else self.rates.break_even(self.num_before, self.policy.span)

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
        kept = "too few to say" if share is None else f"{as_percent(share)} were kept"
        beside = "; what the cloud writes after a rejected one is another request, not in this"
        lines = [
            words["never"]
            if least is None
            else f"{words['where']} {as_percent(least)} of the drafted tokens are kept"
            + beside * (self.policy.handoff_tokens > 0)
        ]
        best = self.best_break_even
        if best is not None and (least is None or as_percent(best) != as_percent(least)):
            lines.append(f"with drafts of the best length (--span cheap) where {as_percent(best)} are kept")
        lines.append(f"seen of this pair under {self.policy.judge}: {self.seen.judged} drafted tokens, {kept}")
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
