"""Reach an endpoint: which one the settings name, the wire to it, and whether it speaks the local vocabulary.

What sends is imported where a wire is made: a local answer does without an HTTP library.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

from hybrid.cloud import Capabilities, Cloud
from hybrid.cloud.probe_result import ProbeCache
from hybrid.cloud.translated import RenumberedCloud, TranslatedCloud, numbers_of
from hybrid.engine import Engine
from hybrid.engine.llama import Weights
from hybrid.engine.real_models import model_file
from hybrid.engine.vocabulary import VocabularyFile, share_words
from hybrid.errors import NotAnApi, Unreachable, UsageError, VocabularyMismatch
from hybrid.run.retrying import BreakerConfig, EndpointHealth, RetryPolicy
from hybrid.settings.config import Settings
from hybrid.settings.names import MODELS, NAMED, is_loopback
from hybrid.settings.sources import cache_file, ledger_file, price_file
from hybrid.spend import Account, Price, PriceFile, endpoint_id, usd_to_nanousd

if TYPE_CHECKING:
    from hybrid.cloud.endpoint import Endpoint
    from hybrid.cloud.wire import Wire
    from hybrid.run.relaying import Relayer

# What a request costs, as far as it is known before the endpoint is asked.

# The bundled server is a process of ours on this machine: nobody sends a bill for it.
OWN = Price(0, 0, 0, source="the bundled server runs on this machine")


def known_price(settings: Settings) -> tuple[Price | None, PriceFile | None]:
    """Return the price, if it is known before the endpoint is asked, and else the file that may hold it."""
    if settings.price:
        return Price.parse(settings.price), None
    if settings.cloud is None or settings.cloud in NAMED:
        return OWN, None
    path = price_file(settings)
    prices = PriceFile.read(path) if path else None
    return (prices.price(settings.cloud, settings.cloud_model) if prices and settings.cloud_model else None), prices


# A server of our own: ``python -m server_stub`` in a child process, which ends with us.

BUNDLED_CLOUD = MODELS / "large.gguf"
STUB_STARTS_WITHIN_S = 60.0


@asynccontextmanager
async def bundled_server(model: Path = BUNDLED_CLOUD, *flags: str) -> AsyncIterator[str]:
    """Serve a model from a child process and yield its URL. The child ends with us, however we end.

    ``flags`` are further ones of ``python -m server_stub``.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "server_stub", "--model", str(model), "--port", "0"),
        *("--threads", "1", "--until-stdin-closes", *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is ours to handle: the child ends when its standard input closes
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # what Windows has of sessions
    )
    try:
        yield await _address(process)
    finally:
        if process.stdin:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    line = b""
    if process.stdout:
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), STUB_STARTS_WITHIN_S)
    before, found, url = line.decode().strip().partition("listening on ")
    if before or not found:
        msg = "the bundled server did not start"
        raise Unreachable(msg, sent=False)
    return url


# The endpoint's key: read from the variable that the settings name, and never kept anywhere else.
#
# The law: a variable that is named and holds no key is refused before anything is opened (``tests/test_assemble.py``).


def endpoint_key(settings: Settings) -> SecretStr | None:
    """Read the endpoint's key; None without one, and for a server of our own.

    Raises UsageError, without showing it, where no header could carry it, and where the variable that was named for it
    holds none; "" names no variable.
    """
    variable = settings.api_key_env
    if settings.cloud is None or settings.cloud in NAMED:
        return None
    key = os.environ.get(variable, "").strip()
    if any(not "!" <= char <= "~" for char in key):
        msg = f"the key in {variable} holds characters that no key has (spaces, line breaks or others than ASCII)"
        raise UsageError(msg)
    if not key and variable not in {"", Settings.model_fields["api_key_env"].default}:
        msg = f"{variable}, which is named as the key's variable, {_missing(variable)}"
        raise UsageError(msg)
    return SecretStr(key) if key else None


def key_hint(variable: str, mend: str, *, sent: bool) -> str:
    """Say of the key what mends a 401: none was sent (then ``mend``), or it is the wrong one."""
    return f"the key in {variable} was sent and turned down" if sent else f"{variable} {_missing(variable)}: {mend}"


def _missing(variable: str) -> str:
    return "is empty" if variable in os.environ else "is not set"


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
        endpoint = _endpoint(settings, url, theirs or engine, dialect, cache)
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
        endpoint = _endpoint(settings, settings.cloud or "", engine, None, cache)
        opened.push_async_callback(endpoint.aclose)
        capabilities = await endpoint.connect_by_messages(asked_at)
        stack.push_async_exit(opened.pop_all())
        return endpoint, capabilities


def _endpoint(
    settings: Settings, url: str, words: Engine | VocabularyFile, dialect: str | None, cache: ProbeCache | None
) -> Endpoint:
    from hybrid.cloud.endpoint import Endpoint  # noqa: PLC0415

    return Endpoint(wire_to(settings, url), settings.cloud_model, settings.cache_salt, words, dialect, cache)


def findings_cache(words: Weights | VocabularyFile) -> ProbeCache:
    """Return where the findings about endpoints are kept."""
    return ProbeCache(cache_file(), words.vocabulary_digest)


