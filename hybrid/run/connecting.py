"""Connecting once: the answers of a client that need the endpoint at the same time share one attempt and its outcome.

The law (``tests/run/test_connecting.py``): however many ask at once, there is one attempt at a time; what has failed is
told to all who waited for it, as one failure and not as many; where the one who connects is cancelled, the next does.

An answer that is one model's own text needs no common vocabulary. Where the endpoint's is another, or nobody can tell,
such an answer is asked for by messages, over a second connection; every other policy is refused, or finds out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hybrid.errors import CloudError, MissingCapability, NotAnApi, UsageError, VocabularyMismatch
from hybrid.policy import ABILITY_TEXT, PRESETS
from hybrid.run.cloud_verifier import Connect, Connection
from hybrid.run.composition import Decoding, with_parts
from hybrid.run.retrying import BreakerState

# How a client stands at a moment: its contexts, its line, its endpoint.


@dataclass(frozen=True)
class ClientStatus:
    """How a client stands at a moment.

    ``busy`` of its ``contexts`` are lent, and ``queued`` questions wait for one. ``breaker_left_s``: until the endpoint
    is asked again. ``drifts``: whether drafts of a pair that were kept are turned down far more often than expected;
    None: nothing is learned, so that nobody watches.
    """

    contexts: int
    busy: int
    queued: int
    breaker: BreakerState
    breaker_left_s: float
    drifts: bool | None


OTHER_WORDS = "compares token with token, and the cloud model has another vocabulary"


class SharedConnection:
    """The way to an endpoint, and the endpoint once it was reached."""

    def __init__(self, connect: Connect, by_messages: Connect | None = None) -> None:
        """Take how to connect; nothing is asked yet. ``by_messages``: how else, for what needs no vocabulary."""
        self._connect = connect
        self._by_messages = None if by_messages is None else SharedConnection(by_messages)
        self._connecting = asyncio.Lock()
        self._num_failed = 0
        self._failure: CloudError | None = None
        self._no_messages = False
        self.made: Connection | None = None
        """The connection; None: there is none yet."""

    async def make(self, asked_at: float) -> Connection:
        """Return the connection, made now where there is none. Raises CloudError.

        A failure that was waited for is raised as the same object: whoever counts failures counts it once.
        """
        known = self._num_failed
        async with self._connecting:
            if self.made is None:
                if self._failure is not None and self._num_failed > known:
                    raise self._failure
                try:
                    self.made = await self._connect(asked_at)
                except CloudError as error:
                    self._num_failed, self._failure = self._num_failed + 1, error
                    raise
        return self.made

    async def make_any(self, asked_at: float) -> Connection:
        """Return a connection to ask what the endpoint is: by messages where its vocabulary is another."""
        try:
            return await self.make(asked_at)
        except VocabularyMismatch as mismatch:
            return await self._otherwise(asked_at, mismatch)

    async def _otherwise(self, asked_at: float, mismatch: VocabularyMismatch) -> Connection:
        """Return the connection by messages. Raises the mismatch where there is none."""
        if self._by_messages is None or self._no_messages:
            raise mismatch
        try:
            return await self._by_messages.make(asked_at)
        except NotAnApi:
            self._no_messages = True
            raise mismatch from None

    def made_for(self, decoding: Decoding) -> Connection | None:
        """Return the connection that an answer is asked for over; None: there is none yet."""
        other = self._by_messages.made if self._by_messages is not None and decoding.whole else None
        return other or (None if self._is_open(decoding) else self.made)

    def _is_open(self, decoding: Decoding) -> bool:
        """Whether an answer might be asked for by messages, though there is a connection."""
        if self._by_messages is None or self.made is None or not decoding.whole:
            return False
        settings = decoding.settings
        can, said = self.made[1], settings.top_k or settings.min_p or settings.template_args
        return can.ids and can.same_words is None and settings.dialect is None and not said and not self._no_messages

    async def _make_whole(self, decoding: Decoding, asked_at: float) -> Connection:
        """Connect for an answer that needs no common vocabulary."""
        connection = await self.make_any(asked_at)
        if not self._is_open(decoding):
            return connection
        unknown = VocabularyMismatch("nobody can tell its vocabulary")
        try:
            return await self._otherwise(asked_at, unknown)
        except VocabularyMismatch:
            return connection

    async def make_for(self, decoding: Decoding, asked_at: float) -> Connection:
        """Return the connection. Raises MissingCapability where the policy needs more than there is, and CloudError."""
        settings, policy, whole = decoding.settings, decoding.policy, decoding.whole
        connection = self.made_for(decoding) or await (
            self._make_whole(decoding, asked_at) if whole else self.make(asked_at)
        )
        capabilities = connection[1]
        abilities, same_words = capabilities.abilities, capabilities.same_words is not False
        lacking = policy.needs - abilities
        if lacking or not (same_words or policy.reads_text or whole):
            able = [
                name
                for name, found in PRESETS.items()
                if found.works(abilities, decoding.sampling, same_words=same_words)
            ]
            wanted = " and ".join(ABILITY_TEXT[need] for need in sorted(lacking))
            needs = f"needs an endpoint that can {wanted}" if lacking else OTHER_WORDS
            asked = with_parts(policy.name, {name: getattr(settings, name) for name in ("gate", "judge", "scope")})
            msg = f"policy {asked} {needs}; here {', '.join(able)} work"
            raise MissingCapability(msg)
        try:
            decoding.within_reach(capabilities)
        except UsageError as error:
            raise MissingCapability(str(error)) from None
        return connection
