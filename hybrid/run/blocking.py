"""The same client for code that does not await: every call runs on the event loop of a portal.

The law (``tests/run/test_client.py``): it is the asynchronous client's answer and its events; who is interrupted, or
leaves a stream early, has ended the answer; several threads may ask at once.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import aclosing, closing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Unpack

from hybrid.record.answer import Answer
from hybrid.record.conversation import Prompt
from hybrid.record.events import Event, Finished, text_of
from hybrid.record.state import Spent
from hybrid.run.client import AsyncClient
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.spend import CapStatus

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal


class Client:
    """The same, for code that does not await: every call runs on the portal's event loop."""

    def __init__(self, client: AsyncClient, portal: BlockingPortal) -> None:
        """Take the client and the loop it lives on."""
        self._client = client
        self._portal = portal

    @property
    def settings(self) -> Settings:
        """What was chosen when the client was opened."""
        return self._client.settings

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how the client was opened, a sentence each."""
        return self._client.notes

    @property
    def spent(self) -> Spent:
        """What all answers have cost so far; see ``AsyncClient.spent``."""
        return self._client.spent

    def cap_statuses(self, conversation: str | None = None) -> tuple[CapStatus, ...]:
        """Return the status of the caps that bind an answer now; see ``AsyncClient.cap_statuses``."""
        return self._portal.call(self._client.cap_statuses, conversation)

    def generate(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Answer:
        """Answer a question; see ``AsyncClient.generate``. An interruption ends the answer before it is raised."""
        with closing(self.stream(prompt, **choices)) as events:
            for event in events:
                if isinstance(event, Finished):
                    return event.answer
        msg = "an answer ended without being finished"
        raise RuntimeError(msg)

    def stream(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Generator[Event, None, None]:
        """Yield everything that happens; see ``AsyncClient.stream``. Closing the generator ends the answer first."""
        happened: SimpleQueue[Event | None] = SimpleQueue()
        if self._client.closed:
            msg = "this client is closed"
            raise RuntimeError(msg)
        pump = self._portal.start_task_soon(self._pump, prompt, choices, happened)
        try:
            while (event := happened.get()) is not None:
                yield event
            pump.result()
        finally:
            if not pump.done():
                pump.cancel()
                while happened.get() is not None:
                    pass  # the pump's last word comes when everything is at rest

    def text(self, prompt: Prompt, **choices: Unpack[AnswerChoices]) -> Generator[str, None, None]:
        """Yield the answer's text as it becomes readable; see ``AsyncClient.text``."""
        with closing(self.stream(prompt, **choices)) as events:
            for event in events:
                if text := text_of(event):
                    yield text

    async def _pump(self, prompt: Prompt, choices: AnswerChoices, happened: SimpleQueue[Event | None]) -> None:
        try:
            async with aclosing(self._client.stream(prompt, **choices)) as events:
                async for event in events:
                    happened.put(event)
        finally:
            happened.put(None)
