"""Settings in, a client out. It knows which bundled models are the default."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from anyio.from_thread import start_blocking_portal

from hybrid.assemble.prices import known_price
from hybrid.assemble.reaching import PROBE, probe_cache, reach, reach_by_messages, served_here
from hybrid.assemble.relay import make_relayer, relay_settings
from hybrid.cloud import Capabilities, Cloud
from hybrid.config import OpenArguments, Settings
from hybrid.endpoint_key import endpoint_key
from hybrid.engine import Engine, Worker
from hybrid.engine.llama import Weights
from hybrid.engine.model_folders import models_on_disk
from hybrid.engine.noise import LocalNoise, NoiseCache, measure
from hybrid.engine.real_models import check_installed, check_model_name, model_file
from hybrid.engine.speed import drafting_ms
from hybrid.errors import EngineError, UsageError
from hybrid.model_names import BUNDLED, MODELS, NAMED
from hybrid.run import AsyncClient, Client, LocalModel
from hybrid.run.composition import check_effect, check_endpoint, check_pair, policy_of
from hybrid.run.deferral import PairSource
from hybrid.run.known_families import KnownFamilies
from hybrid.run.pair_facts import PairFacts
from hybrid.run.pair_record import pair_record
from hybrid.sources import checked, ledger_file, load, models_file
from hybrid.spend import Account, MemoryLedger, endpoint_id, usd_to_nanousd
from hybrid.spend.durable import FileLedger

BUNDLED_LOCAL = MODELS / "small.gguf"
# The speed and the noise of a model of so many parameters are measured whenever it is opened (20 ms for the bundled
# small one, 75 ms for the large one); of others by answers and by ``hybrid probe``, for nobody should wait for it.
MEASURED_AT_ONCE = 2_000_000
# So many models of this disk are named in a sentence; ``hybrid models list`` names all.
MOST_NAMED = 5


def open(  # noqa: A001  (hybrid.open is the front door's name)
    *, config: Path | str | None = None, **flags: Unpack[OpenArguments]
) -> ClientOpener:
    """Prepare a client: ``with`` gives a blocking one, ``async with`` an asynchronous one.

    Flags are the settings of ``hybrid.config``; what is not given comes from ``HYBRID_*`` variables, then from
    files (``hybrid.sources`` says which; ``config`` is read instead of the user's own), then from the defaults: the
    bundled pair, the large model behind a server started for it.

    Raises UsageError at once for settings that cannot be, for an endpoint without a local model of its vocabulary, for
    a local model's name that no model has, and for flags that change nothing in the policy beside them, or without an
    endpoint; EngineError where the local model cannot be used: at once where its folder tells, else on entering. Flags
    without a policy are defaults for the answers, which may name one.
    """
    settings = load(config=config, **flags)
    check_endpoint(settings, flags)
    _mind_pair(settings, config=config, **flags)
    if flags.get("policy") is not None:
        check_effect(settings, flags)
    return checked(ClientOpener, settings, config=config, **flags)


def _mind_pair(settings: Settings, **sources: Any) -> None:
    """Raise UsageError for an endpoint without a local model; its sentence names those that were found on disk."""
    try:
        checked(check_pair, settings, **sources)
    except UsageError as error:
        names = [model.name for model in models_on_disk() if not model.problem]
        if not names:
            raise
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        msg = f"{error}; found on this disk: {', '.join(names[:MOST_NAMED])}{more}"
        raise UsageError(msg) from None


class ClientOpener:
    """A client that is about to be opened."""

    def __init__(self, settings: Settings, *, shipped_only: bool = False) -> None:
        """Check what can be checked without opening anything. ``shipped_only``: as ``PairFacts`` has it."""
        self.settings, self._shipped_only = settings, shipped_only
        policy_of(settings)
        if settings.local is not None:
            check_model_name(str(settings.local))
        check_installed(str(settings.cloud))
        if not settings.offline:
            endpoint_key(settings)
        relay_settings(settings)
        self._price, self._prices = known_price(settings)
        self._cap = usd_to_nanousd(settings.cap, "cap") if settings.cap is not None else None
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
        weights = await worker.do(lambda _: Weights(path, gpu_layers=settings.gpu_layers, kv_type=settings.kv_type))
        stack.callback(weights.close)
        _mind_length(weights, settings.ctx)
        # With the bundled server on the same machine, one thread each: two that spin for one core stand still.
        threads = settings.threads or (1 if served_here(settings) else None)
        contexts = await self._contexts(weights, worker, threads, stack)
        engine, account = contexts[0][0], self.account(stack)

        async def connect(asked_at: float | None = None) -> tuple[Cloud, Capabilities]:
            cloud, capabilities = await reach(settings, engine, stack, probe_cache(settings, weights), asked_at)
            self.learn(account, capabilities)
            return cloud, capabilities

        async def by_messages(asked_at: float) -> tuple[Cloud, Capabilities]:
            cache = probe_cache(settings, weights)
            cloud, capabilities = await reach_by_messages(settings, engine, stack, cache, asked_at)
            self.learn(account, capabilities)
            return cloud, capabilities

        noise = await worker.do(lambda _: _local_noise(weights, engine))
        pair = await worker.do(lambda _: pair_record(settings.cloud, path))
        at_once = weights.num_parameters <= MEASURED_AT_ONCE
        speed = await worker.do(lambda _: drafting_ms(engine, engine.tokenize(PROBE)) if at_once else None)
        # Of the bundled models nobody needs to know where they lie, unless layers were asked for.
        told = weights.memory(settings.ctx, len(contexts)).notes if settings.gpu_layers or not at_once else ()
        notes = (*told, *_told_of_contexts(len(contexts), settings.parallel))
        families = KnownFamilies.of_bundled() if _is_bundled_pair(settings) else None
        local = LocalModel(contexts, noise.nats, noise.shift, speed, notes, families)
        facts = PairFacts.of(path, settings.cloud, lambda: probe_cache(settings, weights))
        facts = replace(facts, shipped_only=self._shipped_only)
        planners = PairSource(facts)
        client = self._client = AsyncClient(local, connect, account, settings, pair, planners, by_messages)

        async def model() -> str:
            return (await client.capabilities()).model

        client.relayer = make_relayer(settings, account, model, stack)
        return client

    async def _contexts(
        self, weights: Weights, worker: Worker, threads: int | None, stack: AsyncExitStack
    ) -> list[tuple[Engine, Worker]]:
        """Open as many contexts as are wanted and memory allows, each with a thread of its own; ``worker`` the first's.

        Raises EngineError where not even one can be opened.
        """
        ctx, contexts = self.settings.ctx, list[tuple[Engine, Worker]]()
        for number in range(weights.contexts_that_fit(ctx, self.settings.parallel)):
            own = Worker(f"hybrid-engine-{number}") if number else worker
            if number:
                stack.callback(own.close)
            try:
                engine = await own.do(lambda _: weights.context(ctx, threads))
            except EngineError:
                if not contexts:
                    raise
                break  # what is free is an estimate: another program may have taken it
            stack.callback(engine.close)
            contexts.append((engine, own))
        return contexts

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
        if path is None or served_here(self.settings):
            return Account(self._price, MemoryLedger(), endpoint, self._cap, self.settings.spender)
        ledger = FileLedger(path.expanduser())
        stack.push_async_callback(asyncio.to_thread, ledger.close)
        return Account(self._price, ledger, endpoint, self._cap, self.settings.spender)


def _is_bundled_pair(settings: Settings) -> bool:
    """Whether both models are bundled: beside an endpoint, whoever names the small one knows what it is."""
    local = settings.local is None or str(settings.local) in BUNDLED
    return local and (settings.cloud is None or settings.cloud in BUNDLED)


def _local_noise(weights: Weights, engine: Engine) -> LocalNoise:
    """Return what is kept of the local model's noise, or measure it where that is done at once, or assume it."""
    with contextlib.suppress(OSError, UsageError):  # no file, or no home to keep one in
        cache, placed = NoiseCache(models_file()), weights.placement
        known = cache.read(weights.path, placed.on_gpu, weights.kv_type)
        if known is None and placed.on_gpu == placed.total:
            known = cache.read(weights.path, -1, weights.kv_type)  # as earlier programs kept "all of them"
        if known is not None:
            return known
    return measure(engine, engine.tokenize(PROBE)) if weights.num_parameters <= MEASURED_AT_ONCE else LocalNoise()


def _told_of_contexts(num: int, wanted: int) -> tuple[str, ...]:
    """Return a sentence where memory allows fewer contexts than were wanted."""
    if num == wanted:
        return ()
    mend = "a lower --ctx or a smaller --kv-type fits more"
    return (f"memory has room for {num} of {wanted} contexts, so {num} at a time are answered ({mend})",)


def _mind_length(weights: Weights, ctx: int) -> None:
    """Raise UsageError for a longer context than a model was trained with: llama.cpp opens it, and nonsense follows."""
    if (longest := weights.longest_context) is not None and ctx > longest:
        msg = f"ctx: {ctx} tokens are more than the {longest} that {weights.path} was trained with"
        raise UsageError(msg)
