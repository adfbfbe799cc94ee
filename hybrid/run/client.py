"""Asking: one client over one local model and one endpoint, asynchronous, and the same through a thin blocking portal.

The law: a stream that is closed early, or whose task is cancelled, has stopped decoding, closed its request, rewound
the cache and settled the ledger before ``aclose`` returns (``tests/run/test_client.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Unpack

from anyio.from_thread import BlockingPortal

from hybrid.cloud import Capabilities
from hybrid.config import AnswerChoices, Settings, names_for
from hybrid.engine import MEND_CONTEXT, Cursor, Engine, Worker
from hybrid.errors import ContextOverflow, MissingCapability, UsageError
from hybrid.policy import ABILITY_TEXT, PRESETS, Policy, SeededCoin
from hybrid.run.answer import Answer
from hybrid.run.answer_builder import AnswerBuilder
from hybrid.run.cloud_verifier import CloudVerifier, Connect, Connection, RowsWanted
from hybrid.run.composition import check_effect, choices_of, policy_of, sampling_of, seeded, within_reach
from hybrid.run.conversation import Prompt, TextOrTurns, question_from, turns_of, words_of
from hybrid.run.deferral import AskedQuestion, BoundPlanner, PairSource, PlannerSource
from hybrid.run.drafting import Drafter
from hybrid.run.driver import AnswerLimits, Driver
from hybrid.run.events import Event, Finished, Publish, Started, text_of
from hybrid.run.pair_record import PairObserver, PairRecord
from hybrid.run.retrying import BreakerConfig, EndpointHealth, RetryingCaller, RetryPolicy
from hybrid.run.span_tuner import SpanTuner
from hybrid.run.spending import Spending, Spent
from hybrid.run.text_rows import TextReader, TextRows, Writer
from hybrid.run.verifier import RenderedPrompt
from hybrid.setting_info import SettingPlace
from hybrid.sources import choosing
from hybrid.spend import Account, AnswerBudget
from hybrid.types import Ids, Sampling


@dataclass(frozen=True)
class LocalModel:
    """The local model and the one thread that may touch it.

    ``noise`` and ``shift``: what its rows may be off by, as ``prob.Dense`` has it. ``ms_per_token``: what was measured
    of its speed.
    """

    engine: Engine
    worker: Worker
    noise: float = 0.0
    shift: float | None = None
    ms_per_token: float | None = None


class AsyncClient:
    """Answers questions, one at a time: one context is one cache. Made by ``hybrid.open``."""

    def __init__(
        self,
        local: LocalModel,
        connect: Connect,
        account: Account,
        settings: Settings,
        pair: PairRecord | None = None,
        planners: PlannerSource | None = None,
    ) -> None:
        """Take the local model, how to reach the cloud (asked at the first question that needs it), and the money.

        ``pair`` keeps what is seen of the two models; None: nothing does. ``planners``: what ``auto`` decides by; None:
        nothing is known of the two models, and nothing is kept.
        """
        retries = RetryPolicy(settings.retries, min(settings.first_byte_timeout_s, settings.request_timeout_s))
        self._health = EndpointHealth(retries, BreakerConfig(cool_down_s=settings.cool_down_s))
        self._local = local
        self._cursor = Cursor(local.engine, local.noise, local.shift)
        self._connect = connect
        self._connection: Connection | None = None
        self._account = account
        self._settings = settings
        self._turn = asyncio.Lock()
        self._tuner = SpanTuner(local.ms_per_token)
        self._planners = planners or PairSource()
        self._spending = Spending()
        self._pair = PairObserver(pair)
        self._answers: set[asyncio.Task[Answer]] = set()
        self.closed = False
        """Whether nothing more is answered."""

    @property
    def settings(self) -> Settings:
        """What was chosen when the client was opened."""
        return self._settings

    @property
    def spent(self) -> Spent:
        """What all answers have cost so far, those that were left early or failed among them."""
        return self._spending.spent

    async def generate(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Answer:
        """Answer a question. ``choices`` override settings for this answer: ``policy="local"``, ``max_tokens=64``.

        Raises UsageError, ContextOverflow, EngineError, and CloudRefusal before any text; a cloud that merely fails
        leaves its reason in ``Answer.degraded``. Without a seed every answer draws from another, ``Answer.seed``.
        """
        async with aclosing(self.stream(prompt, **choices)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event.answer
        msg = "an answer ended without being finished"
        raise RuntimeError(msg)

    async def stream(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> AsyncGenerator[Event, None]:
        """Yield everything that happens while a question is answered; the last event is ``Finished``."""
        settings, question = self._settings_with(choices), question_from(prompt)
        if self.closed:
            msg = "this client is closed"
            raise RuntimeError(msg)
        happened: asyncio.Queue[Event | None] = asyncio.Queue()
        # The answer is written in a task of its own: deadlines belong to a task, and a generator may be read from many.
        task = asyncio.create_task(self._answer(question, settings, happened.put_nowait))
        task.add_done_callback(lambda _: happened.put_nowait(None))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        try:
            while (event := await happened.get()) is not None:
                yield event
            await task
        finally:
            await _at_rest(task)

    async def text(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> AsyncGenerator[str, None]:
        """Yield the answer's text as it becomes readable; joined, it is ``Answer.text``."""
        async with aclosing(self.stream(prompt, **choices)) as events:
            async for event in events:
                if text := text_of(event):
                    yield text

    async def capabilities(self) -> Capabilities:
        """Connect, if that was not done yet, and return what the endpoint is and can do. Raises CloudError."""
        if self._connection is None:
            caller = RetryingCaller(self._health, self._spending.observe)
            await caller.call(partial(self._connected, time.monotonic()))
        return (await self._connected(time.monotonic()))[1]

    async def text_rows(self, prompt: Prompt, writer: Writer, **choices: Unpack[AnswerChoices]) -> TextRows:
        """Have one model answer greedily, whole, and both read its text. ``choices`` are as in ``generate``.

        Of them those count that make the prompt, bound the answer or name the conversation. Raises UsageError,
        ContextOverflow, EngineError and CloudRefusal; what merely failed is in the result.
        """
        can = await self.capabilities()
        settings, question = self._settings_with(choices), question_from(prompt)
        engine, worker, observe = self._local.engine, self._local.worker, self._spending.observe
        async with self._turn, self._account.open_budget(settings.conversation) as budget:
            ids = await worker.do(lambda _: self._prompt_ids(question, settings))
            builder = AnswerBuilder(len(ids), engine.piece, lambda: budget.price, time.monotonic(), observe)
            wanted = RowsWanted(Sampling(), settings.cloud_top_k, everywhere=True, whole=True)
            caller = RetryingCaller(self._health, observe)
            verifier = CloudVerifier(self._connected, caller, budget, engine, builder, wanted)
            rendered = RenderedPrompt(ids, turns_of(question, settings.system))
            reader = TextReader(rendered, Drafter(self._cursor, ids, Sampling(), SeededCoin(0)), worker, verifier)
            found = await reader.read(writer, min(settings.max_tokens, engine.num_context - len(ids)), can)
            costs = [budget.cost(usage) for usage in builder.charges]
        known = [cost for cost in costs if cost is not None]
        return replace(found, nanousd=sum(known) if len(known) == len(costs) else None)

    def _settings_with(self, choices: AnswerChoices) -> Settings:
        allowed = names_for(SettingPlace.ANSWER)
        if fixed := sorted(choices.keys() - allowed):
            own = ", ".join(sorted(allowed))
            msg = f"{', '.join(fixed)}: fixed when a client is opened; an answer may choose {own}"
            raise UsageError(msg)
        settings = choosing(self._settings, choices)
        check_effect(settings, choices)
        return seeded(settings)

    async def aclose(self) -> None:
        """Stop whatever is still being answered, for a reader that left without closing its stream."""
        self.closed = True
        answers = set(self._answers)
        for task in answers:
            task.cancel()  # all of them first: the next in line must not begin
        for task in answers:
            await _at_rest(task)
        await self._pair.aclose()
        await self._planners.aclose()

    async def _answer(self, prompt: TextOrTurns, settings: Settings, publish: Publish) -> Answer:
        asked_at = time.monotonic()
        policy = policy_of(settings)  # what contradicts itself is refused before anything is waited for

        bound: BoundPlanner | None = None

        def published(event: Event) -> None:
            self._tuner.observe(event)
            self._planners.observe(event)
            if bound is not None:
                bound.hear(event)
            self._spending.observe(event)
            if isinstance(event, Finished) and self._connection is not None:
                self._pair.add(event.answer, policy, self._connection[1].model)
            publish(event)
            for note in bound.notes if bound is not None and isinstance(event, Started) else ():
                builder.note(note)

        engine, sampling = self._local.engine, sampling_of(settings)
        async with self._turn, self._account.open_budget(settings.conversation) as budget:
            ids = await self._local.worker.do(lambda _: self._prompt_ids(prompt, settings))
            rendered = RenderedPrompt(ids, turns_of(prompt, settings.system))
            builder = AnswerBuilder(len(ids), engine.piece, lambda: budget.price, asked_at, published, settings.stop)
            caller = RetryingCaller(self._health, published)
            wanted = RowsWanted(sampling, settings.cloud_top_k, everywhere=settings.trace_rows)
            verifier = CloudVerifier(
                partial(self._connect_for, policy, settings), caller, budget, engine, builder, wanted
            )
            connected, decides = self._connection is not None, policy.planner is not None
            can = await verifier.connect(connected=connected, decides=decides) if policy.needs else None
            settings = settings if can is None else within_reach(settings, can)
            span = self._span(settings, len(ids), can)
            if policy.planner is not None or policy.pricer is not None:
                bound = await self._bound(settings, prompt, ids, can, budget)
            policy = policy_of(settings, span, bound.planner if bound else None)
            if can is not None and (dear := await self._pair.warning(policy, budget.price, can, len(ids))):
                builder.note(dear)
            recording = choices_of(settings, policy) if settings.trace_rows else None
            limits = AnswerLimits(settings.max_tokens, settings.overlap, recording)
            drafter = Drafter(self._cursor, ids, sampling, SeededCoin(sampling.seed))
            try:
                return await Driver(rendered, drafter, self._local.worker, verifier, builder, limits).answer(policy)
            finally:
                if bound is not None:
                    self._planners.learn(bound)

    async def _bound(
        self, settings: Settings, prompt: TextOrTurns, ids: Ids, can: Capabilities | None, budget: AnswerBudget
    ) -> BoundPlanner:
        """Bind what decides about drafts to a question, by what is known of models, endpoint and money now."""
        span = settings.span if isinstance(settings.span, int) else self._span(settings, len(ids), can)
        price, speed = budget.price, self._tuner.ms_per_token
        caps = () if price is None or price.free else await budget.cap_statuses()
        return await self._planners.bind(AskedQuestion(words_of(prompt), ids, settings, can, price, caps, span, speed))

    def _span(self, settings: Settings, prefix_tokens: int, can: Capabilities | None) -> int | None:
        """Return the draft length that ``auto`` or ``cheap`` means by now; None: the policy's own."""
        if settings.span == "cheap":
            keeps_cache = can is not None and can.keeps_cache is True
            return self._tuner.cheap(self._account.price, prefix_tokens, keeps_cache=keeps_cache)
        return self._tuner.span() if settings.span == "auto" else None

    def _prompt_ids(self, prompt: TextOrTurns, settings: Settings) -> Ids:
        engine = self._local.engine
        if not (prompt.strip() if isinstance(prompt, str) else prompt):
            msg = "the prompt is empty"
            raise UsageError(msg)
        if isinstance(prompt, str) and settings.raw:
            ids = engine.tokenize(prompt, special=True)
        else:
            ids = engine.render(turns_of(prompt, settings.system))
        if not ids:
            msg = "the prompt is empty"
            raise UsageError(msg)
        if len(ids) >= engine.num_context:
            room = engine.num_context
            msg = f"the prompt has {len(ids)} tokens and the local context holds {room}: {MEND_CONTEXT}"
            raise ContextOverflow(msg)
        return ids

    async def _connect_for(self, policy: Policy, settings: Settings, asked_at: float) -> Connection:
        """Connect, if that was not done yet. Raises MissingCapability where the policy needs more than there is."""
        connection = await self._connected(asked_at)
        capabilities = connection[1]
        if missing := policy.needs - capabilities.abilities:
            sampling = sampling_of(settings)
            able = [name for name, found in PRESETS.items() if found.works(capabilities.abilities, sampling)]
            lacking = " and ".join(ABILITY_TEXT[need] for need in sorted(missing))
            msg = f"policy {policy.name} needs an endpoint that can {lacking}; here {', '.join(able)} work"
            raise MissingCapability(msg)
        try:
            policy_of(within_reach(settings, capabilities))
        except UsageError as error:
            raise MissingCapability(str(error)) from None
        return connection

    async def _connected(self, asked_at: float) -> Connection:
        if self._connection is None:
            self._connection = await self._connect(asked_at)
        return self._connection


