"""Whether two models of one vocabulary have the same habits: their chat templates, and the first word of an answer.

Two models may share every token and still turn each other's drafts down: one may be a base model, or trained with
another chat template. The ids of a rendered chat show a template; the divergence of the first row of an answer to
general questions shows the rest. Both are shown to whoever probes, and decide nothing by themselves.

Laws (``tests/cloud/test_probe_habits.py``): chats are alike exactly where their ids are; what differs in dates alone
(digits, months, weekdays) is told as that; the median and the worst of true divergences lie in their intervals. Knows
no server and no model: rows and ids are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Literal, TypeAlias

from hybrid.prob import Dense, TopK, kl_divergence
from hybrid.types import Ids, Message

# General ones: no bundled family of problems, no digits (a date shows by them), answers that begin in many ways.
QUESTIONS = (
    "Why is the sky blue?",
    "Write two lines about the sea.",
    "How do I boil an egg?",
    "What is the difference between a list and a set in Python?",
    "Suggest three names for a small cat.",
)
# A conversation that is rendered only: templates may differ first in how they close a turn.
CONVERSATION = (
    Message("user", QUESTIONS[0]),
    Message("assistant", "Air scatters blue light."),
    Message("user", "Why?"),
)
# Of pairs of one family the first words were 0.4 to 0.8 nats apart at the median (the bundled ladder, SmolLM2 beside
# its three-bit self and without two layers), 2.4 without four of its thirty layers (lower end 1.7); 9 and 10 where one
# of the two saw the question without its chat template, or in another one (cloud/README.md).
APART_NATS = 2.0
# Tokens that are shown where two chats differ.
SHOWN_TOKENS = 4

KlInterval: TypeAlias = tuple[float, float | None]
"""The ends between which a divergence lies, in nats; None: it is not bounded."""
Habits: TypeAlias = Literal["alike", "apart", "unknown"]

_DIGITS = re.compile(r"\d+")
_NAMES = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LocalChat:
    """A conversation as it is put to the local model.

    ``ids``: as its template writes it, or the text as it stands where there is none (``rendered`` False). ``row``: the
    local distribution of the first token of the answer; None: it is only rendered.
    """

    turns: tuple[Message, ...]
    ids: Ids
    rendered: bool = True
    row: Dense | None = None


@dataclass(frozen=True)
class LocalHabits:
    """The local model's side of the comparison. ``piece``: the bytes of one of its tokens; ValueError for no token."""

    chats: tuple[LocalChat, ...]
    piece: Callable[[int], bytes]

    @property
    def openings(self) -> tuple[tuple[LocalChat, Dense], ...]:
        """The chats whose answer's first token has a row here."""
        return tuple((chat, chat.row) for chat in self.chats if chat.row is not None)


@dataclass(frozen=True)
class ChatDifference:
    """Where two renderings of one chat differ first: after ``position`` tokens, and how each goes on.

    ``here`` is the local model's, ``there`` the endpoint's. ``dates``: the rest is the same but for dates.
    """

    position: int
    here: str
    there: str
    dates: bool = False


def first_difference(ours: Ids, theirs: Ids, piece: Callable[[int], bytes]) -> ChatDifference | None:
    """Compare a chat's ids; None: they are the same."""
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    position = next((n for n, (here, there) in pairs if here != there), min(len(ours), len(theirs)))
    texts = [_text(ids, piece) for ids in (ours, theirs)]
    here, there = (_text(ids[position : position + SHOWN_TOKENS], piece) for ids in (ours, theirs))
    dates = texts[0] != texts[1] and without_dates(texts[0]) == without_dates(texts[1])
    return ChatDifference(position, here, there, dates)


def without_dates(text: str) -> str:
    """Return a text with its numbers, months and weekdays masked.

    >>> without_dates("Today Date: 26 Jul 2024") == without_dates("Today Date: 5 August 2026")
    True
    """
    return _DIGITS.sub("0", _NAMES.sub("Name", text))


def _text(ids: Ids, piece: Callable[[int], bytes]) -> str:
    """Return the text of some tokens; one that is none stands with its number."""
    parts = []
    for token in ids:
        try:
            parts.append(piece(token))
        except ValueError:
            parts.append(b"<token %d>" % token)
    return b"".join(parts).decode("utf-8", "replace")


def opening_kl(cloud: TopK, local: Dense) -> KlInterval | None:
    """Return KL(cloud || local) of an answer's first token; None where the cloud lists a token that is none here."""
    if cloud.ids.size and int(cloud.ids.max()) >= len(local.logits):
        return None
    found = kl_divergence(cloud, local)
    return round(found.lower, 4), None if found.upper == inf else round(found.upper, 4)


def median_kl(found: Sequence[KlInterval]) -> KlInterval | None:
    """Return an interval that holds the median of the divergences; None of none.

    >>> median_kl([(0.1, 0.2), (0.0, None), (2.0, 3.0)])
    (0.1, 3.0)
    """
    return _of_ends(found, lambda ends: float(median(ends)))


def worst_kl(found: Sequence[KlInterval]) -> KlInterval | None:
    """Return an interval that holds the largest of the divergences; None of none.

    >>> worst_kl([(0.1, 0.2), (2.0, 3.0)])
    (2.0, 3.0)
    """
    return _of_ends(found, max)


def _of_ends(found: Sequence[KlInterval], of: Callable[[list[float]], float]) -> KlInterval | None:
    """Apply what is monotone to both ends."""
    if not found:
        return None
    lower, upper = of([low for low, _ in found]), of([inf if high is None else high for _, high in found])
    return lower, None if upper == inf else upper


def habits(found: Sequence[KlInterval]) -> Habits | None:
    """Return whether two models begin their answers alike, by the median; None: nothing was measured."""
    if (middle := median_kl(found)) is None:
        return None
    lower, upper = middle
    if lower >= APART_NATS:
        return "apart"
    return "alike" if upper is not None and upper < APART_NATS else "unknown"
