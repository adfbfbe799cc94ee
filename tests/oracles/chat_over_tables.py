"""``hybrid chat`` over two tables in the place of models: what ``hybrid.open`` returns, and a process to be typed at.

As a program it takes a file and flags. It writes into the file, as JSON, what was sent and what the ledger holds once
everything is closed. ``CHUNK_S`` in the environment: how long the cloud takes for a token.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from scripted_cloud import ScriptedCloud
from scripted_engine import ScriptedEngine
from scripted_house import END, LARGE, SMALL, WORDS

import hybrid
from hybrid.__main__ import main as command
from hybrid.cloud import WriteQuestion
from hybrid.engine import Worker
from hybrid.run import AsyncClient, Client, LocalModel
from hybrid.settings.sources import load
from hybrid.spend import Account, MemoryLedger, Price, usd_to_nanousd

NUM_CONTEXT = 120


def endless(table):
    """The table without the end of a text."""
    return lambda prefix: [-99.0 if token == END else score for token, score in enumerate(table(prefix))]


class NamingAccount(Account):
    """An account that knows which conversations it was opened for, and what was still reserved then."""

    def __init__(self, price, ledger, *given):
        super().__init__(price, ledger, *given)
        self.ledger = ledger
        self.conversations, self.reserved = [], []

    def open_budget(self, conversation=None):
        self.conversations.append(conversation)
        self.reserved.append(self.ledger.reserved_nanousd)
        return super().open_budget(conversation)


class SlowCloud(ScriptedCloud):
    """A cloud that takes its time for each token it writes."""

    chunk_s = 0.0

    async def write(self, question, *attempt):
        async for chunk in super().write(question, *attempt):
            yield chunk
            await asyncio.sleep(self.chunk_s)


class Tables:
    """What ``hybrid.open`` returns: settings, and a blocking client over the tables when it is entered."""

    def __init__(self, chunk_s=0.0, num_context=NUM_CONTEXT, **flags):
        given = {name: value for name, value in flags.items() if value is not None}
        self.num_context = num_context
        self.settings = load(**{"policy": "kl", "cloud_top_k": 8, "local": "tables.gguf"} | given)
        self.ledger = MemoryLedger()
        price = Price.parse(self.settings.price) if self.settings.price else None
        cap = usd_to_nanousd(self.settings.cap) if self.settings.cap else None
        self.account = NamingAccount(price, self.ledger, "http://tables", cap)
        self.cloud = SlowCloud(endless(LARGE), end_ids=frozenset({END}))
        self.cloud.chunk_s = chunk_s
        self.stack = ExitStack()

    def __enter__(self):
        worker = Worker("tables")
        self.stack.callback(worker.close)
        portal = self.stack.enter_context(start_blocking_portal())
        self.engine = ScriptedEngine(WORDS, endless(SMALL), end_ids=frozenset({END}), num_context=self.num_context)

        async def reach(_):
            return self.cloud, replace(await self.cloud.connect("", ()), max_context=None)

        client = AsyncClient(LocalModel([(self.engine, worker)]), reach, self.account, self.settings)
        self.stack.callback(portal.call, client.aclose)
        return Client(client, portal)

    def __exit__(self, *_):
        self.stack.close()

    def told(self):
        """What a test asks about."""
        written = [question for question in self.cloud.questions if isinstance(question, WriteQuestion)]
        return {
            "turns": [[[turn.role, turn.content] for turn in each.turns] for each in written],
            "reserved_before": self.account.reserved,
            "open": self.cloud.num_open,
            "settled": self.ledger.settled_nanousd,
            "reserved": self.ledger.reserved_nanousd,
        }


def main() -> None:
    """Be ``hybrid chat`` on a terminal of its own: the session's first one is the one whose Ctrl-C it hears."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    path, flags = Path(sys.argv[1]), sys.argv[2:]
    opened = []

    def tables(**given):
        given.pop("config", None)
        opened.append(Tables(float(os.environ["CHUNK_S"]), **given))
        return opened[-1]

    hybrid.open = tables
    sys.argv = ["hybrid", "chat", *flags]

    try:
        command()
    finally:
        path.write_text(json.dumps(opened[0].told()))


if __name__ == "__main__":
    main()
