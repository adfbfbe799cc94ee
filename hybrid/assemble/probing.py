"""``hybrid probe``: what an endpoint can do and what a local model takes, found out by asking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hybrid.assemble.local_models import first_model
from hybrid.assemble.opening import ClientOpener
from hybrid.assemble.reaching import PROBE, bundled_server, findings_cache, served_here, wire_to
from hybrid.cloud import Capabilities
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.probe import Probe, paid_from
from hybrid.cloud.probe_result import CHATS, FlagAdvice, LocalChat, LocalSide, ProbeResult, apply_result, flag_advice
from hybrid.engine import Cursor
from hybrid.engine.identity import MEASURED, LocalNoise, NoiseCache, measure
from hybrid.engine.llama import Weights
from hybrid.engine.local_memory import LocalMemory
from hybrid.engine.real_models import model_file
from hybrid.engine.vocabulary import LlamaVocabulary, VocabularyFile
from hybrid.errors import UsageError
from hybrid.pairs.profile import JudgedTokens, seen_of_pair
from hybrid.settings.sources import cache_file, checked, load
from hybrid.spend import Price
from hybrid.types import Ids, Message

# The local model's side of ``hybrid probe``'s comparison of habits: rendered chats, and first words of answers.
#
# The law (``tests/run/test_local_habits.py``): a chat is rendered by the model's own template, or said not to be; a
# question that does not fit into the model has no row.


def local_habits(weights: Weights, threads: int | None, noise: LocalNoise) -> LocalSide:
    """Read the first row of an answer to each question, in a context that is as long as it must be."""
    *questions, rendered_only = CHATS
    asked = [(turns, *render_or_text(weights, turns)) for turns in questions]
    longest = weights.longest_context
    fitting = [(turns, ids, rendered) for turns, ids, rendered in asked if longest is None or len(ids) < longest]
    chats: list[LocalChat] = []
    if fitting:
        with closing(weights.context(max(len(ids) for _, ids, _ in fitting) + 1, threads)) as engine:
            cursor = Cursor(engine, noise.nats, noise.shift)
            chats = [LocalChat(turns, ids, rendered, cursor.row(ids)) for turns, ids, rendered in fitting]
    chats.append(LocalChat(rendered_only, *render_or_text(weights, rendered_only)))
    return LocalSide(tuple(chats), weights.piece)


def render_or_text(weights: LlamaVocabulary, turns: Sequence[Message]) -> tuple[Ids, bool]:
    """Return a conversation as the model's template writes it, or the first turn's text, and which of the two it is."""
    try:
        return weights.render(turns), True
    except UsageError:
        return weights.tokenize(turns[0].content), False


def _measured(weights: Weights, threads: int | None) -> LocalNoise:
    """Measure the local model's noise in a context of its own."""
    with contextlib.closing(weights.context(MEASURED, threads)) as engine:
        return measure(engine, engine.tokenize(PROBE))


@dataclass(frozen=True)
class ProbeReport:
    """What was found, what the endpoint can do by that, the local model's noise, and flags that would help.

    ``price``: what is known of it, None: nothing; ``charged_nanousd``: the charges of its questions at that price.
    ``seen``: the tokens that the model there has judged, by judge. ``memory``: what the local model takes, and where.
    ``asked_in``: the file whose vocabulary it was asked in, where that is not the local model's.
    """

    findings: ProbeResult
    can: Capabilities
    local_noise: LocalNoise
    hints: tuple[FlagAdvice, ...] = ()
    price: Price | None = None
    charged_nanousd: int = 0
    seen: Mapping[str, JudgedTokens] = field(default_factory=dict)
    memory: LocalMemory | None = None
    asked_in: str | None = None


async def probe(tell: Callable[[str], None], **flags: Any) -> ProbeReport:
    """Establish by asking what the endpoint can do, keep it for later runs, and return it.

    ``flags`` are those of ``open``: ``cloud`` is needed; every question is paid for from the ledger. Raises UsageError
    (no endpoint, or a cap that does not allow a question), EngineError, CloudError.
    """
    settings = load(**flags)
    if settings.cloud is None:
        msg = "which endpoint? hybrid probe URL"
        raise UsageError(msg)
    opening = checked(ClientOpener, settings, **flags)
    async with AsyncExitStack() as stack:
        local = await asyncio.to_thread(model_file, first_model(settings))
        words = await asyncio.to_thread(Weights, local, gpu_layers=settings.gpu_layers, kv_type=settings.kv_type)
        stack.callback(words.close)
        theirs = None if settings.cloud_vocabulary is None else VocabularyFile(model_file(settings.cloud_vocabulary))
        if theirs is not None:
            stack.callback(theirs.close)
        spoken = theirs or words
        url, served = settings.cloud, served_here(settings)
        if served:
            url = await stack.enter_async_context(bundled_server(await asyncio.to_thread(model_file, served)))
        wire = wire_to(settings, url)
        endpoint = Endpoint(wire, settings.cloud_model, settings.cache_salt, spoken, settings.dialect)
        stack.push_async_callback(endpoint.aclose)
        tell("what kind of endpoint this is")
        said = await endpoint.discover(PROBE, spoken.tokenize(PROBE))
        tell("the local model's own noise")
        noise = await asyncio.to_thread(_measured, words, settings.threads)
        habits = None
        if said.same_words is not False and theirs is None:
            tell("how the local model begins an answer")
            habits = await asyncio.to_thread(local_habits, words, settings.threads, noise)
        account = opening.account(stack)
        opening.learn(account, said)
        purse = await stack.enter_async_context(account.open_budget(settings.conversation))
        turns = (Message("user", "What is 47 + 86?"),)
        timed = account.price is None or account.price.free  # else what a token costs is money
        ids, _ = render_or_text(spoken, turns)
        asked = Probe(endpoint, ids, turns, partial(paid_from, purse), tell, timed=timed, local=habits)
        findings = await asked.run(said, wire.url)
        if not served:  # our own server has another address the next time
            findings_cache(spoken).write(findings)
        NoiseCache(cache_file()).write(words.path, words.placement.on_gpu, noise, words.kv_type)
        advice = tuple(flag_advice(findings, settings.cloud_top_k))
        charged = purse.charged_nanousd
        seen = await asyncio.to_thread(seen_of_pair, settings.cloud, words.path, said.model)
        asked_in = None if theirs is None else theirs.path.name
        can, memory = apply_result(said, findings), words.memory(settings.ctx)
        return ProbeReport(findings, can, noise, advice, account.price, charged, seen, memory, asked_in)
