"""``hybrid probe``: establish by asking what an endpoint can do.

The law: nothing is believed that an answer did not show. A scoring method counts only if its rows are those that the
endpoint writes by itself, position by position. So a list that is off by one, cut, or that of another text is found
here and not in an answer (``tests/cloud/test_probe.py``, and against real servers in ``tests/end_to_end``).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from hybrid.cloud.bounds import MAX_FACT_BYTES
from hybrid.cloud.dialects.dialect import LENGTHS
from hybrid.cloud.dialects.vllm import MODELS
from hybrid.cloud.dialects.vllm_tokens import GENERATE
from hybrid.cloud.discover import ask_route, render_chat
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.port import Capabilities, Chunk, ScoreQuestion, Scores, WriteQuestion, usage_after_failure
from hybrid.cloud.probe_result import SCALE_OUT, LocalSide, ProbeResult, first_difference, opening_kl
from hybrid.errors import BadReply, CloudError, CloudRefusal, MissingCapability, Unreachable, UsageError, to_one_line
from hybrid.prob import TopK, max_log_difference
from hybrid.spend import AnswerBudget, Denial
from hybrid.types import NO_USAGE, CloudUsage, Ids, Message, Sampling

SettleCharge: TypeAlias = Callable[[CloudUsage | None], object]
ReserveCharge: TypeAlias = Callable[[CloudUsage], AbstractAsyncContextManager[SettleCharge]]
"""Reserves the most that one question may be charged, and gives a function that settles its charge."""


@asynccontextmanager
async def paid_from(purse: AnswerBudget, worst: CloudUsage) -> AsyncIterator[SettleCharge]:
    """Reserve the worst case of one question, mark it as sent, and settle it.

    The law (``tests/cloud/test_probe.py``): no question leaves without its reservation; what a failed one cost nobody
    knows, unless it was turned away.
    """
    limit = worst.completion_tokens
    grant = await purse.reserve(worst.prompt_tokens, limit, min_limit=limit, requests=worst.requests)
    if isinstance(grant, Denial):
        raise UsageError(grant.why)
    if denial := await purse.mark_sent(grant):
        raise UsageError(denial.why)
    try:
        yield lambda usage: purse.settle(grant, usage)
    except CloudError as error:
        purse.settle(grant, usage_after_failure(error, worst))
        raise


WRITTEN = 6  # tokens that the endpoint writes by itself, and is then held to
ROUND_TRIPS = 3
# What a token takes is a median over so many tries, each of a question of one token and one of so many. Answers ask
# for so many log-probabilities by default.
TIMED_TRIES, TIMED_TOKENS, TIMED_TOP_K = 3, 16, 20
# Servers cache whole blocks: 128 tokens are the longest that one takes by default (vLLM on a CPU; 16 on a GPU). With as
# many tokens as this a text holds one, and is no whole number of any: then the first row due would be cached, too.
LONGER = 152
# Two ways to compute a likely token's log-probability agree within this: float16 sums differ by 0.057 at the most seen,
# by the processor. The six rows of another model were farther for each of 12 texts: a real model's from those of its
# weights of 3 bits or of fewer layers by 0.86 in lists of 5, 2.8 in lists of 100; the bundled models' by 4.6 and 9.6.
# Lists of one entry tell least: over 4 texts 0.42 lay between a real model and its weights of 3 bits.
NOISE_NATS = 0.25
# Decimals at which rounded log-probabilities would show; a float32 has no more to say.
DECIMALS = range(1, 7)


@dataclass
class Probe:
    """One probe of one endpoint. ``tell`` is called with a sentence about each question.

    ``timed``: what a token takes is measured too, by ``clock`` (in seconds). ``local``: the local model's templates and
    first words, which the endpoint's are held against; None: they are not.
    """

    endpoint: Endpoint
    prefix: Ids
    turns: tuple[Message, ...]
    reserve: ReserveCharge
    tell: Callable[[str], None]
    timed: bool = False
    local: LocalSide | None = None
    clock: Callable[[], float] = time.perf_counter
    found: ProbeResult = field(init=False)
    _spent: CloudUsage = field(default=NO_USAGE, init=False)

    async def run(self, said: Capabilities, url: str) -> ProbeResult:
        """Ask everything there is to ask, the free things first, and return what came of it."""
        self.found = ProbeResult(url, said.model, said.dialect, said.same_words, said.max_context, takes_ids=said.ids)
        self._note(round_trip_ms=await self._round_trip())
        self._note(token_route=await self._token_route() if said.dialect == "vllm" else None)
        if said.same_words is not False:
            written = await self._lists()
            if self.local:
                await self._chats(self.local)
            if written is not None:
                await self._writing(written)
                await self._scoring(written)
                if self.local and self.found.rows:
                    await self._openings(self.local)
                if self.found.scoring_method and said.candidates and not self._can.candidates:
                    self._note(candidates=False)  # it has refused them
                if "write" in self._can.abilities:
                    await self._caching(_ids(written))
                if self.timed and self.found.scoring_method:
                    await self._times(_ids(written))
        return replace(self.found, spent_tokens=self._spent.prompt_tokens + self._spent.completion_tokens)

    def _note(self, **found: Any) -> None:
        self.found = replace(self.found, **found)

    @property
    def _can(self) -> Capabilities:
        return self.endpoint.knowledge.dialect.can

    def _take(self, can: Capabilities) -> None:
        """Have the endpoint be asked as one that can do this."""
        self.endpoint.knowledge.dialect = replace(self.endpoint.knowledge.dialect, can=can)

    async def _round_trip(self) -> float:
        self.tell("the round trip")
        times = []
        for _ in range(ROUND_TRIPS):
            began = self.clock()
            await ask_route(self.endpoint.wire, MODELS, None)  # a list that does not exist takes as long
            times.append((self.clock() - began) * 1000)
        return round(min(times), 1)

    async def _token_route(self) -> bool | None:
        """Whether vLLM's token-in route is open (or closed by its own flag), found out for nothing."""
        try:
            await self.endpoint.wire.post(GENERATE, {}, most=MAX_FACT_BYTES)
        except (BadReply, MissingCapability):
            return True
        except CloudRefusal as refusal:
            return False if SCALE_OUT in str(refusal) else None
        return True

    # ---- what it writes ----------------------------------------------------------------------------------------------

    async def _lists(self) -> list[Chunk] | None:
        """Have it write a few tokens with as long a list as it gives; None where it writes nothing we can read."""
        documented = self._can
        limit = documented.most_k
        lengths = [k for k in LENGTHS if limit is None or k <= limit] or [1]
        for top_k in lengths if self._can.rows else []:
            self.tell(f"what it writes, with {top_k} log-probabilities a token")
            try:
                chunks = await self._write(self.prefix, WRITTEN, top_k)
            except (MissingCapability, BadReply):
                continue
            except Unreachable as error:
                if not (error.sent and error.trouble == "busy"):
                    raise
                continue  # a proxy may make an error of its own of a server's refusal
            rows = [row for chunk in chunks for row in chunk.rows if row is not None]
            if rows:
                # By text a list may be shorter than it was: tokens of one text are one entry.
                shown = max(row.num_listed for row in rows) if self.found.takes_ids else top_k
                hidden = round(max(row.tail for row in rows), 6)
                most_k = min(top_k, shown, self._can.most_k or top_k)
                self._note(rows=True, most_k=most_k, hidden_mass=hidden, grid=_grid(rows), streams=self._can.streams)
                return chunks
        self.tell("what it writes, without log-probabilities")
        self._take(replace(documented, rows=False))
        try:
            return await self._write(self.prefix, WRITTEN, 0)
        except (MissingCapability, BadReply):
            return None

    async def _writing(self, written: list[Chunk]) -> None:
        ids = _ids(written)
        usage = [chunk.usage for chunk in written if chunk.usage]
        self._note(chunk_usage=len(usage) > 1)
        if "write" in self._can.abilities and len(ids) > 2:
            self.tell("whether it continues a partial answer")
            again = await self._try(self._write(self.prefix + ids[:2], len(ids) - 2, self.found.most_k or 0, begun=2))
            if again is not None:
                self._note(continues=_ids(again) == ids[2:])
                if any(chunk.usage.cached_tokens for chunk in again if chunk.usage):
                    self._note(cached_usage=True)
        first = next((row for chunk in written for row in chunk.rows), None)
        if first is not None:
            self.tell("whether its log-probabilities are raw")
            documented = self._can.rows_altered_by
            self._take(replace(self._can, rows_altered_by=frozenset()))
            heated = await self._try(
                self._write(self.prefix, 1, self.found.most_k or 1, sampling=Sampling(2.0, seed=1))
            )
            self._take(replace(self._can, rows_altered_by=documented))
            row = next((row for chunk in heated or [] for row in chunk.rows), None)
            self._note(raw_rows=None if heated is None else row is not None and _apart(row, first) <= NOISE_NATS)

    # ---- how it scores -----------------------------------------------------------------------------------------------

    async def _scoring(self, written: list[Chunk]) -> None:
        """Hold every way to score against what the endpoint wrote by itself, and take the first that agrees."""
        ids = _ids(written)
        expected = [row for chunk in written for row in chunk.rows]
        if not self.found.rows or len(ids) < 2 or expected[0] is None:
            return
        for method in self._can.scoring_methods:
            self.tell(f"scoring by {method}")
            self._take(replace(self._can, scoring_method=method))
            verdict = await self._agrees(ids, expected)
            self._note(scoring_methods={**self.found.scoring_methods, method: verdict})
            if verdict == "agrees":
                self._note(scoring_method=method)
                if self._can.candidates:
                    await self._candidates(ids)
                return
        self._take(replace(self._can, scoring_method=None))

    async def _agrees(self, ids: Ids, expected: list[TopK | None]) -> str:
        top_k = self.found.most_k or 1
        span = ids[:-1]
        try:
            scores = await self._score(self.prefix, span, top_k)
        except CloudError as error:
            if isinstance(error, Unreachable) and not error.sent:
                raise
            return to_one_line(error)
        if not scores.rows:
            return "gave no row"
        pairs = [(row, known) for row, known in zip(scores.rows, expected, strict=False) if known is not None]
        noise = max((_apart(row, known) for row, known in pairs), default=0.0)
        if noise > NOISE_NATS:
            return f"its rows are not those that it writes by: {noise:.2f} nats apart"
        self._note(noise_nats=round(noise, 6))
        return "agrees"

    async def _candidates(self, ids: Ids) -> None:
        """Find out whether a row can hold tokens of ours."""
        self.tell("whether it scores candidates of ours")
        wanted = tuple((token,) for token in ids[:0:-1])
        scores = await self._try(self._score(self.prefix, ids[:-1], 1, candidates=wanted))
        told = scores is not None and all(
            set(w) <= set(r.ids.tolist()) for w, r in zip(wanted, scores.rows, strict=False)
        )
        self._note(candidates=told)

    # ---- its habits --------------------------------------------------------------------------------------------------

    async def _chats(self, local: LocalSide) -> None:
        """Hold chats as its template writes them against the local model's, until one differs in more than a date."""
        for chat in local.chats:
            rendered = chat.rendered and render_chat(self.endpoint.wire, self.endpoint.knowledge.dialect, chat.turns)
            theirs = await rendered if rendered else None
            if theirs is None:
                continue  # one that it refuses says nothing
            found = first_difference(chat.ids, theirs, local.piece)
            self._note(chat_alike=found is None and self.found.chat_alike is not False)
            if found is not None:
                self._note(chat_difference=found)
                if not found.dates:
                    return

    async def _openings(self, local: LocalSide) -> None:
        """Have it write the first token of a few answers, and hold its rows against the local model's."""
        room, found = self.found.max_context or inf, []
        self.tell("how the two models begin an answer")
        for chat in local.chats:
            if chat.row is not None and len(chat.ids) + 1 < room:
                chunks = await self._try(self._write(chat.ids, 1, self.found.most_k or 1, turns=chat.turns))
                row = next((row for chunk in chunks or [] for row in chunk.rows), None)
                if row is not None and (kl := opening_kl(row, chat.row)) is not None:
                    found.append(kl)
        self._note(opening_kl=tuple(found))

    # ---- what it caches ----------------------------------------------------------------------------------------------

    async def _caching(self, ids: Ids) -> None:
        """Have a longer text read, a draft after it checked, and the text read again: what of it was cached shows."""
        text = self._longer()
        if self.found.max_context is not None and len(text) + len(ids) >= self.found.max_context:
            return
        self.tell("what a check costs after a longer text")
        if await self._try(self._write(text, 1, self.found.most_k or 0)) is None:
            return
        self._note(prefix_tokens=len(text))
        scores = (
            await self._try(self._score(text, ids[:-1], self.found.most_k or 1)) if self.found.scoring_method else None
        )
        reads = scores is not None and scores.usage.cached_tokens > 0
        tells = reads or self.found.cached_usage is True
        if not tells:
            self.tell("whether it tells what was cached")
            again = await self._try(self._write(text, 1, self.found.most_k or 0)) or []
            tells = any(chunk.usage.cached_tokens for chunk in again if chunk.usage)
        self._note(cached_usage=tells)
        if scores is not None:
            usage = scores.usage
            charged = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
            self._note(keeps_cache=reads if tells else None, check_tokens=charged)

    def _longer(self) -> Ids:
        """Return a text of ``LONGER`` tokens that begins and ends as the probe's own does."""
        room = max(0, LONGER - len(self.prefix))
        return (self.prefix * room)[:room] + self.prefix

    # ---- what a token takes ------------------------------------------------------------------------------------------

    async def _times(self, ids: Ids) -> None:
        """Measure what a token takes, written, scored and read again: the difference of many and few, a median each."""
        self.tell("what a scored token takes beside a written one")
        top_k = min(self.found.most_k or 1, TIMED_TOP_K)
        longer = self._longer() if self.found.prefix_tokens is not None else ()  # it fits, and was read before
        written, scored, reread, checks = [], [], [], []
        for turn in range(TIMED_TRIES):
            # Another draft each time: one that was scored before may be cached.
            span = (ids[turn % len(ids) :] + ids * TIMED_TOKENS)[:TIMED_TOKENS]
            one_ms, first = await self._timed(self._write(self.prefix, 1, top_k))
            write_ms, chunks = await self._timed(self._write(self.prefix, TIMED_TOKENS, top_k))
            short_ms, short = await self._timed(self._score(self.prefix, span[:1], top_k))
            check_ms, scores = await self._timed(self._score(self.prefix, span, top_k))
            more = len(_ids(chunks or [])) - len(_ids(first or []))
            if short is None or scores is None or more < 1:
                return
            written.append((write_ms - one_ms) / more)
            scored.append((check_ms - short_ms) / (TIMED_TOKENS - 1))
            checks.append(short_ms)
            if longer:
                long_ms, _ = await self._timed(self._score(longer, span[:1], top_k))
                reread.append((long_ms - short_ms) / (len(longer) - len(self.prefix)))
        written_ms, scored_ms = median(written), max(0.0, median(scored))
        reread_ms = max(0.0, median(reread)) if reread else None
        if written_ms > 0.0:  # else the network took more than the tokens did
            beside = max(0.0, median(checks) - scored_ms - len(self.prefix) * (reread_ms or 0.0))
            times = {"written_ms": written_ms, "scored_ms": scored_ms, "reread_ms": reread_ms, "check_ms": beside}
            self._note(**{name: None if ms is None else round(ms, 3) for name, ms in times.items()})

    async def _timed(self, asking: Any) -> tuple[float, Any]:
        """Return the milliseconds that an answer took, and the answer as ``_try`` returns it."""
        began = self.clock()
        answered = await self._try(asking)
        return (self.clock() - began) * 1000, answered

    # ---- asking ------------------------------------------------------------------------------------------------------

    async def _try(self, asking: Any) -> Any:
        """Return the answer, or None where it cannot be believed or the endpoint will not give it."""
        try:
            return await asking
        except (MissingCapability, BadReply):
            return None

    async def _score(self, prefix: Ids, span: Ids, top_k: int, candidates: tuple[Ids, ...] = ()) -> Scores:
        question = ScoreQuestion(prefix, span, True, top_k, candidates)
        async with self.reserve(self.endpoint.max_usage(question)) as settle:
            scores = await self.endpoint.score(question, uuid.uuid4().hex)
            settle(replace(scores.usage, check_requests=scores.usage.requests))
        self._spent += scores.usage
        return scores

    async def _write(self, prefix: Ids, limit: int, top_k: int, **more: Any) -> list[Chunk]:
        """Have it write, greedily after the probe's own conversation unless ``more`` of the question says otherwise."""
        question = replace(WriteQuestion(prefix, limit, top_k, Sampling(), turns=self.turns), **more)
        try:
            return await self._written(question)
        except Unreachable as error:
            if error.trouble != "learned":
                raise
            return await self._written(question)

    async def _written(self, question: WriteQuestion) -> list[Chunk]:
        stream = self.endpoint.write(question, uuid.uuid4().hex)
        async with self.reserve(self.endpoint.max_usage(question)) as settle, aclosing(stream):
            chunks = [chunk async for chunk in stream]
            usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
            settle(usage or self.endpoint.max_usage(question))
        self._spent += usage or NO_USAGE
        return chunks


def _ids(chunks: list[Chunk]) -> Ids:
    return tuple(token for chunk in chunks for token in chunk.ids)


def _apart(row: TopK, known: TopK) -> float:
    """Return the most by which two rows differ on tokens that both show and one thinks likely; inf if none is shown."""
    _, ours, theirs = np.intersect1d(row.ids, known.ids, assume_unique=True, return_indices=True)
    return max_log_difference(row.logprobs[ours], known.logprobs[theirs])


def _grid(rows: list[TopK]) -> float:
    """Return the power of ten that all log-probabilities are multiples of; 0 if there is none a float32 cannot hide."""
    values = np.concatenate([row.logprobs for row in rows])
    for decimals in DECIMALS:
        scaled = values * 10.0**decimals
        if np.abs(scaled - np.round(scaled)).max() < 1e-6 * max(1.0, float(np.abs(scaled).max())) * 0.01:
            return float(10.0**-decimals)
    return 0.0
