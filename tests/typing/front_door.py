"""What a type checker says of the front door: ``mypy --strict`` reads this file, and nothing runs it.

A line that must be wrong says so with ``type: ignore[...]``; where it is right after all, mypy reports the ignore.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, assert_type

import hybrid
from hybrid import Answer, AsyncClient, Client, ClientOpener, Message
from hybrid.run import Finished

assert_type(hybrid.open(), ClientOpener)
assert_type(hybrid.open(local="small.gguf", cloud="http://gpu:8000", price="1/0.1/4", cap=0.02), ClientOpener)
assert_type(hybrid.open(local=Path("small.gguf"), span="auto", stop=["END"], config="mine.toml"), ClientOpener)
hybrid.open(span=8, ledger=None)
hybrid.open(span="4..32")

hybrid.open(polcy="kl")  # type: ignore[call-arg]
hybrid.open(max_tokens="many")  # type: ignore[arg-type]
hybrid.open(hold="fast")  # type: ignore[arg-type]
hybrid.open("small.gguf")  # type: ignore[call-arg]

conversation = [{"role": "user", "content": "What is 47 + 86?"}]
messages = [Message("user", "What is 47 + 86?")]


def blocking(client: Client) -> None:
    assert_type(client.generate("What?"), Answer)
    assert_type(client.generate(conversation, policy="kl:0.5", span="cheap", max_tokens=64), Answer)
    assert_type(client.generate(messages, seed=None), Answer)
    for text in client.text("What?", temperature=0.7):
        assert_type(text, str)
    assert_type(client.spent.nanousd, int | None)
    assert_type(client.spent.usd, float | None)
    assert_type(client.spent.requests, int)
    assert_type(client.settings.hold, int | Literal["rest"] | None)

    client.generate("What?", cap=1)  # type: ignore[call-arg]
    client.generate("What?", hold=0.5)  # type: ignore[arg-type]
    client.stream(3)  # type: ignore[arg-type]
    client.text("What?", local="small.gguf")  # type: ignore[call-arg]
    client.spent.nanousd + 1  # type: ignore[operator]
    client.settings.hold = 3  # type: ignore[misc]


async def asynchronous(client: AsyncClient) -> None:
    assert_type(await client.generate("What?", policy="local"), Answer)
    async for event in client.stream(conversation, trace_rows=True):
        if isinstance(event, Finished):
            break
    async for text in client.text(messages):
        assert_type(text, str)
    await client.generate("What?", threads=2)  # type: ignore[call-arg]


def opened(**flags: Any) -> None:
    with hybrid.open(**flags) as client:
        assert_type(client, Client)


async def opened_asynchronously() -> None:
    async with hybrid.open(offline=True) as client:
        assert_type(client, AsyncClient)
