"""Reach an endpoint: which one the settings name, the wire to it, and whether it speaks the local vocabulary."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from hybrid.bundled_server import BUNDLED_CLOUD, bundled_server
from hybrid.cloud import Capabilities, Cloud
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.probe_result import ProbeCache
from hybrid.cloud.renumbered import RenumberedCloud, numbers_of
from hybrid.cloud.translated import TranslatedCloud
from hybrid.cloud.wire import KEY_HINT, Wire
from hybrid.config import Settings
from hybrid.endpoint_address import is_loopback
from hybrid.endpoint_key import endpoint_key, key_hint
from hybrid.engine import Engine
from hybrid.engine.llama import Weights
from hybrid.engine.real_models import model_file
from hybrid.engine.vocabulary import share_words
from hybrid.engine.vocabulary_file import VocabularyFile
from hybrid.errors import NotAnApi, VocabularyMismatch
from hybrid.model_names import NAMED
from hybrid.sources import findings_file

# What the two vocabularies are compared on: digits, capitals, spaces in a row, a line break, more than one script.
PROBE = 'The 3 boxes hold 12345 pens.\n  {"key": "value"} é ß 中 x^2 + C'


def served_here(settings: Settings) -> Path | str | None:
    """Return the model that a server of our own is started for: none named, or one by its name; None for a URL."""
    return BUNDLED_CLOUD if settings.cloud is None else settings.cloud if settings.cloud in NAMED else None


def served_model(settings: Settings) -> str | None:
    """Return what a server of our own calls its model; None where an endpoint is named by its address."""
    served = served_here(settings)
    return None if served is None else model_file(served).stem


async def reach(
    settings: Settings,
    engine: Engine,
    stack: AsyncExitStack,
    cache: ProbeCache | None = None,
    asked_at: float | None = None,
) -> tuple[Cloud, Capabilities]:
    """Reach the endpoint (starting the bundled one where none is named) and hear what it can do.

    ``cache``: what earlier probes found. The connection closes with ``stack``.
    """
    async with AsyncExitStack() as opened:
        url, dialect = settings.cloud or "", settings.dialect
        if served := served_here(settings):
            server = bundled_server(await asyncio.to_thread(model_file, served))
            url, asked_at, dialect = await opened.enter_async_context(server), None, "vllm"  # no waiting for an answer
        theirs = await asyncio.to_thread(_other_words, settings, engine)
        if theirs is not None:
            opened.callback(theirs.close)
            cache = cache and findings_cache(theirs)
        wire = wire_to(settings, url)
        endpoint = Endpoint(wire, settings.cloud_model, settings.cache_salt, theirs or engine, dialect, cache)
        opened.push_async_callback(endpoint.aclose)
        cloud = _speaking(endpoint, theirs, engine)
        try:
            capabilities = await cloud.connect(PROBE, engine.tokenize(PROBE), asked_at)
        except VocabularyMismatch as error:
            raise _mended(error, settings) from None
        stack.push_async_exit(opened.pop_all())  # it works: from here on it closes with the client
        return cloud, capabilities


def _other_words(settings: Settings, engine: Engine) -> VocabularyFile | None:
    """Return the vocabulary of the cloud's model, where it is known and is not the local one's."""
    named = settings.cloud_vocabulary or served_here(settings)
    if named is None:
        return None
    theirs = VocabularyFile(model_file(named))
    if not share_words(engine, theirs):
        return theirs
    theirs.close()
    return None


def _speaking(endpoint: Endpoint, theirs: VocabularyFile | None, engine: Engine) -> Cloud:
    """Return the endpoint as one that speaks in our tokens: the same, the same under other numbers, or others."""
    if theirs is None:
        return endpoint
    numbers = numbers_of(theirs, engine)
    return TranslatedCloud(endpoint, theirs, engine) if numbers is None else RenumberedCloud(endpoint, numbers)


def _mended(error: VocabularyMismatch, settings: Settings) -> VocabularyMismatch:
    """Return the refusal with what to do about it."""
    if settings.cloud_vocabulary is not None:
        return VocabularyMismatch(f"{settings.cloud_vocabulary} is not the vocabulary of the cloud: {error}")
    return VocabularyMismatch(
        f"{error}; with --cloud-vocabulary GGUF, a file of that model, it is asked in its own words"
    )


async def reach_by_messages(
    settings: Settings, engine: Engine, stack: AsyncExitStack, cache: ProbeCache | None, asked_at: float
) -> tuple[Cloud, Capabilities]:
    """Reach an endpoint that has another vocabulary, or nobody knows which, by its chat route, in text alone.

    Raises NotAnApi where it has none, and for a server of our own, which was started for one vocabulary.
    """
    if served_here(settings):
        raise NotAnApi("a server of our own takes no messages")
    async with AsyncExitStack() as opened:
        wire = wire_to(settings, settings.cloud or "")
        endpoint = Endpoint(wire, settings.cloud_model, settings.cache_salt, engine, None, cache)
        opened.push_async_callback(endpoint.aclose)
        capabilities = await endpoint.connect_by_messages(asked_at)
        stack.push_async_exit(opened.pop_all())
        return endpoint, capabilities


def findings_cache(words: Weights | VocabularyFile) -> ProbeCache:
    """Return where the findings about endpoints are kept."""
    return ProbeCache(findings_file(), words.vocabulary_digest)


def probe_cache(settings: Settings, words: Weights) -> ProbeCache | None:
    """Return where findings are kept; the bundled server has nothing to be found out about."""
    return None if served_here(settings) else findings_cache(words)


def wire_to(settings: Settings, url: str) -> Wire:
    """Return the wire to an address, with the key and the deadlines of the settings."""
    first_byte, read = settings.first_byte_timeout_s, settings.read_timeout_s
    deadlines = Timeouts(settings.connect_timeout_s, first_byte, read, settings.request_timeout_s)
    # A proxy of the environment is for the world outside; it would not find a server on this machine.
    key = endpoint_key(settings)
    hint = key_hint(settings.api_key_env, KEY_HINT, sent=key is not None)
    return Wire(url, key, deadlines, through_proxies=not is_loopback(url), key_hint=hint)
