"""Questions to a chat service that counts, through the client or through ``hybrid serve``'s relays, with their ledger.

What is said here of the client is read from its ledger (``hybrid budget log``): reserved and charged, request by
request. What the service charged is its own account's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Self

from asgi_caller import Endpoint
from chat_kinds import Served
from counting_chat import CountingChat

import hybrid
from hybrid.serve.app_state import ServeOptions
from hybrid.spend.durable import FileLedger, LedgerAdmin

PRICE = "1/0.1/4"
LIMIT = 24
QUESTIONS = (
    "What is 47 + 86?",
    "Please explain in one short sentence why the sky looks blue at noon.",
    "And why is it red in the evening?",
    "Give me a title for a lesson about that, in five words.",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
RELAYED = {"tools": [TOOL]}
CLIENT = {
    "local": "small", "dialect": "text-chat", "policy": "cloud", "price": PRICE, "max_tokens": LIMIT, "retries": 0,
    "cool_down_s": 0.001, "first_byte_timeout_s": 5.0, "learn": False,
}  # fmt: skip


@dataclass
class Booking:
    """One line of the ledger, in nano-USD. What is open counts as spent, whole."""

    reserved: int
    booked: int
    state: str


@dataclass
class Books:
    """What came of some questions: answers, the ledger's lines (the oldest first), and the service's account."""

    answers: list[Any] = field(default_factory=list)
    bookings: list[Booking] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    spent: int = 0  # with what is still reserved

    @property
    def truth(self) -> int:
        return sum(each.nanousd for each in self.served)

    def prompt_ratios(self, per_prompt: int = 1000, per_completion: int = 4000) -> list[float]:
        """Prompt part reserved / prompt told, of each request that was served and told a prompt."""
        assert len(self.bookings) == len(self.served)
        return [
            (booking.reserved - per_completion * served.limit) / (per_prompt * served.told["prompt_tokens"])
            for booking, served in zip(self.bookings, self.served, strict=True)
        ]

    def median_ratio(self, per_prompt: int = 1000) -> float:
        """From the second request on: by then the service has counted."""
        return median(self.prompt_ratios(per_prompt)[1:])


def read_ledger(path: Path) -> tuple[list[Booking], int]:
    ledger = FileLedger(path)
    admin = LedgerAdmin(ledger)
    bookings = [
        Booking(entry.granted_nanousd, entry.charged_nanousd + entry.reserved_nanousd, entry.state)
        for entry in reversed(admin.log(10_000))
    ]
    row = admin.rows()[-1]
    ledger.close()
    return bookings, row.spent_nanousd + row.reserved_nanousd


def set_cap(path: Path, nanousd: int) -> None:
    ledger = FileLedger(path)
    LedgerAdmin(ledger).set_cap("total", nanousd)
    ledger.close()


class Asker:
    """Questions through the client (``hybrid.open``)."""

    def __init__(self, cloud: CountingChat, path: Path, **settings: Any):
        self.cloud, self.path, self.settings = cloud, path, CLIENT | settings
        self.texts: list[str] = []

    async def __aenter__(self) -> Self:
        self._opened = hybrid.open(cloud=self.cloud.url, ledger=self.path, **self.settings)
        self.client = await self._opened.__aenter__()
        return self

    async def __aexit__(self, *gone: object) -> None:
        await self._opened.__aexit__(*gone)

    async def ask(self, messages: list[dict[str, Any]], **more: Any) -> Any:
        answer = await self.client.generate(messages, **more)
        return answer, answer.text


class RelayCaller(Asker):
    """Questions through the routes of ``hybrid serve``, over a real client: with tools, so that they are relayed."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.endpoint = Endpoint(SimpleNamespace(client=self.client), ServeOptions())
        return self

    async def ask(self, messages: list[dict[str, Any]], **more: Any) -> Any:
        body = {"model": "hybrid", "messages": messages, "max_tokens": LIMIT, **RELAYED, **more}
        heard = await self.endpoint.ask("/v1/chat/completions", body)
        return heard, " sum" * 12  # what the services here write, whatever became of it


async def converse(asker: Asker, conversations: Sequence[Sequence[Any]], **more: Any) -> list[Any]:
    """Hold these conversations, one after the other. A question is a text, or the content of a turn."""
    found = []
    for questions in conversations:
        messages: list[dict[str, Any]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer, text = await asker.ask(messages, **more)
            messages = [*messages, {"role": "assistant", "content": text}]
            found.append(answer)
    return found


async def at_once(asker: Asker, questions: Sequence[str], **more: Any) -> list[Any]:
    """Ask them all at the same time."""
    asked = (asker.ask([{"role": "user", "content": question}], **more) for question in questions)
    return [answer for answer, _ in await asyncio.gather(*asked)]


def books(
    cloud: CountingChat, path: Path, conversations: Sequence[Sequence[str]], *, caller: type[Asker] = Asker,
    cap: int | None = None, together: bool = False, body: dict[str, Any] | None = None, **settings: Any,
) -> Books:  # fmt: skip
    """Ask, and return what the ledger and the service have of it. ``cap``: nano-USD in all."""
    if cap is not None:
        set_cap(path, cap)
    before = len(cloud.served)

    async def go() -> list[Any]:
        async with caller(cloud, path, **settings) as asker:
            if together:
                return await at_once(asker, [question for each in conversations for question in each], **body or {})
            return await converse(asker, conversations, **body or {})

    answers = asyncio.run(go())
    bookings, spent = read_ledger(path)
    return Books(answers, bookings, cloud.served[before:], spent)
