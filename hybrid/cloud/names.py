"""From a host's name to the first of its addresses that accepts a connection.

The law: a look-up that is given up keeps nobody waiting, not even the process at its end
(``tests/cloud/test_names.py``). asyncio looks names up in its executor, whose threads are joined at exit, and a
resolver may hang for half a minute. Knows no HTTP: the caller connects to an address.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, TypeVar

import anyio

T = TypeVar("T")
# How long one address has before the next is tried beside it (RFC 8305).
HEAD_START_S = 0.25


async def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses, one family after the other by turns. Raises OSError where there are none.

    A host that is an address is its own.
    """
    with suppress(ValueError):
        ip_address(host)
        return [host]
    rank: Counter[int] = Counter()
    ranked = []
    for family, *_, address in await _look_up(host, port):
        ranked.append((rank[family], str(address[0])))
        rank[family] += 1
    return [address for _, address in sorted(ranked, key=lambda pair: pair[0])]


async def _look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def tell(put: Callable[[Any], None], value: object) -> None:
        with suppress(RuntimeError):  # nobody is there any more: the loop is closed
            loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))

    def look_up() -> None:
        try:
            tell(answer.set_result, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            tell(answer.set_exception, error)
        except UnicodeError:  # a label that no name can hold
            tell(answer.set_exception, OSError(f"{host} is no host name"))

    threading.Thread(target=look_up, name="hybrid-resolver", daemon=True).start()
    return await answer


async def connect_first(
    connect: Callable[[str], Awaitable[T]], addresses: Sequence[str], close: Callable[[T], Awaitable[None]]
) -> T:
    """Return the first connection that comes about; an address gets a head start, no more, over the next.

    ``close`` ends a connection that came second. Raises what the first address raised where none lets us in.
    """
    opened: list[T] = []
    errors: list[Exception] = []

    async def attempt(address: str, over: anyio.Event) -> None:
        try:
            connection = await connect(address)
        except Exception as error:  # noqa: BLE001  (whatever it is, another address may do)
            errors.append(error)
        else:
            opened.append(connection)
            attempts.cancel_scope.cancel()
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as attempts:
            for address in addresses:
                attempts.start_soon(attempt, address, over := anyio.Event())
                with anyio.move_on_after(HEAD_START_S):
                    await over.wait()
    except BaseException:
        for connection in opened:
            await close(connection)
        raise
    for connection in opened[1:]:
        await close(connection)
    if not opened:
        # The group can take a cancellation from outside for its own, if both come at once: then nothing has failed.
        raise errors[0] if errors else asyncio.CancelledError
    return opened[0]