def probe_cache(settings: Settings, words: Weights) -> ProbeCache | None:
    """Return where findings are kept; the bundled server has nothing to be found out about."""
    return None if served_here(settings) else findings_cache(words)


def wire_to(settings: Settings, url: str) -> Wire:
    """Return the wire to an address, with the key and the deadlines of the settings."""
    from hybrid.cloud.bounds import Timeouts  # noqa: PLC0415
    from hybrid.cloud.wire import KEY_HINT, Wire  # noqa: PLC0415

    first_byte, read = settings.first_byte_timeout_s, settings.read_timeout_s
    deadlines = Timeouts(settings.connect_timeout_s, first_byte, read, settings.request_timeout_s)
    # A proxy of the environment is for the world outside; it would not find a server on this machine.
    key = endpoint_key(settings)
    hint = key_hint(settings.api_key_env, KEY_HINT, sent=key is not None)
    return Wire(url, key, deadlines, through_proxies=not is_loopback(url), key_hint=hint)


# Where requests go that no hybrid can honour: the chat route of the cloud, or that of ``[relay]``.
#
# The law (``tests/test_relay_settings.py``): a key goes to the origin it was named for, and to no other. Without a key
# variable of its own a relay to another scheme, host or port than the cloud's sends none.

# A caller waits as long as its own deadline says (600 s in OpenAI's client). A model that thinks may be silent for
# minutes, and a whole answer comes at once.
RELAY_WAIT_S = 600.0
HINT = "api_key_env in [relay] names the variable that holds the key"


def relay_settings(settings: Settings) -> Settings | None:
    """Return the settings of the endpoint that is relayed to, as if it was the cloud; None: there is none.

    Raises UsageError where they are not whole, and for a key variable that holds none.
    """
    url = settings.relay_url or settings.cloud
    if settings.offline or url is None or (settings.relay_url is None and served_here(settings)):
        return None
    same = settings.relay_url is None
    model = settings.relay_model or (settings.cloud_model if same else None)
    if not same and model is None:
        raise UsageError("relay_url needs relay_model beside it: the model that is asked there")
    alike = same and settings.relay_model is None
    key = settings.relay_api_key_env or (settings.api_key_env if _origin(url) == _origin(settings.cloud) else "")
    price = settings.relay_price or (settings.price if alike else None)
    named, paid = {"cloud": url, "cloud_model": model}, {"api_key_env": key, "price": price}
    found = settings.model_copy(update={**named, **paid})
    endpoint_key(found)
    return found


def make_relayer(
    settings: Settings, account: Account, model: Callable[[], Awaitable[str]], stack: AsyncExitStack
) -> Relayer | None:
    """Return what relays; None: there is nowhere to relay to. ``model``: what the cloud's endpoint calls its own."""
    there = relay_settings(settings)
    if there is None or there.cloud is None:
        return None
    from hybrid.cloud.bounds import Timeouts  # noqa: PLC0415
    from hybrid.cloud.wire import Wire  # noqa: PLC0415
    from hybrid.run.relaying import Relayer, RelayTarget  # noqa: PLC0415

    key, url, named = endpoint_key(there), there.cloud, there.cloud_model
    hint = key_hint(there.api_key_env, HINT, sent=key is not None) if there.api_key_env else HINT
    waits = Timeouts(settings.connect_timeout_s, RELAY_WAIT_S, RELAY_WAIT_S, RELAY_WAIT_S)
    wire = Wire(url, key, waits, through_proxies=not is_loopback(url), key_hint=hint, paced=True)
    stack.push_async_callback(wire.aclose)

    async def its_model() -> str:
        return named or await model()

    retries = RetryPolicy(settings.retries, min(settings.first_byte_timeout_s, settings.request_timeout_s))
    health = EndpointHealth(retries, BreakerConfig(cool_down_s=settings.cool_down_s))
    paid = _account(settings, there, account, stack)
    return Relayer(RelayTarget(wire, paid, its_model, settings.relay_image_tokens), health)


def _account(settings: Settings, there: Settings, account: Account, stack: AsyncExitStack) -> Account:
    """Return what pays: the same ledger and caps as for the cloud, at the price of what is asked.

    Beside a server of our own, which is free and whose money is none, it is the user's own ledger.
    """
    alike = settings.relay_url is None and settings.relay_model is None and settings.relay_price is None
    if alike or there.cloud is None:
        return account
    price, endpoint = known_price(there)[0], endpoint_id(there.cloud)
    path = ledger_file(settings)
    if path is None or not served_here(settings):
        return account.beside(price, endpoint)
    return kept_account(path, price, endpoint, settings, stack)


def kept_account(path: Path, price: Price | None, endpoint: str, settings: Settings, stack: AsyncExitStack) -> Account:
    """Return what pays from the ledger's file, which closes with ``stack``."""
    from hybrid.spend.durable import FileLedger  # noqa: PLC0415  (what costs nothing is kept in no file)

    ledger = FileLedger(path.expanduser())
    stack.push_async_callback(asyncio.to_thread, ledger.close)
    cap = usd_to_nanousd(settings.cap, "cap") if settings.cap is not None else None
    return Account(price, ledger, endpoint, cap, settings.spender)


def _origin(url: str | None) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