async def _at_rest(task: asyncio.Task[Answer]) -> None:
    """Cancel a task and return once it has ended; being cancelled meanwhile is passed on, but not before."""
    task.cancel()
    again: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            again = error
    if not task.cancelled():
        task.exception()  # seen, so that nobody reports it as lost
    if again is not None:
        raise again


class Client:
    """The same, for code that does not await: every call runs on the portal's event loop."""

    def __init__(self, client: AsyncClient, portal: BlockingPortal) -> None:
        """Take the client and the loop it lives on."""
        self._client = client
        self._portal = portal

    @property
    def settings(self) -> Settings:
        """What was chosen when the client was opened."""
        return self._client.settings

    @property
    def spent(self) -> Spent:
        """What all answers have cost so far; see ``AsyncClient.spent``."""
        return self._client.spent

    def generate(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Answer:
        """Answer a question; see ``AsyncClient.generate``. An interruption ends the answer before it is raised."""
        with closing(self.stream(prompt, **choices)) as events:
            for event in events:
                if isinstance(event, Finished):
                    return event.answer
        msg = "an answer ended without being finished"
        raise RuntimeError(msg)

    def stream(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Generator[Event, None, None]:
        """Yield everything that happens; see ``AsyncClient.stream``. Closing the generator ends the answer first."""
        happened: SimpleQueue[Event | None] = SimpleQueue()
        if self._client.closed:
            msg = "this client is closed"
            raise RuntimeError(msg)
        pump = self._portal.start_task_soon(self._pump, prompt, choices, happened)
        try:
            while (event := happened.get()) is not None:
                yield event
            pump.result()
        finally:
            if not pump.done():
                pump.cancel()
                while happened.get() is not None:
                    pass  # the pump's last word comes when everything is at rest

    def text(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Generator[str, None, None]:
        """Yield the answer's text as it becomes readable; see ``AsyncClient.text``."""
        with closing(self.stream(prompt, **choices)) as events:
            for event in events:
                if text := text_of(event):
                    yield text

    async def _pump(self, prompt: Prompt, choices: AnswerChoices, happened: SimpleQueue[Event | None]) -> None:
        try:
            async with aclosing(self._client.stream(prompt, **choices)) as events:
                async for event in events:
                    happened.put(event)
        finally:
            happened.put(None)
