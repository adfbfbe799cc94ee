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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Unpack

from hybrid.cloud import Capabilities
from hybrid.defer import CriticNumbers
from hybrid.engine import CursorContext
from hybrid.errors import MissingCapability, UsageError, to_one_line
from hybrid.pairs.profile import PairRecord
from hybrid.policy import SeededCoin
from hybrid.prob import Partition
from hybrid.record.answer import Answer
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.record.conversation import Prompt, TextOrTurns, question_from
from hybrid.record.events import Event, Finished, Publish, text_of
from hybrid.record.state import Spent
from hybrid.run.chain import ChainChooser, whole_chain
from hybrid.run.cloud_verifier import CloudVerifier, Connect, WriteOptions
from hybrid.run.composition import Decoding, by_cloud_alone, check_effect, most_tokens, recording_of
from hybrid.run.connecting import ClientStatus, SharedConnection
from hybrid.run.contexts import LocalContexts, LocalModel
from hybrid.run.deferral import PlannerSource
from hybrid.run.drafting import Drafter
from hybrid.run.driver import AnswerLimits, Driver
from hybrid.run.local_writers import Question, local_writers
from hybrid.run.memory import ClientMemory
from hybrid.run.retrying import BreakerConfig, EndpointHealth, RetryingCaller, RetryPolicy
from hybrid.run.text_rows import TextRows, TextScorer, Writer
from hybrid.settings.config import AnswerChoices, Settings, names_for
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import choosing
from hybrid.spend import Account, AnswerBudget, CapStatus
from hybrid.types import Ids, Sampling

if TYPE_CHECKING:
    from hybrid.run.relaying import RelayedReply, Relayer

