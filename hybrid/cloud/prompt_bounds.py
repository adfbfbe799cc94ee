"""The most prompt tokens of a conversation that an endpoint puts into its own template: published, or as it counted.

The law (``tests/cloud/test_prompt_bounds.py``, over a family of toy servers). A server that has one template and one
vocabulary is charged no more prompt tokens than ``PromptCounts.most``, whatever it counted before. What is used:

- A text has no more tokens than bytes (``max_bytes``), and a turn's marks are ``TURN`` tokens at the most.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

# The most bytes that a text has in any form in which a server may tokenise it.
#
# The law (``tests/cloud/test_normal_forms.py``). However a text is cut into parts, and whichever of these is done to
# each part - Unicode's four normal forms, lower case, case folding, one after another, white space stripped - the parts
# have no more bytes together than ``max_bytes``. Every token of a byte-level vocabulary is a byte of that form at the
# least.
#
# Both decompositions, and both changes of case, are made of each character alone, so their bytes add up over a text; a
# composition is never longer than what it is composed of. So the bound is a sum over characters: of an ASCII text its
# length, of any other at most 11 times its bytes (U+FDFA). It needs no normal form of the text itself, which takes
# quadratic time where thousands of marks stand on one letter.
#
# A character that this Python does not know yet may have a decomposition in a newer Unicode (16 has some of two
# characters): it counts as three of four bytes, which is the most that any canonical one has had (UAX 15, table 1).

# Characters that are looked up at once: their codes and counts take 1.3 MiB.
LOOKED_UP_AT_ONCE: Final = 1 << 18
BLOCK: Final = 1 << 12
UNKNOWN_BYTES: Final = 12
# Not known, for private use, and halves of a pair: no block of these alone is worth its forms.
WITHOUT_FORMS: Final = frozenset({"Cn", "Co", "Cs"})
# JSON's \uXXXX; beyond the basic plane there are two of them.
ESCAPED_BYTES: Final = 6
# The most bytes of each character. 0: no text has had one of its block yet; all of them take 0.5 s.
_most: Final = np.zeros(0x110000, np.uint8)


def max_bytes(text: str, *, escaped: bool = False) -> int:
    r"""Return the most bytes of a text's forms; ``escaped``: each character may also be written as JSON's escape.

    >>> max_bytes("plain"), max_bytes("ü"), max_bytes("한"), max_bytes("ü", escaped=True)
    (5, 3, 9, 6)
    """
    if text.isascii() and not (escaped and "\x7f" in text):
        return len(text)
    parts = (text[start : start + LOOKED_UP_AT_ONCE] for start in range(0, len(text), LOOKED_UP_AT_ONCE))
    return sum(int(_look_up(part, escaped=escaped).sum(dtype=np.int64)) for part in parts)


def _look_up(text: str, *, escaped: bool) -> npt.NDArray[np.uint8]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    most = _most[codes]
    if not most.all():
        for block in np.flatnonzero(np.bincount(codes[most == 0] // BLOCK)):
            _most[block * BLOCK : (block + 1) * BLOCK] = _most_of_block(int(block))
        most = _most[codes]
    if escaped:
        most = np.maximum(most, np.uint8(ESCAPED_BYTES) * ((codes > ord("~")) + np.uint8(codes > 0xFFFF)))
    return most


def _most_of_block(block: int) -> npt.NDArray[np.uint8]:
    """Return the most bytes of each character of a block. Marks do not change places across a line's end."""
    chars = [chr(code) for code in range(block * BLOCK, (block + 1) * BLOCK)]
    lines = "\n".join(char if char != "\n" else " " for char in chars)
    kinds = [unicodedata.category(char) for char in chars]
    forms = [lines] if {*kinds} <= WITHOUT_FORMS else _forms(lines)
    most = np.max([_sizes(form) for form in forms], axis=0)
    return np.where([kind == "Cn" for kind in kinds], UNKNOWN_BYTES, most).astype(np.uint8)


def _forms(text: str) -> Iterator[str]:
    """Yield the forms of which one is the longest, whatever the character."""
    in_case: tuple[Callable[[str], str], ...] = (str, str.lower, str.casefold)
    for changed in (change(text) for change in in_case):
        yield changed
        yield unicodedata.normalize("NFD", changed)
        yield unicodedata.normalize("NFKD", changed)


def _sizes(lines: str) -> npt.NDArray[np.int64]:
    """Return the bytes of each line."""
    ends = np.flatnonzero(np.frombuffer((lines + "\n").encode("utf-8", "surrogatepass"), np.uint8) == ord("\n"))
    return np.diff(ends, prepend=-1) - 1


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
