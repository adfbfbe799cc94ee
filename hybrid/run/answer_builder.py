"""What has been shown and asked so far in one answer, and the answer it adds up to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hybrid.policy.requests import PendingToken
from hybrid.run.answer import Answer, Timing, Token, Usage, handoffs
from hybrid.run.stop_strings import StopStringDecoder
from hybrid.spend import Price, bill
from hybrid.types import NO_USAGE, CloudUsage, FinishReason


class AnswerBuilder:
    """Grows while an answer is written; knows no model and no network."""

    def __init__(
        self, num_prompt_tokens: int, piece: Callable[[int], bytes], asked_at: float, stops: Sequence[str] = ()
    ) -> None:
        """Start empty; the clock (monotonic, in seconds) began to run when the question was asked."""
        self._began = asked_at
        self._first: float | None = None
        self._prompt_tokens = num_prompt_tokens
        self._piece = piece
        self.readable = StopStringDecoder(stops)
        self._tokens: list[Token] = []
        self._charged: list[CloudUsage] = []
        self.drafted = 0
        self.checks = 0
        self.requests = 0
        self.local_kept = 0
        self.degraded: str | None = None
        self.notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Tokens shown."""
        return len(self._tokens)

    def show(self, held: PendingToken) -> Token:
        """Add a token; its text is what became readable with it."""
        if self._first is None:
            self._first = time.monotonic()
        text = self.readable.add(self._piece(held.id))
        token = Token(held.id, text, held.source, held.how, held.kl, held.why, held.certificate)
        self._tokens.append(token)
        return token

    def flush(self) -> str:
        """Give the last token the text that was held back for a stop string that never came; return that text."""
        rest = self.readable.rest()
        if rest:
            self._tokens[-1] = replace(self._tokens[-1], text=self._tokens[-1].text + rest)
        return rest

    def charge(self, usage: CloudUsage) -> None:
        """Add what a request was charged, or at worst may have been."""
        self._charged.append(usage)

    def degrade(self, why: str) -> bool:
        """Note the first reason why the cloud did not help; tell whether it was the first."""
        first = self.degraded is None
        self.degraded = self.degraded or why
        return first

    def note(self, why: str) -> bool:
        """Note what the user should know though the cloud did help; tell whether that is new."""
        new = why not in self.notes
        self.notes += (why,) * new
        return new

    def warn(self, why: str) -> None:
        """Note what the user must be told besides any such reason."""
        self.degraded = why if self.degraded is None else f"{self.degraded}; {why}"

    def answer(self, finish: FinishReason, price: Price | None, seed: int) -> Answer:
        """Add everything up."""
        tokens = tuple(self._tokens)
        # A text that ends by itself ends with a token that is charged and not shown.
        alone = len(tokens) + (finish == "stop" and not self.readable.stopped)
        charged = sum(self._charged, NO_USAGE)
        local = sum(token.source == "local" for token in tokens)
        usage = Usage(
            local_tokens=local,
            cloud_tokens=len(tokens) - local,
            drafted=self.drafted,
            rejected=self.drafted - self.local_kept,
            checks=self.checks,
            cloud_requests=self.requests,
            cloud_prompt_tokens=charged.prompt_tokens,
            cloud_cached_tokens=charged.cached_tokens,
            cloud_completion_tokens=charged.completion_tokens,
            certified=sum(token.certified for token in tokens if token.source == "local"),
        )
        return Answer(
            text="".join(token.text for token in tokens),
            finish_reason=finish,
            tokens=tokens,
            usage=usage,
            bill=bill(price, self._charged, self._prompt_tokens, alone),
            handoffs=handoffs(tokens),
            degraded=self.degraded,
            notes=self.notes,
            timing=Timing(None if self._first is None else self._ms(self._first), self._ms(time.monotonic())),
            seed=seed,
        )

    def _ms(self, moment: float) -> float:
        return round((moment - self._began) * 1000, 3)
