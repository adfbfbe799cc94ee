"""A child process that answers many questions at once under a shared cap: run by ``tests/spend/test_crowd.py``.

    python crowd.py LEDGER NUM

The cloud's model never ends, so that every request is charged what was reserved: a cap worth ten requests pays for ten.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from scripted_cloud import ScriptedCloud
from scripted_engine import ScriptedEngine

from hybrid.engine import Worker
from hybrid.run import AsyncClient, LocalModel
from hybrid.settings.config import Settings
from hybrid.spend import Account, Price
from hybrid.spend.durable import FileLedger

WORDS = tuple("abcdefgh")
PRICE, MAX_TOKENS = Price.parse("1/0.1/4"), 6
WORST = PRICE.worst_case(3, MAX_TOKENS)  # the prompt "a b c" is three tokens


async def one(ledger: FileLedger) -> dict[str, object]:
    """Answer one question on a client of its own."""
    engine = ScriptedEngine(WORDS, lambda _: [9, *range(7)], end_ids=frozenset({7}), num_context=100)
    cloud, worker = ScriptedCloud(lambda _: [0, 9, 0, 0, 0, 0, 0, 0], end_ids=frozenset({7})), Worker("crowd")

    async def connect(_):
        return cloud, await cloud.connect("", ())

    account = Account(PRICE, ledger, "http://crowd")
    client = AsyncClient(LocalModel([(engine, worker)]), connect, account, Settings(cloud_top_k=8, seed=0))
    answer = await client.generate("a b c", policy="cloud", max_tokens=MAX_TOKENS)
    worker.close()
    charged = sum(PRICE.cost(usage) for usage in cloud.charged.values())
    return {"tokens": len(answer.tokens), "degraded": answer.degraded, "charged": charged}


async def crowd(path: Path, num: int) -> list[dict[str, object]]:
    """Answer them all at once."""
    ledger = FileLedger(path, patience_s=30.0)
    found = await asyncio.gather(*(one(ledger) for _ in range(num)))
    ledger.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(crowd(Path(sys.argv[1]), int(sys.argv[2])))))
