"""Settings in, a client out. It knows which bundled models are the default."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from hybrid.assemble.local_models import BUNDLED_LOCAL, first_model, further_models, open_local_models
from hybrid.assemble.reaching import (
    endpoint_key,
    kept_account,
    known_price,
    make_relayer,
    probe_cache,
    reach,
    reach_by_messages,
    relay_settings,
    served_here,
)
from hybrid.cloud import Capabilities, Cloud
from hybrid.engine.model_folders import models_on_disk
from hybrid.engine.real_models import check_installed, check_model_name
from hybrid.errors import UsageError
from hybrid.pairs.profile import PairIdentity, pair_record
from hybrid.run import AsyncClient, Client
from hybrid.run.composition import check_chain, check_effect, check_endpoint, check_pair, check_several, policy_of
from hybrid.run.contexts import DomainCheck
from hybrid.run.deferral import PlannerFactory
from hybrid.settings.config import OpenArguments, Settings
from hybrid.settings.names import BUNDLED, NAMED
from hybrid.settings.sources import checked, ledger_file, load
from hybrid.spend import Account, MemoryLedger, endpoint_id, usd_to_nanousd

# So many models of this disk are named in a sentence; ``hybrid models list`` names all.
MOST_NAMED = 5


def open(  # noqa: A001  (hybrid.open is the front door's name)
    *, config: Path | str | None = None, **flags: Unpack[OpenArguments]
) -> ClientOpener:
    """Prepare a client: ``with`` gives a blocking one, ``async with`` an asynchronous one.

    Flags are the settings of ``hybrid.settings.config``; what is not given comes from ``HYBRID_*`` variables, then from
    files (``hybrid.settings.sources`` says which; ``config`` is read instead of the user's own), then from the
    defaults: the bundled pair, the large model behind a server started for it.

    Raises UsageError at once for settings that cannot be, for an endpoint without a local model of its vocabulary, for
    a local model's name that no model has, and for flags that change nothing in the policy beside them, or without an
    endpoint; EngineError where the local model cannot be used: at once where its folder tells, else on entering. Flags
    without a policy are defaults for the answers, which may name one.
    """
    settings = load(config=config, **flags)
    check_endpoint(settings, flags)
    check_chain(settings, flags)
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
        """Check what can be checked without opening anything. ``shipped_only``: as ``PairIdentity`` has it."""
        self.settings, self._shipped_only = settings, shipped_only
        policy_of(settings)
        check_several(settings)
        for model in (first_model(settings), *further_models(settings)):
            if model != BUNDLED_LOCAL:
                check_model_name(str(model))
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
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415  (the asynchronous client needs none)

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
        families = DomainCheck.of_pair(str(settings.local)) if _is_bundled_pair(settings) else None
        # What sends is imported while the model's file maps.
        name = "hybrid.cloud.endpoint"
        sending = None if settings.offline else asyncio.create_task(asyncio.to_thread(import_module, name))
        models = await open_local_models(settings, families, stack)
        if sending:
            await sending
        weights, path, engine, account = models.weights, models.path, models.engine, self.account(stack)

        async def connect(asked_at: float | None = None) -> tuple[Cloud, Capabilities]:
            cloud, capabilities = await reach(settings, engine, stack, probe_cache(settings, weights), asked_at)
            self.learn(account, capabilities)
            return cloud, capabilities

        async def by_messages(asked_at: float) -> tuple[Cloud, Capabilities]:
            cache = probe_cache(settings, weights)
            cloud, capabilities = await reach_by_messages(settings, engine, stack, cache, asked_at)
            self.learn(account, capabilities)
            return cloud, capabilities

        # Counts are of one local model and a cloud; several that write as one are none of these.
        pair = None if models.experts else await asyncio.to_thread(pair_record, settings.cloud, path)
        facts = PairIdentity.of(path, settings.cloud, lambda: probe_cache(settings, weights), models.critic)
        facts = replace(facts, local=_pair_name(facts.local, models.experts, settings), shipped_only=self._shipped_only)
        planners = PlannerFactory(facts)
        client = self._client = AsyncClient(models.local, connect, account, settings, pair, planners, by_messages)

        async def model() -> str:
            return (await client.capabilities()).model

        client.relayer = make_relayer(settings, account, model, stack)
        with suppress(UsageError):  # no home to keep a file in
            probes = None if settings.cloud is None else probe_cache(settings, weights)
            kept = [each for each in (models.local.nearest, pair, probes) if each is not None]
            damage = await asyncio.to_thread(lambda: [each.store.damage for each in kept])
            client.notes += tuple(filter(None, damage))
        return client

    def learn(self, account: Account, capabilities: Capabilities) -> None:
        """Take the price that is only known once the endpoint has said which model it serves."""
        cloud = self.settings.cloud
        if self._prices and cloud and (price := self._prices.price(cloud, capabilities.model)):
            account.set_price(price)

    @property
    def endpoint(self) -> str:
        """The name of the cloud's endpoint: a URL without a password, or a model's own name."""
        cloud = self.settings.cloud
        return "bundled" if cloud is None else cloud if cloud in NAMED else endpoint_id(cloud)

    def account(self, stack: AsyncExitStack) -> Account:
        """Pay from the ledger's file. It is neither read nor made before a request that costs something would leave.

        Nobody charges for the bundled server: a price that is stated for it asks what answers would cost, so it counts
        against this client's own cap, in memory, and never against the caps that the user keeps.
        """
        path, cloud = ledger_file(self.settings), self.settings.cloud
        endpoint = "bundled" if cloud is None or cloud in NAMED else endpoint_id(cloud)
        if path is None or served_here(self.settings):
            return Account(self._price, MemoryLedger(), endpoint, self._cap, self.settings.spender)
        return kept_account(path, self._price, endpoint, self.settings, stack)


def _pair_name(local: str | None, experts: str | None, settings: Settings) -> str | None:
    """Return what names the local side of a pair where a score is kept; None: nothing is.

    It names a file, so that of several models it is a digest of theirs, and of how they write.
    """
    return local if experts is None else blake2b(f"{experts} {settings.mix}".encode(), digest_size=16).hexdigest()


def _is_bundled_pair(settings: Settings) -> bool:
    """Whether both models are bundled: beside an endpoint, whoever names the small one knows what it is."""
    local = (settings.local is None and not settings.experts) or str(settings.local) in BUNDLED
    return local and (settings.cloud is None or settings.cloud in BUNDLED)
