"""Where requests go that no hybrid can honour: the chat route of the cloud, or that of ``[relay]``.

The law (``tests/test_relay_settings.py``): a key goes to the origin it was named for, and to no other. Without a key
variable of its own a relay to another scheme, host or port than the cloud's sends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from hybrid.assemble.prices import known_price
from hybrid.assemble.reaching import served_here
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.wire import Wire
from hybrid.config import Settings
from hybrid.endpoint_address import is_loopback
from hybrid.endpoint_key import endpoint_key, key_hint
from hybrid.errors import UsageError
from hybrid.run.relaying import Relayer, RelayTarget
from hybrid.run.retrying import BreakerConfig, EndpointHealth, RetryPolicy
from hybrid.sources import ledger_file
from hybrid.spend import Account, endpoint_id, usd_to_nanousd
from hybrid.spend.durable import FileLedger

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
    ledger = FileLedger(path.expanduser())
    stack.push_async_callback(asyncio.to_thread, ledger.close)
    cap = usd_to_nanousd(settings.cap, "cap") if settings.cap is not None else None
    return Account(price, ledger, endpoint, cap, settings.spender)


def _origin(url: str | None) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
