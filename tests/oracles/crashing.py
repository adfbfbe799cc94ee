"""Child processes that spend, and die by SIGKILL at a labelled step: run by ``tests/spend/test_crash.py``.

    python crashing.py    [LEDGER, CHARGES, LABEL, TIMES, URL]  ->  [exit code, what was printed]

Each line of JSON on standard input is one process: a fork of this one, which has imported everything. A start of
Python for each of 200 deaths would take minutes. Without a URL (null) the server is a file: what a request is charged
is appended as soon as it is dispatched. With one it is a real server, asked by a real client. ``TIMES``: at the
how-manieth time the step is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path

LABELS = [
    "before reserve", "in the transaction", "after the transaction", "after reserve", "before dispatch",
    "after dispatch", "mid-stream",
    "before settle", "after settle", "at the end",
]  # fmt: skip
PRICE = "1/0.1/4"
REACHED: list[str] = []


def at(label: str) -> None:
    """Die if it is time."""
    REACHED.append(label)
    if label == LABEL and REACHED.count(label) == TIMES:
        os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """Announce the steps of purses and transactions."""
    from hybrid.spend.answer_budget import AnswerBudget
    from hybrid.spend.durable.file import SqliteFile

    ask, settle, close, transaction = (
        AnswerBudget.reserve,
        AnswerBudget.settle,
        AnswerBudget.close,
        SqliteFile.transaction,
    )

    async def asked(self, *args, **named):
        at("before reserve")
        answer = await ask(self, *args, **named)
        at("after reserve")
        return answer

    def settled(self, *args):
        at("before settle")
        said = settle(self, *args)
        at("after settle")
        return said

    async def closed(self):
        try:
            await close(self)
        finally:  # it raises where a reader that has its answer cancels the rest
            at("at the end")

    @contextlib.contextmanager
    def watched(self, *, flushed):
        with transaction(self, flushed=flushed) as db:
            yield db
            at("in the transaction")
        at("after the transaction")

    AnswerBudget.reserve, AnswerBudget.settle, AnswerBudget.close, SqliteFile.transaction = (
        asked,
        settled,
        closed,
        watched,
    )


async def spend(ledger: Path, charges: Path) -> None:
    """Ask a server that is a file: six answers of four requests."""
    from hybrid.spend import Account, Denial, Price
    from hybrid.spend.durable import FileLedger
    from hybrid.types import CloudUsage

    price, rng = Price.parse(PRICE), random.Random(LABEL + str(TIMES))
    account = Account(price, FileLedger(ledger), "http://file")
    file = os.open(charges, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(6):
        async with account.open_budget() as budget:
            for i in range(4):
                grant = await budget.reserve(20 + 10 * i, rng.choice([1, 8, 40]))
                if isinstance(grant, Denial):
                    continue
                assert await budget.mark_sent(grant) is None
                at("before dispatch")
                usage = CloudUsage(grant.prompt_tokens, rng.randint(0, grant.limit), rng.randint(0, 10))
                os.write(file, f"{price.cost(usage)}\n".encode())
                at("after dispatch")
                at("mid-stream")
                budget.settle(grant, rng.choice([usage, usage, None]))


async def answer(ledger: Path, url: str) -> None:
    """Ask a real server."""
    from acting import acting

    import hybrid
    from hybrid.cloud.bounds import QuestionDeadlines
    from hybrid.cloud.port import unrecorded
    from hybrid.cloud.wire import Wire

    mark_sent, post, stream = QuestionDeadlines.mark_sent, Wire.post, Wire.stream

    async def marked(self, *args):
        await mark_sent(self, *args)
        if self._before_send is not unrecorded:  # a request that costs
            at("before dispatch")

    async def posted(self, path, *args, **named):
        if "completions" not in path:
            return await post(self, path, *args, **named)
        task = asyncio.ensure_future(post(self, path, *args, **named))
        await asyncio.wait([task], timeout=0.01)
        at("after dispatch")
        await asyncio.wait([task])
        at("mid-stream")
        return await task

    async def streamed(self, *args, **named):
        first = True
        async with contextlib.aclosing(stream(self, *args, **named)) as replies:
            async for reply in replies:
                at("after dispatch" if first else "mid-stream")
                first = False
                yield reply

    QuestionDeadlines.mark_sent, Wire.post, Wire.stream = marked, posted, streamed
    flags = {"cloud": url, "price": PRICE, "ledger": ledger, "threads": 1, "max_tokens": 24, "cache_salt": "crash"}
    for policy in ("kl", "cloud", "doubt"):
        async with hybrid.open(local="small", **acting(policy, span=8, threshold=0.01), **flags) as client:
            for question in ("Sort downwards: 42 17 99 23 68.", "What is 47 + 86?"):
                await client.generate(question)


def run(ledger: str, charges: str, url: str | None) -> None:
    """Spend; LABEL and TIMES say when to die."""
    watch()
    asyncio.run(answer(Path(ledger), url) if url else spend(Path(ledger), Path(charges)))


def die_or_end(ledger: str, charges: str, label: str, times: int, url: str | None) -> tuple[int, str]:
    """Fork a process that spends; return how it ended, and what it printed."""
    global LABEL, TIMES
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code, LABEL, TIMES = 1, label, times
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            run(ledger, charges, url)
            code = 0
        except BaseException:  # noqa: BLE001  (a fork must not return)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as pipe:  # noqa: PTH123
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def main() -> None:
    import hybrid.assemble
    import hybrid.engine.llama
    import hybrid.spend.durable

    assert hybrid.assemble
    for line in sys.stdin:
        print(json.dumps(die_or_end(*json.loads(line))), flush=True)


LABEL, TIMES = "", 0

if __name__ == "__main__":
    main()
