"""The composition root: settings in, running objects out. It knows which bundled models are the default."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal
from pydantic import SecretStr

from hybrid.cloud import Capabilities, Cloud
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.probe import Probe, paid_from
from hybrid.cloud.probe_result import FlagAdvice, ProbeCache, ProbeResult, apply_result, flag_advice
from hybrid.cloud.wire import KEY_HINT, Wire
from hybrid.config import OpenArguments, Settings
from hybrid.engine import ChatVocabulary, Engine, Worker
from hybrid.engine.llama import Weights
from hybrid.engine.noise import MEASURED, LocalNoise, NoiseCache, measure
from hybrid.engine.real_models import check_installed, model_file
from hybrid.engine.speed import drafting_ms
from hybrid.errors import Unreachable, UsageError
from hybrid.model_names import MODELS, NAMED
from hybrid.run import AsyncClient, Client, LocalModel
from hybrid.run.composition import check_effect, check_endpoint, policy_of
from hybrid.run.deferral import PairSource
from hybrid.run.pair_facts import PairFacts
from hybrid.run.pair_record import JudgedTokens, pair_record, seen_of_pair
from hybrid.sources import checked, findings_file, ledger_file, load, models_file, price_file
from hybrid.spend import Account, MemoryLedger, Price, PriceFile, endpoint_id, usd_to_nanousd
from hybrid.spend.durable import FileLedger
from hybrid.types import Ids, Message

BUNDLED_LOCAL, BUNDLED_CLOUD = MODELS / "small.gguf", MODELS / "large.gguf"
# What the two vocabularies are compared on: digits, capitals, spaces in a row, a line break, more than one script.
PROBE = 'The 3 boxes hold 12345 pens.\n  {"key": "value"} é ß 中 x^2 + C'
STUB_STARTS_WITHIN_S = 60.0
# The speed and the noise of a model of so many parameters are measured whenever it is opened (20 ms for the bundled
# small one, 75 ms for the large one); of others by answers and by ``hybrid probe``, for nobody should wait for it.
MEASURED_AT_ONCE = 2_000_000
# The bundled server is a process of ours on this machine: nobody sends a bill for it.
OWN = Price(0, 0, 0, source="the bundled server runs on this machine")


def open(  # noqa: A001  (hybrid.open is the front door's name)
    *, config: Path | str | None = None, **flags: Unpack[OpenArguments]
) -> ClientOpener:
    """Prepare a client: ``with`` gives a blocking one, ``async with`` an asynchronous one.

    Flags are the settings of ``hybrid.config``; what is not given comes from ``HYBRID_*`` variables, then from
    files (``hybrid.sources`` says which; ``config`` is read instead of the user's own), then from the defaults: the
    bundled pair, the large model behind a server started for it.

    Raises UsageError at once for settings that cannot be, and for flags that change nothing in the policy beside them,
    or without an endpoint; EngineError on entering where the local model cannot be used. Flags without a policy are
    defaults for the answers, which may name one.
    """
    settings = load(config=config, **flags)
    check_endpoint(settings, flags)
    if flags.get("policy") is not None:
        check_effect(settings, flags)
    return checked(ClientOpener, settings, config=config, **flags)


class ClientOpener:
    """A client that is about to be opened."""

    def __init__(self, settings: Settings, *, shipped_only: bool = False) -> None:
        """Check what can be checked without opening anything. ``shipped_only``: as ``PairFacts`` has it."""
        self.settings, self._shipped_only = settings, shipped_only
        policy_of(settings)
        for name in (settings.local, settings.cloud):
            check_installed(str(name))
        if not settings.offline:
            _key(settings)
        self._price, self._prices = known_price(settings)
        self._cap = usd_to_nanousd(settings.cap) if settings.cap is not None else None
        self._stack = AsyncExitStack()
        self._blocking = ExitStack()
        self._client: AsyncClient | None = None

    if not TYPE_CHECKING:  # a type checker says it by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Say how a client is had."""
            msg = f"no {name!r} before the client is open: with hybrid.open(...) as client (or async with)"
            raise AttributeError(msg)

    async def __aenter__(self) -> AsyncClient:
        """Load the local model; the cloud is reached at the first question that needs it."""
        try:
            return await self._open(self._stack)
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop what is still being answered, then close everything, the bundled server included."""
        try:
            if self._client is not None:
                await self._client.aclose()
        finally:
            await self._stack.aclose()

    def __enter__(self) -> Client:
        """Open on an event loop of its own, in a thread."""
        portal = self._blocking.enter_context(start_blocking_portal())
        try:
            return Client(self._blocking.enter_context(portal.wrap_async_context_manager(self)), portal)
        except BaseException:
            self._blocking.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close everything and the loop."""
        self._blocking.close()

    async def _open(self, stack: AsyncExitStack) -> AsyncClient:
        settings = self.settings
        worker = Worker("hybrid-engine")
        stack.callback(worker.close)
        path = await worker.do(lambda _: model_file(settings.local or BUNDLED_LOCAL))
        weights = await worker.do(lambda _: Weights(path, gpu_layers=settings.gpu_layers))
        stack.callback(weights.close)
        _mind_length(weights, settings.ctx)
        # With the bundled server on the same machine, one thread each: two that spin for one core stand still.
        threads = settings.threads or (1 if _served_here(settings) else None)
        engine = await worker.do(lambda _: weights.context(settings.ctx, threads))
        stack.callback(engine.close)
        account = self.account(stack)

        async def connect(asked_at: float | None = None) -> tuple[Cloud, Capabilities]:
            cloud, capabilities = await _connect(settings, engine, stack, _probe_cache(settings, weights), asked_at)
            self.learn(account, capabilities)
            return cloud, capabilities

        noise = await worker.do(lambda _: _local_noise(weights, engine, settings.gpu_layers))
        pair = await worker.do(lambda _: pair_record(settings.cloud, path))
        at_once = weights.num_parameters <= MEASURED_AT_ONCE
        speed = await worker.do(lambda _: drafting_ms(engine, engine.tokenize(PROBE)) if at_once else None)
        local = LocalModel(engine, worker, noise.nats, noise.shift, speed)
        facts = PairFacts.of(path, settings.cloud, lambda: _probe_cache(settings, weights))
        facts = replace(facts, shipped_only=self._shipped_only)
        self._client = AsyncClient(local, connect, account, settings, pair, PairSource(facts))
        return self._client

    def learn(self, account: Account, capabilities: Capabilities) -> None:
        """Take the price that is only known once the endpoint has said which model it serves."""
        cloud = self.settings.cloud
        if self._prices and cloud and (price := self._prices.price(cloud, capabilities.model)):
            account.set_price(price)

    def account(self, stack: AsyncExitStack) -> Account:
        """Pay from the ledger's file. It is neither read nor made before a request that costs something would leave.

        Nobody charges for the bundled server: a price that is stated for it asks what answers would cost, so it counts
        against this client's own cap, in memory, and never against the caps that the user keeps.
        """
        path, cloud = ledger_file(self.settings), self.settings.cloud
        endpoint = "bundled" if cloud is None or cloud in NAMED else endpoint_id(cloud)
        if path is None or _served_here(self.settings):
            return Account(self._price, MemoryLedger(), endpoint, self._cap, self.settings.spender)
        ledger = FileLedger(path.expanduser())
        stack.push_async_callback(asyncio.to_thread, ledger.close)
        return Account(self._price, ledger, endpoint, self._cap, self.settings.spender)


def known_price(settings: Settings) -> tuple[Price | None, PriceFile | None]:
    """Return the price, if it is known before the endpoint is asked, and else the file that may hold it."""
    if settings.price:
        return Price.parse(settings.price), None
    if settings.cloud is None or settings.cloud in NAMED:
        return OWN, None
    path = price_file(settings)
    prices = PriceFile.read(path) if path else None
    return (prices.price(settings.cloud, settings.cloud_model) if prices and settings.cloud_model else None), prices


def _served_here(settings: Settings) -> Path | str | None:
    """Return the model that a server of our own is started for: none named, or one by its name; None for a URL."""
    return BUNDLED_CLOUD if settings.cloud is None else settings.cloud if settings.cloud in NAMED else None


def served_model(settings: Settings) -> str | None:
    """Return what a server of our own calls its model; None where an endpoint is named by its address."""
    served = _served_here(settings)
    return None if served is None else model_file(served).stem


async def _connect(
    settings: Settings,
    engine: Engine,
    stack: AsyncExitStack,
    probe_cache: ProbeCache | None = None,
    asked_at: float | None = None,
) -> tuple[Cloud, Capabilities]:
    """Reach the endpoint (starting the bundled one where none is named) and hear what it can do."""
    async with AsyncExitStack() as opened:
        url, dialect = settings.cloud or "", settings.dialect
        if served := _served_here(settings):
            server = bundled_server(await asyncio.to_thread(model_file, served))
            url, asked_at, dialect = await opened.enter_async_context(server), None, "vllm"  # no waiting for an answer
        wire = _wire(settings, url)
        endpoint = Endpoint(wire, settings.cloud_model, settings.cache_salt, engine, dialect, probe_cache)
        opened.push_async_callback(endpoint.aclose)
        capabilities = await endpoint.connect(PROBE, engine.tokenize(PROBE), asked_at)
        stack.push_async_exit(opened.pop_all())  # it works: from here on it closes with the client
        return endpoint, capabilities


def _probe_cache(settings: Settings, words: Weights) -> ProbeCache | None:
    """Return where findings are kept; the bundled server has nothing to be found out about."""
    return None if _served_here(settings) else ProbeCache(findings_file(), words.vocabulary_digest)


def _local_noise(weights: Weights, engine: Engine, gpu_layers: int) -> LocalNoise:
    """Return what is kept of the local model's noise, or measure it where that is done at once, or assume it."""
    with contextlib.suppress(OSError, UsageError):  # no file, or no home to keep one in
        if (known := NoiseCache(models_file()).read(weights.path, gpu_layers)) is not None:
            return known
    return measure(engine, engine.tokenize(PROBE)) if weights.num_parameters <= MEASURED_AT_ONCE else LocalNoise()


def _mind_length(weights: Weights, ctx: int) -> None:
    """Raise UsageError for a longer context than a model was trained with: llama.cpp opens it, and nonsense follows."""
    if (longest := weights.longest_context) is not None and ctx > longest:
        msg = f"ctx: {ctx} tokens are more than the {longest} that {weights.path} was trained with"
        raise UsageError(msg)


def _measured(weights: Weights, threads: int | None) -> LocalNoise:
    """Measure the local model's noise in a context of its own."""
    with contextlib.closing(weights.context(MEASURED, threads)) as engine:
        return measure(engine, engine.tokenize(PROBE))


@dataclass(frozen=True)
class ProbeReport:
    """What was found, what the endpoint can do by that, the local model's noise, and flags that would help.

    ``price``: what is known of it, None: nothing; ``charged_nanousd``: the charges of its questions at that price.
    ``seen``: the tokens that the model there has judged, by judge.
    """

    findings: ProbeResult
    can: Capabilities
    local_noise: LocalNoise
    hints: tuple[FlagAdvice, ...] = ()
    price: Price | None = None
    charged_nanousd: int = 0
    seen: Mapping[str, JudgedTokens] = field(default_factory=dict)


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
        local = await asyncio.to_thread(model_file, settings.local or BUNDLED_LOCAL)
        words = await asyncio.to_thread(Weights, local, gpu_layers=settings.gpu_layers)
        stack.callback(words.close)
        url, served = settings.cloud, _served_here(settings)
        if served:
            url = await stack.enter_async_context(bundled_server(await asyncio.to_thread(model_file, served)))
        wire = _wire(settings, url)
        endpoint = Endpoint(wire, settings.cloud_model, settings.cache_salt, words, settings.dialect)
        stack.push_async_callback(endpoint.aclose)
        tell("what kind of endpoint this is")
        said = await endpoint.discover(PROBE, words.tokenize(PROBE))
        tell("the local model's own noise")
        noise = await asyncio.to_thread(_measured, words, settings.threads)
        account = opening.account(stack)
        opening.learn(account, said)
        purse = await stack.enter_async_context(account.open_budget(settings.conversation))
        turns = (Message("user", "What is 47 + 86?"),)
        timed = account.price is None or account.price.free  # else what a token costs is money
        asked = Probe(endpoint, _rendered(words, turns), turns, partial(paid_from, purse), tell, timed=timed)
        findings = await asked.run(said, wire.url)
        if not served:  # our own server has another address the next time
            ProbeCache(findings_file(), words.vocabulary_digest).write(findings)
        NoiseCache(models_file()).write(words.path, settings.gpu_layers, noise)
        advice = flag_advice(findings, settings.cloud_top_k)
        charged = purse.charged_nanousd
        seen = await asyncio.to_thread(seen_of_pair, settings.cloud, words.path, said.model)
        return ProbeReport(findings, apply_result(said, findings), noise, advice, account.price, charged, seen)


def _rendered(words: ChatVocabulary, turns: tuple[Message, ...]) -> Ids:
    """Return the conversation as the model's template writes it, or its text where there is no template."""
    try:
        return words.render(turns)
    except UsageError:
        return words.tokenize(turns[0].content)


def _wire(settings: Settings, url: str) -> Wire:
    first_byte, read = settings.first_byte_timeout_s, settings.read_timeout_s
    deadlines = Timeouts(settings.connect_timeout_s, first_byte, read, settings.request_timeout_s)
    # A proxy of the environment is for the world outside; it would not find a server on this machine.
    key = _key(settings)
    hint = _key_hint(settings.api_key_env, sent=key is not None)
    return Wire(url, key, deadlines, through_proxies=not _is_loopback(url), key_hint=hint)


def _is_loopback(url: str) -> bool:
    """Whether an address leads to this machine: localhost, 127.0.0.0/8 or ::1."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name: whether it leads here, only a look-up could tell
        return False


def _key(settings: Settings) -> SecretStr | None:
    """Read the endpoint's key; None without one, and for a server of our own.

    Raises UsageError, without showing it, where no header could carry it, and where the variable that was named for it
    holds none; "" names no variable.
    """
    variable = settings.api_key_env
    if _served_here(settings):
        return None
    key = os.environ.get(variable, "").strip()
    if any(not "!" <= char <= "~" for char in key):
        msg = f"the key in {variable} holds characters that no key has (spaces, line breaks or others than ASCII)"
        raise UsageError(msg)
    if not key and variable not in {"", Settings.model_fields["api_key_env"].default}:
        msg = f"{variable}, which is named as the key's variable, {_missing(variable)}"
        raise UsageError(msg)
    return SecretStr(key) if key else None


def _key_hint(variable: str, *, sent: bool) -> str:
    """Say of the key what mends a 401: none was sent, or it is the wrong one."""
    return f"the key in {variable} was sent and turned down" if sent else f"{variable} {_missing(variable)}: {KEY_HINT}"


def _missing(variable: str) -> str:
    return "is empty" if variable in os.environ else "is not set"


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


__all__ = ["ClientOpener", "bundled_server", "open"]
