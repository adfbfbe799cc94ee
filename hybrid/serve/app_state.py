"""What every route of the endpoint is given: the client, what was chosen at the start, and who watches."""

from __future__ import annotations

import asyncio
import difflib
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import SecretStr

from hybrid.errors import UsageError
from hybrid.policy import PRESETS
from hybrid.policy.presets import parse_policy
from hybrid.record.conversation import Prompt
from hybrid.run import AsyncClient, Event
from hybrid.serve.errors import ApiError
from hybrid.settings.config import Settings

# Models as callers name them: ``hybrid`` is the policy that was configured, ``hybrid:NAME[:NUMBER]`` another one.
#
# A policy has one grammar, that of ``--policy``; a caller that can choose nothing but a model's name chooses it so.

HYBRID = "hybrid"
NAMES = (HYBRID, *(f"{HYBRID}:{name}" for name in PRESETS))


def policy_named(model: str) -> str | None:
    """Return the policy that a model's name asks for; None: the one that was configured. Raises ApiError.

    >>> policy_named("hybrid:kl:0.5")
    'kl:0.5'
    """
    head, colon, policy = model.partition(":")
    if head == HYBRID and not colon:
        return None
    try:
        if head == HYBRID:
            parse_policy(policy)
            return policy
        why = f"there is no model called {model!r}"
    except UsageError as error:
        why = f"there is no model called {model!r}: {error}"
    near = difflib.get_close_matches(model, NAMES, 3, 0.5) or [HYBRID, f"{HYBRID}:local", f"{HYBRID}:cloud"]
    said = f"{why}; there are {', '.join(near)} (GET /v1/models names all)"
    raise ApiError(404, said, code="model_not_found", param="model")


def model_card(name: str, created: int, longest: int | None) -> dict[str, Any]:
    """Return what is told of a model; ``longest``: the tokens of its context, None: not known yet."""
    card: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": HYBRID}
    return card if longest is None else card | {"max_model_len": longest}


@dataclass(frozen=True)
class ServeOptions:
    """What is chosen when the endpoint is started, beside the settings of its client.

    ``key``: what callers must show; None: nothing (loopback only). ``hosts``: names that a Host header may have beside
    those of loopback. ``origins``: pages of other origins that may ask. ``shows_texts``: the monitor shows prompts and
    answers, not only counts.
    """

    host: str = "127.0.0.1"
    port: int = 8088
    key: SecretStr | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    shows_texts: bool = False


class Backend(Protocol):
    """The client behind the endpoint, which may still be loading its model."""

    @property
    def settings(self) -> Settings:
        """What the client is opened with; known before it is open."""
        ...

    @property
    def opened(self) -> AsyncClient | None:
        """The client, if it is open by now."""
        ...

    async def client(self) -> AsyncClient:
        """Return the client once it is open. Raises HybridError: why it cannot be."""
        ...


class AnswerObserver(Protocol):
    """Whoever watches one answer."""

    def observe(self, event: Event) -> None:
        """Take what happened. Never waits."""
        ...

    def end(self, why: str | None = None, reason: str | None = None) -> None:
        """Take that nothing more comes: the answer is finished (None), failed, or was left; a sentence says which.

        ``reason``: the same in words that quote nobody, for whoever is to see no text.
        """
        ...


class ServerObserver(Protocol):
    """Whoever watches all answers: the monitor and the metrics."""

    def begin(self, answer_id: str, model: str, prompt: Prompt | None = None) -> AnswerObserver:
        """Begin to watch an answer. ``model``: as the caller named it. ``prompt`` None: it is not to be shown."""
        ...


@dataclass(frozen=True)
class AppState:
    """One endpoint. A Starlette route finds it as ``request.app.state.served``.

    ``reading``: held while a long body is read, since what JSON says in three bytes takes 70 in memory.
    """

    backend: Backend
    options: ServeOptions
    watch: ServerObserver
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
