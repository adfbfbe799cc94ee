"""One completion, from its prompt to its last token, on a borrowed slot.

It draws as vLLM does (bias, temperature, min-p, top-k, top-p, in that order) and keeps raw log-probabilities: those of
the model, before bias and sampling, unless the ask wants them after bias and temperature. What it computed is noted in
its charge as it happens, so that a client that went away is charged for what had been done.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from hybrid.engine import Engine
from hybrid.prob import Dense, warp
from hybrid.types import Sampling
from server_stub.ask import Ask, Row
from server_stub.slots import Slot

# vLLM raises what is colder (and not greedy) to this; far below it, scores overflow.
COLDEST = 0.01


@dataclass
class Charge:
    """What a request has cost so far, in tokens."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Charge) -> Charge:
        return Charge(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def __mul__(self, times: int) -> Charge:
        return Charge(self.prompt_tokens * times, self.cached_tokens * times, self.completion_tokens * times)

    def __floordiv__(self, parts: int) -> Charge:
        return Charge(self.prompt_tokens // parts, self.cached_tokens // parts, self.completion_tokens // parts)


@dataclass(frozen=True)
class Step:
    """One written token: its row, and the text that may be shown with it."""

    token: int
    row: Row | None
    text: str
    finish: Literal["stop", "length"] | None = None
    stopped_by: str | None = None


@dataclass
class Completion:
    """An ask at work. ``start`` fills ``prompt_rows`` where rows of the prompt were asked for, and ``num_cached``.

    ``token_s`` is how long each token after the first takes at least: the first comes with the prompt. ``prefill_s`` is
    that of each token of a prompt that no cache gives.
    """

    ask: Ask
    slot: Slot
    charge: Charge
    token_s: float = 0.0
    prefill_s: float = 0.0
    prompt_rows: list[Row | None] = field(default_factory=list)
    num_cached: int = 0

    async def start(self) -> NDArray[np.float32]:
        """Compute the prompt and return the scores after it."""
        ids, scoring, clock = self.ask.ids, self.ask.scoring, asyncio.get_running_loop().time
        began = clock()
        self.charge.prompt_tokens += len(ids)
        if scoring is None:
            logits, self.num_cached = await self.slot.worker.do(lambda stop: self.slot.prefill(ids, stop))
        else:
            self.prompt_rows, logits, self.num_cached = await self.slot.worker.do(
                lambda stop: self.slot.score(ids, scoring, stop)
            )
        self.charge.cached_tokens += self.num_cached
        await asyncio.sleep(began + self.prefill_s * (len(ids) - self.num_cached) - clock())
        return logits

    async def steps(self, logits: NDArray[np.float32]) -> AsyncIterator[Step]:
        """Write token by token until an end token, a stop string or the limit."""
        text = _Text(self.ask.stops, self.slot.engine)
        seed, clock = self.ask.seed, asyncio.get_running_loop().time
        rng = default_rng(None if seed is None else seed % 2**64)  # JSON's may be negative, numpy's not
        limit = min(self.ask.max_tokens, self.slot.engine.num_context - len(self.ask.ids))
        for written in range(1, limit + 1):
            token, row = self._draw(logits, rng)
            self.charge.completion_tokens += not self.ask.unwritten
            if token in self.slot.engine.end_ids and not self.ask.ignores_end:
                yield Step(token, row, text.flush(), "stop")
                return
            shown, stopped_by = text.add(token)
            if stopped_by is not None:
                yield Step(token, row, shown, "stop", stopped_by)
                return
            if written == limit:
                yield Step(token, row, shown + text.flush(), "length")
                return
            yield Step(token, row, shown)
            due = clock() + self.token_s
            logits = await self.slot.worker.do(partial(self.slot.extend, token))
            await asyncio.sleep(due - clock())

    @staticmethod
    def _processed(biased: Dense, temperature: float) -> Dense:
        return Dense.from_logits(biased.logits / temperature) if temperature else biased

    def _draw(self, logits: NDArray[np.float32], rng: Generator) -> tuple[int, Row]:
        raw = Dense.from_logits(logits)
        biased = raw
        if self.ask.logit_bias:
            scores = logits.astype(np.float64)
            for token, bias in self.ask.logit_bias.items():
                if 0 <= token < scores.size:
                    scores[token] += bias
            biased = Dense.from_logits(scores)
        temperature = max(self.ask.temperature, COLDEST) if self.ask.temperature else 0.0
        sampling = Sampling(temperature, max(0, self.ask.top_k), self.ask.top_p, min_p=self.ask.min_p)
        token = biased.best if sampling.greedy else int(rng.choice(raw.num_tokens, p=warp(biased, sampling).probs))
        told = self._processed(biased, temperature) if self.ask.processed_rows else raw
        return token, Row.of(told, max(self.slot.max_logprobs, self.ask.num_top), token, self.ask.watched)


class _Text:
    """Turns tokens into text, holding back unfinished characters and what may become a stop string."""

    def __init__(self, stops: Sequence[str], engine: Engine) -> None:
        self._stops = [stop for stop in stops if stop]
        self._engine = engine
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def add(self, token: int) -> tuple[str, str | None]:
        """Return the text to show, and the stop string that was met."""
        self._held += self._decoder.decode(self._engine.piece(token))
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            position, stop = min(found)
            return self._held[:position], stop
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, None

    def flush(self) -> str:
        """Return what was held back."""
        rest, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