# Of different choices so many are kept resolved, none of them longer than so many characters.
MOST_DECODINGS, LONGEST_KEY = 64, 2048
# What its text tells whole: that of an iterator is an address, which another one may have later.
PLAIN = (str, int, float, list, tuple, dict, NoneType)
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
        self._memory = ClientMemory(local, settings, account, pair, planners)
        self._decodings: dict[str, Decoding] = {}
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
        return self._memory.spending.spent

    @property
    def chains(self) -> ChainChooser:
        """Which local models draft for one another."""
        return self._memory.chains

    @property
    def status(self) -> ClientStatus:
        """How its contexts, its line and its endpoint stand now."""
        pool, breaker = self._contexts.pool, self._health.breaker
        drifts = self._memory.planners.drifts if self._settings.learn else None
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
        self, prompt: Prompt, *, on_event: Publish | None = None, **choices: Unpack[AnswerChoices]
    ) -> AsyncGenerator[Event, None]:
        """Yield everything that happens while a question is answered; the last event is ``Finished``.

        ``on_event`` is called with each event as it happens, those too that come while a stream that was closed early
        settles, when nobody reads any more.
        """
        decoding, question = self._decoding(choices).seeded(), question_from(prompt)
        if self.closed:
            msg = "this client is closed"
            raise RuntimeError(msg)
        happened: asyncio.Queue[Event | None] = asyncio.Queue()

        def publish(event: Event) -> None:
            if on_event is not None:
                on_event(event)
            happened.put_nowait(event)

        # The answer is written in a task of its own: deadlines belong to a task, and a generator may be read from many.
        task = asyncio.create_task(self._answer(question, decoding, publish))
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
            self._memory.spending.observe(event)
            publish(event)

        async with self.relayer.open(body, published, conversation or self._settings.conversation) as reply:
            yield reply

    async def capabilities(self) -> Capabilities:
        """Connect, if that was not done yet, and return what the endpoint is and can do. Raises CloudError."""
        if (made := self._connection.made) is None:
            caller = RetryingCaller(self._health, self._memory.spending.observe)
            made = await caller.call(partial(self._connection.make_any, time.monotonic()))
        return made[1]

    async def text_rows(self, prompt: Prompt, writer: Writer, **choices: Unpack[AnswerChoices]) -> TextRows:
        """Have one model answer greedily, whole, and both read its text. ``choices`` are as in ``generate``.

        Of them those count that make the prompt, bound the answer or name the conversation. Raises UsageError,
        ContextOverflow, EngineError and CloudRefusal; what merely failed is in the result.
        """
        can = await self.capabilities()
        settings, question = self._decoding(choices).settings, question_from(prompt)
        observe, words = self._memory.spending.observe, self._contexts.words
        rendered = await self._contexts.read(question, settings)
        ids = rendered.ids
        room = words.num_context - len(ids)
        async with (
            self._contexts.borrow(ids, settings, observe) as context,
            self._account.open_budget(settings.conversation) as budget,
        ):
            builder = AnswerBuilder(len(ids), words.piece, lambda: budget.price, time.monotonic(), observe)
            wanted = WriteOptions(Sampling(), settings.cloud_top_k, everywhere=True, whole=True)
            caller = RetryingCaller(self._health, observe)
            verifier = CloudVerifier(self._connection.make, caller, budget, words, builder, wanted)
            cursor = await self._contexts.experts(context, settings) or context.cursor
            drafter = Drafter(cursor, ids, Sampling(), SeededCoin(0))
            reader = TextScorer(rendered, drafter, context.worker, verifier)
            found = await reader.read(writer, min(most_tokens(settings, room), room), can)
            costs = [budget.cost(usage) for usage in builder.charges]
        known = [cost for cost in costs if cost is not None]
        return replace(found, nanousd=sum(known) if len(known) == len(costs) else None)

    async def count_prompt(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> int:
        """Return how many tokens a prompt has for the local model. Raises UsageError and ContextOverflow."""
        read = await self._contexts.read(question_from(prompt), self._decoding(choices).settings)
        return len(read.ids)

    async def partition(self) -> Partition | None:
        """Return which tokens of the local vocabulary say the same; None where nobody knows."""
        return await self._contexts.known_partition()

    async def critic_numbers(self, prompt: Prompt, text: Ids, **choices: Unpack[AnswerChoices]) -> CriticNumbers:
        """Return what the critic says of each token of a text that answers a prompt; nothing is asked of the cloud.

        ``choices`` are as in ``text_rows``. Raises UsageError where there is no critic, ContextOverflow, EngineError.
        """
        settings, question = self._decoding(choices).settings, question_from(prompt)
        return await self._contexts.critic_numbers(question, text, settings, self._memory.spending.observe)

    def _decoding(self, choices: AnswerChoices) -> Decoding:
        """Return how to decode under these choices: resolved once, since callers choose the same again and again.

        What contradicts itself is refused here, before anything is waited for. Raises UsageError.
        """
        key = repr(sorted(choices.items()))
        if (known := self._decodings.get(key)) is None:
            known = Decoding.of(self._settings_with(choices))
            if len(self._decodings) >= MOST_DECODINGS:
                self._decodings.clear()
            if len(key) <= LONGEST_KEY and all(isinstance(value, PLAIN) for value in choices.values()):
                self._decodings[key] = known
        return known

    def _settings_with(self, choices: AnswerChoices) -> Settings:
        allowed = names_for(SettingScope.ANSWER)
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
        return settings

    async def aclose(self) -> None:
        """Stop whatever is still being answered, for a reader that left without closing its stream."""
        self.closed = True
        answers = set(self._answers)
        for task in answers:
            task.cancel()  # all of them first: the next in line must not begin
        for task in answers:
            await _at_rest(task)
        await self._contexts.aclose()
        await self._memory.aclose()

    async def _answer(self, prompt: TextOrTurns, decoding: Decoding, publish: Publish) -> Answer:
        asked_at = time.monotonic()
        chain = self._memory.chains.choose(decoding.policy, decoding.sampling)
        if not chain.models:
            decoding, chain = Decoding.of(by_cloud_alone(decoding.settings)), whole_chain(self._local)
        settings = decoding.settings
        rendered = await self._contexts.read(prompt, settings)
        concepts = await self._contexts.concepts(decoding.policy, rendered.ids, settings)
        question = Question(prompt, rendered, decoding, chain, asked_at, concepts)
        async with (
            self._contexts.borrow(rendered.ids, settings, publish) as context,
            self._account.open_budget(settings.conversation) as budget,
        ):
            return await self._write(question, context, budget, publish)

    async def _write(
        self, question: Question, context: CursorContext, budget: AnswerBudget, publish: Publish
    ) -> Answer:
        """Answer a question in the context that was lent for it."""
        decoding, memory, contexts = question.decoding, self._memory, self._contexts
        model = partial(self._model_for, decoding)
        observers = [*memory.observers(question), publish]
        builder = self._builder(question, budget, observers)
        verifier = self._verifier(question, context, budget, builder)
        connected, decides = model() is not None, decoding.policy.planner is not None
        can = await verifier.connect(connected=connected, decides=decides) if decoding.policy.needs else None
        decoding = decoding if can is None else decoding.within_reach(can)
        choice = await memory.choose_arm(question, decoding, can, budget, builder)
        decoding = decoding if choice is None else decoding.under(choice.arm)
        bound = await memory.bind(question, decoding, can, budget)
        observers += [] if bound is None else bound.observers(builder.note)
        room, settings = contexts.words.num_context - len(question.ids), decoding.settings
        span, planner = memory.span(decoding, len(question.ids), can), None if bound is None else bound.planner
        policy = decoding.policy_for(room, span, planner, question.concepts)
        observers.append(memory.pair_observer(question, policy, model, choice))
        builder.notes_of = await memory.notes_of(policy, can, builder)
        told = settings.trace_rows
        recording = recording_of(settings, policy, await contexts.pieces(), question.concepts) if told else None
        limits = AnswerLimits(most_tokens(settings, room), settings.overlap and not policy.branches, recording)
        writers = await local_writers(contexts, context, question, policy)
        builder.local_models, builder.experts, builder.cloud_model = writers.names, writers.weights, model
        driver = Driver(question.rendered, writers.drafter, context.worker, verifier, builder, limits, writers.levels)
        try:
            return await driver.answer(writers.policy)
        finally:
            memory.learn(question, bound, sent=builder.requests > 0)
            contexts.learn(writers.experts if settings.learn else None, question.words)

    def _builder(self, question: Question, budget: AnswerBudget, observers: Sequence[Publish]) -> AnswerBuilder:
        """Return where the answer adds up; all observers, those too that are added later, observe what it publishes."""

        def published(event: Event) -> None:
            for observe in observers:
                observe(event)

        ids, marks, stops = question.ids, question.rendered.thoughts, question.decoding.settings.stop
        piece, price = self._contexts.words.piece, lambda: budget.price
        builder = AnswerBuilder(len(ids), piece, price, question.asked_at, published, stops, marks)
        families = self._local.families
        if families is not None and (said := families.told(question.prompt)):
            builder.note(said)
        return builder

    def _verifier(
        self, question: Question, context: CursorContext, budget: AnswerBudget, builder: AnswerBuilder
    ) -> CloudVerifier:
        """Return what asks the cloud during the answer."""
        decoding, settings = question.decoding, question.decoding.settings
        open_ended, rows = not settings.max_tokens, settings.trace_rows
        wanted = WriteOptions(decoding.sampling, settings.cloud_top_k, everywhere=rows, open_ended=open_ended)
        connect, caller = partial(self._connection.make_for, decoding), RetryingCaller(self._health, builder.publish)
        return CloudVerifier(connect, caller, budget, context.engine, builder, wanted)

    def _model_for(self, decoding: Decoding) -> str | None:
        """Return the cloud's model that an answer is asked of; None: it was not reached yet."""
        made = self._connection.made_for(decoding)
        return None if made is None else made[1].model


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
