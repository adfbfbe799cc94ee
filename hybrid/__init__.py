"""A small model writes here, a large one in the cloud is asked only where it would disagree.

``hybrid.open(...)`` is the front door. Importing this package loads neither llama.cpp nor httpx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hybrid import errors
from hybrid.types import Message, Sampling

if TYPE_CHECKING:
    from hybrid.assemble import ClientOpener, open  # noqa: A004  (the front door's name)
    from hybrid.run import Answer, AsyncClient, Client, Token

__all__ = ["Answer", "AsyncClient", "Client", "ClientOpener", "Message", "Sampling", "Token", "errors", "open"]

_ROOMS = {"ClientOpener": "assemble", "open": "assemble"} | dict.fromkeys(
    ("Answer", "AsyncClient", "Client", "Token"), "run"
)


def __dir__() -> list[str]:
    """Name the front door's own names, those that are not loaded yet among them."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Load a room when something of it is first needed."""
    if name in _ROOMS:
        return getattr(import_module(f"hybrid.{_ROOMS[name]}"), name)
    msg = f"module 'hybrid' has no attribute {name!r}"
    raise AttributeError(msg)
