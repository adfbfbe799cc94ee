"""Asking: one client over one local model and one endpoint, for as many questions at once as it has contexts.

The law: a stream that is closed early, or whose task is cancelled, has stopped decoding, closed its request, rewound
the cache, settled the ledger and freed its context before ``aclose`` returns (``tests/run/test_client.py``). What
belongs to one answer stands in its own objects; what all answers share says in its own file what it does under several
at once.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from hybrid.cloud import Capabilities
from hybrid.defer import CriticNumbers
from hybrid.engine import CursorContext
from hybrid.errors import MissingCapability, UsageError, to_one_line
from hybrid.pairs.profile import PairObserver, PairRecord
from hybrid.pairs.timings import SpanTuner
from hybrid.policy import SeededCoin
from hybrid.prob import Partition
from hybrid.record.answer import Answer
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.record.conversation import Prompt, TextOrTurns, question_from, words_of
from hybrid.record.events import Event, Finished, Publish, Started, text_of
from hybrid.record.spending import CheckCostNote, CheckTimeNote
from hybrid.record.state import Spending, Spent
from hybrid.run.chain import ChainChooser, whole_chain
from hybrid.run.cloud_verifier import CloudVerifier, Connect, RowsWanted
from hybrid.run.composition import (
    Decoding,
    by_cloud_alone,
    check_effect,
    most_tokens,
    policy_of,
    recording_of,
    seeded,
    within_reach,
)
from hybrid.run.connecting import ClientStatus, SharedConnection
from hybrid.run.contexts import LocalContexts, LocalModel
from hybrid.run.deferral import AskedQuestion, BoundPlanner, PairSource, PlannerSource
from hybrid.run.drafting import Drafter
from hybrid.run.driver import AnswerLimits, Driver
from hybrid.run.local_writers import AskedPrompt, local_writers, tell_names
from hybrid.run.relaying import RelayedReply, Relayer
from hybrid.run.retrying import BreakerConfig, EndpointHealth, RetryingCaller, RetryPolicy
from hybrid.run.text_rows import TextReader, TextRows, Writer
from hybrid.settings.config import AnswerChoices, Settings, names_for
from hybrid.settings.setting_info import SettingPlace
from hybrid.settings.sources import choosing
from hybrid.spend import Account, AnswerBudget, CapStatus
from hybrid.types import Ids, Sampling

NOWHERE = "neither model here can honour it: name an endpoint with --cloud, or one for such requests in [relay]"


class AsyncClient:
    """Answers as many questions at once as it has contexts; others wait in order. Made by ``hybrid.open``."""

    def __init__(
        self,
        local: LocalModel,
        connect: Connect,
        account: Account,
        settings: Settings,
        pair: PairRecord | None = None,
        planners: PlannerSource | None = None,
        by_messages: Connect | None = None,
    ) -> None:
        """Take the local model, how to reach the cloud (asked at the first question that needs it), and the money.

        ``pair`` keeps what is seen of the two models; None: nothing does. ``planners``: what ``auto`` decides by; None:
        nothing is known of the two models, and nothing is kept.
        """
        retries = RetryPolicy(settings.retries, min(settings.first_byte_timeout_s, settings.request_timeout_s))
        self._health = EndpointHealth(retries, BreakerConfig(cool_down_s=settings.cool_down_s))
        self._contexts = LocalContexts(local, settings)
        self._connection = SharedConnection(connect, by_messages)
        self._account = account
        self._settings = settings
        self._local = local
        self.chains = ChainChooser(local, settings)
        """Which local models draft for one another."""
        self._tuner = SpanTuner(local.ms_per_token)
        self._planners = planners or PairSource()
        self._spending = Spending()
        self._check_cost = CheckCostNote()
        self._check_time = CheckTimeNote(self._planners.times)
        self._pair = PairObserver(pair)
        self._answers: set[asyncio.Task[Answer]] = set()
        self.relayer: Relayer | None = None
        """Where requests go that only a cloud model can honour; None: nowhere."""
        self.closed = False
        """Whether nothing more is answered."""
        self.notes = local.notes
        """What a user should know of how the local model was opened, a sentence each."""

    @property
    def settings(self) -> Settings:
        """What was chosen when the client was opened."""
        return self._settings

    @property
    def parallel(self) -> int:
        """How many questions are answered at once: its contexts."""
        return self._contexts.parallel

    @property
    def num_context(self) -> int:
        """The most tokens that a prompt and its answer can have together."""
        return self._contexts.words.num_context

    @property
    def template_names(self) -> frozenset[str]:
        """The arguments that the local model's chat template reads."""
        return self._contexts.words.template_names

    @property
    def spent(self) -> Spent:
        """What all answers have cost so far, those that were left early or failed among them."""
        return self._spending.spent

    @property
    def status(self) -> ClientStatus:
        """How its contexts, its line and its endpoint stand now."""
        pool, breaker = self._contexts.pool, self._health.breaker
        drifts = self._planners.drifts if self._settings.learn else None
        busy = self.parallel - len(pool.free)
        return ClientStatus(self.parallel, busy, pool.num_queued, breaker.state, breaker.remaining_s, drifts)

    async def cap_statuses(self, conversation: str | None = None) -> tuple[CapStatus, ...]:
        """Return the status of the caps that bind an answer now; none where the ledger cannot be read.

        ``conversation``: the one that the answer counts to; None: the client's own.
        """
        async with self._account.open_budget(conversation or self._settings.conversation) as budget:
            return await budget.cap_statuses()

    async def generate(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Answer:
        """Answer a question. ``choices`` override settings for this answer: ``policy="local"``, ``max_tokens=64``.

        Raises UsageError, ContextOverflow, QueueFull, QueueTimeout, EngineError, and CloudRefusal before any text; a
        cloud that merely fails leaves its reason in ``Answer.degraded``. Without a seed every answer draws from
        another, ``Answer.seed``.
        """
        async with aclosing(self.stream(prompt, **choices)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event.answer
        msg = "an answer ended without being finished"
        raise RuntimeError(msg)

    async def stream(
        self, prompt: Prompt, *, hear: Publish | None = None, **choices: Unpack[AnswerChoices]
    ) -> AsyncGenerator[Event, None]:
        """Yield everything that happens while a question is answered; the last event is ``Finished``.

        ``hear`` is called with each event as it happens, those too that come while a stream that was closed early
        settles, when nobody reads any more.
        """
        settings, question = self._settings_with(choices), question_from(prompt)
        if self.closed:
            msg = "this client is closed"
            raise RuntimeError(msg)
        happened: asyncio.Queue[Event | None] = asyncio.Queue()

        def publish(event: Event) -> None:
            if hear is not None:
                hear(event)
            happened.put_nowait(event)

        # The answer is written in a task of its own: deadlines belong to a task, and a generator may be read from many.
        task = asyncio.create_task(self._answer(question, settings, publish))
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

    @asynccontextmanager
    async def relay(
        self, body: Mapping[str, Any], publish: Publish, conversation: str | None = None
    ) -> AsyncGenerator[RelayedReply, None]:
        """Send a chat request whole to the cloud, and yield its reply; see ``Relayer.open``.

        Raises MissingCapability where there is nowhere to send it.
        """
        if self.relayer is None:
            raise MissingCapability(NOWHERE)

        def published(event: Event) -> None:
            self._spending.observe(event)
            publish(event)

        async with self.relayer.open(body, published, conversation or self._settings.conversation) as reply:
            yield reply

    async def capabilities(self) -> Capabilities:
        """Connect, if that was not done yet, and return what the endpoint is and can do. Raises CloudError."""
        if (made := self._connection.made) is None:
            caller = RetryingCaller(self._health, self._spending.observe)
            made = await caller.call(partial(self._connection.make_any, time.monotonic()))
        return made[1]

    async def text_rows(self, prompt: Prompt, writer: Writer, **choices: Unpack[AnswerChoices]) -> TextRows:
        """Have one model answer greedily, whole, and both read its text. ``choices`` are as in ``generate``.

        Of them those count that make the prompt, bound the answer or name the conversation. Raises UsageError,
        ContextOverflow, EngineError and CloudRefusal; what merely failed is in the result.
        """
        can = await self.capabilities()
        settings, question = self._settings_with(choices), question_from(prompt)
        observe, words = self._spending.observe, self._contexts.words
        rendered = await self._contexts.read(question, settings)
        ids = rendered.ids
        room = words.num_context - len(ids)
        async with (
            self._contexts.borrow(ids, settings, observe) as context,
            self._account.open_budget(settings.conversation) as budget,
        ):
            builder = AnswerBuilder(len(ids), words.piece, lambda: budget.price, time.monotonic(), observe)
            wanted = RowsWanted(Sampling(), settings.cloud_top_k, everywhere=True, whole=True)
            caller = RetryingCaller(self._health, observe)
            verifier = CloudVerifier(self._connection.make, caller, budget, words, builder, wanted)
            cursor = await self._contexts.experts(context, settings) or context.cursor
            drafter = Drafter(cursor, ids, Sampling(), SeededCoin(0))
            reader = TextReader(rendered, drafter, context.worker, verifier)
            found = await reader.read(writer, min(most_tokens(settings, room), room), can)
            costs = [budget.cost(usage) for usage in builder.charges]
        known = [cost for cost in costs if cost is not None]
        return replace(found, nanousd=sum(known) if len(known) == len(costs) else None)

    async def count_prompt(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> int:
        """Return how many tokens a prompt has for the local model. Raises UsageError and ContextOverflow."""
        read = await self._contexts.read(question_from(prompt), self._settings_with(choices))
        return len(read.ids)

    async def partition(self) -> Partition | None:
        """Return which tokens of the local vocabulary say the same; None where nobody knows."""
        return await self._contexts.known_partition()

    async def critic_numbers(self, prompt: Prompt, text: Ids, **choices: Unpack[AnswerChoices]) -> CriticNumbers:
        """Return what the critic says of each token of a text that answers a prompt; nothing is asked of the cloud.

        ``choices`` are as in ``text_rows``. Raises UsageError where there is no critic, ContextOverflow, EngineError.
        """
        settings, question = self._settings_with(choices), question_from(prompt)
        return await self._contexts.critic_numbers(question, text, settings, self._spending.observe)

    def _settings_with(self, choices: AnswerChoices) -> Settings:
        allowed = names_for(SettingPlace.ANSWER)
        if unknown := sorted(choices.keys() - Settings.model_fields.keys()):
            near = difflib.get_close_matches(unknown[0], allowed, 1)
            told = f": did you mean {near[0]}?" if near else f"; an answer may choose {', '.join(sorted(allowed))}"
            msg = f"there is no setting called {to_one_line(unknown[0])}{told}"
            raise UsageError(msg)
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
        await self._contexts.aclose()
        await self._pair.aclose()
        await self._planners.aclose()

    async def _answer(self, prompt: TextOrTurns, settings: Settings, publish: Publish) -> Answer:
        asked_at = time.monotonic()
        decoding = Decoding.of(settings)  # what contradicts itself is refused before anything is waited for
        chain = self.chains.choose(decoding.policy, decoding.sampling)
        if not chain.models:
            decoding, chain = Decoding.of(by_cloud_alone(settings)), whole_chain(self._local)
        settings = decoding.settings
        rendered = await self._contexts.read(prompt, settings)
        concepts = await self._contexts.concepts(decoding.policy, rendered.ids, settings)
        asked = AskedPrompt(prompt, rendered, chain, asked_at, concepts)
        async with (
            self._contexts.borrow(rendered.ids, settings, publish) as context,
            self._account.open_budget(settings.conversation) as budget,
        ):
            return await self._write(asked, decoding, context, budget, publish)

    async def _write(
        self, asked: AskedPrompt, decoding: Decoding, context: CursorContext, budget: AnswerBudget, publish: Publish
    ) -> Answer:
        """Answer a question in the context that was lent for it."""
        rendered, ids, chain, settings = asked.rendered, asked.rendered.ids, asked.chain, decoding.settings
        words, price, policy = self._contexts.words, lambda: budget.price, decoding.policy
        room = words.num_context - len(ids)
        bound: BoundPlanner | None = None

        def published(event: Event) -> None:
            self._tuner.observe(event, len(ids))
            self.chains.hear(event, chain)
            if bound is not None:
                bound.hear(event)
            self._spending.observe(event)
            if (
                isinstance(event, Finished)
                and chain.models[-1] == self._local.name
                and (made := self._connection.made_for(decoding)) is not None
            ):
                self._pair.add(event.answer, policy, made[1].model)
            publish(event)
            for note in bound.notes if bound is not None and isinstance(event, Started) else ():
                builder.note(note)

        builder = AnswerBuilder(len(ids), words.piece, price, asked.at, published, settings.stop, rendered.thoughts)
        families = self._local.families
        if families is not None and (said := families.told(asked.prompt)):
            builder.note(said)
        caller = RetryingCaller(self._health, published)
        open_ended, rows = not settings.max_tokens, settings.trace_rows
        wanted = RowsWanted(decoding.sampling, settings.cloud_top_k, everywhere=rows, open_ended=open_ended)
        connect = partial(self._connection.make_for, decoding)
        verifier = CloudVerifier(connect, caller, budget, context.engine, builder, wanted)
        connected, decides = self._connection.made_for(decoding) is not None, policy.planner is not None
        can = await verifier.connect(connected=connected, decides=decides) if policy.needs else None
        settings = settings if can is None else within_reach(settings, can)
        span = self._span(settings, len(ids), can)
        if policy.planner is not None:
            bound = await self._bound(settings, asked.prompt, ids, can, budget)
        policy = policy_of(settings, span, bound.planner if bound else None, room, asked.concepts)
        builder.notes_of = partial(self._check_cost.of, policy), await self._check_time.bind(policy, can, builder)
        told = settings.trace_rows
        recording = recording_of(settings, policy, await self._contexts.pieces(), asked.concepts) if told else None
        limits = AnswerLimits(most_tokens(settings, room), settings.overlap, recording)
        words_asked = words_of(asked.prompt)
        writers = await local_writers(self._contexts, context, chain, policy, settings, ids, words_asked)
        tell_names(builder, chain, writers, lambda: made[1] if (made := self._connection.made_for(decoding)) else None)
        try:
            return await Driver(
                rendered, writers.drafter, context.worker, verifier, builder, limits, writers.levels
            ).answer(writers.policy)
        finally:
            if builder.requests:
                self._planners.sent(ids)
            if bound is not None:
                self._planners.learn(bound)
            self._contexts.learn(writers.experts if settings.learn else None, words_asked)

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
