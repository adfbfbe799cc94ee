"""The local model's side of ``hybrid probe``'s comparison of habits: rendered chats, and first words of answers.

The law (``tests/run/test_local_habits.py``): a chat is rendered by the model's own template, or said not to be; a
question that does not fit into the model has no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from hybrid.cloud.probe_habits import CONVERSATION, QUESTIONS, LocalChat, LocalHabits
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.engine.noise import LocalNoise
from hybrid.engine.vocabulary import LlamaVocabulary
from hybrid.errors import UsageError
from hybrid.types import Ids, Message


def local_habits(weights: Weights, threads: int | None, noise: LocalNoise) -> LocalHabits:
    """Read the first row of an answer to each question, in a context that is as long as it must be."""
    asked = [(turns, *render_or_text(weights, turns)) for turns in ((Message("user", each),) for each in QUESTIONS)]
    longest = weights.longest_context
    fitting = [(turns, ids, rendered) for turns, ids, rendered in asked if longest is None or len(ids) < longest]
    chats: list[LocalChat] = []
    if fitting:
        with closing(weights.context(max(len(ids) for _, ids, _ in fitting) + 1, threads)) as engine:
            cursor = Cursor(engine, noise.nats, noise.shift)
            chats = [LocalChat(turns, ids, rendered, cursor.row(ids)) for turns, ids, rendered in fitting]
    chats.append(LocalChat(CONVERSATION, *render_or_text(weights, CONVERSATION)))
    return LocalHabits(tuple(chats), weights.piece)


def render_or_text(weights: LlamaVocabulary, turns: Sequence[Message]) -> tuple[Ids, bool]:
    """Return a conversation as the model's template writes it, or the first turn's text, and which of the two it is."""
    try:
        return weights.render(turns), True
    except UsageError:
        return weights.tokenize(turns[0].content), False
