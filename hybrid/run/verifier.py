"""The port of a verifier: the larger model that judges drafts and takes the pen, wherever it runs.

A driver knows no more of the larger model than this. The cloud is one verifier (``cloud_verifier``): it has money,
retries and streams. A second local model is another: it computes where the caller waits, so it leaves ``waiting``
alone, refuses nothing and keeps nothing open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from hybrid.engine import ThoughtMarks
from hybrid.policy.requests import BudgetDenied, Check, NoAnswer, Scored, Write, Wrote
from hybrid.types import Ids, Message, TemplateArg

WorkWhileWaiting: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opened while a reply is computed elsewhere: the caller works on meanwhile."""


@dataclass(frozen=True)
class RenderedPrompt:
    """What an answer continues: ``ids`` as the local model reads it, ``turns`` the conversation that they render.

    ``turns``, ``template_args`` and ``thoughts`` are for endpoints that take no prompt but messages. ``thoughts``: the
    marks around thoughts, and whether the prompt has opened them.
    """

    ids: Ids
    turns: tuple[Message, ...] = ()
    template_args: Mapping[str, TemplateArg] = field(default_factory=dict)
    thoughts: ThoughtMarks | None = None


class Verifier(Protocol):
    """One larger model during one answer. A position (``at``) counts from the end of the prompt."""

    async def check(
        self, prompt: RenderedPrompt, request: Check, waiting: WorkWhileWaiting
    ) -> Scored | BudgetDenied | NoAnswer:
        """Return this model's rows for a drafted span: one a token, then the one after; perhaps fewer than were due."""
        ...

    async def write(self, prompt: RenderedPrompt, request: Write) -> Wrote | BudgetDenied | NoAnswer:
        """Return some tokens that this model writes, at most ``request.limit``, each with its row where it has one.

        A further write at the position that was reached goes on with the same text.
        """
        ...

    async def rest(self) -> None:
        """Leave nothing open: the local model goes on, or the answer is over."""
        ...
