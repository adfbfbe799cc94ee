"""The most prompt tokens of a conversation that an endpoint puts into its own template: published, or as it counted.

The law (``tests/cloud/test_prompt_bounds.py``, over a family of toy servers). A server that has one template and one
vocabulary is charged no more prompt tokens than ``PromptCounts.most``, whatever it counted before. What is used:

- A text has no more tokens than bytes (``normal_forms``), and a turn's marks are ``TURN`` tokens at the most.
- A prompt that was counted bounds every prompt that begins with it, and every prompt of its kind: beside its turns the
  two are alike, with a system message first, an empty one, one later, or none. A template adds its own system message
  only where there is none, so a count of the one kind tells nothing of the other.
- Turns of one role that follow each other may have the marks of one: so a counted prompt has marks for its runs alone.
- An answer that was counted is no more than twice as many tokens when it is read again as a turn.
- A prompt may have ``TURN`` tokens more than the same prompt at another time: some templates write the date.

Only what a server told of an answer that ended is learned. A count above the bound shows that one of these sentences is
wrong for this server: all counts are dropped then, and the published bound, raised once, holds from there on.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from hybrid.cloud.normal_forms import max_bytes

# A turn is more than its text: names of roles and marks around them, in any template a few tokens.
TURN: Final = 16
# What a server may put before a conversation, whose length nothing tells beforehand. The longest default system message
# of a published template that was looked at (Ministral 3) has 2,400 characters, gpt-oss's 220. At three characters a
# token, which is few for English, that is 800; rounded up.
PREAMBLE: Final = 1024
# A tokenizer splits a text that was written token by token into other tokens where its writer chose rare ones.
REREAD: Final = 2
SYSTEM_ROLES: Final = frozenset({"system", "developer"})
# Conversations whose counts are kept; one entry is below 200 bytes.
MOST_COUNTS: Final = 1024
_TEXT: Final = b"text "
FORMS: Final = ("NFC", "NFKC", "NFD", "NFKD")


@dataclass(frozen=True)
class BoundedTurn:
    """One turn: its role, the bytes that identify it, and the most tokens that its text has."""

    role: str
    content: bytes
    most: int

    @classmethod
    def of(cls, role: str, text: str) -> BoundedTurn:
        """Take a turn that is text alone."""
        return cls(role, _text_key(text), max_bytes(text))

    @property
    def says_something(self) -> bool:
        """Whether its text is more than white space."""
        return bool(self.content.removeprefix(_TEXT).strip())


@dataclass(frozen=True)
class BoundedPrompt:
    """What a prompt is made of: turns, and what a server prints beside them.

    ``others``: bytes that identify all else that may change the prompt; ``most_others``: the most tokens of what is
    printed for it, in ``num_others`` places, each with a preamble of its own.
    """

    turns: tuple[BoundedTurn, ...]
    others: bytes = b""
    most_others: int = 0
    num_others: int = 0

    def published(self, preamble: int = PREAMBLE) -> int:
        """Return the most tokens where nothing was counted."""
        texts = sum(turn.most for turn in self.turns)
        return preamble * (1 + self.num_others) + self.most_others + texts + TURN * (1 + len(self.turns))


@dataclass(frozen=True)
class CountedAnswer:
    """A whole answer, and the most tokens that it has once it is read again."""

    content: bytes
    most: int

    @classmethod
    def of(cls, text: str, tokens: int) -> CountedAnswer:
        """Take a text of so many tokens, as it was written. What a server might normalise counts by its bytes alone."""
        most = max_bytes(text)
        if text.isascii() or all(unicodedata.is_normalized(form, text) for form in FORMS):
            most = min(most, REREAD * tokens)
        return cls(_text_key(text), most)


@dataclass(frozen=True)
class PromptBound:
    """The most tokens of a prompt; ``counted``: the endpoint has counted a part of it, and that lowered the bound."""

    tokens: int
    counted: bool


@dataclass(frozen=True)
class _Count:
    tokens: int
    num_runs: int


@dataclass(frozen=True)
class PromptCounts:
    """What one endpoint has counted so far. ``more``: what its own preamble may have beyond the published one."""

    more: int = 0
    constant: bool = True
    """Whether it has counted like prompts alike so far."""
    counts: Mapping[bytes, _Count] = field(default_factory=dict, repr=False, hash=False)

    def most(self, prompt: BoundedPrompt) -> PromptBound:
        """Return the most tokens of a prompt."""
        published = prompt.published(PREAMBLE + self.more)
        counted = min(self._counted(prompt), default=published)
        return PromptBound(min(published, counted), counted < published)

    def learn(self, prompt: BoundedPrompt, told: int, answer: CountedAnswer | None = None) -> PromptCounts:
        """Return the counts with a prompt's, as a server told it with a whole answer. 0: it told none."""
        if told <= 0:
            return self
        published = prompt.published(PREAMBLE + self.more)
        if told > self.most(prompt).tokens and (self.more or told <= published):
            return PromptCounts(self.more, constant=False)
        if not self.constant:
            return self
        more = min(PREAMBLE, told - PREAMBLE) if told > published else self.more
        roles = [turn.role for turn in prompt.turns]
        count, whole = _Count(told, _num_runs(roles)), _chain(prompt)[-1]
        counts = dict(self.counts)
        for key, _ in _kinds(prompt):
            counts[key] = min(counts.pop(key, count), count, key=lambda each: each.tokens)
        counts[whole] = max(counts.pop(whole, count), count, key=lambda each: each.tokens)
        if answer is not None:
            key = _link(whole, "assistant", answer.content)
            counts[key] = _Count(told + answer.most + TURN, _num_runs([*roles, "assistant"]))
        return PromptCounts(more, counts=dict([*counts.items()][-MOST_COUNTS:]))

    def _counted(self, prompt: BoundedPrompt) -> Iterator[int]:
        """Yield the bounds that earlier counts give."""
        known = [(key, shared) for shared, key in enumerate(_chain(prompt)) if shared] if self.counts else []
        for key, shared in (*known, *(_kinds(prompt) if self.counts else ())):
            if (count := self.counts.get(key)) is not None:
                texts = sum(turn.most for turn in prompt.turns[shared:])
                marks = TURN * max(0, len(prompt.turns) - count.num_runs)
                yield count.tokens + texts + marks + TURN


