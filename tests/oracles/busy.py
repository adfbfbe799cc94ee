"""A process whose clients ask one paid endpoint until they are killed: run by ``tests/spend/test_kills.py``.

    python busy.py LEDGER URL NUM

Each client has a local model and an event loop's task of its own; all share the ledger. "ready" is printed once the
first answer is there. SIGTERM ends it as it ends the command line.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from acting import acting

import hybrid

PRICE = "1/0.1/4"
QUESTIONS = ("Sort downwards: 42 17 99 23 68.", "What is 47 + 86?", "Integrate 30x^5 + 20x^3 + 6x.")


async def ask(path: Path, url: str, policy: str) -> None:
    """Ask for ever, on a client of its own."""
    flags = {"cloud": url, "dialect": "vllm", "price": PRICE, "ledger": path, "threads": 1, "max_tokens": 24}
    async with hybrid.open(local="small", **acting(policy, span=8, threshold=0.05), **flags) as client:
        number = 0
        while True:
            answer = await client.generate(QUESTIONS[number % len(QUESTIONS)])
            if number == 0:
                print("ready", flush=True)
            number += 1
            if answer.degraded and "cap" in answer.degraded:
                await asyncio.sleep(0.2)


async def main(path: Path, url: str, num: int) -> None:
    """Ask with many clients at once, until a signal says to stop."""
    tasks = [asyncio.create_task(ask(path, url, ("kl", "cloud", "doubt")[i % 3])) for i in range(num)]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    for error in found:
        if isinstance(error, Exception):
            raise error


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
