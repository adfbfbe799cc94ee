"""A relayer over an upstream that answers by a script, with its ledger: for what relays, and for what serves it."""

from __future__ import annotations

from contextlib import asynccontextmanager

from chat_upstream import upstream
from pydantic import SecretStr

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.relay_bounds import worst_case
from hybrid.cloud.wire import Wire
from hybrid.run.relaying import RELAY_TOKENS, Relayer, RelayTarget
from hybrid.run.retrying import EndpointHealth, RetryPolicy
from hybrid.spend import Account, MemoryLedger, Price

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
BODY = {"model": "hybrid", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
PRICE = Price.parse("1/0.1/4")


async def at_once(_):
    """Wait for a retry as a test does."""


class Relaying:
    """A relayer, its upstream and its ledger, open to a test's eyes."""

    def __init__(self, there, ledger, price, image_tokens, timeouts):
        self.there, self.ledger, self.events = there, ledger, []
        self.wire = Wire(there.url, SecretStr("sk-ours"), timeouts, through_proxies=False)

        self.wire.there = there

        async def model():
            return "big"

        account = Account(price, ledger, there.url)
        health = EndpointHealth(RetryPolicy(), sleep=at_once)
        self.relayer = Relayer(RelayTarget(self.wire, account, model, image_tokens), health)

    def open(self, **body):
        return self.relayer.open({**BODY, **body}, self.events.append)

    @property
    def spent(self):
        return self.ledger.settled_nanousd, self.ledger.reserved_nanousd

    def most(self, limit=RELAY_TOKENS, **body):
        """What the worst case of a body costs."""
        usage = worst_case({**BODY, **body}, limit)
        return PRICE.worst_case(usage.prompt_tokens, usage.completion_tokens)


@asynccontextmanager
async def relaying(*scripts, price=PRICE, cap=None, image_tokens=None, timeouts=None):
    async with upstream(*scripts) as there:
        found = Relaying(there, MemoryLedger(cap), price, image_tokens, timeouts or Timeouts(2, 5, 5, 10))
        try:
            yield found
        finally:
            await found.wire.aclose()