def _text_key(text: str) -> bytes:
    return _TEXT + text.encode("utf-8", "surrogatepass")


def _chain(prompt: BoundedPrompt) -> list[bytes]:
    """Return a key for each beginning of a prompt, from none of its turns to all."""
    keys = [_kind(prompt)]
    for turn in prompt.turns:
        keys.append(_link(keys[-1], turn.role, turn.content))
    return keys


def _kinds(prompt: BoundedPrompt) -> list[tuple[bytes, int]]:
    """Return the keys of the prompt's kind, each with the turns that all prompts of that kind share.

    Prompts of a kind that have equal system messages are a kind, too.
    """
    kind, num_system = _kind(prompt), _num_system(prompt)
    with_system = kind
    for turn in prompt.turns[:num_system]:
        with_system = _link(with_system, "same", turn.content)
    return [(kind, 0)] + ([(with_system, num_system)] if num_system else [])


def _kind(prompt: BoundedPrompt) -> bytes:
    """Return the key of a prompt's kind: what is beside its turns, where system messages stand, other roles.

    Templates say more where tools were called.
    """
    others = sorted({turn.role for turn in prompt.turns} - {"user", "assistant", *SYSTEM_ROLES})
    first, later = prompt.turns[: _num_system(prompt)], prompt.turns[_num_system(prompt) :]
    places = (first[:1], first, [turn for turn in later if turn.role in SYSTEM_ROLES])
    systems = (f"{bool(turns)} {any(turn.says_something for turn in turns)}" for turns in places)
    roles = "\n".join((*systems, *others))
    return _digest(prompt.others, roles.encode("utf-8", "surrogatepass"))


def _num_runs(roles: Sequence[str]) -> int:
    """Return how often the role changes: what is no system message and no answer may stand in a user's turn."""
    sides = ["system" if role in SYSTEM_ROLES else role.startswith("assistant") for role in roles]
    return len([*groupby(sides)])


def _num_system(prompt: BoundedPrompt) -> int:
    return next((at for at, turn in enumerate(prompt.turns) if turn.role not in SYSTEM_ROLES), len(prompt.turns))


def _link(key: bytes, role: str, content: bytes) -> bytes:
    role = "system" if role in SYSTEM_ROLES else role
    return _digest(key, role.encode("utf-8", "surrogatepass"), content)


def _digest(*parts: bytes) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()
