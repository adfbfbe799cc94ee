"""A whole client over scripted models: two tables, no llama.cpp, no network."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scripted_cloud import ScriptedCloud
from scripted_engine import ScriptedEngine

from hybrid.engine import Worker
from hybrid.prob import Partition
from hybrid.run import AsyncClient, FurtherModel, LocalModel
from hybrid.run.retrying import EndpointHealth
from hybrid.settings.config import Settings
from hybrid.spend import Account, MemoryLedger, Price

WORDS = tuple("abcdefgh")
END = 7
AT_ONCE = 8
SAME = Partition.of_groups(len(WORDS), [{0, 1, 2}, {3, 4, 5}])


def table(name: str, base=None, share: float = 0.0):
    """Random but fixed scores after every prefix; with a base, mostly the base's."""

    def scores(prefix):
        seed = int.from_bytes(hashlib.sha256(f"{name}{prefix}".encode()).digest()[:8], "big")
        own = np.random.default_rng(seed).standard_normal(len(WORDS)) * 2
        own[END] -= 2.0
        return own if base is None else (1 - share) * np.array(base(prefix)) + share * own

    return scores


SMALL = table("small")
LARGE = table("large", SMALL, 0.45)


def greedy(scores, prompt, max_tokens):
    text = ()
    while len(text) < max_tokens and END not in text:
        text += (int(np.argmax(scores(prompt + text))),)
    return tuple(token for token in text if token != END)


async def at_once(_: float) -> None:
    """Wait for a retry as a test does."""


@dataclass
class Clock:
    """The client's clock. It stands, unless a test moves it: an outage lasts as long as the test wants."""

    now: float = 0.0

    def __call__(self):
        return self.now


@dataclass
class House:
    """The objects behind a client, open to a test's eyes."""

    engines: list[ScriptedEngine]
    worker: Worker
    cloud: ScriptedCloud
    ledger: MemoryLedger
    client: AsyncClient
    price: Price | None
    clock: Clock
    critics: list[ScriptedEngine]
    prompt = (0, 1, 2)
    tables = (SMALL, LARGE)

    @property
    def engine(self):
        """The first context; most tests have no other."""
        return self.engines[0]

    def small(self, max_tokens):
        return greedy(SMALL, self.prompt, max_tokens)

    def large(self, max_tokens):
        return greedy(LARGE, self.prompt, max_tokens)


def several(engines_of, tables, critic):
    """What a local model is told of those beside it: experts by name, and a critic's engines."""
    others = {name: FurtherModel(engines_of(scores)) for name, scores in tables.items()}
    found = {"experts": ("local", *others)} if others else {}
    if critic:
        found, others = found | {"critic": "critic"}, others | {"critic": FurtherModel(critic)}
    return found | {"others": others}


@contextmanager
def houses():
    """Yield what builds a client over scripted models; keywords go to the cloud, or name a price, a cap or settings.

    A test has the last ``AT_ONCE`` of its houses; what many inputs built before them is closed.
    ``critic``: the scores of a model that reads drafts; ``planners``: what ``auto`` decides by.
    ``can``: what the cloud says of itself besides; ``parallel``: contexts; ``queue``: settings of waiting for one, or
    any others; ``beside``: tables of further models that write as one with the first, called local; ``partition``.
    """
    workers = []

    def build(
        *,
        price="1/0.1/4",
        cap=None,
        num_context=1000,
        small=SMALL,
        connect=None,
        cloud_context=None,
        ledger=None,
        made=ScriptedEngine,
        retries=2,
        seed=0,
        can=None,
        parallel=1,
        queue=None,
        critic=None,
        planners=None,
        beside=None,
        partition=lambda: SAME,
        **cloud,
    ):
        def engines_of(scores):
            return [made(WORDS, scores, end_ids=frozenset({END}), num_context=num_context) for _ in range(parallel)]

        engines, own = engines_of(small), [Worker(f"test-{i}") for i in range(parallel)]
        workers.extend(own)
        while len(workers) > max(AT_ONCE, parallel):
            workers.pop(0).close()
        remote = ScriptedCloud(LARGE, end_ids=frozenset({END}), **cloud)
        ledger = ledger or MemoryLedger(cap)
        known = Price.parse(price) if price else None
        account = Account(known, ledger, "http://scripted")

        async def reach(_):
            if connect:
                raise connect
            return remote, replace(await remote.connect("", ()), max_context=cloud_context, **(can or {}))

        reads = engines_of(critic) if critic else []
        beside = several(engines_of, beside or {}, reads)
        local = LocalModel(list(zip(engines, own, strict=True)), partition=partition, **beside)
        chosen = Settings(policy="kl", cloud_top_k=8, retries=retries, seed=seed, **(queue or {}))
        client = AsyncClient(local, reach, account, chosen, planners=planners)
        clock = Clock()
        client._health = EndpointHealth(client._health.policy, client._health.config, clock, at_once)
        return House(engines, own[0], remote, ledger, client, known, clock, reads)

    yield build
    for worker in workers:
        worker.close()


@pytest.fixture
def house():
    """What builds a client over scripted models: see ``houses``."""
    with houses() as build:
        yield build


@pytest.fixture
def run():
    """Run a coroutine to its end."""
    return asyncio.run
