"""Connecting once: the answers of a client that need the endpoint at the same time share one attempt and its outcome.

The law (``tests/run/test_connecting.py``): however many ask at once, there is one attempt at a time; what has failed is
told to all who waited for it, as one failure and not as many; one who leaves while connecting leaves the next to do it.
"""

from __future__ import annotations

import asyncio

from hybrid.config import Settings
from hybrid.errors import CloudError, MissingCapability, UsageError
from hybrid.policy import ABILITY_TEXT, PRESETS, Policy
from hybrid.run.cloud_verifier import Connect, Connection
from hybrid.run.composition import policy_of, sampling_of, within_reach


class SharedConnection:
    """The way to an endpoint, and the endpoint once it was reached."""

    def __init__(self, connect: Connect) -> None:
        """Take how to connect; nothing is asked yet."""
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._num_failed = 0
        self._failure: CloudError | None = None
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

    async def make_for(self, policy: Policy, settings: Settings, asked_at: float) -> Connection:
        """Return the connection. Raises MissingCapability where the policy needs more than there is, and CloudError."""
        connection = await self.make(asked_at)
        capabilities = connection[1]
        if missing := policy.needs - capabilities.abilities:
            sampling = sampling_of(settings)
            able = [name for name, found in PRESETS.items() if found.works(capabilities.abilities, sampling)]
            lacking = " and ".join(ABILITY_TEXT[need] for need in sorted(missing))
            msg = f"policy {policy.name} needs an endpoint that can {lacking}; here {', '.join(able)} work"
            raise MissingCapability(msg)
        try:
            policy_of(within_reach(settings, capabilities))
        except UsageError as error:
            raise MissingCapability(str(error)) from None
        return connection
